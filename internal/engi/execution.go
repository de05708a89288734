package engi

import (
	"context"
	"fmt"
	"io"
	"iter"
	"slices"
	"time"
)

// A Language is a programming language that engi can run.
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

// MainFile returns the usual name of a program's main file, under which code
// without a name is saved; empty for an unknown language.
func (l Language) MainFile() string {
	switch l {
	case Python:
		return "main.py"
	case JavaScript:
		return "main.js"
	case TypeScript:
		return "main.ts"
	case Go:
		return "main.go"
	case Bash:
		return "main.sh"
	}
	return ""
}

// A SourceFile is one file of a program.
type SourceFile struct {
	Path string // relative to the working directory, slash-separated, clean, never upwards
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
	Stdin    []byte            // all of standard input
}

// Main returns the path of the file to run: Entry, or else the only file, or
// else the one with the usual name of the language, such as main.py. It is
// empty if there is none.
func (p Program) Main() string {
	name, _ := p.entry()
	return name
}

// entry is Main, and says why there is none.
func (p Program) entry() (name, why string) {
	has := func(name string) bool {
		return slices.ContainsFunc(p.Files, func(f SourceFile) bool { return f.Path == name })
	}
	switch usual := p.Language.MainFile(); {
	case len(p.Files) == 0:
		return "", ""
	case p.Entry != "" && !has(p.Entry):
		return "", fmt.Sprintf("%.80q is not one of the files", p.Entry)
	case p.Entry != "":
		return p.Entry, ""
	case len(p.Files) == 1:
		return p.Files[0].Path, ""
	case has(usual):
		return usual, ""
	default:
		return "", fmt.Sprintf("it is missing: say which of the %d files to run, or call it %s", len(p.Files), usual)
	}
}

// Limits bound one execution. Zero fields mean the node's defaults.
type Limits struct {
	Size          Size
	Timeout       time.Duration // wall clock of the program, from its start
	Output        int64         // bytes of stdout and stderr together
	ArtifactBytes int64         // of all artifacts together
	ArtifactCount int
}

// Or returns l with its zero fields taken from def.
func (l Limits) Or(def Limits) Limits {
	l.Size = l.Size.Or(def.Size)
	or(&l.Timeout, def.Timeout)
	or(&l.Output, def.Output)
	or(&l.ArtifactBytes, def.ArtifactBytes)
	or(&l.ArtifactCount, def.ArtifactCount)
	return l
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
	OutputDir    string        // absolute path of where artifacts are collected; empty means the working directory
	Idempotency  string        // a repeated key of the same owner returns the first execution
}

// ExecutionState is a point in the life of an execution.
type ExecutionState string

const (
	ExecutionQueued  ExecutionState = "queued"  // waits for a sandbox
	ExecutionRunning ExecutionState = "running" // its program runs
	ExecutionDone    ExecutionState = "done"    // Result is set
	ExecutionRefused ExecutionState = "refused" // Refusal is set: the program did not run
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

// A Result is how an execution ended and what it left.
type Result struct {
	Exit            Exit
	Stdout          []byte
	Stderr          []byte
	StdoutTruncated bool // more was printed than Limits.Output
	StderrTruncated bool
	Artifacts       []Artifact
	ArtifactsLeft   int           // files that were not collected because of the limits
	Duration        time.Duration // of the program
	Queued          time.Duration // until it was the execution's turn
	Claim           time.Duration // from then until it had a sandbox
	Warm            bool          // the interpreter was running before the execution came
	Tier            Tier
	NotEnforced     []string // limits that the node cannot enforce; see engi doctor
	Error           string   // explains causes other than exited
}

// An Artifact is a file an execution left in its output directory.
type Artifact struct {
	Path   string // relative to the output directory, slash-separated, clean
	Size   int64
	Mode   uint32 // permission bits
	SHA256 string // hex
}

// An ExecutionUpdate is one item of a stream that follows an execution. Offset
// is the number of output bytes before the event: who resumes there misses
// nothing.
type ExecutionUpdate struct {
	Type      ExecutionUpdateKind
	Offset    int64
	Data      []byte     // of stdout and stderr events
	Execution *Execution // of started and result events
}

// ExecutionEventType names an ExecutionUpdate.
type ExecutionUpdateKind string

const (
	EventStarted ExecutionUpdateKind = "started"
	EventStdout  ExecutionUpdateKind = "stdout"
	EventStderr  ExecutionUpdateKind = "stderr"
	EventResult  ExecutionUpdateKind = "result"
)

// An ExecutionFilter selects executions. Zero fields select all.
type ExecutionFilter struct {
	State  ExecutionState
	Limit  int         // 0 means 100
	Before ExecutionID // page: only those older than this one
}

// Executions runs code. Its methods only see what owner owns; the rest is
// NotFound. The empty owner sees all. It is safe for concurrent use.
type Executions interface {
	// Start starts or queues an execution and returns its record at once. It
	// reports Invalid, with all faults, for a bad spec, NotFound for an
	// unknown template, Unsupported for a network mode or a tier that the
	// node does not have, and Exhausted, with a retry hint, when the node is
	// full. The execution goes on after ctx ends.
	Start(ctx context.Context, spec ExecutionSpec) (Execution, error)
	// Get returns the record as it is now.
	Get(ctx context.Context, owner Owner, id ExecutionID) (Execution, error)
	// Wait returns the record when it is done. If the execution was refused,
	// the refusal is the error.
	Wait(ctx context.Context, owner Owner, id ExecutionID) (Execution, error)
	// Watch yields the execution's events from the given offset on: started
	// if from is 0, output, and at last the result. If the execution is
	// refused, Watch yields the refusal as error.
	Watch(ctx context.Context, owner Owner, id ExecutionID, from int64) iter.Seq2[ExecutionUpdate, error]
	// Cancel ends the execution with cause cancelled. It is no error if it
	// has ended already.
	Cancel(ctx context.Context, owner Owner, id ExecutionID) error
	// List returns the newest first.
	List(ctx context.Context, owner Owner, f ExecutionFilter) ([]Execution, error)
	// Artifact opens a file that the execution left. The caller closes it.
	Artifact(ctx context.Context, owner Owner, id ExecutionID, path string) (io.ReadCloser, error)
	// Artifacts returns the contents of the files that the execution left, in
	// the order of its result: each one that fits into what is left of limit
	// bytes, and nil for the others and for those that cannot be read.
	Artifacts(ctx context.Context, owner Owner, id ExecutionID, limit int64) ([][]byte, error)
}
