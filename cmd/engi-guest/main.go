// Command engi-guest is PID 1 of a sandbox. The host starts it; it reads
// /.engi/guest.json, dials the host and does what package guestd says.
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
	// The heap of an idle guest is far below the least at which the collector
	// starts, so a short run never meets it.
	debug.SetMemoryLimit(64 << 20)
	// One thread of Go code at a time: handing work between threads costs more
	// under gVisor than it gains, and the processors are the program's.
	runtime.GOMAXPROCS(1)

	err := guestd.New(guestd.Options{}).Run(context.Background())
	unix.Sync()
	if os.Getpid() == 1 {
		unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF) // under gVisor the end of PID 1 does it
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "engi-guest:", err)
		os.Exit(1)
	}
}
