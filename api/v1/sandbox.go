package v1

import "time"

// States of a sandbox.
const (
	SandboxPending     = "pending"
	SandboxStarting    = "starting"
	SandboxReady       = "ready"
	SandboxRunning     = "running"
	SandboxPaused      = "paused"
	SandboxHibernating = "hibernating"
	SandboxHibernated  = "hibernated"
	SandboxResuming    = "resuming"
	SandboxStopping    = "stopping"
	SandboxStopped     = "stopped"
)

// A SandboxRequest creates a sandbox that lives until it is deleted, reaches its
// deadline or exceeds its idle time.
type SandboxRequest struct {
	Template  string  `json:"template,omitempty" maxLength:"200" doc:"Name of the template; absent means the node's default, or the snapshot's" example:"base"`
	Snapshot  string  `json:"snapshot,omitempty" maxLength:"128" doc:"ID or name of the snapshot to start from, instead of a template" example:"snp_u2dmwmlezjgprkqrgppgcz2mgu"`
	MinTier   string  `json:"min_tier,omitempty" enum:"script,gvisor,microvm" doc:"Weakest acceptable isolation; absent means any"`
	VCPUs     float64 `json:"vcpus,omitempty" minimum:"0" doc:"Number of processors" example:"1"`
	Memory    Bytes   `json:"memory,omitempty"`
	Disk      Bytes   `json:"disk,omitempty" doc:"Disk space, in bytes"`
	Inodes    int64   `json:"inodes,omitempty" minimum:"0" doc:"Maximum number of new files"`
	Processes int     `json:"processes,omitempty" minimum:"0" doc:"Maximum number of processes and threads"`
	OpenFiles int     `json:"open_files,omitempty" minimum:"0" doc:"Maximum number of open files per process"`

	Lifetime
	Metadata map[string]string `json:"metadata,omitempty" doc:"Labels; at most 64 pairs of 256 bytes" example:"{\"task\":\"42\"}"`
	Env      map[string]string `json:"env,omitempty" doc:"Environment variables of every program in the sandbox; never shown again"`
	Volumes  []VolumeMount     `json:"volumes,omitempty" doc:"Volumes to mount"`
	Network  *NetworkPolicy    `json:"network,omitempty" doc:"Name; absent means the node's default"`
	Ports    *PortPolicy       `json:"ports,omitempty" doc:"Access to the sandbox's ports from outside"`
}

// A Lifetime defines the automatic end of a sandbox.
type Lifetime struct {
	Timeout     Duration `json:"timeout,omitempty" doc:"Time from creation, resumption or extension to the deadline; absent means the node's default" example:"5m"`
	IdleTimeout Duration `json:"idle_timeout,omitempty" doc:"Maximum time without use from outside; absent means no limit except timeout" example:"1m"`
	MaxDuration Duration `json:"max_duration,omitempty" doc:"Maximum time from creation or resumption, whatever the extensions; absent means the node's" example:"24h"`
	OnTimeout   string   `json:"on_timeout,omitempty" enum:"kill,hibernate" doc:"Action at the deadline or after the idle timeout; absent means kill"`
	DiskOnly    bool     `json:"disk_only,omitempty" doc:"Automatic hibernation keeps the disk and discards the memory"`
	AutoResume  bool     `json:"auto_resume,omitempty" doc:"Resume the sandbox when it is used from outside"`
}

// A VolumeMount mounts a volume in a sandbox.
type VolumeMount struct {
	Volume string `json:"volume" minLength:"1" doc:"ID or name" example:"data"`
	Path   string `json:"path" minLength:"1" doc:"Absolute path in the sandbox" example:"/data"`
}

// A PortPolicy defines the access to the ports of a sandbox.
type PortPolicy struct {
	Private bool   `json:"private,omitempty" doc:"Only the owner and holders of signed links can reach the ports; by default everybody who knows the name can"`
	Host    string `json:"host,omitempty" doc:"Host header that services see; absent means localhost:PORT; ${PORT} is replaced" example:"app.example.com"`
}

