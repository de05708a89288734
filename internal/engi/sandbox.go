package engi

import (
	"slices"
	"time"
)

// A Tier says how strongly a sandbox is isolated. A request may demand a
// minimum; a result names the tier used.
type Tier string

const (
	TierScript  Tier = "script"  // an interpreter in a locked-down process
	TierGVisor  Tier = "gvisor"  // a user-space kernel
	TierMicroVM Tier = "microvm" // hardware virtualization
	TierMemory  Tier = "memory"  // no isolation: a fake for tests, never offered to users
)

// A Size is the most that one sandbox may use. Zero fields mean the template's
// default, or else the node's.
type Size struct {
	VCPUs     float64 // processors' worth of time; 0.5 is half of one
	Memory    int64   // bytes, those of the isolation itself included
	Disk      int64   // bytes it may write
	Inodes    int64   // files it may create
	Processes int     // processes and threads alive at once
	OpenFiles int     // descriptors per process
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

// A CPUQuota bounds processor time in the long run, below what a [Size] allows for a
// while. The zero quota is no bound.
type CPUQuota struct {
	VCPUs  float64       // processors' worth of time
	Window time.Duration // over which it is counted; unused time of so long may be used at once
	Credit time.Duration // of processor time, which the sandbox begins with
}

type number interface{ ~int | ~int64 | ~float64 }

// or sets *p to def if it is zero.

func or[N number](p *N, def N) {
	if *p == 0 {
		*p = def
	}
}

func fits[N number](n, most N) bool { return most == 0 || n <= most }

// Usage is what a sandbox has used or uses at one moment.
type Usage struct {
	CPU        time.Duration // processor time since start
	Memory     int64         // bytes now
	MemoryPeak int64         // bytes; 0 if the host does not say
	Processes  int           // inside, now; 0 if unknown
}

// A State is a point in the life of a sandbox.
type State string

const (
	Pending     State = "pending"     // recorded; nothing runs yet
	Starting    State = "starting"    // its machine boots
	Ready       State = "ready"       // warm: it has booted and is nobody's
	Running     State = "running"     // used by its owner or an execution
	Paused      State = "paused"      // in memory; its programs do not run
	Hibernating State = "hibernating" // being written to disk
	Hibernated  State = "hibernated"  // on disk; it has no machine
	Resuming    State = "resuming"    // being started from disk
	Stopping    State = "stopping"    // being destroyed
	Stopped     State = "stopped"     // gone; End says why
)

// nextStates lists the states that may follow each state.
var nextStates = map[State][]State{
	Pending:  {Starting, Stopping, Stopped},
	Starting: {Ready, Running, Stopping, Stopped},
	Ready:    {Running, Stopping, Stopped},
	Running:  {Paused, Hibernating, Stopping, Stopped},
	Paused:   {Running, Hibernating, Stopping, Stopped},

	// After a crash in between, a sandbox is Running if its machine is alive,
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

// A Sandbox is the record of one sandbox: what was asked for, and what is. It
// outlives the machine that runs it. It is a value: copies are safe, but its
// maps and slices are shared and must not be changed.
//
// Pools have sandboxes without an Owner. Those of executions have Execution
// set. Those that owners created, with [Sandboxes.Create] or [Lifecycle.Fork],
// have the fields from Lifetime on.
type Sandbox struct {
	ID        SandboxID
	Owner     Owner  // empty while it is in a pool
	Template  string // name, as asked for
	Digest    string // of the template's content
	Pool      string // key of the pool that booted it; empty if it was booted for its owner
	Tier      Tier   // of the machine
	Size      Size   // in force
	State     State
	End       Cause       // why it stopped; empty before
	Execution ExecutionID // that uses it; empty if none
	Created   time.Time   // UTC, as are all times in this package
	Stopped   time.Time   // zero before

	Lifetime  Lifetime          // what was asked for, defaults filled in
	Deadline  time.Time         // when Lifetime.OnTimeout happens; zero unless it is running
	Started   time.Time         // when it was last created or resumed
	Active    time.Time         // when it was last used from outside
	Snapshot  SnapshotID        // that it began as a copy of; empty if it began from a template
	Metadata  map[string]string // the owner's own words, to find it by
	Env       map[string]string // that every program in it gets; values may be secret, so never list them
	Volumes   []VolumeMount
	Network   NetworkPolicy
	Ports     PortPolicy
	CPUQuota  CPUQuota
	Throttled bool              // it has used up its CPUQuota, and may use no more than that
	Disk      bool              // it hibernates without its memory: resuming boots it again on its disk
	Notes     map[string]string // what an API keeps with it; never shown to users
}

// An Owner is who may see and use an object. To everybody else the object does
// not exist. The empty owner is the node itself.
type Owner string
