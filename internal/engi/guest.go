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

// A Stream is a stream of output.
type Stream string

const (
	Stdout   Stream = "stdout"
	Stderr   Stream = "stderr"
	Terminal Stream = "pty" // output of a terminal, stdout and stderr mixed
)

// A Chunk is a piece of a process's output. All streams of a process share one
// sequence of bytes: Offset counts the bytes before this chunk on all of them,
// so that one number is the position of a reader.
type Chunk struct {
	Stream Stream
	Offset int64
	Data   []byte // valid until the next iteration
}

// OldestOutput is an offset for [Process.Output] that means the oldest byte still
// stored.
const OldestOutput int64 = -2

// A TerminalSize is the size of a terminal in characters.
type TerminalSize struct{ Cols, Rows uint16 }

// A Command is a program to start in a guest.
type Command struct {
	ID       string            // ID of the process; empty means that the guest chooses one; if a process has this ID, Start attaches to it instead
	Args     []string          // the program, looked up in PATH, and its arguments
	Env      map[string]string // added to the sandbox's environment
	Dir      string            // absolute path; empty means the working directory, or the home directory of another user
	User     string            // a user of the sandbox; empty means the template's user
	Tag      string            // second name for Guest.Attach; may be empty
	Stdin    Stdin             // the program's standard input
	Terminal *TerminalSize     // run in a terminal of this size; nil means without a terminal
	Timeout  time.Duration     // kill the program after this time; 0 means never
	Builtin  Builtin           // built-in program to run; Args are its arguments; empty means the program Args[0]
	Output   int64             // bytes of output stored for later readers; 0 means the guest's default
}

// A Builtin is a program that every guest has, whatever its template. It runs as
// the command's user. Guests without programs of their own report Unsupported.
type Builtin string

const (
	// BuiltinSFTP serves files by SFTP over the standard streams.
	BuiltinSFTP Builtin = "sftp"
	// BuiltinListen accepts connections to a loopback port, its argument, for
	// the host; see package listen of the guest.
	BuiltinListen Builtin = "listen"
)

// SFTPLinkFirst is an environment variable of [BuiltinSFTP]. If it is not empty, the client names a
// symbolic link before its target, as the draft of SFTP has it, and not after it, as
// OpenSSH does.
const SFTPLinkFirst = "ENGI_SFTP_LINK_FIRST"

// Stdin is a kind of standard input.
type Stdin uint8

const (
	StdinNull Stdin = iota // end of file at once
	StdinPipe              // data of Process.Input, until CloseInput
)

// An Exit is how a program ended. A program that fails is a result, not an error.
// Errors mean that the result is unknown.
type Exit struct {
	Code   int    // 0 to 255, or -1 if a signal ended it
	Signal string // like "KILL" or "SEGV", without SIG; may be empty
	Cause  Cause  // CauseExited, or the reason why the sandbox ended the program
}

// A Cause is the reason why an execution, a program or a sandbox ended.
type Cause string

const (
	CauseExited      Cause = "exited"       // the program ended by itself, with any exit code
	CauseTimeout     Cause = "timeout"      // wall clock limit
	CauseMemory      Cause = "memory"       // memory limit
	CauseProcesses   Cause = "processes"    // process limit
	CauseDisk        Cause = "disk"         // disk or inode limit
	CauseOutput      Cause = "output"       // output limit
	CauseCancelled   Cause = "cancelled"    // on request
	CauseSandboxLost Cause = "sandbox_lost" // the sandbox ended unexpectedly
)

// Causes returns all causes.
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

// Remedy returns advice about c. It is empty for CauseExited.
func (c Cause) Remedy() string { return causeRemedies[c] }

// A Process is a program that was started in a guest. It continues without readers,
// and can be found again by ID. It is safe for concurrent use.
type Process interface {
	// ID identifies the process for the life of its guest.
	ID() string
	// PID is the process ID in the sandbox.
	PID() int
	// Output yields the output from the given offset until the process has
	// ended and all output has been yielded. It reports Expired if ctx ends,
	// Unavailable if the guest is gone, and Conflict if the bytes at from are
	// no longer stored, which cannot happen with [OldestOutput].
	Output(ctx context.Context, from int64) iter.Seq2[Chunk, error]
	// Input writes to the program's standard input or terminal.
	Input(ctx context.Context, data []byte) error
	// CloseInput ends the program's standard input.
	CloseInput(ctx context.Context) error
	// Signal sends a signal, named without SIG. It reports NotFound if the
	// process has ended.
	Signal(ctx context.Context, name string) error
	// Resize sets the size of the terminal. It reports Conflict without one.
	Resize(ctx context.Context, size TerminalSize) error
	// Wait waits for the end of the process. It reports Unavailable if the
	// guest is gone.
	Wait(ctx context.Context) (Exit, error)
}

