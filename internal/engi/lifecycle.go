package engi

import (
	"context"
	"time"
)

// A SandboxSpec asks for a sandbox that exists until its owner, its deadline or
// its idleness ends it.
type SandboxSpec struct {
	Owner       Owner
	ID          SandboxID  // of a copy of Snapshot; empty means a fresh one
	Template    string     // name or digest; empty means the node's default, or Snapshot's
	Snapshot    SnapshotID // to begin as a copy of; excludes Template
	Onto        string     // template that takes the changes of Snapshot, which is of a disk, instead of its own; empty for none
	Size        Size       // zero fields mean the template's, then the node's
	MinTier     Tier       // empty accepts any
	Lifetime    Lifetime
	Metadata    map[string]string // at most 64 pairs
	Env         map[string]string // added to the template's
	Volumes     []VolumeMount
	Network     NetworkPolicy
	Ports       PortPolicy
	CPUQuota    CPUQuota
	Notes       map[string]string // see [Sandbox.Notes]
	Idempotency string            // a repeated key of the same owner returns the first sandbox
}

// A Lifetime says when a sandbox ends by itself, and how.
type Lifetime struct {
	Timeout    time.Duration // from creation, resumption or extension to the deadline; 0 means the node's default
	Idle       time.Duration // without use from outside; 0 means no limit but Timeout
	Max        time.Duration // running since creation or resumption, however often extended; 0 means the node's
	OnTimeout  EndPolicy     // empty means kill
	DiskOnly   bool          // when it hibernates by itself, only its disk is kept
	AutoResume bool          // use from outside resumes it
}

// An EndPolicy says what happens at a deadline or after idleness.
type EndPolicy string

const (
	EndKill      EndPolicy = "kill"
	EndHibernate EndPolicy = "hibernate"
)

// A VolumeMount mounts a volume in a sandbox.
type VolumeMount struct {
	Volume string // ID or name of one of the owner's volumes
	Path   string // absolute path in the sandbox
}

// A PortPolicy says who may reach the ports of a sandbox from outside.
type PortPolicy struct {
	Private bool   // only owners and holders of signed links may; else everybody who knows the name
	Host    string // what services see as Host; empty means localhost:PORT; ${PORT} is replaced
}

// A SandboxFilter selects sandboxes. Zero fields select all.
type SandboxFilter struct {
	States   []State           // any of
	Metadata map[string]string // all of
	Template string            // name, as asked for, or digest
	Since    time.Time         // created then or later
	Started  time.Time         // created or last resumed then or later
	Owned    bool              // only those that owners created
	Oldest   bool              // oldest first; else newest first
	Limit    int               // 0 means 100, -1 no limit
	After    SandboxID         // page: only those that follow this one in that order
}

// A SandboxUpdate changes the fields that are not nil.
type SandboxUpdate struct {
	Timeout  *time.Duration // new deadline, from now; may be nearer or farther
	Extend   *time.Duration // new deadline, from now, unless the present one is farther
	Lifetime *Lifetime      // its Timeout counts from the next resumption on
	Metadata *map[string]string
	Network  *NetworkPolicy
	Ports    *PortPolicy
	Notes    *map[string]string
}

// Sandboxes creates sandboxes, enters them and ends them. Its methods only see
// what owner owns; the rest is NotFound. The empty owner sees all. It is safe
// for concurrent use.
type Sandboxes interface {
	// Create returns a running sandbox. It reports Invalid, with all faults,
	// for a bad spec, NotFound for an unknown template, snapshot or volume,
	// Conflict for a volume that is in use, and Exhausted, with a retry hint,
	// when the node or the owner's quota is full. If ctx ends first, nothing
	// is left.
	Create(ctx context.Context, spec SandboxSpec) (Sandbox, error)
	// Get returns a sandbox's record; that of a stopped one for as long as it
	// is kept.
	Get(ctx context.Context, owner Owner, id SandboxID) (Sandbox, error)
	// List returns those that are not stopped, unless f.States says so.
	List(ctx context.Context, owner Owner, f SandboxFilter) ([]Sandbox, error)
	// Update changes a sandbox that is not stopped, and returns it. It
	// reports Conflict for a deadline if the sandbox is not running.
	Update(ctx context.Context, owner Owner, id SandboxID, u SandboxUpdate) (Sandbox, error)
	// Stop destroys a sandbox and waits until it is gone.
	Stop(ctx context.Context, owner Owner, id SandboxID) error
	// Enter returns the guest of a sandbox, which counts as used until
	// release is called. It resumes a paused or hibernated sandbox if its
	// Lifetime says AutoResume, else it reports Conflict; a stopped one is
	// NotFound. When the sandbox hibernates or ends, calls of its guest fail
	// with Unavailable.
	Enter(ctx context.Context, owner Owner, id SandboxID) (g Guest, release func(), err error)
	// Samples returns what the sandbox used, oldest first, as far back as it
	// is kept; at least one sample of a running sandbox. Zero times are no
	// bounds.
	Samples(ctx context.Context, owner Owner, id SandboxID, from, to time.Time) ([]Sample, error)
}

