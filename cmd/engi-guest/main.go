// Command engi-guest is PID 1 of a sandbox. The host starts it. It reads
// /.engi/guest.json, dials the host and serves it; see package guestd.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/guest/guestd"
)

func main() {
	// The heap of an idle guest is far below the size at which a collection
	// starts, so there is none during a short run.
	debug.SetMemoryLimit(64 << 20)
	// One thread of Go code at a time: switching between threads costs more
	// under gVisor than it gains, and leaves the processors to programs.
	runtime.GOMAXPROCS(1)

	err := guestd.New(guestd.Options{}).Run(context.Background())
	unix.Sync()
	if os.Getpid() == 1 {
		unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF) // under gVisor the end of PID 1 suffices
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "engi-guest:", err)
		os.Exit(1)
	}
}