// A TerminalProcess is a [Process] with a terminal to which clients can reattach.
// Processes of guests implement it; older guests report Unsupported.
type TerminalProcess interface {
	Process
	// InputAt is an idempotent Input. The first byte of data has the number at among
	// the bytes that writer, a name of at most 64 letters, digits, '-' and '_', sends
	// to the process. Bytes that the terminal has received before are not written again.
	// It returns the number of the next byte, also with an error and without
	// data, and reports Conflict if bytes are missing.
	InputAt(ctx context.Context, writer string, at int64, data []byte) (next int64, err error)
	// History describes the stored output. It reports Conflict without a
	// terminal.
	History(ctx context.Context) (TerminalHistory, error)
}

// A TerminalHistory describes the stored output of a terminal.
type TerminalHistory struct {
	Start, End int64          // offsets
	Modes      []int          // private modes (CSI ? … h) that were set at Start
	Marks      []TerminalMark // times of output, in order; may be empty
	Sizes      []TerminalMark // sizes, in order; the first is the size at Start, the last the current size
	Exit       *Exit          // nil while the process runs
}

// A TerminalMark is the time of the output at an offset, or the size of the
// terminal from that offset.
type TerminalMark struct {
	Offset int64
	Time   time.Time
	Size   TerminalSize
}

// ProcessInfo describes a process that Guest.Start started.
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
	Owner    string // name, or UID if it has none
	Group    string // name, or GID if it has none
	Modified time.Time
	Changed  time.Time // time of the last change of content or metadata, which programs cannot set; zero if unknown
	Target   string    // target of a symbolic link; otherwise empty
}

// WriteOptions are the attributes of a written file.
type WriteOptions struct {
	Mode fs.FileMode // 0 means the mode of the existing file, or 0644
	User string      // owner; empty means the template's user
}

// A FileChange is a change of a file.
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

// A Guest gives access to a running sandbox. Paths are absolute and
// slash-separated. Errors about files are NotFound, Conflict (exists, not empty,
// wrong type), Denied, Exhausted (disk full) or Invalid. It is safe for
// concurrent use.
type Guest interface {
	// Start starts a command, which continues after ctx ends.
	Start(ctx context.Context, cmd Command) (Process, error)
	// Attach finds a process by ID or tag. It reports NotFound if there is
	// none.
	Attach(ctx context.Context, idOrTag string) (Process, error)
	// Processes lists processes that Start started. Processes that have ended are
	// forgotten after a while.
	Processes(ctx context.Context) ([]ProcessInfo, error)

	// Open reads a regular file. The caller closes it.
	Open(ctx context.Context, path string) (io.ReadCloser, error)
	// Write replaces a file's content with all of r, or leaves the file
	// unchanged. It creates missing parents.
	Write(ctx context.Context, path string, r io.Reader, o WriteOptions) error
	// Stat describes a file without following a final link.
	Stat(ctx context.Context, path string) (FileInfo, error)
	// List returns the entries below dir, depth levels deep, in path order.
	List(ctx context.Context, dir string, depth int) ([]FileInfo, error)
	// MakeDir creates a directory and its parents. It reports Conflict if it
	// exists.
	MakeDir(ctx context.Context, path string) error
	// Move renames from to to, and creates the parents of to.
	Move(ctx context.Context, from, to string) error
	// Remove deletes path and everything below it. A missing path is not an
	// error.
	Remove(ctx context.Context, path string) error
	// Watch yields changes below path until ctx ends.
	Watch(ctx context.Context, path string, recursive bool) iter.Seq2[FileChange, error]
	// Pack returns path and everything below it as a tar stream. The caller
	// closes it.
	Pack(ctx context.Context, path string) (io.ReadCloser, error)
	// Unpack extracts a tar stream below dir.
	Unpack(ctx context.Context, dir string, r io.Reader) error

	// Dial connects to a TCP port on the sandbox's loopback. It reports
	// Unavailable if nothing listens there.
	Dial(ctx context.Context, port int) (net.Conn, error)
}

// GuestHTTP is implemented by Guests that also serve the APIs of E2B's envd and,
// below /interpreter/, of its code interpreter. RoundTrip adds the credentials
// for the guest; the caller removes its users' credentials first. Redirects are
// not followed.
type GuestHTTP interface {
	RoundTrip(r *http.Request) (*http.Response, error)
}
