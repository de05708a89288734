//go:build race

package output_test

func init() { raceDetector = true }
