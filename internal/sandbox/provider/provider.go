// Package provider is the interface between engi and the isolation of sandboxes. A
// Provider starts machines; a Machine is one running sandbox, with byte streams
// to the guest program in it. Implementations are in the packages below, gvisor
// and memory; package providertest tests each numbered promise for all of them.
//
// Pools, records and policies are in package fleet; the protocol of the streams
// is in package guest.
package provider

import (
	"context"
	"net"
	"os"
	"path/filepath"

	"github.com/engi-dev/engi/internal/engi"
)

// A Spec describes a machine completely.
type Spec struct {
	ID       engi.SandboxID
	Root     string    // absolute path of the root file system; not written unless Writable
	Writable bool      // write changes to Root itself; for template builds only
	Size     engi.Size // limits of the machine; every field is required
	Hostname string
	Token    string      // secret that the guest requires on every stream
	Network  HostNetwork // zero means loopback only
	Netns    string      // path of a network namespace with the machine's link; empty means none
	Mounts   []Mount
	Disk     string // directory from SaveDisk with initial changes to Root; empty means none
	Weight   int    // processor weight as for Weigher; 0 means 100
	// Wanted is closed when a caller waits for the machine: its boot then continues with
	// WantedWeight. nil means never.
	Wanted       <-chan struct{}
	WantedWeight int
}

// Check returns Invalid for a spec with which no machine can be started.
func (spec Spec) Check() error {
	if _, err := engi.ParseSandboxID(string(spec.ID)); err != nil {
		return err
	}
	if fi, err := os.Stat(spec.Root); err != nil || !fi.IsDir() {
		return engi.Errorf(engi.Invalid, "the root %q is not a directory", spec.Root).
			WithRemedy("build the template again")
	}
	s := spec.Size
	if s.VCPUs <= 0 || s.Memory <= 0 || s.Disk <= 0 || s.Inodes <= 0 || s.Processes <= 0 || s.OpenFiles <= 0 {
		return engi.Errorf(engi.Invalid, "the size %+v is not complete", s).
			WithRemedy("set every limit to more than zero")
	}
	for _, m := range spec.Mounts {
		if !filepath.IsAbs(m.Source) || !filepath.IsAbs(m.Target) || filepath.Clean(m.Target) != m.Target || m.Target == "/" {
			return engi.Errorf(engi.Invalid, "the mount of %q at %q has a path that is not absolute and clean", m.Source, m.Target)
		}
		if _, err := os.Stat(m.Source); err != nil {
			return engi.Errorf(engi.Invalid, "the source of the mount at %q: %v", m.Target, err)
		}
	}
	return nil
}

// HostNetwork is the part of the host's network that a machine can use.
type HostNetwork uint8

const (
	Loopback HostNetwork = iota // only the machine's own loopback
	Host                        // the host's network; for template builds only
)

// A Mount makes a path of the host visible in a machine.
type Mount struct {
	Source   string // absolute path on the host
	Target   string // absolute path in the machine; created if missing
	Writable bool   // programs may write; written data is in Source when the write returns
}

// A Provider starts machines, which outlive it. It has no Close method: when its process
// ends, its machines continue. All methods may be called concurrently. The life of a
// machine begins here and continues in the comment of [Machine]:
//
//  1. Start makes a machine and returns once the guest has opened its first stream.
//     The caller then owns the machine. After an error nothing of it is left. Start
//     reports Expired if ctx ends first, and Conflict if the ID has a machine.
//  2. A kill -9 of the owner's process does not end the machine. A new provider on the
//     same directory takes it over with Adopt, and the caller of Adopt owns it. A
//     machine whose owner was saving it continues. Adopt reports NotFound for a
//     machine that does not run, and for one whose boot had not ended.
//  3. Found lists each machine that has left a trace on the host, whether it runs or
//     not. When each of them is adopted and closed, or removed, no trace is left.
//  4. Remove ends a machine that has no owner, and deletes its traces. It may be
//     repeated, and an unknown ID is not an error.
type Provider interface {
	// Tier returns the tier of the machines.
	Tier() engi.Tier
	// Start boots a machine. It reports Invalid, with the end of the console,
	// for a root that cannot boot, and Internal for a fault of the provider.
	Start(ctx context.Context, spec Spec) (Machine, error)
	// Adopt takes over a machine that another process started. It reports
	// NotFound if the machine no longer runs.
	Adopt(ctx context.Context, id engi.SandboxID) (Machine, error)
	// Found lists machines by their traces.
	Found(ctx context.Context) ([]engi.SandboxID, error)
	// Remove destroys a machine that was not adopted.
	Remove(ctx context.Context, id engi.SandboxID) error
}

