//go:build race

package page_test

func init() { raceDetector = true }
