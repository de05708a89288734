package v1

import (
	"encoding/json"
	"time"
)

// A SessionRequest creates a session. All fields are optional.
type SessionRequest struct {
	Name        string   `json:"name,omitempty" maxLength:"128" doc:"Name: letters, digits, dots, dashes and underscores" example:"chat-42"`
	Template    string   `json:"template,omitempty" maxLength:"200" doc:"Template of the session's sandboxes; absent means the one with the node's packages"`
	Workspace   string   `json:"workspace,omitempty" maxLength:"128" doc:"ID or name of a workspace of the caller: the session works in its sandbox, with its files and services. Only name, mode, ttl, max_duration and metadata may be present besides"`
	Mode        string   `json:"mode,omitempty" enum:"lazy,warm" doc:"Time of booting the sandbox: on first use, or at once; absent means the node's default"`
	Persistence string   `json:"persistence,omitempty" enum:"none,session,workspace,overlay,snapshot" doc:"Data that is kept when the sandbox ends: none; session: /workspace; workspace: /workspace with a copy in the node's file store; overlay: changes of the whole disk, which are applied to the newest template; snapshot: everything; absent means session"`
	Capacity    Bytes    `json:"capacity,omitempty" doc:"Capacity of the session's volume; absent means the node's default"`
	TTL         Duration `json:"ttl,omitempty" doc:"Time without use after which the session and its volume are deleted; absent means the node's default" example:"30m"`
	Dormancy    Duration `json:"dormancy,omitempty" doc:"Time without use after which the sandbox is released; absent means the node's default" example:"5m"`

	MaxDuration Duration `json:"max_duration,omitempty" doc:"Maximum lifetime, in use or not; absent means the node's default" example:"8h"`

	VCPUs     float64 `json:"vcpus,omitempty" minimum:"0" doc:"Number of processors" example:"1"`
	Memory    Bytes   `json:"memory,omitempty" doc:"Memory limit; absent means the node's default for sessions"`
	Disk      Bytes   `json:"disk,omitempty" doc:"Disk space outside the volume"`
	CPUQuota  float64 `json:"cpu_quota,omitempty" minimum:"0" doc:"Sustained number of processors; absent means the node's default" example:"0.5"`
	Inodes    int64   `json:"inodes,omitempty" minimum:"0" doc:"Maximum number of new files outside the volume"`
	Processes int     `json:"processes,omitempty" minimum:"0" doc:"Maximum number of processes and threads"`

	Network  *NetworkPolicy    `json:"network,omitempty" doc:"Network policy; absent means the node's for sessions: the hosts of the node's packages"`
	Metadata map[string]string `json:"metadata,omitempty" doc:"Labels; at most 64 pairs of 256 bytes" example:"{\"user\":\"ann\"}"`
	Env      map[string]string `json:"env,omitempty" doc:"Environment variables of every program in the session's sandboxes; never shown again"`
	Git      *Git              `json:"git,omitempty" doc:"Git repository to clone into the session's sandboxes"`
}

// A Git is the repository of a session. The egress gateway inserts its credential,
// which is never inside of a sandbox.
type Git struct {
	URL        string   `json:"url" doc:"URL without user and password; plain HTTP only if the network policy allows the host" example:"https://github.com/owner/repository.git"`
	Ref        string   `json:"ref,omitempty" maxLength:"200" doc:"Branch, tag or full ID of a commit; absent means the repository's default"`
	Depth      int      `json:"depth,omitempty" minimum:"0" doc:"Number of commits to fetch; absent means all"`
	Submodules bool     `json:"submodules,omitempty" doc:"Also clone submodules; those on the repository's host are reachable"`
	Secret     string   `json:"secret,omitempty" doc:"ID or name of the secret with the password or token"`
	User       string   `json:"user,omitempty" doc:"User for the secret; absent means git"`
	Dir        string   `json:"dir,omitempty" doc:"Directory below /workspace; absent means the last element of the URL"`
	Push       *GitPush `json:"push,omitempty" doc:"Settings for pushes; absent means that pushes are refused"`
}

