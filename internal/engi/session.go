package engi

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// A SessionSpec asks for a session.
type SessionSpec struct {
	Owner       Owner
	Name        string            // unique per owner; empty for none
	Template    string            // template of the sandboxes; empty means the node's default for sessions, with the configured dependencies
	Workspace   string            `json:",omitzero"` // ID or name of a workspace of the owner, in whose sandbox the session works; empty for none. Fields that describe sandboxes and volumes must then be zero
	Size        Size              // limits of the sandboxes; zero fields mean the node's default for sessions
	Mode        SessionMode       // empty means the node's default
	Persistence Persistence       // empty means session
	Capacity    int64             // capacity of the volume, in bytes; 0 means the node's default
	TTL         time.Duration     // time without use after which the session ends and its volume is deleted; 0 means the node's default
	Dormancy    time.Duration     // time without use after which the sandbox is released; 0 means the node's default
	MaxDuration time.Duration     // maximum lifetime, in use or not; 0 means the node's default
	CPUQuota    float64           // sustained processor time, in processors; 0 means the node's default
	Network     NetworkPolicy     // zero means the node's default for sessions
	Metadata    map[string]string // at most 64 pairs of 256 bytes
	Env         map[string]string
	Git         *GitSpec // repository that is cloned into the sandboxes; nil for none
	Idempotency string   // a repeated key of the same owner returns the first session
}

// A SessionMode says when a session boots its sandbox.
type SessionMode string

const (
	SessionLazy SessionMode = "lazy" // on first use
	SessionWarm SessionMode = "warm" // when the session is created
)

// A Persistence says which data survives the release of a session's sandbox.
type Persistence string

const (
	PersistNone     Persistence = "none"     // nothing: there is no volume
	PersistSession  Persistence = "session"  // the files below /workspace, in the session's volume
	PersistSnapshot Persistence = "snapshot" // everything: the sandbox is hibernated instead of stopped
	// PersistWorkspace is like PersistSession, and the files are also copied to
	// the node's file store whenever the sandbox is released. A session
	// of the same owner and name starts with them, on any disk.
	PersistWorkspace Persistence = "workspace"
	// PersistOverlay is like PersistSession, and other changes of
	// the disk are kept too, and applied to the newest template.
	PersistOverlay Persistence = "overlay"
)

// Persistences returns all kinds, in the order of the data that they keep, least first.
func Persistences() []Persistence {
	return []Persistence{PersistNone, PersistSession, PersistWorkspace, PersistOverlay, PersistSnapshot}
}

// A SessionState is a point in the life of a session.
type SessionState string

const (
	SessionIdle       SessionState = "idle"       // the session has no sandbox
	SessionBooting    SessionState = "booting"    // the sandbox is starting
	SessionRunning    SessionState = "running"    // the sandbox is running
	SessionSuspended  SessionState = "suspended"  // the sandbox is paused in memory
	SessionHibernated SessionState = "hibernated" // the sandbox is saved on disk
	SessionTerminated SessionState = "terminated" // the session has ended; its volume is deleted
)

// SessionStates returns every state, in the order of a session's life.
func SessionStates() []SessionState {
	return []SessionState{SessionIdle, SessionBooting, SessionRunning, SessionSuspended, SessionHibernated, SessionTerminated}
}

// nextSessionStates lists the states that may follow each state.
var nextSessionStates = map[SessionState][]SessionState{
	SessionIdle:       {SessionBooting, SessionTerminated},
	SessionBooting:    {SessionRunning, SessionIdle, SessionTerminated},
	SessionRunning:    {SessionSuspended, SessionHibernated, SessionIdle, SessionTerminated},
	SessionSuspended:  {SessionRunning, SessionHibernated, SessionIdle, SessionTerminated},
	SessionHibernated: {SessionRunning, SessionIdle, SessionTerminated},
}

// To returns to if that state may follow s, else Conflict.
func (s SessionState) To(to SessionState) (SessionState, error) {
	if !slices.Contains(nextSessionStates[s], to) {
		return s, Errorf(Conflict, "a session that is %s cannot become %s", s, to)
	}
	return to, nil
}

// Event returns the type of the event for a change from state s to state to.
func (s SessionState) Event(to SessionState) string {
	if to == SessionRunning && s != SessionBooting {
		return EventSessionResumed
	}
	return map[SessionState]string{
		SessionIdle: EventSessionReleased, SessionBooting: EventSessionBooting, SessionRunning: EventSessionStarted, SessionSuspended: EventSessionSuspended,
		SessionHibernated: EventSessionHibernated, SessionTerminated: EventSessionTerminated,
	}[to]
}

