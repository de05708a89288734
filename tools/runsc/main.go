// Command runsc is the gVisor that engi ships: upstream's commands from the
// pinned module, without the ones engi never runs, which halves the file.
//
// It adds two things that upstream has no flags for. The seccomp programs of
// sentry and gofer are compiled at build time, as upstream's own build does;
// that saves a fifth of a start. And annotations of the spec tell the sandbox
// how much memory and how many processors it has and how many files it may
// create, since engi makes control groups itself.
package main

import (
	"fmt"
	"os"

	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
)

// features is what engi asks for with "runsc engi-features", to know whether
// a runsc from elsewhere can enforce the same limits.
const features = "total-memory cpus inodes"

func main() {
	if len(os.Args) == 2 && os.Args[1] == "engi-features" {
		fmt.Println(features)
		return
	}
	useCompiledFilters()
	cli.Run(nil, map[util.SubCommand]string{
		new(cmd.Checkpoint): "",
		new(cmd.Create):     "",
		new(cmd.Debug):      "",
		new(cmd.Delete):     "",
		new(cmd.Exec):       "",
		new(cmd.Kill):       "",
		new(cmd.List):       "",
		new(cmd.PS):         "",
		new(cmd.Pause):      "",
		new(cmd.Restore):    "",
		new(cmd.Resume):     "",
		new(cmd.Run):        "",
		new(cmd.Start):      "",
		new(cmd.State):      "",
		new(cmd.Wait):       "",

		new(boot):      "internal use only",
		new(cmd.Gofer): "internal use only",
		new(umount):    "internal use only",
	}, nil)
}
