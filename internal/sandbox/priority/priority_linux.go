// Package priority keeps the server responsive while programs occupy every processor:
// its threads run before those of programs. Control groups divide processors fairly, but a thread
// that wakes briefly may wait a tenth of a second for its turn, and each response
// needs several turns.
package priority

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	raised   = -12 // nice value as in nice(1): 15 times the default weight
	ordinary = 0
)

// Raise raises the priority of this process, as far as permitted. Threads that start
// later inherit it, and so do programs that are not started with [Start].
func Raise() error {
	// A new thread may have been started by a thread whose priority is not raised yet, so go through them twice.
	for range 2 {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		for _, t := range threads {
			id, err := strconv.Atoi(t.Name())
			if err != nil {
				return err
			}
			if err := unix.Setpriority(unix.PRIO_PROCESS, id, raised); err != nil && err != unix.ESRCH {
				return err
			}
		}
	}
	return nil
}

// Start starts a program that does not inherit the raised priority.
func Start(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// The system call returns 20 minus the nice value.
	have, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if have = 20 - have; err != nil || have >= ordinary {
		return cmd.Start()
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, ordinary); err != nil {
		return err
	}
	err = cmd.Start()
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, have) // without permission, this thread keeps the ordinary priority
	return err
}
