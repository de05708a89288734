//go:build !linux

package priority

import "os/exec"

// Raise does nothing here: there is no server.
func Raise() error { return nil }

// Start starts a program.
func Start(cmd *exec.Cmd) error { return cmd.Start() }
