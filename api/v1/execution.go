package v1

import "time"

// An ExecutionRequest runs a program once, in a new sandbox. The program is
// Code, or Files with Entry; Files besides Code are its input.
type ExecutionRequest struct {
	Language string `json:"language" enum:"python,javascript,typescript,go,bash" doc:"Language of the program"`
	Code     string `json:"code,omitempty" doc:"Program; saved as main.py, main.js, main.ts, main.go or main.sh, and run" example:"print(6*7)"`
	Files    []File `json:"files,omitempty" doc:"Files of the program, or input files for code"`
	Entry    string `json:"entry,omitempty" doc:"Path of the file to run; required if there is no code and more than one file" example:"main.py"`

	Args        []string          `json:"args,omitempty" doc:"Arguments of the program"`
	Env         map[string]string `json:"env,omitempty" doc:"Environment variables, added to the template's"`
	Stdin       string            `json:"stdin,omitempty" doc:"Standard input"`
	StdinBase64 []byte            `json:"stdin_base64,omitempty" doc:"Standard input in base64, for bytes that are not UTF-8"`

	Template  string         `json:"template,omitempty" doc:"Name; absent means the node's default" example:"base"`
	Network   *NetworkChoice `json:"network,omitempty" doc:"Network policy of the sandbox; absent means the node's default"`
	MinTier   string         `json:"min_tier,omitempty" enum:"script,gvisor,microvm" doc:"Weakest acceptable isolation; absent means any"`
	VCPUs     float64        `json:"vcpus,omitempty" minimum:"0" doc:"Number of processors" example:"1"`
	Memory    Bytes          `json:"memory,omitempty"`
	Disk      Bytes          `json:"disk,omitempty" doc:"Disk space, in bytes"`
	Inodes    int64          `json:"inodes,omitempty" minimum:"0" doc:"Maximum number of new files"`
	Processes int            `json:"processes,omitempty" minimum:"0" doc:"Maximum number of processes and threads"`
	OpenFiles int            `json:"open_files,omitempty" minimum:"0" doc:"Maximum number of open files per process"`

	Timeout   Duration       `json:"timeout,omitempty" doc:"Maximum run time of the program" example:"30s"`
	Output    Bytes          `json:"output,omitempty" doc:"Maximum size of stdout and stderr together"`
	OutputDir string         `json:"output_dir,omitempty" doc:"Absolute path of the directory whose new and changed files are returned; absent means the working directory" example:"/workspace"`
	Artifacts ArtifactLimits `json:"artifacts,omitzero" doc:"Limits on the artifacts"`

	OnEmpty      string   `json:"on_empty,omitempty" enum:"wait,boot_sync,reject" doc:"Action if no warm sandbox is ready; absent means the pool's policy"`
	ClaimTimeout Duration `json:"claim_timeout,omitempty" doc:"Maximum time to wait for a sandbox" example:"10s"`
	Async        bool     `json:"async,omitempty" doc:"Answer 202 at once instead of waiting for the result"`
}

// A File is one file of a program, with Content or ContentBase64.
type File struct {
	Path          string `json:"path" minLength:"1" doc:"Path relative to the working directory, with slashes and without \"..\"" example:"pkg/data.csv"`
	Content       string `json:"content,omitempty"`
	ContentBase64 []byte `json:"content_base64,omitempty" doc:"Content in base64, for bytes that are not UTF-8"`
	Mode          Mode   `json:"mode,omitempty" doc:"Permission bits; absent means 0644" example:"0755"`
}

// ArtifactLimits limits the artifacts of an execution.
type ArtifactLimits struct {
	MaxBytes Bytes `json:"max_bytes,omitempty" doc:"Maximum size of all artifacts together, in bytes"`
	MaxCount int   `json:"max_count,omitempty" minimum:"0" example:"100"`
}

// States of an execution.
const (
	Queued  = "queued"  // the execution waits for a sandbox
	Running = "running" // the program is running
	Done    = "done"    // Result is set
	Refused = "refused" // Error is set: no sandbox was available
)

