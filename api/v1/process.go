package v1

import "time"

// A ProcessRequest starts a program in a sandbox: Args, or Command for a
// shell.
type ProcessRequest struct {
	Args     []string          `json:"args,omitempty" doc:"program and arguments; the program is looked up in PATH" example:"[\"python3\",\"-c\",\"print(6*7)\"]"`
	Command  string            `json:"command,omitempty" doc:"instead of args: a line for /bin/sh -c" example:"ls | wc -l"`
	Env      map[string]string `json:"env,omitempty" doc:"added to the sandbox's"`
	Dir      string            `json:"dir,omitempty" doc:"absolute; absent means the working directory, or the home of another user" example:"/workspace"`
	User     string            `json:"user,omitempty" doc:"absent means the template's"`
	Tag      string            `json:"tag,omitempty" maxLength:"128" doc:"a name to find the process by" example:"server"`
	Stdin    bool              `json:"stdin,omitempty" doc:"it reads what is sent to …/input; else it reads nothing"`
	Terminal *TerminalSize     `json:"terminal,omitempty" doc:"run it in a terminal of that size, which reads …/input too"`
	Timeout  Duration          `json:"timeout,omitempty" doc:"after which it is killed; absent means never" example:"30s"`
	Output   Bytes             `json:"output,omitempty" doc:"of output kept for clients that resume; absent means 1 MiB"`
	Detach   bool              `json:"detach,omitempty" doc:"respond with 201 at once instead of streaming the output"`
}

// A TerminalSize is the size of a terminal in characters.
type TerminalSize struct {
	Cols int `json:"cols" minimum:"1" maximum:"65535" example:"80"`
	Rows int `json:"rows" minimum:"1" maximum:"65535" example:"24"`
}

// A Process is a program started in a sandbox.
type Process struct {
	ID        string     `json:"id" doc:"names it for as long as the sandbox lives" example:"p1"`
	PID       int        `json:"pid" doc:"for its programs"`
	Tag       string     `json:"tag,omitempty"`
	Args      []string   `json:"args"`
	Dir       string     `json:"dir,omitempty"`
	Running   bool       `json:"running"`
	StartedAt *time.Time `json:"started_at,omitempty"`
}

// An Exit is how a program ended.
type Exit struct {
	ExitCode int    `json:"exit_code" doc:"0 to 255, or -1 if a signal ended the program" example:"0"`
	Signal   string `json:"signal,omitempty" doc:"that ended it, without SIG" example:"KILL"`
	Cause    string `json:"cause" enum:"exited,timeout,memory,processes,disk,output,cancelled,sandbox_lost"`
	Remedy   string `json:"remedy,omitempty" doc:"what to do about a cause other than exited"`
}

// A ProcessResult is the output of a process and how it ended.
type ProcessResult struct {
	Process Process `json:"process"`
	Exit
	Stdout          string `json:"stdout" doc:"and of the terminal; with U+FFFD for what is not UTF-8"`
	Stderr          string `json:"stderr"`
	StdoutBase64    []byte `json:"stdout_base64,omitempty" doc:"the exact bytes, only if they are not UTF-8"`
	StderrBase64    []byte `json:"stderr_base64,omitempty"`
	StdoutTruncated bool   `json:"stdout_truncated" doc:"more was printed than fits: 1 MiB"`
	StderrTruncated bool   `json:"stderr_truncated"`
}

// Types of events that only processes have.
const (
	EventTerminal = "terminal"
	EventExit     = "exit" // the last
)

// A ProcessUpdate is one step of a process in a stream. Offset is as in [Event].
type ProcessUpdate struct {
	Type       string   `json:"type" enum:"started,stdout,stderr,terminal,exit,error,heartbeat"`
	Offset     int64    `json:"offset" minimum:"0" doc:"resume here and nothing is lost" example:"3"`
	Data       string   `json:"data,omitempty" doc:"with types stdout, stderr and terminal" example:"42\n"`
	DataBase64 []byte   `json:"data_base64,omitempty" doc:"instead of data, if the bytes are not UTF-8"`
	Process    *Process `json:"process,omitempty" doc:"with type started"`
	Exit       *Exit    `json:"exit,omitempty" doc:"with type exit"`
	Error      *Problem `json:"error,omitempty" doc:"with type error"`
}

// A SignalRequest names a signal.
type SignalRequest struct {
	Signal string `json:"signal" minLength:"1" maxLength:"16" doc:"without SIG" example:"TERM"`
}

// A TerminalControl is a text message on a terminal's WebSocket; input and
// output are binary messages. The server sends started (Offset is that of the
// first byte that follows), and exit or error as the last; clients send resize.
type TerminalControl struct {
	Type   string   `json:"type" enum:"started,exit,error,resize"`
	Offset int64    `json:"offset,omitempty"`
	Cols   int      `json:"cols,omitempty"`
	Rows   int      `json:"rows,omitempty"`
	Exit   *Exit    `json:"exit,omitempty"`
	Error  *Problem `json:"error,omitempty"`
}
