//go:build race

package library_test

func init() { raceDetector = true }