// A GitPush holds the options of a push.
type GitPush struct {
	OnRelease bool   `json:"on_release,omitempty" doc:"Also push when the session's sandbox is released and when the session ends"`
	Branch    string `json:"branch,omitempty" maxLength:"200" doc:"Branch; absent means the session's, or engi/ followed by its name"`
	Author    string `json:"author,omitempty" doc:"Author of the commit; absent means the session's, or engi" example:"Ann <ann@example.com>"`
	Message   string `json:"message,omitempty" maxLength:"4096" doc:"Message of the commit; absent means the session's"`
}

// A GitPushed is the destination of a push.
type GitPushed struct {
	Branch    string `json:"branch"`
	Commit    string `json:"commit" doc:"Full ID of the commit"`
	Conflict  bool   `json:"conflict" doc:"Others pushed to the requested branch, so this is a new branch"`
	Unchanged bool   `json:"unchanged" doc:"The branch already had the commit"`
}

// A Session is a long-lived environment to run code in, which outlives its sandboxes.
type Session struct {
	ID          string            `json:"id" example:"ses_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner       string            `json:"owner,omitempty"`
	Name        string            `json:"name,omitempty" example:"chat-42"`
	State       string            `json:"state" enum:"idle,booting,running,suspended,hibernated,terminated"`
	Mode        string            `json:"mode" enum:"lazy,warm"`
	Persistence string            `json:"persistence" enum:"none,session,workspace,overlay,snapshot"`
	Template    string            `json:"template,omitempty" doc:"Template; absent means the one with the node's packages"`
	WorkspaceID string            `json:"workspace_id,omitempty" doc:"ID of the workspace in whose sandbox the session works; absent for none"`
	Size        Size              `json:"size" doc:"Limits of the session's sandboxes; those of a workspace are its own"`
	CPUQuota    float64           `json:"cpu_quota,omitempty" doc:"Sustained number of processors; absent means no limit except the size"`
	VolumeID    string            `json:"volume_id,omitempty" doc:"ID of the volume; absent before the first use"`
	SandboxID   string            `json:"sandbox_id,omitempty" doc:"ID of the sandbox; absent while the session has none"`
	Capacity    Bytes             `json:"capacity" doc:"Capacity of the volume"`
	TTL         Duration          `json:"ttl"`
	Dormancy    Duration          `json:"dormancy"`
	MaxDuration Duration          `json:"max_duration,omitempty" doc:"Maximum lifetime; absent means no limit"`
	Network     *NetworkPolicy    `json:"network,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	Git         *Git              `json:"git,omitempty"`
	Attached    []SessionClient   `json:"attached,omitempty" doc:"Attached clients"`
	SavedAt     *time.Time        `json:"saved_at,omitempty" doc:"Time at which the files, or the changes of the disk, were last saved"`
	CreatedAt   time.Time         `json:"created_at"`
	UsedAt      time.Time         `json:"used_at"`
	ExpiresAt   time.Time         `json:"expires_at" doc:"Time at which the session ends if it is not used before; for an ended session, the time of its end"`
}

// A SessionClient is a client attached to a session.
type SessionClient struct {
	Client string    `json:"client" doc:"Name of the client; for SSH the ID of its key, for a terminal the ID of the terminal"`
	Via    string    `json:"via,omitempty" doc:"ssh or terminal for a connection, which is listed while it is open; absent for a client that was attached by request"`
	Since  time.Time `json:"since"`
}

// An AttachRequest names the client that attaches to a session, or detaches from it.
type AttachRequest struct {
	Client string `json:"client,omitempty" maxLength:"128" doc:"Name of the client: letters, digits, dots, dashes and underscores; absent means default" example:"laptop"`
}

// A WorkspaceCopy describes the copy of a workspace.
type WorkspaceCopy struct {
	Files    int   `json:"files" doc:"Number of files, directories and links"`
	Bytes    Bytes `json:"bytes" doc:"Size of all files, in bytes"`
	Uploaded Bytes `json:"uploaded" doc:"Bytes that the store did not have"`
	Skipped  int   `json:"skipped,omitempty" doc:"Number of pipes, sockets and devices, which are not copied"`
}

// A CodeRequest is code to run in a session.
type CodeRequest struct {
	Code        string            `json:"code" minLength:"1" doc:"Module; its result is its default export, or its last statement if that is an expression" example:"const n: number = 6; n * 7"`
	Description string            `json:"description,omitempty" doc:"Purpose of the code, for logs only"`
	Language    string            `json:"language,omitempty" enum:"typescript,javascript" doc:"Language; absent means typescript"`
	Timeout     Duration          `json:"timeout,omitempty" doc:"Maximum run time, at most the node's limit; absent means the node's limit" example:"30s"`
	Env         map[string]string `json:"env,omitempty" doc:"Additional environment variables"`
}