// A Sandbox is an isolated environment to run programs in.
type Sandbox struct {
	ID          string            `json:"id" example:"sbx_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner       string            `json:"owner,omitempty" doc:"Owner, who alone can see the sandbox; absent while nobody uses it"`
	State       string            `json:"state" enum:"pending,starting,ready,running,paused,hibernating,hibernated,resuming,stopping,stopped"`
	Template    string            `json:"template" doc:"Name of the template, as requested" example:"base"`
	Digest      string            `json:"digest,omitempty" doc:"Digest of the template's content"`
	SnapshotID  string            `json:"snapshot_id,omitempty" doc:"ID of the snapshot from which the sandbox was created"`
	Pool        string            `json:"pool,omitempty" doc:"Warm pool of the sandbox; absent if it was created on demand"`
	Tier        string            `json:"tier" enum:"script,gvisor,microvm,memory" doc:"Isolation of the sandbox"`
	Size        Size              `json:"size" doc:"Limits of the sandbox"`
	Throttled   bool              `json:"throttled,omitempty" doc:"The sandbox has used up its processor time of the last minutes and is limited to its session's sustained share until it has used less for a while"`
	ExecutionID string            `json:"execution_id,omitempty" doc:"ID of the execution that uses the sandbox"`
	Cause       string            `json:"cause,omitempty" doc:"Reason why the sandbox stopped"`
	CreatedAt   time.Time         `json:"created_at"`
	StartedAt   *time.Time        `json:"started_at,omitempty" doc:"Time of the last creation or resumption"`
	ActiveAt    *time.Time        `json:"active_at,omitempty" doc:"Time of the last use from outside"`
	DeadlineAt  *time.Time        `json:"deadline_at,omitempty" doc:"Time at which on_timeout takes effect; absent while the sandbox is not running"`
	StoppedAt   *time.Time        `json:"stopped_at,omitempty"`
	Lifetime    *Lifetime         `json:"lifetime,omitempty" doc:"Lifetime; absent for sandboxes of executions and pools"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	Volumes     []VolumeMount     `json:"volumes,omitempty"`
	Network     *NetworkPolicy    `json:"network,omitempty"`
	Ports       *PortPolicy       `json:"ports,omitempty"`
	DiskOnly    bool              `json:"disk_only,omitempty" doc:"The sandbox was hibernated without its memory: resuming boots it from its disk"`
}

// A Size is the resource limit of one sandbox.
type Size struct {
	VCPUs     float64 `json:"vcpus,omitempty" doc:"Number of processors; 0.5 is half the time of one" example:"1"`
	Memory    Bytes   `json:"memory,omitempty" doc:"Memory limit, in bytes, including everything that belongs to the sandbox"`
	Disk      Bytes   `json:"disk,omitempty" doc:"Disk space, in bytes"`
	Inodes    int64   `json:"inodes,omitempty" doc:"Maximum number of new files"`
	Processes int     `json:"processes,omitempty" doc:"Maximum number of processes and threads"`
	OpenFiles int     `json:"open_files,omitempty" doc:"Maximum number of open files per process"`
}

// A SandboxUpdate changes the fields that are present.
type SandboxUpdate struct {
	Timeout     *Duration          `json:"timeout,omitempty" doc:"Time from now to the new deadline, which may be earlier or later than the current one" example:"10m"`
	IdleTimeout *Duration          `json:"idle_timeout,omitempty" doc:"Maximum time without use from outside; 0s means no limit"`
	MaxDuration *Duration          `json:"max_duration,omitempty"`
	OnTimeout   *string            `json:"on_timeout,omitempty" enum:"kill,hibernate"`
	DiskOnly    *bool              `json:"disk_only,omitempty"`
	AutoResume  *bool              `json:"auto_resume,omitempty"`
	Metadata    *map[string]string `json:"metadata,omitempty" doc:"Labels, which replace all current ones"`
	Network     *NetworkPolicy     `json:"network,omitempty" doc:"Network policy, which replaces the current one"`
	Ports       *PortPolicy        `json:"ports,omitempty"`
}

// A HibernateRequest selects the parts of a sandbox to keep.
type HibernateRequest struct {
	DiskOnly bool `json:"disk_only,omitempty" doc:"Keep the disk and discard the memory"`
}

// A ResumeRequest holds the options for resuming a sandbox.
type ResumeRequest struct {
	Timeout Duration `json:"timeout,omitempty" doc:"Time to the new deadline; absent means the timeout of the sandbox's lifetime" example:"5m"`
	Cold    bool     `json:"cold,omitempty" doc:"Boot the sandbox from its disk even if its memory was saved"`
}

// An ExtendRequest postpones a deadline; it never makes the deadline earlier.
type ExtendRequest struct {
	Timeout Duration `json:"timeout" doc:"Time from now to the new deadline; a later deadline stays" example:"10m"`
}

// A ForkRequest creates copies of a running sandbox.
type ForkRequest struct {
	Count   int      `json:"count,omitempty" minimum:"1" maximum:"100" doc:"Number of copies; absent means 1" example:"3"`
	Timeout Duration `json:"timeout,omitempty" doc:"Time to the deadline of each copy; absent means the original's" example:"5m"`
}

// A Fork is one copy, or the error of one.
type Fork struct {
	Sandbox *Sandbox `json:"sandbox,omitempty"`
	Error   *Problem `json:"error,omitempty"`
}

// A Sample is the resource usage of a sandbox at one moment.
type Sample struct {
	Time         time.Time `json:"time"`
	VCPUs        float64   `json:"vcpus" doc:"Processor limit, in processors"`
	CPUPercent   float64   `json:"cpu_percent" doc:"Processor use, in percent of one processor"`
	Memory       Bytes     `json:"memory"`
	MemoryLimit  Bytes     `json:"memory_limit"`
	MemoryCache  Bytes     `json:"memory_cache" doc:"Memory used for caching files, in bytes"`
	DiskUsed     Bytes     `json:"disk_used"`
	DiskCapacity Bytes     `json:"disk_capacity"`
	Processes    int       `json:"processes"`
}
