//go:build !unix

package main

import "os"

// watchWindow tells nothing: such systems have no signal for it.
func watchWindow() (changed <-chan os.Signal, stop func()) { return nil, func() {} }
