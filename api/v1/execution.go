package v1

import "time"

// An ExecutionRequest runs a program once, in a fresh sandbox. The program is
// Code, or Files with Entry; Files next to Code are its input.
type ExecutionRequest struct {
	Language string `json:"language" enum:"python,javascript,typescript,go,bash" doc:"what the program is written in"`
	Code     string `json:"code,omitempty" doc:"the program; saved as main.py, main.js, main.ts, main.go or main.sh and run" example:"print(6*7)"`
	Files    []File `json:"files,omitempty" doc:"the program's files, or what code reads"`
	Entry    string `json:"entry,omitempty" doc:"path of the file to run; needed if there is no code and more than one file" example:"main.py"`

	Args        []string          `json:"args,omitempty" doc:"what follows the program in argv"`
	Env         map[string]string `json:"env,omitempty" doc:"added to the template's environment"`
	Stdin       string            `json:"stdin,omitempty" doc:"the whole of standard input"`
	StdinBase64 []byte            `json:"stdin_base64,omitempty" doc:"the same for bytes that are not UTF-8"`

	Template  string         `json:"template,omitempty" doc:"absent means the node's default" example:"base"`
	Network   *NetworkChoice `json:"network,omitempty" doc:"what the program may reach; absent means the node's default"`
	MinTier   string         `json:"min_tier,omitempty" enum:"script,gvisor,microvm" doc:"the weakest acceptable isolation; absent means any"`
	VCPUs     float64        `json:"vcpus,omitempty" minimum:"0" doc:"number of processors" example:"1"`
	Memory    Bytes          `json:"memory,omitempty"`
	Disk      Bytes          `json:"disk,omitempty" doc:"what the program may write"`
	Inodes    int64          `json:"inodes,omitempty" minimum:"0" doc:"files it may create"`
	Processes int            `json:"processes,omitempty" minimum:"0" doc:"processes and threads alive at once"`
	OpenFiles int            `json:"open_files,omitempty" minimum:"0" doc:"descriptors per process"`

	Timeout   Duration       `json:"timeout,omitempty" doc:"elapsed time of the program" example:"30s"`
	Output    Bytes          `json:"output,omitempty" doc:"of stdout and stderr together"`
	OutputDir string         `json:"output_dir,omitempty" doc:"absolute path of the directory whose new and changed files come back; absent means the working directory" example:"/workspace"`
	Artifacts ArtifactLimits `json:"artifacts,omitzero" doc:"limits on the artifacts"`

	OnEmpty      string   `json:"on_empty,omitempty" enum:"wait,boot_sync,reject" doc:"what happens if no warm sandbox is there; absent means the pool's policy"`
	ClaimTimeout Duration `json:"claim_timeout,omitempty" doc:"how long to wait for one" example:"10s"`
	Async        bool     `json:"async,omitempty" doc:"respond with 202 at once instead of waiting for the result"`
}

// A File is one file of a program, with Content or ContentBase64.
type File struct {
	Path          string `json:"path" minLength:"1" doc:"relative to the working directory, slash-separated, without .." example:"pkg/data.csv"`
	Content       string `json:"content,omitempty"`
	ContentBase64 []byte `json:"content_base64,omitempty" doc:"for bytes that are not UTF-8"`
	Mode          Mode   `json:"mode,omitempty" doc:"permission bits; absent means 0644" example:"0755"`
}

// ArtifactLimits bound the artifacts of an execution.
type ArtifactLimits struct {
	MaxBytes Bytes `json:"max_bytes,omitempty" doc:"of all together"`
	MaxCount int   `json:"max_count,omitempty" minimum:"0" example:"100"`
}

// States of an execution.
const (
	Queued  = "queued"  // waits for a sandbox
	Running = "running" // its program runs
	Done    = "done"    // Result is there
	Refused = "refused" // Error is there: no sandbox could be had
)

