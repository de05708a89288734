//go:build race

package studio_test

func init() { shortFaults = 50 }
