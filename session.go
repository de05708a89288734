package engi

import (
	"context"
	"encoding/json"
	"fmt"
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

// SessionStates returns every state in the order of a life.
func SessionStates() []SessionState {
	return []SessionState{SessionIdle, SessionBooting, SessionRunning, SessionSuspended, SessionHibernated, SessionTerminated}
}

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
	Error    *CodeError      // nil if OK
	Stdout   string
	Stderr   string
	Cut      bool     // of Stdout or Stderr something is missing
	Warnings []string // what of Value could not be shown as it is
	Duration time.Duration
	Sandbox  SandboxID
	Booted   time.Duration // spent on getting a sandbox first; 0 if it had one
	Queued   time.Duration // behind other runs of the session
}

// A CodeError says why code did not come to its end.
type CodeError struct {
	Cause   Cause  // exited for an exception or an exit, else what ended it
	Name    string // of the exception; empty if it was none
	Message string
	Line    int    // in the caller's own source, from 1; 0 if unknown
	Column  int    // from 1; 0 if unknown
	Stack   string // frames of the caller's own source and of modules, one a line
}

// Error returns name, message and place in one line, for people and models.
func (e *CodeError) Error() string {
	text := e.Message
	if e.Name != "" {
		text = e.Name + ": " + text
	}
	if e.Line > 0 {
		text = fmt.Sprintf("%s (line %d, column %d)", text, e.Line, e.Column)
	}
	return text
}

// A Dependency is a package that code in sessions may import.
type Dependency struct {
	Package string   // npm name, or jsr:@SCOPE/NAME
	Version string   // or a range; empty means the newest at the time of the build
	Docs    []string // URLs of Markdown
	Secret  string   // variable of the node that holds its secret; empty for none
	Hosts   []string // that it talks to, and the secret may go to
}

// Dependencies says how the packages that code in sessions may import are
// installed: once, in a template.
type Dependencies struct {
	State    DependencyState
	Packages []Dependency
	Wanted   string // name of the template that has them
	Template string // that sessions get now; empty if there is none yet
	Digest   string // of Template
	Built    time.Time
	Step     string   // of the build under way
	Log      []string // its last lines, or those of the one that failed
	Error    string   // why the last build failed; empty if none did
	Remedy   string
}

// A DependencyState says how far the installation is.
type DependencyState string

const (
	DependenciesBuilding DependencyState = "building" // sessions get the template before, if there is one
	DependenciesReady    DependencyState = "ready"
	DependenciesFailed   DependencyState = "failed" // it is tried again later; sessions get the template before, if there is one
)

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
	// Dependencies says how the installation of packages is.
	Dependencies(ctx context.Context) (Dependencies, error)
}
