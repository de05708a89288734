package engi

import (
	"context"
	"time"
)

// A SandboxSpec asks for a sandbox that lives until its owner, its deadline or
// its idleness ends it.
type SandboxSpec struct {
	Owner       Owner
	Template    string     // name or digest; empty means the node's default, or Snapshot's
	Snapshot    SnapshotID // begin as a copy of this; excludes Template
	Size        Size       // zero fields mean the template's, then the node's
	MinTier     Tier       // empty accepts any
	Lifetime    Lifetime
	Metadata    map[string]string // at most 64 pairs of 256 bytes
	Env         map[string]string // added to the template's
	Volumes     []VolumeMount
	Network     NetworkPolicy
	Ports       PortPolicy
	Notes       map[string]string // see [Sandbox.Notes]
	Idempotency string            // a repeated key of the same owner returns the first sandbox
}

// A Lifetime says when a sandbox ends by itself, and how.
type Lifetime struct {
	Timeout    time.Duration // from creation, resumption or extension to the deadline; 0 means the node's default
	Idle       time.Duration // without use from outside; 0 means as long as Timeout lets it
	Max        time.Duration // awake since creation or resumption, however often extended; 0 means the node's
	OnTimeout  EndPolicy     // empty means kill
	DiskOnly   bool          // hibernating by itself keeps the disk and lets the memory go
	AutoResume bool          // use from outside wakes it
}

// An EndPolicy says what happens at a deadline or after idleness.
type EndPolicy string

const (
	EndKill      EndPolicy = "kill"
	EndHibernate EndPolicy = "hibernate"
)

// A VolumeMount shows a volume inside a sandbox.
type VolumeMount struct {
	Volume string // ID or name of one of the owner's volumes
	Path   string // absolute inside
}

// A PortPolicy says who may reach the ports of a sandbox from outside.
type PortPolicy struct {
	Private bool   // owners and holders of signed links only; else everybody who knows the name
	Host    string // what services see as Host; empty means localhost:PORT; ${PORT} is replaced
}

// A SandboxFilter selects sandboxes. Zero fields select all.
type SandboxFilter struct {
	States   []State           // any of
	Metadata map[string]string // all of
	Template string            // name, as asked for, or digest
	Since    time.Time         // created then or later
	Owned    bool              // only those made by Create
	Oldest   bool              // oldest first; else newest
	Limit    int               // 0 means 100, -1 no limit
	After    SandboxID         // page: only those that follow this one in the order asked for
}

// A SandboxUpdate changes what it is not nil for.
type SandboxUpdate struct {
	Timeout  *time.Duration // new deadline, from now; may be nearer or farther
	Extend   *time.Duration // new deadline, from now, unless the present one is farther
	Lifetime *Lifetime      // Timeout in it is kept for the next resumption
	Metadata *map[string]string
	Network  *NetworkPolicy
	Ports    *PortPolicy
	Notes    *map[string]string
}

// Sandboxes is the front desk of this node's sandboxes. All methods see only
// what owner owns; the rest is NotFound. The empty owner sees all. It is safe
// for concurrent use.
type Sandboxes interface {
	// Create returns a running sandbox. It reports Invalid for a bad spec,
	// NotFound for a template, snapshot or volume, Conflict for a volume that
	// is in use, Exhausted, with a retry hint, when the node or the owner's
	// quota is full. When ctx ends first nothing is left.
	Create(ctx context.Context, spec SandboxSpec) (Sandbox, error)
	// Get returns one sandbox's record, stopped ones included for as long as
	// they are remembered.
	Get(ctx context.Context, owner Owner, id SandboxID) (Sandbox, error)
	// List returns those that are not stopped, unless f.States says so.
	List(ctx context.Context, owner Owner, f SandboxFilter) ([]Sandbox, error)
	// Update changes a sandbox that is not stopped and returns it as it is
	// then. Conflict if it is not awake and a deadline is asked for.
	Update(ctx context.Context, owner Owner, id SandboxID, u SandboxUpdate) (Sandbox, error)
	// Stop destroys a sandbox and waits until it is gone.
	Stop(ctx context.Context, owner Owner, id SandboxID) error
	// Enter returns the inside of a sandbox, which counts as used until
	// release is called. One that sleeps is woken if its Lifetime says
	// AutoResume, else it reports Conflict; a stopped one is NotFound. When
	// the sandbox goes to sleep or ends, what is done in it breaks off with
	// Unavailable.
	Enter(ctx context.Context, owner Owner, id SandboxID) (g Guest, release func(), err error)
	// Samples returns what the sandbox used, oldest first, for as long back
	// as is remembered; at least one sample of a running sandbox.
	Samples(ctx context.Context, owner Owner, id SandboxID, from, to time.Time) ([]Sample, error)
}

