package v1

import (
	"encoding/json"
	"time"
)

// A SessionRequest creates a session. All fields are optional.
type SessionRequest struct {
	Name        string   `json:"name,omitempty" maxLength:"128" doc:"letters, digits, dots, dashes and underscores; to find it by" example:"chat-42"`
	Template    string   `json:"template,omitempty" maxLength:"200" doc:"of its sandboxes; absent means the one with the node's packages"`
	Mode        string   `json:"mode,omitempty" enum:"lazy,warm" doc:"when it gets a sandbox: when it is first used, or at once; absent means the node's"`
	Persistence string   `json:"persistence,omitempty" enum:"none,session,snapshot" doc:"what is kept when its sandbox ends: nothing, /workspace, or everything; absent means session"`
	Capacity    Bytes    `json:"capacity,omitempty" doc:"of its volume; absent means the node's"`
	TTL         Duration `json:"ttl,omitempty" doc:"time without use after which it is deleted with its volume; absent means the node's" example:"30m"`
	Dormancy    Duration `json:"dormancy,omitempty" doc:"time without use after which its sandbox is deleted; absent means the node's" example:"5m"`

	VCPUs     float64 `json:"vcpus,omitempty" minimum:"0" doc:"number of processors" example:"1"`
	Memory    Bytes   `json:"memory,omitempty" doc:"absent means the node's for sessions"`
	Disk      Bytes   `json:"disk,omitempty" doc:"what may be written outside the volume"`
	Processes int     `json:"processes,omitempty" minimum:"0" doc:"processes and threads alive at once"`

	Network  *NetworkPolicy    `json:"network,omitempty" doc:"absent means the node's for sessions: the hosts of its packages"`
	Metadata map[string]string `json:"metadata,omitempty" doc:"at most 64 pairs of 256 bytes" example:"{\"user\":\"ann\"}"`
	Env      map[string]string `json:"env,omitempty" doc:"variables of every program in its sandboxes; never shown again"`
}

// A Session is a long-lived place to run code in, which outlives its sandboxes.
type Session struct {
	ID          string            `json:"id" example:"ses_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner       string            `json:"owner,omitempty"`
	Name        string            `json:"name,omitempty" example:"chat-42"`
	State       string            `json:"state" enum:"idle,booting,running,suspended,hibernated,terminated"`
	Mode        string            `json:"mode" enum:"lazy,warm"`
	Persistence string            `json:"persistence" enum:"none,session,snapshot"`
	Template    string            `json:"template,omitempty" doc:"absent means the one with the node's packages"`
	Size        Size              `json:"size" doc:"of its sandboxes"`
	VolumeID    string            `json:"volume_id,omitempty" doc:"absent before it is first used"`
	SandboxID   string            `json:"sandbox_id,omitempty" doc:"absent while it has none"`
	Capacity    Bytes             `json:"capacity" doc:"of its volume"`
	TTL         Duration          `json:"ttl"`
	Dormancy    Duration          `json:"dormancy"`
	Network     *NetworkPolicy    `json:"network,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	CreatedAt   time.Time         `json:"created_at"`
	UsedAt      time.Time         `json:"used_at"`
	ExpiresAt   time.Time         `json:"expires_at" doc:"unless it is used before; if it has ended, when that was"`
}

// A CodeRequest is code to run in a session.
type CodeRequest struct {
	Code        string            `json:"code" minLength:"1" doc:"a module; its result is its default export, or its last statement if that is an expression" example:"const n: number = 6; n * 7"`
	Description string            `json:"description,omitempty" doc:"what it is for, for logs only"`
	Language    string            `json:"language,omitempty" enum:"typescript,javascript" doc:"absent means typescript"`
	Timeout     Duration          `json:"timeout,omitempty" doc:"at most the node's; absent means the node's" example:"30s"`
	Env         map[string]string `json:"env,omitempty" doc:"more variables that the code may read"`
}

// A CodeResult is how code in a session ended.
type CodeResult struct {
	Success   bool            `json:"success" doc:"it ended by itself"`
	Result    json.RawMessage `json:"result,omitempty" doc:"the value as JSON; absent if there is none"`
	Error     string          `json:"error,omitempty" doc:"name, message and place in one line; absent with success" example:"TypeError: x is not a function (line 3, column 5)"`
	Detail    *CodeError      `json:"error_detail,omitempty" doc:"the same in parts"`
	Stdout    string          `json:"stdout"`
	Stderr    string          `json:"stderr"`
	Truncated bool            `json:"truncated,omitempty" doc:"more was printed than is kept"`
	Warnings  []string        `json:"warnings,omitempty" doc:"what could not be represented in the result"`
	Duration  Duration        `json:"duration" doc:"of the code"`
	Booted    Duration        `json:"booted,omitempty" doc:"spent on starting a sandbox first; absent if there was one"`
	Queued    Duration        `json:"queued,omitempty" doc:"waiting for other runs of the session"`
	SandboxID string          `json:"sandbox_id"`
}

// A CodeError says why code failed.
type CodeError struct {
	Cause   string `json:"cause" enum:"exited,timeout,memory,processes,disk,output,cancelled,sandbox_lost" doc:"exited after an exception or an exit, otherwise what ended it"`
	Name    string `json:"name,omitempty" doc:"of the exception" example:"TypeError"`
	Message string `json:"message"`
	Line    int    `json:"line,omitempty" doc:"in the code that was sent, from 1"`
	Column  int    `json:"column,omitempty" doc:"from 1"`
	Stack   string `json:"stack,omitempty" doc:"one line per frame; main.ts is the request's code"`
}

// A CodeUpdate is one step of a run in a session in a stream. The last one is
// result or error.
type CodeUpdate struct {
	Type       string      `json:"type" enum:"stdout,stderr,result,error,heartbeat"`
	Offset     int64       `json:"offset" minimum:"0" doc:"bytes printed before" example:"3"`
	Data       string      `json:"data,omitempty" doc:"with types stdout and stderr" example:"42\n"`
	DataBase64 []byte      `json:"data_base64,omitempty" doc:"instead of data, if the bytes are not UTF-8"`
	Result     *CodeResult `json:"result,omitempty" doc:"with type result"`
	Error      *Problem    `json:"error,omitempty" doc:"with type error"`
}

// Dependencies is the state of installing the packages that code in sessions
// may import.
type Dependencies struct {
	State    string       `json:"state" enum:"building,ready,failed"`
	Packages []Dependency `json:"packages"`
	Wanted   string       `json:"wanted" doc:"name of the template that has them" example:"deps-3f9a2b7c1d5e8f60"`
	Template string       `json:"template,omitempty" doc:"that sessions get now"`
	Digest   string       `json:"digest,omitempty" doc:"of that"`
	BuiltAt  *time.Time   `json:"built_at,omitempty"`
	Step     string       `json:"step,omitempty" doc:"of the current installation"`
	Log      []string     `json:"log" doc:"the last lines of the last installation"`
	Error    string       `json:"error,omitempty" doc:"why the last installation failed"`
	Remedy   string       `json:"remedy,omitempty"`
}

// A Dependency is a package that code in sessions may import.
type Dependency struct {
	Package   string   `json:"package" example:"@linear/sdk"`
	Version   string   `json:"version,omitempty" doc:"absent means the newest at the time of the installation"`
	Docs      []string `json:"docs,omitempty" doc:"URLs of Markdown files"`
	SecretEnv string   `json:"secret_env,omitempty" doc:"environment variable in the sandbox that is set to a placeholder for the secret"`
	Hosts     []string `json:"hosts,omitempty" doc:"that it uses"`
}
