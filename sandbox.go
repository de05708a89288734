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

// Network says what a sandbox may reach.
type Network string

const (
	NetworkNone       Network = "none"       // loopback only; the default
	NetworkIsolated   Network = "isolated"   // peers of the same workspace
	NetworkRestricted Network = "restricted" // an allow list
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
	Pending  State = "pending"  // recorded; nothing runs yet
	Starting State = "starting" // its machine boots
	Ready    State = "ready"    // warm: boots are done, nobody uses it
	Running  State = "running"  // used by its owner
	Paused   State = "paused"   // frozen in memory
	Stopping State = "stopping" // being destroyed
	Stopped  State = "stopped"  // gone; End says why
)

// nextStates is the whole life of a sandbox.
var nextStates = map[State][]State{
	Pending:  {Starting, Stopping, Stopped},
	Starting: {Ready, Running, Stopping, Stopped},
	Ready:    {Running, Stopping, Stopped},
	Running:  {Paused, Stopping, Stopped},
	Paused:   {Running, Stopping, Stopped},
	Stopping: {Stopped},
}

// States returns every state in the order of a life.
func States() []State {
	return []State{Pending, Starting, Ready, Running, Paused, Stopping, Stopped}
}

// To returns to if a sandbox in state s may move there, else Conflict.
func (s State) To(to State) (State, error) {
	if !slices.Contains(nextStates[s], to) {
		return s, Errorf(Conflict, "a %s sandbox cannot become %s", s, to)
	}
	return to, nil
}

// A Sandbox is the record of one sandbox: what was asked for and what is so.
// It outlives the machine that runs it, and is a value: copies are safe.
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
}

// An Owner is who may see and use an object; to everybody else the object
// does not exist. The empty owner is the node itself.
type Owner string