// A SessionClient is a client that is attached to a session.
type SessionClient struct {
	Name  string    `json:"name"`
	Via   string    `json:"via,omitempty"` // kind of connection, like ssh; empty for a client that was attached by [SessionLifecycle]
	Since time.Time `json:"since"`
}

type clientKey struct{}

// WithClient returns a context in which [Sessions.Enter] lists a connected client
// among the attached clients, until release is called.
func WithClient(ctx context.Context, via, name string) context.Context {
	return context.WithValue(ctx, clientKey{}, SessionClient{Name: name, Via: via})
}

// ClientOf returns the connected client of ctx; zero if there is none.
func ClientOf(ctx context.Context) SessionClient {
	c, _ := ctx.Value(clientKey{}).(SessionClient)
	return c
}

// A Session is a long-lived context of a caller, which outlives its sandboxes. It is a
// value: a copy of the record, with the state at that moment. This is its life:
//
//  1. [Sessions].Create records a session. It is idle: it has no sandbox and no volume.
//     In mode warm its sandbox boots in the background.
//  2. The first use (Enter, RunCode, Attach or Resume) makes the volume, unless
//     Persistence is none, and boots a sandbox. The session is booting, then running.
//     If the boot fails, the caller gets the error, the session is idle, and the next
//     use tries again.
//  3. Several callers may use a running session at once; pieces of code run one after
//     the other. While a use lasts, Dormancy and TTL do not count, and Release, Suspend
//     and Hibernate report Conflict.
//  4. After Dormancy without use, or on Release, the sandbox is stopped and the session
//     is idle again. Persistence says what is kept then; with persistence snapshot the
//     sandbox is hibernated instead. Suspend pauses the sandbox, and Hibernate writes it
//     to disk, on request. The next use resumes it, or boots another with what was kept.
//  5. A sandbox can be lost or stopped at any moment. The session is idle then, and what
//     its volume has is not lost. The next use boots another sandbox.
//  6. A session ends with Terminate, after TTL without use, and MaxDuration after its
//     creation, even while it is used. Its sandbox and its volume are deleted. The copy
//     that persistence workspace has made stays if the session has a name, unless
//     Terminate ended it. Get returns the session for a while; uses report NotFound with
//     the reason.
//     A session in a workspace works in the workspace's sandbox, which it starts when needed
//     and never stops: Release, Detach and the end of the session only end its code there.
//     Suspend and Hibernate are Unsupported.
//  7. The end of the server, also by kill -9, ends no session and no sandbox. The next
//     server takes over each sandbox, even one that was not recorded yet. Until it has,
//     uses report Unavailable. Then it completes the deletion of sessions that had ended.
type Session struct {
	ID          SessionID
	Owner       Owner
	Name        string
	State       SessionState
	Mode        SessionMode
	Persistence Persistence
	Template    string
	Workspace   WorkspaceID // workspace in whose sandbox it works; empty for none
	Size        Size
	Volume      VolumeID  // empty before the first use
	Sandbox     SandboxID // empty if it has none
	Capacity    int64
	TTL         time.Duration
	Dormancy    time.Duration
	MaxDuration time.Duration // maximum time after Created; 0 means no limit
	CPUQuota    float64       // sustained processor time, in processors; 0 means no limit except Size
	Network     NetworkPolicy
	Metadata    map[string]string
	Env         map[string]string
	Git         *GitSpec
	Attached    []SessionClient // clients; only while the session is running
	Saved       time.Time       // time at which the files were last saved; zero if they were not
	Created     time.Time
	Used        time.Time
	Expires     time.Time // time at which the session ends unless it is used before
}

// A CodeSpec is code to run in a session.
type CodeSpec struct {
	Code     string
	Language Language      // empty means TypeScript
	Timeout  time.Duration // 0 means the node's default
	Env      map[string]string
}

// A CodeResult is the outcome of code that ran in a session. Code that fails
// has a result too.
type CodeResult struct {
	OK        bool
	Value     json.RawMessage // value of the last expression or the default export; nil if there is none
	Error     *CodeError      // nil if OK
	Stdout    string
	Stderr    string
	Truncated bool     // part of Stdout or Stderr is missing
	Warnings  []string // remarks on parts of Value that JSON cannot represent
	Duration  time.Duration
	Sandbox   SandboxID
	BootTime  time.Duration // time spent on starting a sandbox; 0 if there was one
	QueueTime time.Duration // time spent waiting for other code of the session
}