// A CodeResult is the result of code in a session.
type CodeResult struct {
	Success   bool            `json:"success" doc:"The program ended without an error"`
	Result    json.RawMessage `json:"result,omitempty" doc:"Value as JSON; absent if there is none"`
	Error     string          `json:"error,omitempty" doc:"Name, message and place of the error in one line; absent with success" example:"TypeError: x is not a function (line 3, column 5)"`
	Detail    *CodeError      `json:"error_detail,omitempty" doc:"The error in parts"`
	Stdout    string          `json:"stdout"`
	Stderr    string          `json:"stderr"`
	Truncated bool            `json:"truncated,omitempty" doc:"The program printed more than the server keeps"`
	Warnings  []string        `json:"warnings,omitempty" doc:"Remarks on values that JSON cannot represent"`
	Duration  Duration        `json:"duration" doc:"Run time of the code"`
	Booted    Duration        `json:"booted,omitempty" doc:"Time spent on starting a sandbox; absent if there was one"`
	Queued    Duration        `json:"queued,omitempty" doc:"Time spent waiting for other runs of the session"`
	SandboxID string          `json:"sandbox_id"`
}

// A CodeError is the error of failed code.
type CodeError struct {
	Cause   string `json:"cause" enum:"exited,timeout,memory,processes,disk,output,cancelled,sandbox_lost" doc:"exited after an exception or an exit, otherwise the limit that ended the run"`
	Name    string `json:"name,omitempty" doc:"Name of the exception" example:"TypeError"`
	Message string `json:"message"`
	Line    int    `json:"line,omitempty" doc:"Line in the request's code, from 1"`
	Column  int    `json:"column,omitempty" doc:"Column, from 1"`
	Stack   string `json:"stack,omitempty" doc:"Stack, one line per frame; main.ts is the request's code"`
}

// A CodeUpdate is one event of a run in a session in a stream. The last one is
// result or error.
type CodeUpdate struct {
	Type       string      `json:"type" enum:"stdout,stderr,result,error,heartbeat"`
	Offset     int64       `json:"offset" minimum:"0" doc:"Number of bytes printed before" example:"3"`
	Data       string      `json:"data,omitempty" doc:"Output; only with types stdout and stderr" example:"42\n"`
	DataBase64 []byte      `json:"data_base64,omitempty" doc:"Output in base64, instead of data, if the bytes are not UTF-8"`
	Result     *CodeResult `json:"result,omitempty" doc:"Result; only with type result"`
	Error      *Problem    `json:"error,omitempty" doc:"Error; only with type error"`
}

// Dependencies is the state of installing the packages that code in sessions
// may import.
type Dependencies struct {
	State    string       `json:"state" enum:"building,ready,failed"`
	Packages []Dependency `json:"packages"`
	Wanted   string       `json:"wanted" doc:"Name of the template with the configured packages" example:"deps-3f9a2b7c1d5e8f60"`
	Template string       `json:"template,omitempty" doc:"Name of the template that sessions get now"`
	Digest   string       `json:"digest,omitempty" doc:"Digest of the template that sessions get now"`
	BuiltAt  *time.Time   `json:"built_at,omitempty"`
	Step     string       `json:"step,omitempty" doc:"Step of the current installation"`
	Log      []string     `json:"log" doc:"Last lines of the last installation"`
	Error    string       `json:"error,omitempty" doc:"Reason why the last installation failed"`
	Remedy   string       `json:"remedy,omitempty"`
}

// A Dependency is a package that code in sessions may import.
type Dependency struct {
	Package   string   `json:"package" example:"@linear/sdk"`
	Version   string   `json:"version,omitempty" doc:"Version; absent means the newest at the time of the installation"`
	Docs      []string `json:"docs,omitempty" doc:"URLs of Markdown files"`
	SecretEnv string   `json:"secret_env,omitempty" doc:"Environment variable in the sandbox that is set to a placeholder for the secret"`
	Hosts     []string `json:"hosts,omitempty" doc:"Hosts that the package uses"`
}
