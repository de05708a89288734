// Command engi-guest is PID 1 of a sandbox. The host starts it. It reads
// /.engi/guest.json, dials the host and serves it; see package guestd. With the
// name of a builtin as argument, it is that instead; see packages sftp and listen.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/listen"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/sftp"
)

func main() {
	// The heap of an idle guest is far below the size at which a collection
	// starts, so there is none during a short run.
	debug.SetMemoryLimit(64 << 20)
	// One thread of Go code at a time: switching between threads costs more
	// under gVisor than it gains, and leaves the processors to programs.
	runtime.GOMAXPROCS(1)

	var err error
	if len(os.Args) > 1 && os.Getpid() != 1 {
		err = builtin(engi.Builtin(os.Args[1]), os.Args[2:])
	} else {
		err = guestd.New(guestd.Options{}).Run(context.Background())
		unix.Sync()
		if os.Getpid() == 1 {
			unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF) // under gVisor the end of PID 1 suffices
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "engi-guest:", err)
		os.Exit(1)
	}
}

func builtin(name engi.Builtin, args []string) error {
	switch {
	case name == engi.BuiltinSFTP && len(args) == 0:
		return sftp.Serve(os.Stdin, os.Stdout, sftp.Options{Home: os.Getenv("HOME"), LinkFirst: os.Getenv(engi.SFTPLinkFirst) != ""})
	case name == engi.BuiltinListen && len(args) == 1:
		return listen.Serve(os.Stdin, os.Stdout, args[0])
	}
	return fmt.Errorf("no builtin %q", os.Args[1:])
}