// A CodeError is the error that ended code in a session.
type CodeError struct {
	Cause   Cause  // CauseExited for an exception or an exit, otherwise the limit that ended the code
	Name    string // name of the exception; empty if there was none
	Message string
	Line    int    // line in the submitted source, from 1; 0 if unknown
	Column  int    // column, from 1; 0 if unknown
	Stack   string // frames in the submitted source and in modules, one per line
}

// Error returns name, message and position in one line.
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
	Version string   // version or range; empty means the newest at the time of the build
	Docs    []string // URLs of Markdown files
	Secret  string   // environment variable of the node with the package's secret; empty for none
	Hosts   []string // hosts that the package uses, and that get the secret
}

// Dependencies is the state of the packages that code in
// sessions can import. They are installed once, in a template.
type Dependencies struct {
	State    DependencyState
	Packages []Dependency
	Wanted   string // name of the template with these packages
	Template string // name of the template that new sandboxes get now; empty if there is none yet
	Digest   string // digest of Template
	Built    time.Time
	Step     string   // step of the current build
	Log      []string // last lines of the current build, or of the failed one
	Error    string   // error of the last build; empty if it succeeded
	Remedy   string
}

// A DependencyState is the state of an installation.
type DependencyState string

const (
	DependenciesBuilding DependencyState = "building" // sessions use the previous template, if there is one
	DependenciesReady    DependencyState = "ready"
	DependenciesFailed   DependencyState = "failed" // retried later; sessions use the previous template, if there is one
)

// Sessions manages sessions. Methods find only objects that viewer sees and report NotFound for all
// others. It is safe for concurrent use.
type Sessions interface {
	// Create returns a new session. In mode warm, its sandbox boots in the
	// background.
	Create(ctx context.Context, spec SessionSpec) (Session, error)
	// Get returns a session by ID or name, including a session that has ended, for
	// as long as its record is kept.
	Get(ctx context.Context, viewer Viewer, idOrName string) (Session, error)
	// List returns the sessions that have not ended, newest first.
	List(ctx context.Context, viewer Viewer, p Paging) ([]Session, error)
	// Enter returns the guest of the session's sandbox, which it starts if
	// there is none. The session counts as used until release is called. The client
	// of ctx (see [ClientOf]) is attached meanwhile.
	Enter(ctx context.Context, viewer Viewer, idOrName string) (g Guest, release func(), err error)
	// RunCode runs code in the session's sandbox, one piece at a time and in
	// the order of the calls. out, if not nil, receives output while it runs.
	RunCode(ctx context.Context, viewer Viewer, idOrName string, spec CodeSpec, out func(Chunk)) (CodeResult, error)
	// Release releases the sandbox, as dormancy does, and keeps the volume.
	Release(ctx context.Context, viewer Viewer, idOrName string) error
	// Terminate ends a session and deletes its sandbox and volume.
	Terminate(ctx context.Context, viewer Viewer, idOrName string) error
	// Dependencies returns the state of the installation of packages.
	Dependencies(ctx context.Context) (Dependencies, error)
}

// SessionLifecycle changes the states of sessions. Its methods find the same objects as
// those of [Sessions], and return the changed session. Each change is an event.
type SessionLifecycle interface {
	// Attach resumes a session, or boots its sandbox, and records client as attached.
	// An attached client does not keep the sandbox awake. Attaching twice is no error.
	Attach(ctx context.Context, viewer Viewer, idOrName, client string) (Session, error)
	// Detach records that a client has left. After the last one, unless the sandbox
	// is in use, a sandbox of persistence none is stopped, one of persistence overlay is
	// released, one of persistence snapshot is hibernated, and the files of persistence workspace are
	// saved; all others stay until dormancy. Clients that are
	// connected detach when their connection ends, and then only files are saved.
	Detach(ctx context.Context, viewer Viewer, idOrName, client string) (Session, error)
	// Suspend pauses a session's sandbox in memory. It reports Conflict for a sandbox
	// that is in use.
	Suspend(ctx context.Context, viewer Viewer, idOrName string) (Session, error)
	// Hibernate writes a session's sandbox to disk, whatever its persistence.
	// It reports Conflict for one that is in use.
	Hibernate(ctx context.Context, viewer Viewer, idOrName string) (Session, error)
	// Resume resumes a session's sandbox, or boots one.
	Resume(ctx context.Context, viewer Viewer, idOrName string) (Session, error)
}
