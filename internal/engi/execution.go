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

// MainFile returns the conventional name of a program's main file, under which unnamed
// code is saved; empty for an unknown language.
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

// A Program is source code with its input.
type Program struct {
	Language Language
	Files    []SourceFile
	Entry    string            // path of the file to run; empty if there is one file
	Args     []string          // arguments of the program
	Env      map[string]string // added to the template's environment
	Stdin    []byte            // standard input
}

// Main returns the path of the file to run: Entry, the only file, or
// the file with the language's conventional name, such as main.py. It is
// empty if there is none.
func (p Program) Main() string {
	name, _ := p.entry()
	return name
}

// entry returns the result of Main, or the reason why there is none.
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
	Output        int64         // maximum bytes of stdout and stderr together
	ArtifactBytes int64         // maximum bytes of all artifacts together
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

// EmptyPool is the action of a claim when the pool has no warm sandbox.
type EmptyPool string

const (
	PoolWait     EmptyPool = "wait"      // wait in the queue, up to the claim timeout
	PoolBootSync EmptyPool = "boot_sync" // boot a sandbox now
	PoolReject   EmptyPool = "reject"    // refuse at once
)

// An ExecutionSpec asks to run code in a sandbox that no other program has used.
type ExecutionSpec struct {
	Owner        Owner
	Program      Program
	Template     string // name; empty means the node's default
	Limits       Limits
	Network      NetworkPolicy // zero means none
	MinTier      Tier          // empty accepts any
	OnEmpty      EmptyPool     // empty means the pool's policy
	ClaimTimeout time.Duration // time limit for PoolWait; 0 means the pool's
	OutputDir    string        // absolute path of the directory with the artifacts; empty means the working directory
	Idempotency  string        // a repeated key of the same owner returns the first execution
}

// ExecutionState is a point in the life of an execution.
type ExecutionState string

const (
	ExecutionQueued  ExecutionState = "queued"  // the execution waits for a sandbox
	ExecutionRunning ExecutionState = "running" // the program is running
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
	Started  time.Time // start of the program; zero while queued
	Ended    time.Time // zero until done
	Result   *Result   // nil until done
	Refusal  *Error    // nil unless refused
}

// A Result is the outcome of an execution.
type Result struct {
	Exit            Exit
	Stdout          []byte
	Stderr          []byte
	StdoutTruncated bool // the program printed more than Limits.Output
	StderrTruncated bool
	Artifacts       []Artifact
	ArtifactsLeft   int           // files that were not collected because of the limits
	Duration        time.Duration // run time of the program
	Queued          time.Duration // time in the queue
	Claim           time.Duration // time to get a sandbox after the queue
	Warm            bool          // the interpreter was started before the execution
	Tier            Tier
	NotEnforced     []string // limits that the node cannot enforce; see engi doctor
	Error           string   // details of a cause other than exited
}

// An Artifact is a file that an execution created or changed in its output directory.
type Artifact struct {
	Path   string // relative to the output directory, slash-separated, clean
	Size   int64
	Mode   uint32 // permission bits
	SHA256 string // hex
}

// An ExecutionUpdate is one item of the stream of an execution. Offset
// is the number of output bytes before the update: a reader that resumes there misses
// nothing.
type ExecutionUpdate struct {
	Type      ExecutionUpdateKind
	Offset    int64
	Data      []byte     // for stdout and stderr
	Execution *Execution // for started and result
}

// An ExecutionUpdateKind is the kind of an [ExecutionUpdate].
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
	Before ExecutionID // only executions older than this one, for paging
}

// Executions runs code. Methods find only objects that viewer sees and report NotFound for all
// others. It is safe for concurrent use.
type Executions interface {
	// Start starts or queues an execution and returns its record at once. It
	// reports Invalid, with all faults, for a bad spec, NotFound for an
	// unknown template, Unsupported for a network mode or a tier that the
	// node does not have, and Exhausted, with a retry hint, when the node is
	// full. The execution continues after ctx ends.
	Start(ctx context.Context, spec ExecutionSpec) (Execution, error)
	// Get returns the record as it is now.
	Get(ctx context.Context, viewer Viewer, id ExecutionID) (Execution, error)
	// Wait returns the record once the execution has ended. If it was refused,
	// the refusal is the error.
	Wait(ctx context.Context, viewer Viewer, id ExecutionID) (Execution, error)
	// Watch yields the execution's updates from the given offset: started
	// if from is 0, output, and finally the result. If the execution is
	// refused, Watch yields the refusal as an error.
	Watch(ctx context.Context, viewer Viewer, id ExecutionID, from int64) iter.Seq2[ExecutionUpdate, error]
	// Cancel ends the execution with the cause cancelled. It is no error if the execution
	// has ended.
	Cancel(ctx context.Context, viewer Viewer, id ExecutionID) error
	// List returns executions, newest first.
	List(ctx context.Context, viewer Viewer, f ExecutionFilter) ([]Execution, error)
	// Artifact opens a file that the execution left. The caller closes it.
	Artifact(ctx context.Context, viewer Viewer, id ExecutionID, path string) (io.ReadCloser, error)
	// Artifacts returns the contents of the files that the execution left, in
	// the order of its result: each one that fits into what is left of limit
	// bytes, and nil for the others and for those that cannot be read.
	Artifacts(ctx context.Context, viewer Viewer, id ExecutionID, limit int64) ([][]byte, error)
}
