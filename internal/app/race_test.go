//go:build race

package app_test

func init() { shortFaults = 50 }