// Lifecycle moves sandboxes between awake, asleep and many. Owners see as in
// [Sandboxes]. It is safe for concurrent use.
type Lifecycle interface {
	// Pause freezes a running sandbox in memory. No error if it is frozen.
	Pause(ctx context.Context, owner Owner, id SandboxID) error
	// Hibernate writes a running or frozen sandbox to disk and lets its
	// machine go: with its memory, or, diskOnly, without. Conflict if it
	// sleeps already.
	Hibernate(ctx context.Context, owner Owner, id SandboxID, diskOnly bool) error
	// Resume wakes a sandbox that is frozen or on disk, with a new deadline
	// timeout away (0: that of its Lifetime), and returns it. A running one
	// gets the deadline if it is farther than its own. cold boots a sandbox
	// on its disk although its memory was kept.
	Resume(ctx context.Context, owner Owner, id SandboxID, timeout time.Duration, cold bool) (Sandbox, error)
	// Snapshot keeps a copy of a running, frozen or hibernated sandbox, which
	// goes on.
	Snapshot(ctx context.Context, owner Owner, id SandboxID, s SnapshotSpec) (Snapshot, error)
	// Fork starts copies of a sandbox, which goes on. Each copy has its own
	// outcome; the error is for what concerns all.
	Fork(ctx context.Context, owner Owner, id SandboxID, spec ForkSpec) ([]Forked, error)
}

// A ForkSpec says how many copies to start.
type ForkSpec struct {
	Count   int
	IDs     []SandboxID   // of the copies; nil means fresh ones, else there are Count
	Timeout time.Duration // to the deadline of each; 0 means that of the sandbox's Lifetime
}

// A Forked is one copy, or why there is none.
type Forked struct {
	Sandbox Sandbox
	Err     error
}

// A Sample is a moment of a sandbox.
type Sample struct {
	Time                   time.Time
	VCPUs                  float64 // it may use
	CPUPercent             float64 // of one processor
	Memory, MemoryLimit    int64   // bytes
	MemoryCache            int64   // bytes of Memory that hold files
	DiskUsed, DiskCapacity int64   // bytes
	Processes              int
}

// A SnapshotSpec says what to keep.
type SnapshotSpec struct {
	ID       SnapshotID    // empty means a fresh one
	Name     string        // unique per owner; empty means none; an older one of the name loses it
	DiskOnly bool          // leave the memory out
	TTL      time.Duration // 0 means for ever
}

// A Snapshot is a copy of a sandbox that can start others. It is a value.
type Snapshot struct {
	ID       SnapshotID
	Owner    Owner
	Name     string
	Sandbox  SandboxID // it is a copy of
	Template string    // the sandbox's
	Digest   string    // of the template, which is kept as long as the snapshot
	Tier     Tier
	Size     Size
	Env      map[string]string
	Disk     bool // without memory
	Bytes    int64
	Created  time.Time
	Used     time.Time // last started from
	Expires  time.Time // zero means never
}

// Snapshots keeps snapshots. Owners see as in [Sandboxes]. It is safe for
// concurrent use.
type Snapshots interface {
	// Get returns a snapshot by ID or name.
	Get(ctx context.Context, owner Owner, idOrName string) (Snapshot, error)
	// List returns the newest first; of one sandbox if sandbox is not empty.
	List(ctx context.Context, owner Owner, sandbox SandboxID) ([]Snapshot, error)
	// Remove lets a snapshot go; its files go when nothing starts from it.
	Remove(ctx context.Context, owner Owner, idOrName string) error
}

// A Quota bounds what one owner may have at once. Zero fields are no limit.
type Quota struct {
	Sandboxes int // alive, asleep ones included
	PerDay    int // created in the last 24 hours
	VCPUs     float64
	Memory    int64 // bytes of sandboxes that are awake
	Disk      int64 // bytes of sandboxes, snapshots and volumes
	Volumes   int
	Snapshots int
}