// An Execution is the record of one run.
type Execution struct {
	ID        string     `json:"id" example:"exe_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner     string     `json:"owner,omitempty" doc:"Owner, who alone can see the object"`
	State     string     `json:"state" enum:"queued,running,done,refused"`
	Language  string     `json:"language" example:"python"`
	Template  string     `json:"template" example:"base"`
	SandboxID string     `json:"sandbox_id,omitempty" doc:"ID of the sandbox; absent while the execution is queued"`
	CreatedAt time.Time  `json:"created_at"`
	StartedAt *time.Time `json:"started_at,omitempty" doc:"Start of the program; absent while the execution is queued"`
	EndedAt   *time.Time `json:"ended_at,omitempty" doc:"End of the execution; absent until then"`
	Result    *Result    `json:"result,omitempty" doc:"Only with state done"`
	Refusal   *Problem   `json:"refusal,omitempty" doc:"Reason of the refusal; only with state refused"`
}

// An ExecutionSummary is an execution without its output, as in lists.
type ExecutionSummary struct {
	ID        string     `json:"id" example:"exe_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner     string     `json:"owner,omitempty" doc:"Owner, who alone can see the object"`
	State     string     `json:"state" enum:"queued,running,done,refused"`
	Language  string     `json:"language" example:"python"`
	Template  string     `json:"template" example:"base"`
	SandboxID string     `json:"sandbox_id,omitempty" doc:"ID of the sandbox; absent while the execution is queued"`
	CreatedAt time.Time  `json:"created_at"`
	StartedAt *time.Time `json:"started_at,omitempty"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	ExitCode  *int       `json:"exit_code,omitempty" doc:"Only with state done"`
	Cause     string     `json:"cause,omitempty" enum:"exited,timeout,memory,processes,disk,output,cancelled,sandbox_lost" doc:"Only with state done"`
	Duration  Duration   `json:"duration,omitempty" doc:"Run time of the program; only with state done"`
	Refusal   *Problem   `json:"refusal,omitempty" doc:"Reason of the refusal; only with state refused"`
}

// A Result is the result of an execution, also of a program that failed.
type Result struct {
	ExitCode        int        `json:"exit_code" doc:"Exit code: 0 to 255, or -1 if a signal ended the program" example:"0"`
	Signal          string     `json:"signal,omitempty" doc:"Signal that ended the program, without SIG" example:"KILL"`
	Cause           string     `json:"cause" enum:"exited,timeout,memory,processes,disk,output,cancelled,sandbox_lost" doc:"Cause of the program's end"`
	Remedy          string     `json:"remedy,omitempty" doc:"Advice for a cause other than exited"`
	Error           string     `json:"error,omitempty" doc:"Details of a cause other than exited"`
	Stdout          string     `json:"stdout" doc:"Standard output; U+FFFD replaces bytes that are not UTF-8"`
	Stderr          string     `json:"stderr"`
	StdoutBase64    []byte     `json:"stdout_base64,omitempty" doc:"Exact bytes in base64; only if they are not UTF-8"`
	StderrBase64    []byte     `json:"stderr_base64,omitempty"`
	StdoutTruncated bool       `json:"stdout_truncated" doc:"The program printed more than the server keeps"`
	StderrTruncated bool       `json:"stderr_truncated"`
	Artifacts       []Artifact `json:"artifacts" doc:"Files that the program created or changed"`
	ArtifactsLeft   int        `json:"artifacts_left,omitempty" doc:"Files that were not collected because of the limits"`
	Duration        Duration   `json:"duration" doc:"Run time of the program" example:"31.5ms"`
	QueueTime       Duration   `json:"queue_time" doc:"Time in the queue" example:"0s"`
	ClaimTime       Duration   `json:"claim_time" doc:"Time to get a sandbox after the queue" example:"412µs"`
	Warm            bool       `json:"warm" doc:"The interpreter was started before the code was known"`
	Tier            string     `json:"tier" enum:"script,gvisor,microvm,memory" doc:"Isolation of the sandbox"`
	NotEnforced     []string   `json:"not_enforced" doc:"Limits that this machine cannot enforce"`
}

// An Artifact is a file that an execution left in its output directory.
type Artifact struct {
	Path          string `json:"path" doc:"Path, relative to the output directory" example:"plot.png"`
	Size          Bytes  `json:"size"`
	Mode          Mode   `json:"mode" doc:"Permission bits"`
	SHA256        string `json:"sha256" doc:"SHA-256, in hex"`
	URL           string `json:"url" format:"uri-reference" doc:"Path of the download" example:"/v1/executions/exe_u2dmwmlezjgprkqrgppgcz2mgu/artifacts/plot.png"`
	ContentBase64 []byte `json:"content_base64,omitempty" doc:"Content in base64, if all artifacts with content together have at most 1 MiB"`
}

// Types of events.
const (
	EventStarted   = "started"
	EventStdout    = "stdout"
	EventStderr    = "stderr"
	EventWarning   = "warning"   // of a build: a setting without effect
	EventResult    = "result"    // the last event
	EventError     = "error"     // the last event: the run was refused, or it cannot be watched
	EventHeartbeat = "heartbeat" // sent after a silence, only in NDJSON
)

// An ExecutionUpdate is one event of an execution in a stream.
//
// Offset is the offset from which to resume after this event: the number of delivered output bytes,
// of both streams together. Events never split a
// character. While a character of one stream is incomplete, Offset stays
// before it, so resuming there repeats later output of the other stream.
type ExecutionUpdate struct {
	Type       string     `json:"type" enum:"started,stdout,stderr,result,error,heartbeat"`
	Offset     int64      `json:"offset" minimum:"0" doc:"Offset with which to resume the stream without losing events" example:"3"`
	Data       string     `json:"data,omitempty" doc:"Output; only with types stdout and stderr" example:"42\n"`
	DataBase64 []byte     `json:"data_base64,omitempty" doc:"Output in base64, instead of data, if the bytes are not UTF-8"`
	Execution  *Execution `json:"execution,omitempty" doc:"Execution; only with types started and result"`
	Error      *Problem   `json:"error,omitempty" doc:"Error; only with type error"`
}
