//go:build race

package genui_test

func init() { raceDetector = true }
