package engi

import (
	"context"
	"time"
)

// A SandboxSpec asks for a sandbox that runs until its owner stops it or a deadline or
// idle timeout ends it.
type SandboxSpec struct {
	Owner       Owner
	ID          SandboxID  // ID of the new sandbox, for a copy of Snapshot; empty means a new ID
	Template    string     // name or digest; empty means the node's default, or Snapshot's
	Snapshot    SnapshotID // snapshot to start from; excludes Template
	Onto        string     // template to which the changes of Snapshot are applied; Snapshot must be of a disk; empty means the snapshot's template
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
	Fingerprint string            `json:"-"` // of the request with the key; empty means one of the spec
}

// A Lifetime says when and how a sandbox ends by itself.
type Lifetime struct {
	Timeout    time.Duration // time from creation, resumption or extension to the deadline; 0 means the node's default
	Idle       time.Duration // maximum time without use from outside; 0 means no limit except Timeout
	Max        time.Duration // maximum time from creation or resumption, whatever the extensions; 0 means the node's default
	OnTimeout  EndPolicy     // empty means kill
	DiskOnly   bool          // automatic hibernation keeps the disk and discards the memory
	AutoResume bool          // use from outside resumes the sandbox
}

// An EndPolicy is the action at a deadline or after the idle timeout.
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

// A PortPolicy controls access to the ports of a sandbox from outside.
type PortPolicy struct {
	Private bool   // only the owner and holders of signed links have access; false means everybody who knows the name
	Host    string // Host header that services see; empty means localhost:PORT; ${PORT} is replaced
}

// A SandboxFilter selects sandboxes. Zero fields select all.
type SandboxFilter struct {
	States   []State           // only sandboxes in one of these states
	Metadata map[string]string // only sandboxes with all of these labels
	Template string            // name, as requested, or digest
	Since    time.Time         // only sandboxes created at this time or later
	Started  time.Time         // only sandboxes created or last resumed at this time or later
	Owned    bool              // only sandboxes that owners created, without those of pools and executions
	Oldest   bool              // oldest first; false means newest first
	Limit    int               // 0 means 100, -1 no limit
	After    SandboxID         // only sandboxes that follow this one in the order, for paging
}

// A SandboxUpdate changes the fields that are not nil.
type SandboxUpdate struct {
	Timeout  *time.Duration // time from now to the new deadline, which may be earlier or later
	Extend   *time.Duration // time from now to the new deadline; a later deadline stays
	Lifetime *Lifetime      // new lifetime; its Timeout counts from the next resumption
	Metadata *map[string]string
	Network  *NetworkPolicy
	Ports    *PortPolicy
	Notes    *map[string]string
}

// Sandboxes creates, enters and stops sandboxes. Methods find only objects that viewer sees and
// report NotFound for all others. It is safe for concurrent use.
type Sandboxes interface {
	// Create returns a running sandbox. It reports Invalid, with all faults,
	// for a bad spec, NotFound for an unknown template, snapshot or volume,
	// Conflict for a volume that is in use, and Exhausted, with a retry hint,
	// when the node or the owner's quota is full. If ctx ends first, no sandbox
	// is left.
	Create(ctx context.Context, spec SandboxSpec) (Sandbox, error)
	// Get returns a sandbox's record; the record of a stopped sandbox as long as it
	// is kept.
	Get(ctx context.Context, viewer Viewer, id SandboxID) (Sandbox, error)
	// List returns sandboxes that are not stopped, unless f.States includes stopped.
	List(ctx context.Context, viewer Viewer, f SandboxFilter) ([]Sandbox, error)
	// Update changes a sandbox that is not stopped, and returns it. It
	// reports Conflict for a deadline if the sandbox is not running.
	Update(ctx context.Context, viewer Viewer, id SandboxID, u SandboxUpdate) (Sandbox, error)
	// Stop destroys a sandbox and returns once it is destroyed.
	Stop(ctx context.Context, viewer Viewer, id SandboxID) error
	// Enter returns the guest of a sandbox, which counts as used until
	// release is called. It resumes a paused or hibernated sandbox if its
	// Lifetime has AutoResume, and reports Conflict if not; a stopped sandbox is
	// NotFound. When the sandbox hibernates or ends, calls of its guest fail
	// with Unavailable.
	Enter(ctx context.Context, viewer Viewer, id SandboxID) (g Guest, release func(), err error)
	// Samples returns the resource usage of the sandbox, oldest first, as far back as it
	// is stored; at least one sample of a running sandbox. Zero times are no
	// bounds.
	Samples(ctx context.Context, viewer Viewer, id SandboxID, from, to time.Time) ([]Sample, error)
}

