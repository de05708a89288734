// Package provider is the seam between engi and what isolates: a Provider
// starts machines, a Machine is one running sandbox with a byte stream to the
// guest program inside. Kinds live below (gvisor, memory); package
// providertest holds every numbered promise as a test that all kinds run.
//
// It is not for pools, records or policies (package fleet) nor for what is
// said on the stream (package guest). Only fleet and node call it.
package provider

import (
	"context"
	"net"

	"github.com/engi-dev/engi"
)

// A Spec is all a machine needs; nothing else about it comes from the node.
type Spec struct {
	ID       engi.SandboxID
	Root     string    // absolute directory: the root file system, never written unless Writable
	Writable bool      // changes go to Root itself; for template builds only
	Size     engi.Size // complete: every field is set
	Hostname string
	Token    string      // the guest demands it from whoever opens a stream
	Network  HostNetwork // zero means loopback only
	Netns    string      // path of a network namespace with the machine's link in it; empty means none
	Mounts   []Mount
	Disk     string // directory that SaveDisk filled: changes to Root to begin with; empty for none
}

// HostNetwork says how much of the host's network a machine sees.
type HostNetwork uint8

const (
	Loopback HostNetwork = iota // its own loopback and nothing else
	Host                        // the host's network; for template builds only
)

// A Mount shows a host path inside.
type Mount struct {
	Source   string // absolute on the host
	Target   string // absolute inside; made if it is missing
	Writable bool   // what is written inside is in Source when the write returns
}

// A Provider starts machines. It is safe for concurrent use.
//
//  1. Start returns a machine whose guest has opened its first stream, or an
//     error and nothing left behind. When ctx ends first, Start cleans up and
//     reports Expired.
//  2. Machines survive the process that started them: after a kill -9 a new
//     provider on the same directory can Adopt each one.
//  3. Found lists every machine there is a trace of, alive or not: adopt or
//     remove each, and nothing is left.
//  4. Remove destroys whatever is left of a machine, may be repeated, and is
//     no error for an unknown ID.
type Provider interface {
	// Tier returns the tier of the machines.
	Tier() engi.Tier
	// Start boots a machine. A template that cannot boot is Invalid, with
	// the console's tail; a fault of ours is Internal.
	Start(ctx context.Context, spec Spec) (Machine, error)
	// Adopt takes over a machine that another process started. It reports
	// NotFound if it does not run any more.
	Adopt(ctx context.Context, id engi.SandboxID) (Machine, error)
	// Found lists machines by their traces.
	Found(ctx context.Context) ([]engi.SandboxID, error)
	// Remove destroys a machine that nobody adopted.
	Remove(ctx context.Context, id engi.SandboxID) error
}

// A Networked is a Provider whose machines take a link: Spec.Netns.
//
//  15. A machine with a Netns reaches, from the addresses that the devices
//     there have, what is at the other end of its link, and nothing else.
//     The namespace lives as long as the machine, and Netns finds it again.
//     Programs may use no raw sockets. Loopback works as without a link.
//  16. What was saved may be restored with another link, the first or none.
//     Connections of before are broken there; new ones work. A machine that
//     goes on after Snapshot or Resume keeps its connections.
type Networked interface {
	// Netns returns a path of the network namespace of a machine that runs,
	// or NotFound. The path is good for as long as the machine runs.
	Netns(ctx context.Context, id engi.SandboxID) (string, error)
}

// A Machine is one running sandbox, owned by whoever started or adopted it.
// It is safe for concurrent use.
//
//  5. Guest can be called many times; each call is a fresh stream to the
//     guest program. After the machine's end it reports Unavailable.
//  6. Done is closed once, when nothing of the machine runs any more,
//     whoever ended it.
//  7. End is meaningful after Done: why the machine ended. A machine killed
//     by its memory limit says memory; one that Close ended says cancelled;
//     any other end is sandbox_lost.
//  8. Close destroys the machine, waits for Done, leaves nothing behind
//     (processes, mounts, cgroups, files), and may be repeated.
type Machine interface {
	ID() engi.SandboxID
	Guest(ctx context.Context) (net.Conn, error)
	Done() <-chan struct{}
	End() engi.Cause
	Close() error
}

// A Pauser is a Machine that can stop its clock and keep its memory.
//
//  9. A paused machine's guest does not answer; after Resume it goes on
//     where it was, streams included.
type Pauser interface {
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
}

// A Checkpointer is a Machine that can be written to disk. The guest must
// have been told to quiesce first (see package guest).
//
//  10. Checkpoint writes the machine to dir, an empty directory, and ends it.
//     If it fails, the machine goes on, and dir holds nothing that Restore
//     takes.
type Checkpointer interface {
	Checkpoint(ctx context.Context, dir string) error
}

// A Restorer is a Provider whose machines are Checkpointers.
//
//  11. Restore starts a machine from what Checkpoint or Snapshot wrote; dir
//     may be used many times. spec has the Root, Size and the Targets of
//     the Mounts of the original, a fresh Token, and a fresh ID or that of
//     the original once it is gone; its Disk is not looked at. Clock, host
//     name and entropy inside are those of the new machine.
type Restorer interface {
	Restore(ctx context.Context, spec Spec, dir string) (Machine, error)
}

