package v1

import "time"

// A ProcessRequest starts a program in a sandbox: Args, or Command for a
// shell.
type ProcessRequest struct {
	Args     []string          `json:"args,omitempty" doc:"Program and arguments; the program is looked up in PATH" example:"[\"python3\",\"-c\",\"print(6*7)\"]"`
	Command  string            `json:"command,omitempty" doc:"Shell command for /bin/sh -c, instead of args" example:"ls | wc -l"`
	Env      map[string]string `json:"env,omitempty" doc:"Environment variables, added to the sandbox's"`
	Dir      string            `json:"dir,omitempty" doc:"Absolute path of the working directory; absent means the template's, or the home directory of another user" example:"/workspace"`
	User     string            `json:"user,omitempty" doc:"User in the sandbox; absent means the template's"`
	Tag      string            `json:"tag,omitempty" maxLength:"128" doc:"Name by which the process can be found" example:"server"`
	Stdin    bool              `json:"stdin,omitempty" doc:"Connect standard input to …/input; by default the program has no input"`
	Terminal *TerminalSize     `json:"terminal,omitempty" doc:"Run the program in a terminal of this size, which also reads …/input"`
	Timeout  Duration          `json:"timeout,omitempty" doc:"Time after which the program is killed; absent means never" example:"30s"`
	Output   Bytes             `json:"output,omitempty" doc:"Size of the output kept for clients that resume; absent means 1 MiB"`
	Detach   bool              `json:"detach,omitempty" doc:"Answer 201 at once instead of streaming the output"`
}

// A TerminalSize is the size of a terminal in characters.
type TerminalSize struct {
	Cols int `json:"cols" minimum:"1" maximum:"65535" example:"80"`
	Rows int `json:"rows" minimum:"1" maximum:"65535" example:"24"`
}

// A Process is a program started in a sandbox.
type Process struct {
	ID        string     `json:"id" doc:"ID of the process, valid as long as the sandbox exists" example:"p1"`
	PID       int        `json:"pid" doc:"Process ID inside the sandbox"`
	Tag       string     `json:"tag,omitempty"`
	Args      []string   `json:"args"`
	Dir       string     `json:"dir,omitempty"`
	Running   bool       `json:"running"`
	StartedAt *time.Time `json:"started_at,omitempty"`
}

// An Exit is the exit of a program.
type Exit struct {
	ExitCode int    `json:"exit_code" doc:"Exit code: 0 to 255, or -1 if a signal ended the program" example:"0"`
	Signal   string `json:"signal,omitempty" doc:"Signal that ended the program, without SIG" example:"KILL"`
	Cause    string `json:"cause" enum:"exited,timeout,memory,processes,disk,output,cancelled,sandbox_lost"`
	Remedy   string `json:"remedy,omitempty" doc:"Advice for a cause other than exited"`
}

// A ProcessResult is the output and the exit of a process.
type ProcessResult struct {
	Process Process `json:"process"`
	Exit
	Stdout          string `json:"stdout" doc:"Standard output, or output of the terminal; U+FFFD replaces bytes that are not UTF-8"`
	Stderr          string `json:"stderr"`
	StdoutBase64    []byte `json:"stdout_base64,omitempty" doc:"Exact bytes in base64; only if they are not UTF-8"`
	StderrBase64    []byte `json:"stderr_base64,omitempty"`
	StdoutTruncated bool   `json:"stdout_truncated" doc:"The program printed more than 1 MiB"`
	StderrTruncated bool   `json:"stderr_truncated"`
}

// Types of events that only streams of processes have.
const (
	EventTerminal = "terminal"
	EventExit     = "exit" // the last event
)

// A ProcessUpdate is one event of a process in a stream. Offset is as in [ExecutionUpdate].
type ProcessUpdate struct {
	Type       string   `json:"type" enum:"started,stdout,stderr,terminal,exit,error,heartbeat"`
	Offset     int64    `json:"offset" minimum:"0" doc:"Offset with which to resume the stream without losing events" example:"3"`
	Data       string   `json:"data,omitempty" doc:"Output; only with types stdout, stderr and terminal" example:"42\n"`
	DataBase64 []byte   `json:"data_base64,omitempty" doc:"Output in base64, instead of data, if the bytes are not UTF-8"`
	Process    *Process `json:"process,omitempty" doc:"Process; only with type started"`
	Exit       *Exit    `json:"exit,omitempty" doc:"Exit; only with type exit"`
	Error      *Problem `json:"error,omitempty" doc:"Error; only with type error"`
}

// A SignalRequest names a signal.
type SignalRequest struct {
	Signal string `json:"signal" minLength:"1" maxLength:"16" doc:"Name of the signal, without SIG" example:"TERM"`
}

// A TerminalControl is a text message on a terminal's WebSocket; input and
// output are binary messages. The server sends started (Offset is the offset of the
// first byte that follows), and exit or error as the last message; clients send resize.
type TerminalControl struct {
	Type   string   `json:"type" enum:"started,exit,error,resize"`
	Offset int64    `json:"offset,omitempty"`
	Cols   int      `json:"cols,omitempty"`
	Rows   int      `json:"rows,omitempty"`
	Exit   *Exit    `json:"exit,omitempty"`
	Error  *Problem `json:"error,omitempty"`
}
