//go:build race

package docs_test

func init() { raceDetector = true }
