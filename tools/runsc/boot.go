package main

import (
	"context"
	"strconv"

	"github.com/google/subcommands"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/flag"
	"gvisor.dev/gvisor/runsc/specutils"
)

// Annotations that engi writes; see package gvisor of engi.
const (
	annotMemory = "dev.engi.total-memory" // bytes that /proc/meminfo shows
	annotCPUs   = "dev.engi.cpus"         // processors that programs see
	annotInodes = "dev.engi.inodes"       // files that may be created on the root overlay
)

type umount = sentrycmd.Umount

// boot is upstream's command that becomes the sandbox, with the annotations
// turned into its flags.
type boot struct {
	sentrycmd.Boot
	spec *specs.Spec
}

// FetchSpec remembers the spec on its way through.
func (b *boot) FetchSpec(conf *config.Config, f *flag.FlagSet) (string, *specs.Spec, error) {
	id, spec, err := b.Boot.FetchSpec(conf, f)
	b.spec = spec
	return id, spec, err
}

// Execute implements subcommands.Command.
func (b *boot) Execute(ctx context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	if b.spec != nil {
		if err := apply(b.spec.Annotations, f); err != nil {
			util.Fatalf("%v", err)
		}
	}
	return b.Boot.Execute(ctx, f, args...)
}

func apply(annotations map[string]string, f *flag.FlagSet) error {
	for annot, name := range map[string]string{annotMemory: "total-memory", annotCPUs: "cpu-num"} {
		if v, ok := annotations[annot]; ok {
			if err := f.Set(name, v); err != nil {
				return err
			}
		}
	}
	if v, ok := annotations[annotInodes]; ok {
		n, err := strconv.ParseUint(v, 10, 63)
		if err != nil {
			return err
		}
		// The size becomes the mount data of the tmpfs that holds what is
		// written, so a second option may follow it.
		confs, ok := f.Lookup("gofer-mount-confs").Value.(*specutils.GoferMountConfFlags)
		if ok && len(*confs) > 0 && (*confs)[0].Size != "" {
			(*confs)[0].Size += ",nr_inodes=" + strconv.FormatUint(n, 10)
		}
	}
	return nil
}