// Lifecycle pauses, hibernates, resumes and copies sandboxes. Methods find the same
// objects as those of [Sandboxes]. It is safe for concurrent use.
type Lifecycle interface {
	// Pause freezes the programs of a running sandbox and keeps it in memory. It is
	// no error if the sandbox is already paused.
	Pause(ctx context.Context, viewer Viewer, id SandboxID) error
	// Hibernate writes a running or paused sandbox to disk, without its
	// memory if diskOnly, and destroys its machine. It reports Conflict if
	// the sandbox is already hibernated.
	Hibernate(ctx context.Context, viewer Viewer, id SandboxID, diskOnly bool) error
	// Resume resumes a paused or hibernated sandbox, and returns it.
	// The deadline is timeout from now; 0 means the Lifetime's. A running sandbox
	// gets that deadline if it is later than its own. With cold, a
	// hibernated sandbox boots from its disk even if its memory was saved.
	Resume(ctx context.Context, viewer Viewer, id SandboxID, timeout time.Duration, cold bool) (Sandbox, error)
	// Snapshot saves the state of a running, paused or hibernated sandbox, which
	// continues unchanged.
	Snapshot(ctx context.Context, viewer Viewer, id SandboxID, s SnapshotSpec) (Snapshot, error)
	// Fork starts copies of a running, paused or hibernated sandbox, which
	// continues unchanged. Each copy has its own result; the error concerns the whole call.
	Fork(ctx context.Context, viewer Viewer, id SandboxID, spec ForkSpec) ([]Forked, error)
}

// A ForkSpec asks for copies of a sandbox.
type ForkSpec struct {
	Count   int
	IDs     []SandboxID   // IDs of the copies, Count of them; nil means new IDs
	Timeout time.Duration // time to the deadline of each copy; 0 means the Timeout of the sandbox's Lifetime
}

// A Forked is one copy, or the error that prevented it.
type Forked struct {
	Sandbox Sandbox
	Err     error
}

// A Sample is the resource usage of a sandbox at one moment.
type Sample struct {
	Time                   time.Time
	VCPUs                  float64       // processor limit, in processors
	CPU                    time.Duration // processor time since the start of the machine
	CPUPercent             float64       // percent of one processor
	Memory, MemoryLimit    int64         // bytes
	MemoryCache            int64         // bytes of Memory that cache files
	DiskUsed, DiskCapacity int64         // bytes
	Processes              int
}

// A SnapshotSpec asks for a snapshot of a sandbox.
type SnapshotSpec struct {
	ID       SnapshotID    // empty means a fresh one
	Name     string        // unique per owner; an older snapshot loses the name; empty means none
	DiskOnly bool          // do not save the memory
	TTL      time.Duration // 0 means no end
}

// A Snapshot is the saved state of a sandbox, from which others can start. It is a value.
type Snapshot struct {
	ID       SnapshotID
	Owner    Owner
	Name     string
	Sandbox  SandboxID // sandbox that was saved
	Template string    // template of the sandbox
	Digest   string    // digest of the template, which is kept as long as the snapshot
	Tier     Tier
	Size     Size
	Env      map[string]string
	Disk     bool // do not save the memory
	Bytes    int64
	Created  time.Time
	Used     time.Time // time at which a sandbox last started from it
	Expires  time.Time // zero means never
}

// Snapshots lists and deletes snapshots. Methods find the same objects as those of
// [Sandboxes]. It is safe for concurrent use.
type Snapshots interface {
	// Get returns a snapshot by ID or name.
	Get(ctx context.Context, viewer Viewer, idOrName string) (Snapshot, error)
	// List returns snapshots, newest first; only those of sandbox if that is not
	// empty.
	List(ctx context.Context, viewer Viewer, sandbox SandboxID, p Paging) ([]Snapshot, error)
	// Remove deletes a snapshot. Its files are deleted when no sandbox depends on them
	// any more.
	Remove(ctx context.Context, viewer Viewer, idOrName string) error
}

// A Quota limits the objects that one owner may have at once. Zero fields are no limit.
type Quota struct {
	Sandboxes int // sandboxes that are not stopped, including hibernated ones
	PerDay    int // created in the last 24 hours
	VCPUs     float64
	Memory    int64 // bytes of sandboxes with a machine
	Disk      int64 // bytes of sandboxes, snapshots and volumes
	Volumes   int
	Snapshots int

	Sessions       int // sessions that have not ended
	SessionsPerDay int // created in the last 24 hours
}
