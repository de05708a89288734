//go:build !unix

package main

import "os"

// watchWindow does nothing, because this system has no signal for it.
func watchWindow() (changed <-chan os.Signal, stop func()) { return nil, func() {} }