// A Snapshotter is a Machine that can be written to disk and go on. The guest
// must have been told to quiesce first; it comes back by itself.
//
//  13. Snapshot writes the machine to dir, an empty directory, as Checkpoint
//     does, and the machine goes on.
type Snapshotter interface {
	Snapshot(ctx context.Context, dir string) error
}

// A DiskSaver is a Machine whose disk can be kept without its memory.
//
//  14. SaveDisk writes what differs from Root to dir, an empty directory:
//     contents, modes, owners, times, links, extended attributes of users and
//     what was removed. The machine goes on. A machine started with dir as
//     Spec.Disk sees the same files.
type DiskSaver interface {
	SaveDisk(ctx context.Context, dir string) error
}

// A Resizer is a Machine whose limits can change while it runs.
//
//  12. After Resize the new VCPUs, Memory and Processes are in force, larger
//     or smaller. Disk, Inodes and OpenFiles stay.
type Resizer interface {
	Resize(ctx context.Context, size engi.Size) error
}

// A Meter is a Machine that knows what it uses.
type Meter interface {
	Usage(ctx context.Context) (engi.Usage, error)
}

// A Diagnoser is a Machine that can say what is wrong with it: console,
// runtime log tails, states of its processes. For people, bounded.
type Diagnoser interface {
	Diagnose(ctx context.Context) string
}

// A Prober is a Provider that can check its host.
type Prober interface {
	// Probe boots a machine from root and reports what works. It returns an
	// error only if probing itself failed.
	Probe(ctx context.Context, root string) (Report, error)
}

// A Report says what a provider can do on this host.
type Report struct {
	Tier        engi.Tier
	Works       bool
	Checks      []Check
	NotEnforced []string // names of engi.Size fields, lower case, that cannot be enforced here
}

// A Check is one fact about the host.
type Check struct {
	Name   string
	OK     bool
	Detail string // what was found
	Fix    string // one line that makes it OK; empty if OK or hopeless
}

// Enforcer is a Provider that knows which limits it cannot enforce here.
type Enforcer interface {
	NotEnforced() []string
}

// A Leak is a trace of a machine that should not be there.
type Leak struct {
	Kind string // process, mount, netns, cgroup, directory
	Name string
}

// A Tracer is a Provider that can look for leaks.
type Tracer interface {
	// Leaks returns traces on this host of machines of this provider other
	// than those in live.
	Leaks(ctx context.Context, live []engi.SandboxID) ([]Leak, error)
}

// Pause pauses m, or reports Unsupported.
func Pause(ctx context.Context, m Machine) error {
	if p, ok := m.(Pauser); ok {
		return p.Pause(ctx)
	}
	return engi.Errorf(engi.Unsupported, "pause %s: this kind of machine cannot pause", m.ID())
}

// Resume resumes m, or reports Unsupported.
func Resume(ctx context.Context, m Machine) error {
	if p, ok := m.(Pauser); ok {
		return p.Resume(ctx)
	}
	return engi.Errorf(engi.Unsupported, "resume %s: this kind of machine cannot pause", m.ID())
}

// Checkpoint writes m to dir, or reports Unsupported.
func Checkpoint(ctx context.Context, m Machine, dir string) error {
	if c, ok := m.(Checkpointer); ok {
		return c.Checkpoint(ctx, dir)
	}
	return engi.Errorf(engi.Unsupported, "checkpoint %s: this kind of machine cannot be saved", m.ID())
}

// Restore starts a machine from dir, or reports Unsupported.
func Restore(ctx context.Context, p Provider, spec Spec, dir string) (Machine, error) {
	if r, ok := p.(Restorer); ok {
		return r.Restore(ctx, spec, dir)
	}
	return nil, engi.Errorf(engi.Unsupported, "restore %s: the %s tier cannot restore", spec.ID, p.Tier())
}

// Snapshot writes m to dir and lets it go on, or reports Unsupported.
func Snapshot(ctx context.Context, m Machine, dir string) error {
	if s, ok := m.(Snapshotter); ok {
		return s.Snapshot(ctx, dir)
	}
	return engi.Errorf(engi.Unsupported, "snapshot %s: this kind of machine cannot be saved", m.ID())
}

// SaveDisk writes what m changed on its disk to dir, or reports Unsupported.
func SaveDisk(ctx context.Context, m Machine, dir string) error {
	if s, ok := m.(DiskSaver); ok {
		return s.SaveDisk(ctx, dir)
	}
	return engi.Errorf(engi.Unsupported, "save the disk of %s: this kind of machine cannot", m.ID())
}

// Resize changes m's limits, or reports Unsupported.
func Resize(ctx context.Context, m Machine, size engi.Size) error {
	if r, ok := m.(Resizer); ok {
		return r.Resize(ctx, size)
	}
	return engi.Errorf(engi.Unsupported, "resize %s: this kind of machine has fixed limits", m.ID())
}
