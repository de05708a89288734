package engi

import (
	"slices"
	"time"
)

// A Tier says how strong the wall around a sandbox is, weakest first. A
// request may demand a minimum; a result names the tier used.
type Tier string

const (
	TierScript  Tier = "script"  // an interpreter in a locked-down process
	TierGVisor  Tier = "gvisor"  // a user-space kernel
	TierMicroVM Tier = "microvm" // hardware virtualization
	TierMemory  Tier = "memory"  // no wall: the twin for tests, never offered to users
)

// A Size is what one sandbox may use at most. Zero fields mean the default of
// the template, then of the node.
type Size struct {
	VCPUs     float64 // processors' worth of time; 0.5 is half of one
	Memory    int64   // bytes, everything that belongs to the sandbox included
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

// Fits reports whether every field of s is at most that of max. Zero fields
// of max are no limit.
func (s Size) Fits(max Size) bool {
	return fits(s.VCPUs, max.VCPUs) && fits(s.Memory, max.Memory) && fits(s.Disk, max.Disk) &&
		fits(s.Inodes, max.Inodes) && fits(s.Processes, max.Processes) && fits(s.OpenFiles, max.OpenFiles)
}

// Validate reports Invalid for negative fields.
func (s Size) Validate() error {
	if s.VCPUs < 0 || s.Memory < 0 || s.Disk < 0 || s.Inodes < 0 || s.Processes < 0 || s.OpenFiles < 0 {
		return Errorf(Invalid, "negative limit in %+v", s).WithRemedy("leave a limit out to get its default")
	}
	return nil
}

type number interface{ ~int | ~int64 | ~float64 }

func or[N number](p *N, def N) {
	if *p == 0 {
		*p = def
	}
}

func fits[N number](n, max N) bool { return max == 0 || n <= max }

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
	Ready       State = "ready"       // warm: boots are done, nobody uses it
	Running     State = "running"     // used by its owner
	Paused      State = "paused"      // frozen in memory
	Hibernating State = "hibernating" // being written to disk
	Hibernated  State = "hibernated"  // on disk; no machine
	Resuming    State = "resuming"    // being started from disk
	Stopping    State = "stopping"    // being destroyed
	Stopped     State = "stopped"     // gone; End says why
)

// nextStates is the whole life of a sandbox.
var nextStates = map[State][]State{
	Pending:  {Starting, Stopping, Stopped},
	Starting: {Ready, Running, Stopping, Stopped},
	Ready:    {Running, Stopping, Stopped},
	Running:  {Paused, Hibernating, Stopping, Stopped},
	Paused:   {Running, Hibernating, Stopping, Stopped},

	// A crash in between leads back: to Running if the machine lives on, to
	// Hibernated if what is on disk is whole.
	Hibernating: {Hibernated, Running, Stopping, Stopped},
	Hibernated:  {Resuming, Stopping, Stopped},
	Resuming:    {Running, Hibernated, Stopping, Stopped},

	Stopping: {Stopped},
}

// States returns every state in the order of a life.
func States() []State {
	return []State{Pending, Starting, Ready, Running, Paused, Hibernating, Hibernated, Resuming, Stopping, Stopped}
}

// To returns to if a sandbox in state s may move there, else Conflict.
func (s State) To(to State) (State, error) {
	if !slices.Contains(nextStates[s], to) {
		return s, Errorf(Conflict, "a %s sandbox cannot become %s", s, to)
	}
	return to, nil
}

// A Sandbox is the record of one sandbox: what was asked for and what is so.
// It outlives the machine that runs it, and is a value: copies are safe, but
// its maps and slices are shared and never written.
//
// Three things use sandboxes: pools (no Owner), executions (Execution is set),
// and owners directly, through [Sandboxes.Create]; only the last kind has what
// stands below Lifetime.
type Sandbox struct {
	ID        SandboxID
	Owner     Owner       // empty while it is warm and nobody's
	Template  string      // name, as asked for
	Digest    string      // of the template's content
	Pool      string      // key of the pool that made it; empty if made on demand
	Tier      Tier        // of the machine
	Size      Size        // in force
	State     State       // see nextStates
	End       Cause       // why it stopped; empty before
	Execution ExecutionID // the run that uses it; empty if none
	Created   time.Time   // UTC, as are all times in this package
	Stopped   time.Time   // zero while it lives

	Lifetime Lifetime          // what was asked for, defaults filled in
	Deadline time.Time         // when Lifetime.OnTimeout happens; zero while it is not awake
	Started  time.Time         // when it was last created or resumed
	Active   time.Time         // when it was last used from outside
	Snapshot SnapshotID        // it began as a copy of; empty if from a template
	Metadata map[string]string // the owner's own words, to find it by
	Env      map[string]string // every program in it gets; values may be secret: never list them
	Volumes  []VolumeMount
	Network  NetworkPolicy
	Ports    PortPolicy
	Disk     bool              // Hibernated without memory: resuming boots it anew on its disk
	Notes    map[string]string // what a surface keeps with it; never shown to users
}

// An Owner is who may see and use an object; to everybody else the object
// does not exist. The empty owner is the node itself.
type Owner string