// An Execution is the record of one run.
type Execution struct {
	ID        string     `json:"id" example:"exe_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner     string     `json:"owner,omitempty" doc:"who may see it"`
	State     string     `json:"state" enum:"queued,running,done,refused"`
	Language  string     `json:"language" example:"python"`
	Template  string     `json:"template" example:"base"`
	SandboxID string     `json:"sandbox_id,omitempty" doc:"absent while queued"`
	CreatedAt time.Time  `json:"created_at"`
	StartedAt *time.Time `json:"started_at,omitempty" doc:"of the program; absent while queued"`
	EndedAt   *time.Time `json:"ended_at,omitempty" doc:"absent until it has ended"`
	Result    *Result    `json:"result,omitempty" doc:"with state done"`
	Refusal   *Problem   `json:"refusal,omitempty" doc:"with state refused"`
}

// An ExecutionSummary is an execution without its output, as in lists.
type ExecutionSummary struct {
	ID        string     `json:"id" example:"exe_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner     string     `json:"owner,omitempty" doc:"who may see it"`
	State     string     `json:"state" enum:"queued,running,done,refused"`
	Language  string     `json:"language" example:"python"`
	Template  string     `json:"template" example:"base"`
	SandboxID string     `json:"sandbox_id,omitempty" doc:"absent while queued"`
	CreatedAt time.Time  `json:"created_at"`
	StartedAt *time.Time `json:"started_at,omitempty"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	ExitCode  *int       `json:"exit_code,omitempty" doc:"with state done"`
	Cause     string     `json:"cause,omitempty" enum:"exited,timeout,memory,processes,disk,output,cancelled,sandbox_lost" doc:"with state done"`
	Duration  Duration   `json:"duration,omitempty" doc:"of the program, with state done"`
	Refusal   *Problem   `json:"refusal,omitempty" doc:"with state refused"`
}

// A Result is how an execution ended. A program that failed has one, too.
type Result struct {
	ExitCode        int        `json:"exit_code" doc:"0 to 255, or -1 if a signal ended the program" example:"0"`
	Signal          string     `json:"signal,omitempty" doc:"that ended it, without SIG" example:"KILL"`
	Cause           string     `json:"cause" enum:"exited,timeout,memory,processes,disk,output,cancelled,sandbox_lost" doc:"how it ended"`
	Remedy          string     `json:"remedy,omitempty" doc:"what to do about a cause other than exited"`
	Error           string     `json:"error,omitempty" doc:"more about a cause other than exited"`
	Stdout          string     `json:"stdout" doc:"with U+FFFD for what is not UTF-8"`
	Stderr          string     `json:"stderr"`
	StdoutBase64    []byte     `json:"stdout_base64,omitempty" doc:"the exact bytes, only if they are not UTF-8"`
	StderrBase64    []byte     `json:"stderr_base64,omitempty"`
	StdoutTruncated bool       `json:"stdout_truncated" doc:"more was printed than is kept"`
	StderrTruncated bool       `json:"stderr_truncated"`
	Artifacts       []Artifact `json:"artifacts" doc:"files the program left"`
	ArtifactsLeft   int        `json:"artifacts_left,omitempty" doc:"files over the limits, which were not collected"`
	Duration        Duration   `json:"duration" doc:"of the program" example:"31.5ms"`
	QueueTime       Duration   `json:"queue_time" doc:"from acceptance until this run's turn" example:"0s"`
	ClaimTime       Duration   `json:"claim_time" doc:"to start a sandbox then" example:"412µs"`
	Warm            bool       `json:"warm" doc:"the interpreter was started before the code was known"`
	Tier            string     `json:"tier" enum:"script,gvisor,microvm,memory" doc:"the strength of its isolation"`
	NotEnforced     []string   `json:"not_enforced" doc:"limits that this machine cannot enforce"`
}

// An Artifact is a file that an execution left in its output directory.
type Artifact struct {
	Path          string `json:"path" doc:"relative to the output directory" example:"plot.png"`
	Size          Bytes  `json:"size"`
	Mode          Mode   `json:"mode" doc:"permission bits"`
	SHA256        string `json:"sha256" doc:"in hex"`
	URL           string `json:"url" format:"uri-reference" doc:"path to download it from" example:"/v1/executions/exe_u2dmwmlezjgprkqrgppgcz2mgu/artifacts/plot.png"`
	ContentBase64 []byte `json:"content_base64,omitempty" doc:"the file, if all such files together are at most 1 MiB"`
}

// Types of events.
const (
	EventStarted   = "started"
	EventStdout    = "stdout"
	EventStderr    = "stderr"
	EventWarning   = "warning"   // of a build: what has no effect
	EventResult    = "result"    // the last
	EventError     = "error"     // the last: the run was refused, or watching it is not possible
	EventHeartbeat = "heartbeat" // nothing happened for a while; only on NDJSON
)

// An Event is one step of an execution in a stream.
//
// Offset is where to resume after this event: the number of output bytes, of
// both streams together, that have been delivered. Events never split a
// character. While a character of one stream is incomplete, Offset stays
// before it, so resuming there repeats what the other stream has written since.
type ExecutionUpdate struct {
	Type       string     `json:"type" enum:"started,stdout,stderr,result,error,heartbeat"`
	Offset     int64      `json:"offset" minimum:"0" doc:"resume here and nothing is lost" example:"3"`
	Data       string     `json:"data,omitempty" doc:"with types stdout and stderr" example:"42\n"`
	DataBase64 []byte     `json:"data_base64,omitempty" doc:"instead of data, if the bytes are not UTF-8"`
	Execution  *Execution `json:"execution,omitempty" doc:"with types started and result"`
	Error      *Problem   `json:"error,omitempty" doc:"with type error"`
}