// Lifecycle pauses, hibernates, resumes and copies sandboxes. Owners see what
// they see in [Sandboxes]. It is safe for concurrent use.
type Lifecycle interface {
	// Pause keeps a running sandbox in memory and stops its programs. It is
	// no error if the sandbox is paused already.
	Pause(ctx context.Context, owner Owner, id SandboxID) error
	// Hibernate writes a running or paused sandbox to disk, without its
	// memory if diskOnly, and destroys its machine. It reports Conflict if
	// the sandbox hibernates already.
	Hibernate(ctx context.Context, owner Owner, id SandboxID, diskOnly bool) error
	// Resume lets a paused or hibernated sandbox run again, and returns it.
	// Its deadline is timeout away; 0 means its Lifetime's. A running sandbox
	// gets that deadline if it is farther than its own. With cold, a
	// hibernated sandbox boots on its disk even if its memory was kept.
	Resume(ctx context.Context, owner Owner, id SandboxID, timeout time.Duration, cold bool) (Sandbox, error)
	// Snapshot keeps a copy of a running, paused or hibernated sandbox, which
	// stays as it is.
	Snapshot(ctx context.Context, owner Owner, id SandboxID, s SnapshotSpec) (Snapshot, error)
	// Fork starts copies of a running, paused or hibernated sandbox, which
	// stays as it is. Each copy has its own outcome; the error is about all.
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

// A Sample is what a sandbox uses at one moment.
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
	Name     string        // unique per owner, taken from an older snapshot; empty means none
	DiskOnly bool          // without the memory
	TTL      time.Duration // 0 means no end
}

// A Snapshot is a copy of a sandbox that can start others. It is a value.
type Snapshot struct {
	ID       SnapshotID
	Owner    Owner
	Name     string
	Sandbox  SandboxID // that it is a copy of
	Template string    // the sandbox's
	Digest   string    // of the template, which is kept as long as the snapshot
	Tier     Tier
	Size     Size
	Env      map[string]string
	Disk     bool // without the memory
	Bytes    int64
	Created  time.Time
	Used     time.Time // when a sandbox was last created from it
	Expires  time.Time // zero means never
}

// Snapshots lists and removes snapshots. Owners see what they see in
// [Sandboxes]. It is safe for concurrent use.
type Snapshots interface {
	// Get returns a snapshot by ID or name.
	Get(ctx context.Context, owner Owner, idOrName string) (Snapshot, error)
	// List returns the newest first; only copies of sandbox if that is not
	// empty.
	List(ctx context.Context, owner Owner, sandbox SandboxID, p Paging) ([]Snapshot, error)
	// Remove removes a snapshot. Its files go when nothing starts from them
	// any more.
	Remove(ctx context.Context, owner Owner, idOrName string) error
}

// A Quota bounds what one owner may have at once. Zero fields are no limit.
type Quota struct {
	Sandboxes int // not stopped, hibernated ones included
	PerDay    int // created in the last 24 hours
	VCPUs     float64
	Memory    int64 // bytes of sandboxes with a machine
	Disk      int64 // bytes of sandboxes, snapshots and volumes
	Volumes   int
	Snapshots int

	Sessions       int // that have not ended
	SessionsPerDay int // created in the last 24 hours
}
