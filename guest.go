package engi

import (
	"context"
	"io"
	"io/fs"
	"iter"
	"net"
	"net/http"
	"time"
)

// A Stream names where output came from.
type Stream string

const (
	Stdout   Stream = "stdout"
	Stderr   Stream = "stderr"
	Terminal Stream = "pty" // both, through a terminal
)

// A Chunk is a piece of a process's output. The streams of one process share
// one sequence of bytes: Offset counts every byte before this chunk, on
// whatever stream, so one number says how far a reader has come.
type Chunk struct {
	Stream Stream
	Offset int64
	Data   []byte // valid until the next chunk is asked for
}

// OldestOutput is an offset for [Process.Output]: whatever is still kept, from
// its beginning on.
const OldestOutput int64 = -2

// A TerminalSize is in characters.
type TerminalSize struct{ Cols, Rows uint16 }

// A Command is a program to start in a guest.
type Command struct {
	ID       string            // of the process; empty means that the guest chooses; one that is there already is attached to instead
	Args     []string          // program and arguments; the program is looked up in PATH
	Env      map[string]string // added to the sandbox's environment
	Dir      string            // absolute; empty means the user's home
	User     string            // name inside; empty means the template's user
	Tag      string            // a name to find the process by; may be empty
	Stdin    Stdin             // what the program reads
	Terminal *TerminalSize     // non-nil runs it in a terminal of that size
	Timeout  time.Duration     // the guest kills it after that; 0 means never
	Output   int64             // bytes kept for readers who come back; 0 means the guest's default
}

// Stdin says what a program reads.
type Stdin uint8

const (
	StdinNull Stdin = iota // end of file at once
	StdinPipe              // what Process.Input sends, until CloseInput
)

// An Exit is how a program ended. A program that fails is not an error of
// ours: it is the answer. Errors mean that we do not know the answer.
type Exit struct {
	Code   int    // 0..255, or -1 if a signal ended it
	Signal string // "" or the name without SIG: "KILL", "SEGV"
	Cause  Cause  // exited, or why the sandbox ended it
}

// A Cause is the type of an end. Every ended execution and sandbox has one,
// and every cause has a remedy.
type Cause string

const (
	CauseExited      Cause = "exited"       // by itself, whatever its code
	CauseTimeout     Cause = "timeout"      // wall clock
	CauseMemory      Cause = "memory"       // memory limit
	CauseProcesses   Cause = "processes"    // process limit
	CauseDisk        Cause = "disk"         // disk or inode limit
	CauseOutput      Cause = "output"       // output limit
	CauseCancelled   Cause = "cancelled"    // on request
	CauseSandboxLost Cause = "sandbox_lost" // the sandbox died under it
)

// Causes returns every cause, for tests of completeness.
func Causes() []Cause {
	return []Cause{CauseExited, CauseTimeout, CauseMemory, CauseProcesses, CauseDisk, CauseOutput, CauseCancelled, CauseSandboxLost}
}

var causeRemedies = map[Cause]string{
	CauseExited:      "",
	CauseTimeout:     "the program ran longer than its timeout: raise 'timeout' or make it do less",
	CauseMemory:      "the sandbox used more memory than it may: raise 'memory' or hold less at once",
	CauseProcesses:   "the program had more processes and threads than it may: raise 'processes' or start fewer",
	CauseDisk:        "the program wrote more than it may: raise 'disk' or 'inodes', or delete files on the way",
	CauseOutput:      "the program printed more than is kept: raise 'output' or write to a file in the output directory",
	CauseCancelled:   "the run was cancelled on request; start it again if that was not meant",
	CauseSandboxLost: "the sandbox died, which is not the program's answer: run it again",
}

// Remedy says what to do about c; empty for exited.
func (c Cause) Remedy() string { return causeRemedies[c] }