// A Networked is a Provider whose machines can have a link: Spec.Netns.
//
//  15. A machine with a Netns reaches, from the addresses of the devices
//     there, the other end of its link and nothing else. The namespace exists
//     as long as the machine, and Netns finds it again. Programs cannot use
//     raw sockets. Loopback works as it does without a link.
//  16. A saved machine may be restored with another link, with the first one,
//     or without. Its old connections are broken then; new ones work. A
//     machine that continues after Snapshot or Resume keeps its connections.
type Networked interface {
	// Netns returns a path of the network namespace of a running machine, or
	// NotFound. The path is valid as long as the machine runs.
	Netns(ctx context.Context, id engi.SandboxID) (string, error)
}

// A Machine is one running sandbox. Its owner is the caller of Start, Restore or
// Adopt; a process has at most one owner of a machine. All methods may be called
// concurrently. This is the rest of its life, see [Provider] for the beginning:
//
//  5. As long as the machine runs, each call of Guest returns a new stream to the guest
//     program, which the caller closes. Guest waits for the guest until ctx ends, and
//     then reports Expired. After the machine's end it reports Unavailable.
//  6. The machine runs until its owner calls Close, until Checkpoint has saved it, until
//     its guest powers off, until it runs out of memory, or until the host ends its
//     processes. Done is closed when no process of it runs any more.
//  7. End returns the cause once Done is closed, and the empty cause before: memory if
//     the machine had reached its memory limit and ending the largest program did not
//     help, cancelled after Close, and sandbox_lost for everything else.
//  8. The owner calls Close in any case, also when the machine has ended by itself.
//     Close ends the machine, waits for Done, and removes its processes, mounts, control
//     groups and files. It may be repeated; after an error the owner calls it again.
type Machine interface {
	ID() engi.SandboxID
	Guest(ctx context.Context) (net.Conn, error)
	Done() <-chan struct{}
	End() engi.Cause
	Close() error
}

// A Pauser is a Machine that can be paused, keeping its memory.
//
//  9. The guest of a paused machine does not answer. After Resume the machine
//     continues where it was, streams included.
type Pauser interface {
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
}

// A Checkpointer is a Machine that can be written to disk. Quiesce the guest
// first, see package guest.
//
//  10. Checkpoint writes the machine to dir, an empty directory, and ends it.
//     If that fails, the machine continues, and Restore does not accept dir.
type Checkpointer interface {
	Checkpoint(ctx context.Context, dir string) error
}

// A Restorer is a Provider whose machines are Checkpointers.
//
//  11. Restore starts a machine from what Checkpoint or Snapshot wrote. dir may
//     be used many times. spec has the Root, the Size and the Targets of the
//     Mounts of the original, a new Token, and a new ID, or that of the
//     original if it is gone. Its Disk is ignored. Clock, host name and
//     entropy are those of the new machine.
type Restorer interface {
	Restore(ctx context.Context, spec Spec, dir string) (Machine, error)
}

// A Snapshotter is a Machine that can be written to disk while it continues.
// Quiesce the guest first; Snapshot wakes it.
//
//  13. Snapshot writes the machine to dir, an empty directory, like Checkpoint,
//     and the machine continues.
type Snapshotter interface {
	Snapshot(ctx context.Context, dir string) error
}

// A DiskSaver is a Machine whose disk can be saved without its memory.
//
//  14. SaveDisk writes all differences from Root to dir, an empty directory:
//     contents, modes, owners, times, links, extended attributes of users and
//     removals. The machine continues. A machine started with dir as Spec.Disk
//     has the same files.
type DiskSaver interface {
	SaveDisk(ctx context.Context, dir string) error
}

// A Resizer is a Machine whose limits can change while it runs.
//
//  12. After Resize the new VCPUs, Memory and Processes are in force, whether
//     larger or smaller. Disk, Inodes and OpenFiles do not change.
type Resizer interface {
	Resize(ctx context.Context, size engi.Size) error
}

