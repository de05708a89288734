package wire

import (
	"encoding/json"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// Version is the version of the protocol. A host talks only to guests of the
// same version.
const Version = 1

// Hello is the guest's first answer.
type Hello struct {
	Version      int      `json:"version"`
	Boot         string   `json:"boot"` // random text, different at each start of the guest program
	Kernel       string   `json:"kernel"`
	Arch         string   `json:"arch"`
	Capabilities []string `json:"capabilities"` // names of capabilities; see the constants named Cap…
}

// Capabilities of a guest.
const (
	CapRun       = "run"       // runs of programs with warm interpreters
	CapProcess   = "process"   // processes and terminals
	CapFile      = "file"      // files, watches, archives
	CapPort      = "port"      // streams to TCP ports
	CapQuiesce   = "quiesce"   // quiesce and resume
	CapPowerOff  = "poweroff"  // power-off on request
	CapE2B       = "e2b"       // the API of E2B's envd
	CapKernels   = "kernels"   // the code interpreter
	CapProcesses = "processes" // enforcement of the process limit by the kernel
)

// Setup sets the user and the directory of programs. A later Setup changes only
// the settings it names: a zero field keeps the earlier value; UID, GID, Groups and Home
// belong to User, and a non-nil Env, even an empty one, replaces the earlier Env
// as a whole. Running processes are not affected.
type Setup struct {
	Env       map[string]string `json:"env,omitzero"`   // environment of programs besides PATH, HOME and the like
	User      string            `json:"user,omitempty"` // name of the user; empty means root
	UID       int               `json:"uid"`
	GID       int               `json:"gid"`
	Groups    []int             `json:"groups,omitempty"` // supplementary groups; nil means the groups in /etc/group
	Home      string            `json:"home,omitempty"`
	WorkDir   string            `json:"work_dir,omitempty"` // absolute path of the working directory; created if missing; empty means /workspace
	Shell     string            `json:"shell,omitempty"`    // absolute path of the shell; empty means /bin/sh
	Processes int               `json:"processes,omitempty"`
	OpenFiles int               `json:"open_files,omitempty"`
	OutputDir string            `json:"output_dir,omitempty"` // output directory of runs that name none; empty means WorkDir
	Kernels   bool              `json:"kernels,omitempty"`    // programs in the sandbox can use the code interpreter; cannot be revoked
	Network   *NetworkSetup     `json:"wiring,omitempty"`     // setup of the network; nil keeps the earlier one; without any there is no network
}

// NetworkSetup is the configuration that the sandbox needs for its network to work.
type NetworkSetup struct {
	Resolver  string            `json:"resolver,omitempty"`  // address of the resolver for /etc/resolv.conf; empty means none
	Search    string            `json:"search,omitempty"`    // search domain for /etc/resolv.conf
	Authority []byte            `json:"authority,omitempty"` // PEM of a certificate to trust besides the system's; see AuthorityPath
	Env       map[string]string `json:"env,omitempty"`       // environment of all programs; Setup.Env takes precedence
}

// Paths of the authority's certificate. If a path is read-only,
// the certificate is written elsewhere, and values of NetworkSetup.Env equal to one of these
// paths are changed to match.
const (
	AuthorityPath = "/usr/local/share/ca-certificates/engi-egress.crt" // the certificate alone
	BundlePath    = "/etc/ssl/certs/ca-certificates.crt"               // the certificate, appended to the system's certificates
	// MaxAuthority bounds the certificate, in bytes.
	MaxAuthority = 64 << 10
)

// Prepare asks for an interpreter that is started and waits for code.
type Prepare struct {
	Language    engi.Language `json:"language"`
	Interpreter string        `json:"interpreter"` // absolute path of the program
}

// Kernels asks for the kernels of the code interpreter's default contexts.
type Kernels struct {
	Languages []string `json:"languages"` // names of languages, such as python, javascript, typescript or bash
}

// A File is one file of a run, with its path relative to the working directory. Data is sent
// in frames of its own, after the head.
type File struct {
	Path string `json:"path"`
	Mode uint32 `json:"mode,omitempty"` // permission bits; 0 means 0644
	Size int64  `json:"size"`           // set by the sender to len(Data)
	Data []byte `json:"-"`
}

// A Run is a program with all its input and its limits.
type Run struct {
	ID          string            `json:"id"` // unique ID, chosen by the host; see CheckID
	Language    engi.Language     `json:"language"`
	Interpreter string            `json:"interpreter"` // absolute path of the program
	Files       []File            `json:"files"`
	Entry       string            `json:"entry,omitempty"` // file to run; may be empty if there is only one
	Args        []string          `json:"args,omitempty"`
	Env         map[string]string `json:"env,omitempty"` // environment added to the one of Setup
	StdinSize   int64             `json:"stdin_size,omitempty"`
	Stdin       []byte            `json:"-"`

	Timeout       time.Duration `json:"timeout"`        // maximum wall-clock time of the program; 0 means none
	Output        int64         `json:"output"`         // maximum size of both streams together in bytes; 0 means DefaultOutput
	ArtifactBytes int64         `json:"artifact_bytes"` // maximum size of all artifacts together in bytes; 0 means DefaultArtifactBytes
	ArtifactCount int           `json:"artifact_count"` // maximum number of artifacts; 0 means DefaultArtifactCount
	OutputDir     string        `json:"output_dir,omitempty"`
}

// Defaults and bounds of a Run.
const (
	DefaultOutput        = 1 << 20
	MaxOutput            = engi.MaxOutput
	DefaultArtifactBytes = 64 << 20
	DefaultArtifactCount = 256
	MaxArtifactCount     = 16384
	MaxFiles             = engi.MaxFiles
	MaxFileBytes         = 64 << 20 // bytes; maximum size of all files of a run together
	MaxStdin             = 64 << 20
)

// An Artifact is a regular file that a run left in its output directory.
type Artifact struct {
	Path   string `json:"path"` // path relative to the output directory
	Size   int64  `json:"size"`
	Mode   uint32 `json:"mode"` // permission bits
	SHA256 string `json:"sha256"`
}

// Finish is the outcome of a run.
type Finish struct {
	Exit            engi.Exit
	Duration        time.Duration // run time of the program
	Warm            bool          // the interpreter was started before the run
	StdoutBytes     int64         // number of kept bytes of each stream
	StderrBytes     int64
	StdoutTruncated bool // the program printed more bytes than are kept
	StderrTruncated bool
	Artifacts       []Artifact
	ArtifactsLeft   int    // number of files not collected because they are over the limits or unreadable
	Error           string // error text; only for causes other than exited
}

// finish is the JSON form of Finish.
type finish struct {
	Code            int           `json:"code"`
	Signal          string        `json:"signal,omitempty"`
	Cause           engi.Cause    `json:"cause"`
	Duration        time.Duration `json:"duration"`
	Warm            bool          `json:"warm,omitempty"`
	StdoutBytes     int64         `json:"stdout_bytes"`
	StderrBytes     int64         `json:"stderr_bytes"`
	StdoutTruncated bool          `json:"stdout_truncated,omitempty"`
	StderrTruncated bool          `json:"stderr_truncated,omitempty"`
	Artifacts       []Artifact    `json:"artifacts,omitempty"`
	ArtifactsLeft   int           `json:"artifacts_left,omitempty"`
	Error           string        `json:"error,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (f Finish) MarshalJSON() ([]byte, error) {
	return json.Marshal(finish{Code: f.Exit.Code, Signal: f.Exit.Signal, Cause: f.Exit.Cause, Duration: f.Duration, Warm: f.Warm, StdoutBytes: f.StdoutBytes, StderrBytes: f.StderrBytes,
		StdoutTruncated: f.StdoutTruncated, StderrTruncated: f.StderrTruncated, Artifacts: f.Artifacts, ArtifactsLeft: f.ArtifactsLeft, Error: f.Error})
}

// UnmarshalJSON implements json.Unmarshaler.
func (f *Finish) UnmarshalJSON(b []byte) error {
	var w finish
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	*f = Finish{Exit: engi.Exit{Code: w.Code, Signal: w.Signal, Cause: w.Cause}, Duration: w.Duration, Warm: w.Warm, StdoutBytes: w.StdoutBytes, StderrBytes: w.StderrBytes,
		StdoutTruncated: w.StdoutTruncated, StderrTruncated: w.StderrTruncated, Artifacts: w.Artifacts, ArtifactsLeft: w.ArtifactsLeft, Error: w.Error}
	return nil
}

// Entry returns the file name for a program of a language that is a single
// string of code.
func Entry(l engi.Language) string { return l.MainFile() }

// A Start is the first frame of an answer about a process or a run.
type Start struct {
	ID   string `json:"id"`
	PID  int    `json:"pid"`
	From int64  `json:"from"` // offset of the first output byte that follows
	Warm bool   `json:"warm,omitempty"`
}

// A Command asks for a process; see [engi.Command].
type Command struct {
	ID      string            `json:"id,omitempty"` // ID of the process; empty means that the guest chooses one
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env,omitempty"`
	Dir     string            `json:"dir,omitempty"`
	User    string            `json:"user,omitempty"`
	Tag     string            `json:"tag,omitempty"`
	Input   bool              `json:"input,omitempty"` // standard input is a pipe
	Cols    uint16            `json:"cols,omitempty"`  // width of the terminal in characters; with Rows set the command runs in a terminal
	Rows    uint16            `json:"rows,omitempty"`
	Timeout time.Duration     `json:"timeout,omitempty"`
	Output  int64             `json:"output,omitempty"`  // number of output bytes to keep; 0 means DefaultOutput
	Builtin engi.Builtin      `json:"builtin,omitempty"` // built-in command to run instead of a program
}

// A Process describes a process that the host started.
type Process struct {
	ID      string    `json:"id"`
	PID     int       `json:"pid"`
	Tag     string    `json:"tag,omitempty"`
	Args    []string  `json:"args"`
	Dir     string    `json:"dir,omitempty"`
	Started time.Time `json:"started"`
	Ended   bool      `json:"ended,omitempty"`
}

// A Size is the size of a terminal, in characters.
type Size struct {
	Cols uint16 `json:"cols"`
	Rows uint16 `json:"rows"`
}

// Taken is the number of bytes of one writer's input that the program has received.
type Taken struct {
	Next int64 `json:"next"`
}

// A History is the record of a terminal in the guest; see [engi.TerminalHistory].
// The numbers with the same index in At and Millis form a mark.
type History struct {
	Start  int64        `json:"start"`
	End    int64        `json:"end"`
	Modes  []int        `json:"modes,omitempty"`
	At     []int64      `json:"at,omitempty"`
	Millis []int64      `json:"millis,omitempty"` // milliseconds since 1970
	Sizes  []SizeChange `json:"sizes"`
	Exit   *engi.Exit   `json:"exit,omitempty"` // exit of the process; nil while it runs
}

// A SizeChange is a size of a terminal, with the offset in the output from which it applies.
type SizeChange struct {
	At     int64 `json:"at"`
	Millis int64 `json:"millis"`
	Size
}

// MaxMarks and MaxSizes bound a History.
const (
	MaxMarks = 8192
	MaxSizes = 256
	MaxModes = 64
)

// A FileInfo describes a file; see [engi.FileInfo].
type FileInfo struct {
	Path     string    `json:"path"`
	Size     int64     `json:"size"`
	Mode     uint32    `json:"mode"` // mode as fs.FileMode
	UID      int       `json:"uid"`
	GID      int       `json:"gid"`
	Owner    string    `json:"owner"`
	Group    string    `json:"group"`
	Modified time.Time `json:"modified"`
	Changed  time.Time `json:"changed,omitzero"`
	Target   string    `json:"target,omitempty"`
}

// A FileChange is the payload of a Change frame.
type FileChange struct {
	Path string      `json:"path"`
	Op   engi.FileOp `json:"op"`
}

// Usage is the use of resources by the sandbox, as counted by its own kernel. Sizes are in
// bytes.
type Usage struct {
	CPU         time.Duration `json:"cpu"`
	Memory      int64         `json:"memory"`       // memory not available to programs; includes MemoryCache
	MemoryCache int64         `json:"memory_cache"` // memory of mapped files and of files on tmpfs
	DiskUsed    int64         `json:"disk_used"`    // used space in the root file system's writable layer
	DiskTotal   int64         `json:"disk_total"`
	Processes   int           `json:"processes"`
}
