package engi

import (
	"context"
	"encoding/json"
	"time"
)

// A SessionSpec asks for a session.
type SessionSpec struct {
	Owner       Owner
	Name        string            // unique per owner; empty for none
	Template    string            // of its sandboxes; empty means the node's for sessions, with its configured dependencies
	Size        Size              // of its sandboxes; zero fields mean the node's for sessions
	Mode        SessionMode       // empty means the node's
	Persistence Persistence       // empty means session
	Capacity    int64             // bytes of its volume; 0 means the node's
	TTL         time.Duration     // its volume goes after so long without use; 0 means the node's
	Dormancy    time.Duration     // its sandbox goes after so long without use; 0 means the node's
	Network     NetworkPolicy     // zero means the node's for sessions
	Metadata    map[string]string // at most 64 pairs of 256 bytes
	Env         map[string]string
	Idempotency string // a repeated key of the same owner returns the first session
}

// A SessionMode says when a session gets a sandbox.
type SessionMode string

const (
	SessionLazy SessionMode = "lazy" // with its first use
	SessionWarm SessionMode = "warm" // at once
)

// A Persistence says what of a session's sandbox outlives it.
type Persistence string

const (
	PersistNone     Persistence = "none"     // nothing: no volume
	PersistSession  Persistence = "session"  // what is below /workspace, in the session's volume
	PersistSnapshot Persistence = "snapshot" // everything: dormancy hibernates the sandbox
)

// A SessionState is a point in the life of a session.
type SessionState string

const (
	SessionIdle       SessionState = "idle"       // has no sandbox and needs none yet
	SessionBooting    SessionState = "booting"    // its sandbox starts
	SessionRunning    SessionState = "running"    // its sandbox runs
	SessionSuspended  SessionState = "suspended"  // its sandbox is frozen in memory
	SessionHibernated SessionState = "hibernated" // its sandbox is on disk
	SessionTerminated SessionState = "terminated" // over; its volume is gone
)

// A Session is a caller's long-lived context. It outlives its sandboxes. It is
// a value.
type Session struct {
	ID          SessionID
	Owner       Owner
	Name        string
	State       SessionState
	Mode        SessionMode
	Persistence Persistence
	Template    string
	Size        Size
	Volume      VolumeID  // empty before the first use
	Sandbox     SandboxID // empty while it has none
	Capacity    int64
	TTL         time.Duration
	Dormancy    time.Duration
	Network     NetworkPolicy
	Metadata    map[string]string
	Env         map[string]string
	Created     time.Time
	Used        time.Time
	Expires     time.Time // of its volume, unless it is used before
}

// A CodeSpec is code to run in a session.
type CodeSpec struct {
	Code     string
	Language Language      // empty means TypeScript
	Timeout  time.Duration // 0 means the node's
	Env      map[string]string
}

// A CodeResult is the answer of code that ran in a session. A program that
// fails is an answer.
type CodeResult struct {
	OK       bool
	Value    json.RawMessage // of the last expression or the default export; nil if there is none
	Error    string          // name, message and place in the caller's own source; empty if OK
	Stdout   string
	Stderr   string
	Cut      bool // of Stdout or Stderr something is missing
	Duration time.Duration
	Sandbox  SandboxID
	Booted   time.Duration // spent on getting a sandbox first; 0 if it had one
}

// Sessions keeps sessions. All methods see only what owner owns; the rest is
// NotFound. The empty owner sees all. It is safe for concurrent use.
type Sessions interface {
	// Create returns a new session; in mode warm its sandbox boots meanwhile.
	Create(ctx context.Context, spec SessionSpec) (Session, error)
	// Get returns a session by ID or name, those that are over included for
	// as long as they are remembered.
	Get(ctx context.Context, owner Owner, idOrName string) (Session, error)
	// List returns the newest first, those that are over excluded.
	List(ctx context.Context, owner Owner) ([]Session, error)
	// Enter returns the inside of the session's sandbox, started if there is
	// none; it counts as used until release is called.
	Enter(ctx context.Context, owner Owner, idOrName string) (g Guest, release func(), err error)
	// RunCode runs code in the session's sandbox, one run at a time and in
	// the order of the calls; out, if not nil, gets output while it runs.
	RunCode(ctx context.Context, owner Owner, idOrName string, spec CodeSpec, out func(Chunk)) (CodeResult, error)
	// Release lets the sandbox go as dormancy does, and keeps the volume.
	Release(ctx context.Context, owner Owner, idOrName string) error
	// Terminate ends a session for good, its sandbox and volume with it.
	Terminate(ctx context.Context, owner Owner, idOrName string) error
}
