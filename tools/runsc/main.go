// Command runsc is the gVisor that engi ships: upstream's commands from the
// pinned module, without the ones engi never runs, which halves the file.
//
// It adds two things that upstream has no flags for. The seccomp programs of
// sentry and gofer are compiled at build time, as upstream's own build does;
// that saves a fifth of a start. And annotations of the spec tell the sandbox
// how much memory and how many processors it has and how many files it may
// create, since engi makes control groups itself, and where mounts are to be
// for which the root has no place. And machines may run as users that the host
// does not have, see ids.go.
package main

import (
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	_ "unsafe" // for linkname

	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
	_ "gvisor.dev/gvisor/runsc/version"
)

// features is what engi asks for with "runsc engi-features", to know whether
// a runsc from elsewhere can enforce the same limits.
const features = "total-memory cpus inodes mounts pause ids resize"

func main() {
	if len(os.Args) == 2 && os.Args[1] == "engi-features" {
		fmt.Println(features)
		return
	}
	if len(os.Args) == 2 && os.Args[1] == "engi-wait" { // for the caller to see its namespaces
		io.Copy(io.Discard, os.Stdin)
		return
	}
	if err := mapIDs(); err != nil {
		fmt.Fprintln(os.Stderr, "map users:", err)
		os.Exit(1)
	}
	if len(os.Args) == 2 && strings.TrimLeft(os.Args[1], "-") == "version" {
		version = pinned()
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

// version is what upstream's own build sets.
//
//go:linkname version gvisor.dev/gvisor/runsc/version.version
var version string

// pinned returns the version of the module that this was built from.
func pinned() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == "gvisor.dev/gvisor" {
				return dep.Version + " (engi)"
			}
		}
	}
	return "unknown (engi)"
}
