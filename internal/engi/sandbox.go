package engi

import (
	"slices"
	"time"
)

// A Tier is the strength of a sandbox's isolation. A request may demand a
// minimum; a result names the tier that was used.
type Tier string

const (
	TierScript  Tier = "script"  // an interpreter in a locked-down process
	TierGVisor  Tier = "gvisor"  // a user-space kernel
	TierMicroVM Tier = "microvm" // hardware virtualization
	TierMemory  Tier = "memory"  // no isolation: a fake for tests, never offered to users
)

// A Size holds the resource limits of one sandbox. Zero fields mean the template's
// default, and then the node's.
type Size struct {
	VCPUs     float64 // processor time, in processors; 0.5 is half of one
	Memory    int64   // bytes, including the memory of the isolation itself
	Disk      int64   // disk space, in bytes
	Inodes    int64   // maximum number of new files
	Processes int     // maximum number of processes and threads
	OpenFiles int     // maximum number of open files per process
}

// Or returns s with its zero fields taken from def.
func (s Size) Or(def Size) Size {
	or(&s.VCPUs, def.VCPUs)
	or(&s.Memory, def.Memory)
	or(&s.Disk, def.Disk)
	or(&s.Inodes, def.Inodes)
	or(&s.Processes, def.Processes)
	or(&s.OpenFiles, def.OpenFiles)
	return s
}

// Fits reports whether every field of s is at most that of most. Zero fields
// of most are no limit.
func (s Size) Fits(most Size) bool {
	return fits(s.VCPUs, most.VCPUs) && fits(s.Memory, most.Memory) && fits(s.Disk, most.Disk) &&
		fits(s.Inodes, most.Inodes) && fits(s.Processes, most.Processes) && fits(s.OpenFiles, most.OpenFiles)
}

// Validate reports Invalid for negative fields.
func (s Size) Validate() error {
	if s.VCPUs < 0 || s.Memory < 0 || s.Disk < 0 || s.Inodes < 0 || s.Processes < 0 || s.OpenFiles < 0 {
		return Errorf(Invalid, "negative limit in %+v", s).WithRemedy("leave a limit out to get its default")
	}
	return nil
}

// A CPUQuota limits sustained processor time, below the [Size], which limits short
// bursts. The zero quota is no limit.
type CPUQuota struct {
	VCPUs  float64       // sustained processor time, in processors
	Window time.Duration // period over which use is counted; unused time of one period may be used at once
	Credit time.Duration // processor time that a new sandbox may use at once
}

type number interface{ ~int | ~int64 | ~float64 }

// or sets *p to def if it is zero.

func or[N number](p *N, def N) {
	if *p == 0 {
		*p = def
	}
}

func fits[N number](n, most N) bool { return most == 0 || n <= most }

// Usage is the resource usage of a sandbox.
type Usage struct {
	CPU        time.Duration // processor time since start
	Memory     int64         // bytes now
	MemoryPeak int64         // highest memory use in bytes; 0 if the host does not report it
	Processes  int           // current number of processes; 0 if unknown
}

// A State is a point in the life of a sandbox.
type State string

const (
	Pending     State = "pending"     // recorded; nothing is running yet
	Starting    State = "starting"    // the machine is booting
	Ready       State = "ready"       // warm: booted, without an owner
	Running     State = "running"     // in use by its owner or an execution
	Paused      State = "paused"      // in memory; the programs are frozen
	Hibernating State = "hibernating" // being written to disk
	Hibernated  State = "hibernated"  // on disk, without a machine
	Resuming    State = "resuming"    // being started from disk
	Stopping    State = "stopping"    // being destroyed
	Stopped     State = "stopped"     // destroyed; End says why
)

// nextStates lists the states that may follow each state.
var nextStates = map[State][]State{
	Pending:  {Starting, Stopping, Stopped},
	Starting: {Ready, Running, Stopping, Stopped},
	Ready:    {Running, Stopping, Stopped},
	Running:  {Paused, Hibernating, Stopping, Stopped},
	Paused:   {Running, Hibernating, Stopping, Stopped},

	// After a crash during hibernation, a sandbox is Running if its machine is alive,
	// or Hibernated if its image is complete.
	Hibernating: {Hibernated, Running, Stopping, Stopped},
	Hibernated:  {Resuming, Stopping, Stopped},
	Resuming:    {Running, Hibernated, Stopping, Stopped},

	Stopping: {Stopped},
}