// A Process is a program that was started in a guest. It goes on when nobody
// watches, and can be found again by ID. It is safe for concurrent use.
type Process interface {
	// ID names the process for as long as its guest lives.
	ID() string
	// PID is the number other programs inside know it by.
	PID() int
	// Output yields the output from the given offset on, then ends when the
	// process has ended and everything was yielded. It reports Expired if
	// ctx ends, Unavailable if the guest is gone, and Conflict if the bytes
	// at offset are no longer kept; [OldestOutput] always are.
	Output(ctx context.Context, from int64) iter.Seq2[Chunk, error]
	// Input writes to the program's standard input or terminal.
	Input(ctx context.Context, data []byte) error
	// CloseInput ends the program's standard input.
	CloseInput(ctx context.Context) error
	// Signal sends a signal, named without SIG. It reports NotFound if the
	// process has ended.
	Signal(ctx context.Context, name string) error
	// Resize tells the terminal its size; Conflict without a terminal.
	Resize(ctx context.Context, size TerminalSize) error
	// Wait returns how the process ended. It reports Unavailable if the
	// guest is gone.
	Wait(ctx context.Context) (Exit, error)
}

// ProcessInfo describes a process that Start started.
type ProcessInfo struct {
	ID      string
	PID     int
	Tag     string
	Args    []string
	Dir     string
	Started time.Time
	Ended   bool
}

// A FileInfo describes a file in a guest.
type FileInfo struct {
	Path     string // absolute, slash-separated
	Size     int64  // bytes
	Mode     fs.FileMode
	UID, GID int
	Owner    string // name, or the number if it has none
	Group    string
	Modified time.Time
	Target   string // of a symbolic link
}

// WriteOptions say how a file is written. The zero value means mode 0644, the
// template's user, parents made, existing content replaced.
type WriteOptions struct {
	Mode fs.FileMode // 0 means 0644
	User string      // owner; empty means the template's user
}

// A FileChange is something that happened to a file.
type FileChange struct {
	Path string // absolute
	Op   FileOp
}

// A FileOp is a kind of change.
type FileOp string

const (
	FileCreated FileOp = "create"
	FileWritten FileOp = "write"
	FileRemoved FileOp = "remove"
	FileRenamed FileOp = "rename"
	FileMode    FileOp = "chmod"
)

// A Guest is the inside of a running sandbox, seen from outside. Paths are
// absolute and slash-separated. Errors about files are NotFound, Conflict
// (exists, not empty, wrong type), Denied, Exhausted (disk full) or Invalid.
// It is safe for concurrent use.
type Guest interface {
	// Start runs a command; it goes on after ctx ends.
	Start(ctx context.Context, cmd Command) (Process, error)
	// Attach finds a process by ID or tag; NotFound if there is none.
	Attach(ctx context.Context, idOrTag string) (Process, error)
	// Processes lists what Start started and still remembers.
	Processes(ctx context.Context) ([]ProcessInfo, error)

	// Open reads a regular file. The caller closes it.
	Open(ctx context.Context, path string) (io.ReadCloser, error)
	// Write replaces a file's content with all of r, or leaves the file as
	// it was.
	Write(ctx context.Context, path string, r io.Reader, o WriteOptions) error
	// Stat describes a file without following a final link.
	Stat(ctx context.Context, path string) (FileInfo, error)
	// List yields what is below dir, depth levels deep, in path order.
	List(ctx context.Context, dir string, depth int) ([]FileInfo, error)
	// MakeDir makes a directory and its parents; Conflict if it exists.
	MakeDir(ctx context.Context, path string) error
	// Move renames, making parents of to.
	Move(ctx context.Context, from, to string) error
	// Remove deletes path and all below it; a missing path is no error.
	Remove(ctx context.Context, path string) error
	// Watch yields changes below path until ctx ends.
	Watch(ctx context.Context, path string, recursive bool) iter.Seq2[FileChange, error]
	// Pack returns path and all below it as a tar stream. The caller closes it.
	Pack(ctx context.Context, path string) (io.ReadCloser, error)
	// Unpack extracts a tar stream below dir.
	Unpack(ctx context.Context, dir string, r io.Reader) error

	// Dial connects to a TCP port that listens on loopback inside;
	// Unavailable if none does.
	Dial(ctx context.Context, port int) (net.Conn, error)
}

// An Agent is a Guest that also answers requests in the dialect of E2B's
// in-sandbox agent and in that of its code interpreter, whose paths begin
// with /interpreter/. The host's credentials are added on the way; the
// caller takes those of its own users out first. Redirects are not followed.
type GuestHTTP interface {
	RoundTrip(r *http.Request) (*http.Response, error)
}
