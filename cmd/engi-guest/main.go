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
	// Many sandboxes share a host: a small heap matters more than the time
	// that collecting it takes.
	debug.SetGCPercent(25)
	debug.SetMemoryLimit(64 << 20)
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
