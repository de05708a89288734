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
	Persistence string   `json:"persistence,omitempty" enum:"none,session,workspace,overlay,snapshot" doc:"what is kept when its sandbox ends: nothing, /workspace, /workspace with a copy in the node's store of workspaces, what was changed on the whole disk, to put on the newest template, or everything; absent means session"`
	Capacity    Bytes    `json:"capacity,omitempty" doc:"of its volume; absent means the node's"`
	TTL         Duration `json:"ttl,omitempty" doc:"time without use after which it is deleted with its volume; absent means the node's" example:"30m"`
	Dormancy    Duration `json:"dormancy,omitempty" doc:"time without use after which its sandbox is deleted; absent means the node's" example:"5m"`

	MaxDuration Duration `json:"max_duration,omitempty" doc:"time after which it ends, in use or not; absent means the node's" example:"8h"`

	VCPUs     float64 `json:"vcpus,omitempty" minimum:"0" doc:"number of processors" example:"1"`
	Memory    Bytes   `json:"memory,omitempty" doc:"absent means the node's for sessions"`
	Disk      Bytes   `json:"disk,omitempty" doc:"what may be written outside the volume"`
	CPUQuota  float64 `json:"cpu_quota,omitempty" minimum:"0" doc:"number of processors in the long run; absent means the node's" example:"0.5"`
	Inodes    int64   `json:"inodes,omitempty" minimum:"0" doc:"files that may be created outside the volume"`
	Processes int     `json:"processes,omitempty" minimum:"0" doc:"processes and threads alive at once"`

	Network  *NetworkPolicy    `json:"network,omitempty" doc:"absent means the node's for sessions: the hosts of its packages"`
	Metadata map[string]string `json:"metadata,omitempty" doc:"at most 64 pairs of 256 bytes" example:"{\"user\":\"ann\"}"`
	Env      map[string]string `json:"env,omitempty" doc:"variables of every program in its sandboxes; never shown again"`
	Git      *Git              `json:"git,omitempty" doc:"repository to clone into its sandboxes"`
}

// A Git is the repository of a session. Its credential is put in at the wall
// and is never inside of a sandbox.
type Git struct {
	URL        string   `json:"url" doc:"without user and password; plain HTTP only if the network policy allows the host" example:"https://github.com/owner/repository.git"`
	Ref        string   `json:"ref,omitempty" maxLength:"200" doc:"branch, tag or full ID of a commit; absent means the repository's default"`
	Depth      int      `json:"depth,omitempty" minimum:"0" doc:"commits of history to fetch; absent means all"`
	Submodules bool     `json:"submodules,omitempty" doc:"clone submodules, too; those beside the repository are reachable"`
	Secret     string   `json:"secret,omitempty" doc:"ID or name of the secret with the password or token"`
	User       string   `json:"user,omitempty" doc:"that goes with the secret; absent means git"`
	Dir        string   `json:"dir,omitempty" doc:"below /workspace; absent means the last part of the URL"`
	Push       *GitPush `json:"push,omitempty" doc:"what pushes look like; absent means that nothing can be pushed"`
}

// A GitPush says how work is pushed.
type GitPush struct {
	OnRelease bool   `json:"on_release,omitempty" doc:"of a session: push also when its sandbox is released and when it ends"`
	Branch    string `json:"branch,omitempty" maxLength:"200" doc:"absent means that of the session, or engi/ and its name"`
	Author    string `json:"author,omitempty" doc:"of the commit; absent means that of the session, or engi" example:"Ann <ann@example.com>"`
	Message   string `json:"message,omitempty" maxLength:"4096" doc:"of the commit; absent means that of the session"`
}

// A GitPushed is where work was pushed to.
type GitPushed struct {
	Branch    string `json:"branch"`
	Commit    string `json:"commit" doc:"full ID"`
	Conflict  bool   `json:"conflict" doc:"others pushed to the branch that was asked for, so this is a new one"`
	Unchanged bool   `json:"unchanged" doc:"the branch had the commit already"`
}

// A Session is a long-lived place to run code in, which outlives its sandboxes.
type Session struct {
	ID          string            `json:"id" example:"ses_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner       string            `json:"owner,omitempty"`
	Name        string            `json:"name,omitempty" example:"chat-42"`
	State       string            `json:"state" enum:"idle,booting,running,suspended,hibernated,terminated"`
	Mode        string            `json:"mode" enum:"lazy,warm"`
	Persistence string            `json:"persistence" enum:"none,session,workspace,overlay,snapshot"`
	Template    string            `json:"template,omitempty" doc:"absent means the one with the node's packages"`
	Size        Size              `json:"size" doc:"of its sandboxes"`
	CPUQuota    float64           `json:"cpu_quota,omitempty" doc:"number of processors in the long run; absent means no limit but its size"`
	VolumeID    string            `json:"volume_id,omitempty" doc:"absent before it is first used"`
	SandboxID   string            `json:"sandbox_id,omitempty" doc:"absent while it has none"`
	Capacity    Bytes             `json:"capacity" doc:"of its volume"`
	TTL         Duration          `json:"ttl"`
	Dormancy    Duration          `json:"dormancy"`
	MaxDuration Duration          `json:"max_duration,omitempty" doc:"absent means no limit"`
	Network     *NetworkPolicy    `json:"network,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	Git         *Git              `json:"git,omitempty"`
	Attached    []SessionClient   `json:"attached,omitempty" doc:"who is"`
	SavedAt     *time.Time        `json:"saved_at,omitempty" doc:"when its workspace, or the changes of its disk, were last saved"`
	CreatedAt   time.Time         `json:"created_at"`
	UsedAt      time.Time         `json:"used_at"`
	ExpiresAt   time.Time         `json:"expires_at" doc:"unless it is used before; if it has ended, when that was"`
}

// A SessionClient is attached to a session.
type SessionClient struct {
	Client string    `json:"client" doc:"its name; the ID of its key if it came by ssh, of the terminal if it looks at one"`
	Via    string    `json:"via,omitempty" doc:"ssh or terminal for a connection, which comes and goes by itself; absent for one that was attached by request"`
	Since  time.Time `json:"since"`
}

// An AttachRequest says who attaches to a session, or detaches from it.
type AttachRequest struct {
	Client string `json:"client,omitempty" maxLength:"128" doc:"letters, digits, dots, dashes and underscores; absent means default" example:"laptop"`
}

// A WorkspaceCopy describes the copy of a workspace.
type WorkspaceCopy struct {
	Files    int   `json:"files" doc:"and directories and links"`
	Bytes    Bytes `json:"bytes" doc:"of the content of all files"`
	Uploaded Bytes `json:"uploaded" doc:"what the store did not have"`
	Skipped  int   `json:"skipped,omitempty" doc:"pipes, sockets and devices"`
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
