package engi

import (
	"context"
	"io"
	"iter"
	"time"
)

// A Language is one that engi knows how to run.
type Language string

const (
	Python     Language = "python"
	JavaScript Language = "javascript"
	TypeScript Language = "typescript"
	Go         Language = "go"
	Bash       Language = "bash"
)

// Languages returns every language.
func Languages() []Language {
	return []Language{Python, JavaScript, TypeScript, Go, Bash}
}

// MainFile returns the usual name of a program's only file, like main.py; empty
// for an unknown language.
func (l Language) MainFile() string {
	switch l {
	case Python:
		return "main.py"
	case JavaScript:
		return "main.mjs"
	case TypeScript:
		return "main.ts"
	case Go:
		return "main.go"
	case Bash:
		return "main.sh"
	}
	return ""
}

// A SourceFile is one file of a program, relative to the working directory.
type SourceFile struct {
	Path string // slash-separated, relative, clean, never upwards
	Data []byte
	Mode uint32 // permission bits; 0 means 0644
}

// A Program is code with everything it reads.
type Program struct {
	Language Language
	Files    []SourceFile
	Entry    string            // path of the file to run; empty if there is one file
	Args     []string          // argv after the program
	Env      map[string]string // added to the template's environment
	Stdin    []byte            // the whole of standard input
}

// Limits bound one execution. Zero fields mean the node's defaults.
type Limits struct {
	Size          Size
	Timeout       time.Duration // wall clock of the program, from its start
	Output        int64         // bytes of stdout and stderr together
	ArtifactBytes int64         // of all artifacts together
	ArtifactCount int
}

// EmptyPool says what a claim does when no warm sandbox is there.
type EmptyPool string

const (
	PoolWait     EmptyPool = "wait"      // queue for one, up to the claim timeout
	PoolBootSync EmptyPool = "boot_sync" // boot one now
	PoolReject   EmptyPool = "reject"    // refuse at once
)

// An ExecutionSpec is one run of code in a sandbox nobody else ever used.
type ExecutionSpec struct {
	Owner        Owner
	Program      Program
	Template     string // name; empty means the node's default
	Limits       Limits
	Network      NetworkPolicy // zero means none
	MinTier      Tier          // empty accepts any
	OnEmpty      EmptyPool     // empty means the pool's policy
	ClaimTimeout time.Duration // for wait; 0 means the pool's
	OutputDir    string        // where artifacts are collected; empty means the working directory
	Idempotency  string        // a repeated key of the same owner returns the first execution
}

// ExecutionState is a point in the life of an execution.
type ExecutionState string

const (
	ExecutionQueued  ExecutionState = "queued"  // waits for a sandbox
	ExecutionRunning ExecutionState = "running" // its program runs
	ExecutionDone    ExecutionState = "done"    // Result is set
	ExecutionRefused ExecutionState = "refused" // Error is set: no sandbox could be had
)

// An Execution is the record of one run. It is a value: copies are safe.
type Execution struct {
	ID       ExecutionID
	Owner    Owner
	State    ExecutionState
	Language Language
	Template string
	Sandbox  SandboxID // empty while queued
	Created  time.Time
	Started  time.Time // of the program; zero while queued
	Ended    time.Time // zero until done
	Result   *Result   // nil until done
	Refusal  *Error    // nil unless refused
}

// A Result is the answer of an execution.
type Result struct {
	Exit            Exit
	Stdout          []byte
	Stderr          []byte
	StdoutTruncated bool // more was printed than is kept
	StderrTruncated bool
	Artifacts       []Artifact
	ArtifactsLeft   int           // files that were over the limits and not collected
	Duration        time.Duration // of the program
	Queued          time.Duration // from admission to claim
	Claim           time.Duration // to get a sandbox once it was our turn
	Warm            bool          // the interpreter was already started
	Tier            Tier
	NotEnforced     []string // limits this machine cannot enforce; see engi doctor
	Error           string   // text for causes other than exited
}

// An Artifact is a file an execution left in its output directory.
type Artifact struct {
	Path   string // relative to the output directory, slash-separated, clean
	Size   int64
	Mode   uint32 // permission bits
	SHA256 string // hex
}

// An ExecutionEvent is one step of a run, as streams deliver it. Offset is the
// number of output bytes before the event: resume there and nothing is lost.
type ExecutionEvent struct {
	Type      ExecutionEventType
	Offset    int64
	Data      []byte     // of stdout and stderr events
	Execution *Execution // of started and result events
}

// ExecutionEventType names an ExecutionEvent.
type ExecutionEventType string

const (
	EventStarted ExecutionEventType = "started"
	EventStdout  ExecutionEventType = "stdout"
	EventStderr  ExecutionEventType = "stderr"
	EventResult  ExecutionEventType = "result"
)

// An ExecutionFilter selects executions. Zero fields select all.
type ExecutionFilter struct {
	State  ExecutionState
	Limit  int         // 0 means 100
	Before ExecutionID // page: only older ones than this
}

// Executions runs code. fleet serves this node's. All methods see only what
// owner owns; the rest is NotFound. It is safe for concurrent use.
type Executions interface {
	// Start admits an execution and returns its record at once. It reports
	// Invalid for a bad spec, NotFound for a template, Unsupported for a
	// network mode or tier, and Exhausted, with a retry hint, when the node
	// is full. The run goes on after ctx ends.
	Start(ctx context.Context, spec ExecutionSpec) (Execution, error)
	// Get returns the record as it is now.
	Get(ctx context.Context, owner Owner, id ExecutionID) (Execution, error)
	// Wait returns the record once it is done, or the refusal as error.
	Wait(ctx context.Context, owner Owner, id ExecutionID) (Execution, error)
	// Watch yields the run's events from the given offset on: started when
	// from is 0, output, and the result, which is the last. A run that was
	// refused while queued yields its error.
	Watch(ctx context.Context, owner Owner, id ExecutionID, from int64) iter.Seq2[ExecutionEvent, error]
	// Cancel ends the run with cause cancelled. Ending twice is no error.
	Cancel(ctx context.Context, owner Owner, id ExecutionID) error
	// List returns the newest first.
	List(ctx context.Context, owner Owner, f ExecutionFilter) ([]Execution, error)
	// Artifact opens a file the run left. The caller closes it.
	Artifact(ctx context.Context, owner Owner, id ExecutionID, path string) (io.ReadCloser, error)
}
