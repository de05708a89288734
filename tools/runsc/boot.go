package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/google/subcommands"
	"golang.org/x/sys/unix"

	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/flag"
	"gvisor.dev/gvisor/runsc/specutils"
)

// Annotations that engi writes; see package gvisor of engi.
const (
	annotMemory = "dev.engi.total-memory" // bytes that /proc/meminfo shows
	annotCPUs   = "dev.engi.cpus"         // processors that programs see
	annotInodes = "dev.engi.inodes"       // files that may be created on the root overlay
	annotMount  = "dev.engi.mount."       // followed by where the gofer has a mount: where programs see it
)

type umount = sentrycmd.Umount

// boot is upstream's command that becomes the sandbox, with the annotations
// turned into its flags.
type boot struct{ sentrycmd.Boot }

// Execute implements subcommands.Command.
func (b *boot) Execute(ctx context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	annotations, err := donated(f)
	if err == nil {
		err = apply(annotations, f)
	}
	if err == nil {
		err = moveMounts(annotations, f)
	}
	if err != nil {
		util.Fatalf("annotations: %v", err)
	}
	return b.Boot.Execute(ctx, f, args...)
}

// donated reads the annotations of the spec that the command was given as an
// open file, and leaves the file as it was.
func donated(f *flag.FlagSet) (map[string]string, error) {
	fd, err := strconv.Atoi(f.Lookup("spec-fd").Value.String())
	if err != nil || fd < 0 {
		return nil, fmt.Errorf("no spec: %v", err)
	}
	var spec struct {
		Annotations map[string]string `json:"annotations"`
	}
	in := io.NewSectionReader(pread(fd), 0, 1<<30)
	err = json.NewDecoder(in).Decode(&spec)
	return spec.Annotations, err
}

// pread reads a descriptor at given places, without owning it.
type pread int

func (fd pread) ReadAt(b []byte, off int64) (int, error) {
	n, err := unix.Pread(int(fd), b, off)
	if n == 0 && err == nil {
		err = io.EOF
	}
	return max(n, 0), err
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

// moveMounts changes where mounts are, in the list that the gofer sends. The
// gofer needs a place for each in the root of the host, which must stay as it
// is; the sandbox's kernel makes places in its own layer.
func moveMounts(annotations map[string]string, f *flag.FlagSet) error {
	moves := map[string]string{}
	for key, to := range annotations {
		if from, ok := strings.CutPrefix(key, annotMount); ok {
			moves[from] = to
		}
	}
	if len(moves) == 0 {
		return nil
	}
	fd, err := strconv.Atoi(f.Lookup("mounts-fd").Value.String())
	if err != nil || fd < 0 {
		return fmt.Errorf("no list of mounts: %v", err)
	}
	raw, err := io.ReadAll(io.LimitReader(input(fd), 1<<20))
	if err != nil {
		return err
	}
	var mounts []map[string]any
	if err := json.Unmarshal(raw, &mounts); err != nil {
		return fmt.Errorf("read the list of mounts: %v", err)
	}
	for _, m := range mounts {
		if from, ok := m["destination"].(string); ok && moves[from] != "" {
			m["destination"] = moves[from]
		}
	}
	if raw, err = json.Marshal(mounts); err != nil {
		return err
	}
	list, err := unix.MemfdCreate("mounts", 0)
	if err != nil {
		return err
	}
	defer unix.Close(list)
	for done := 0; done < len(raw); {
		n, err := unix.Pwrite(list, raw[done:], int64(done))
		if err != nil {
			return err
		}
		done += n
	}
	return unix.Dup3(list, fd, 0)
}

// input reads a descriptor without owning it.
type input int

func (fd input) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(int(fd), b)
		switch {
		case err == unix.EINTR:
		case n == 0 && err == nil:
			return 0, io.EOF
		default:
			return max(n, 0), err
		}
	}
}
