//go:build race

package project_test

func init() { raceDetector = true }
