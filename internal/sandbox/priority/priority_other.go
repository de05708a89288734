//go:build !linux

package priority

import "os/exec"

// Raise does nothing on this system, because the server does not run on it.
func Raise() error { return nil }

// Start starts a program.
func Start(cmd *exec.Cmd) error { return cmd.Start() }
