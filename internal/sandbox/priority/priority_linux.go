// Package priority keeps the server responsive while programs want every processor:
// its threads go before theirs. Control groups divide processors fairly, but a thread
// that wakes for a moment may wait a tenth of a second for its turn, and each answer
// needs some.
package priority

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	raised   = -12 // as nice(1) counts: 15 times the weight
	ordinary = 0
)

// Raise raises the priority of this process, as far as it may. Threads that start
// later inherit it, and so do programs that are not started with [Start].
func Raise() error {
	// A thread that starts meanwhile may have been started by one that comes later.
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

// Start starts a program that does not inherit what Raise did.
func Start(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// The system call returns 20 less.
	have, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if have = 20 - have; err != nil || have >= ordinary {
		return cmd.Start()
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, ordinary); err != nil {
		return err
	}
	err = cmd.Start()
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, have) // without the right to, this thread goes on like others
	return err
}
