//go:build race

package edit_test

func init() { raceDetector = true }