// A Weigher is a Machine whose share of processor time can change.
//
//  17. When machines want more processor time than there is, each gets a part in
//     proportion to its weight, 2 to 100. One of weight 1 has what the others leave, and
//     does not delay them, where the host can do that. It reports Unsupported on a host
//     where weights cannot be set.
type Weigher interface {
	SetWeight(weight int) error
}

// A Meter is a Machine that can report its resource usage.
type Meter interface {
	Usage(ctx context.Context) (engi.Usage, error)
}

// A Diagnoser is a Machine that can describe its state for people: its console,
// the end of runtime logs, the state of its processes. The length of the text is bounded.
type Diagnoser interface {
	Diagnose(ctx context.Context) string
}

// A Prober is a Provider that can check the host.
type Prober interface {
	// Probe boots a machine from root and returns a report of the host's capabilities. It returns an
	// error only if the probe itself fails.
	Probe(ctx context.Context, root string) (Report, error)
}

// A Report describes the capabilities of a provider on this host.
type Report struct {
	Tier        engi.Tier
	Works       bool
	Checks      []engi.Check
	NotEnforced []string // lower-case names of engi.Size fields that cannot be enforced on this host
}

// An Enforcer is a Provider that knows which limits it cannot enforce on this
// host: lower-case names of engi.Size fields.
type Enforcer interface {
	NotEnforced() []string
}

// A Leak is a trace of a machine that is gone.
type Leak struct {
	Kind string // process, mount, netns, cgroup, directory
	Name string
}

// A Tracer is a Provider that can find leaks.
type Tracer interface {
	// Leaks returns the traces of this provider's machines on this host, except
	// those of machines in live.
	Leaks(ctx context.Context, live []engi.SandboxID) ([]Leak, error)
}

// Pause pauses m. It reports Unsupported if m is not a Pauser.
func Pause(ctx context.Context, m Machine) error {
	if p, ok := m.(Pauser); ok {
		return p.Pause(ctx)
	}
	return engi.Errorf(engi.Unsupported, "pause %s: this kind of machine cannot pause", m.ID())
}

// Resume resumes m. It reports Unsupported if m is not a Pauser.
func Resume(ctx context.Context, m Machine) error {
	if p, ok := m.(Pauser); ok {
		return p.Resume(ctx)
	}
	return engi.Errorf(engi.Unsupported, "resume %s: this kind of machine cannot pause", m.ID())
}

// Checkpoint writes m to dir. It reports Unsupported if m is not a Checkpointer.
func Checkpoint(ctx context.Context, m Machine, dir string) error {
	if c, ok := m.(Checkpointer); ok {
		return c.Checkpoint(ctx, dir)
	}
	return engi.Errorf(engi.Unsupported, "checkpoint %s: this kind of machine cannot be saved", m.ID())
}

// Restore starts a machine from dir. It reports Unsupported if p is not a
// Restorer.
func Restore(ctx context.Context, p Provider, spec Spec, dir string) (Machine, error) {
	if r, ok := p.(Restorer); ok {
		return r.Restore(ctx, spec, dir)
	}
	return nil, engi.Errorf(engi.Unsupported, "restore %s: the %s tier cannot restore", spec.ID, p.Tier())
}

// Snapshot writes m to dir while it continues. It reports Unsupported if m is not
// a Snapshotter.
func Snapshot(ctx context.Context, m Machine, dir string) error {
	if s, ok := m.(Snapshotter); ok {
		return s.Snapshot(ctx, dir)
	}
	return engi.Errorf(engi.Unsupported, "snapshot %s: this kind of machine cannot be saved", m.ID())
}

// SaveDisk writes the changes on m's disk to dir. It reports Unsupported if m is
// not a DiskSaver.
func SaveDisk(ctx context.Context, m Machine, dir string) error {
	if s, ok := m.(DiskSaver); ok {
		return s.SaveDisk(ctx, dir)
	}
	return engi.Errorf(engi.Unsupported, "save the disk of %s: this kind of machine cannot", m.ID())
}

// Resize changes m's limits. It reports Unsupported if m is not a Resizer.
func Resize(ctx context.Context, m Machine, size engi.Size) error {
	if r, ok := m.(Resizer); ok {
		return r.Resize(ctx, size)
	}
	return engi.Errorf(engi.Unsupported, "resize %s: this kind of machine has fixed limits", m.ID())
}