// States returns every state, in the order in which they usually follow.
func States() []State {
	return []State{Pending, Starting, Ready, Running, Paused, Hibernating, Hibernated, Resuming, Stopping, Stopped}
}

// To returns to if that state may follow s, else Conflict.
func (s State) To(to State) (State, error) {
	if !slices.Contains(nextStates[s], to) {
		return s, Errorf(Conflict, "a %s sandbox cannot become %s", s, to)
	}
	return to, nil
}

// A Sandbox is the record of one sandbox, with its specification and its state. It
// outlives the machine that runs it. It is a value: copies are safe, but its
// maps and slices are shared and must not be changed.
//
// Sandboxes of pools have no Owner. Sandboxes of executions have Execution
// set. Sandboxes that owners created, with [Sandboxes.Create] or [Lifecycle.Fork],
// have the fields from Lifetime on.
type Sandbox struct {
	ID        SandboxID
	Owner     Owner  // empty while the sandbox is in a pool
	Template  string // name, as asked for
	Digest    string // digest of the template's content
	Pool      string // key of the pool that booted the sandbox; empty if it was booted for its owner
	Tier      Tier   // isolation of the machine
	Size      Size   // limits in force
	State     State
	End       Cause       // reason why the sandbox stopped; empty before
	Execution ExecutionID // execution that uses the sandbox; empty if none
	Created   time.Time   // UTC, as are all times in this package
	Stopped   time.Time   // zero until the sandbox has stopped

	Lifetime  Lifetime          // as requested, with defaults filled in
	Deadline  time.Time         // time at which Lifetime.OnTimeout takes effect; zero unless running
	Started   time.Time         // time of the last creation or resumption
	Active    time.Time         // time of the last use from outside
	Snapshot  SnapshotID        // snapshot from which the sandbox started; empty if it started from a template
	Metadata  map[string]string // labels of the owner
	Env       map[string]string // environment variables of every program; values may be secret, so never show them
	Volumes   []VolumeMount
	Network   NetworkPolicy
	Ports     PortPolicy
	CPUQuota  CPUQuota
	Throttled bool              // the CPUQuota is used up, and limits the sandbox now
	Disk      bool              // hibernated without memory: resuming boots the sandbox from its disk
	Notes     map[string]string // data that an API stores with the sandbox; never shown to users
}

// An Owner is the one who may see and use an object. For all others the object does
// not exist. The empty owner is the node itself.
type Owner string

// Viewer returns the viewer who sees the objects of o and nothing else. It never returns Everyone.
func (o Owner) Viewer() Viewer {
	if v := Viewer(o); v != Everyone {
		return v
	}
	return "**" // nobody: no owner has the name of Everyone
}

// Reach returns the viewer who sees the objects that an object of o may use, such as
// the template, volumes and secrets of a sandbox: those of o. Objects of the node itself may use
// those of every owner, because only administrators and the node's configuration create them.
func (o Owner) Reach() Viewer {
	if o == "" {
		return Everyone
	}
	return o.Viewer()
}

// A Viewer says whose objects a look-up finds: those of one owner, or everyone's. For a
// viewer, all other objects do not exist. The zero Viewer sees only the objects of the node
// itself. A viewer is made by [Owner.Viewer] or is [Everyone].
type Viewer string

// Everyone is the viewer who sees the objects of every owner and of the node. It is for
// administrators, and for the node's own work on objects that it has found before. No owner has
// this name, because package key does not accept it.
const Everyone Viewer = "*"

// Sees reports whether an object of owner exists for v.
func (v Viewer) Sees(owner Owner) bool { return v == Everyone || v == owner.Viewer() }

// Owner returns the owner whose quotas and budget v uses: the node itself for Everyone.
func (v Viewer) Owner() Owner {
	if v == Everyone {
		return ""
	}
	return Owner(v)
}
