//go:build race

package strict

func init() { raceDetector = true }
