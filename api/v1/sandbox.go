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
// deadline or has been idle for too long.
type SandboxRequest struct {
	Template  string  `json:"template,omitempty" maxLength:"200" doc:"absent means the node's default, or the snapshot's" example:"base"`
	Snapshot  string  `json:"snapshot,omitempty" maxLength:"128" doc:"ID or name of a snapshot to start from, instead of a template" example:"snp_u2dmwmlezjgprkqrgppgcz2mgu"`
	MinTier   string  `json:"min_tier,omitempty" enum:"script,gvisor,microvm" doc:"the weakest acceptable isolation; absent means any"`
	VCPUs     float64 `json:"vcpus,omitempty" minimum:"0" doc:"number of processors" example:"1"`
	Memory    Bytes   `json:"memory,omitempty"`
	Disk      Bytes   `json:"disk,omitempty" doc:"what may be written"`
	Inodes    int64   `json:"inodes,omitempty" minimum:"0" doc:"files that may be created"`
	Processes int     `json:"processes,omitempty" minimum:"0" doc:"processes and threads alive at once"`
	OpenFiles int     `json:"open_files,omitempty" minimum:"0" doc:"descriptors per process"`

	Lifetime
	Metadata map[string]string `json:"metadata,omitempty" doc:"to find it by; at most 64 pairs of 256 bytes" example:"{\"task\":\"42\"}"`
	Env      map[string]string `json:"env,omitempty" doc:"variables of every program in it; never shown again"`
	Volumes  []VolumeMount     `json:"volumes,omitempty" doc:"to mount"`
	Network  *NetworkPolicy    `json:"network,omitempty" doc:"absent means the node's default"`
	Ports    *PortPolicy       `json:"ports,omitempty" doc:"who may reach its ports from outside"`
}

// A Lifetime says when a sandbox is ended automatically, and how.
type Lifetime struct {
	Timeout     Duration `json:"timeout,omitempty" doc:"from creation, resumption or extension to the deadline; absent means the node's default" example:"5m"`
	IdleTimeout Duration `json:"idle_timeout,omitempty" doc:"without use from outside; absent means no limit but timeout" example:"1m"`
	MaxDuration Duration `json:"max_duration,omitempty" doc:"from creation or resumption, however often extended; absent means the node's" example:"24h"`
	OnTimeout   string   `json:"on_timeout,omitempty" enum:"kill,hibernate" doc:"what happens at the deadline or after idleness; absent means kill"`
	DiskOnly    bool     `json:"disk_only,omitempty" doc:"automatic hibernation keeps the disk and discards the memory"`
	AutoResume  bool     `json:"auto_resume,omitempty" doc:"access from outside resumes it"`
}

// A VolumeMount mounts a volume in a sandbox.
type VolumeMount struct {
	Volume string `json:"volume" minLength:"1" doc:"ID or name" example:"data"`
	Path   string `json:"path" minLength:"1" doc:"absolute inside" example:"/data"`
}

// A PortPolicy says who may reach the ports of a sandbox.
type PortPolicy struct {
	Private bool   `json:"private,omitempty" doc:"only its owner and holders of signed links; otherwise everybody who knows the name"`
	Host    string `json:"host,omitempty" doc:"what services see as Host; absent means localhost:PORT; ${PORT} is replaced" example:"app.example.com"`
}

// A Sandbox is an isolated environment to run programs in.
type Sandbox struct {
	ID          string            `json:"id" example:"sbx_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner       string            `json:"owner,omitempty" doc:"who may see it; absent while nobody uses it"`
	State       string            `json:"state" enum:"pending,starting,ready,running,paused,hibernating,hibernated,resuming,stopping,stopped"`
	Template    string            `json:"template" doc:"its name, as asked for" example:"base"`
	Digest      string            `json:"digest,omitempty" doc:"of the template's content"`
	SnapshotID  string            `json:"snapshot_id,omitempty" doc:"it was created from"`
	Pool        string            `json:"pool,omitempty" doc:"the warm pool it is from; absent if it was created on demand"`
	Tier        string            `json:"tier" enum:"script,gvisor,microvm,memory" doc:"the strength of its isolation"`
	Size        Size              `json:"size" doc:"the most it may use"`
	Throttled   bool              `json:"throttled,omitempty" doc:"it has used its processor time of the last minutes, and gets what its session may use in the long run, until it has done less for a while"`
	ExecutionID string            `json:"execution_id,omitempty" doc:"the run that uses it"`
	Cause       string            `json:"cause,omitempty" doc:"why it stopped"`
	CreatedAt   time.Time         `json:"created_at"`
	StartedAt   *time.Time        `json:"started_at,omitempty" doc:"when it was last created or resumed"`
	ActiveAt    *time.Time        `json:"active_at,omitempty" doc:"when it was last used from outside"`
	DeadlineAt  *time.Time        `json:"deadline_at,omitempty" doc:"when on_timeout takes effect; absent while it is not running"`
	StoppedAt   *time.Time        `json:"stopped_at,omitempty"`
	Lifetime    *Lifetime         `json:"lifetime,omitempty" doc:"of sandboxes"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	Volumes     []VolumeMount     `json:"volumes,omitempty"`
	Network     *NetworkPolicy    `json:"network,omitempty"`
	Ports       *PortPolicy       `json:"ports,omitempty"`
	DiskOnly    bool              `json:"disk_only,omitempty" doc:"hibernated without its memory: resuming boots it from its disk"`
}

// A Size is the most that one sandbox may use.
type Size struct {
	VCPUs     float64 `json:"vcpus,omitempty" doc:"number of processors; 0.5 is half the time of one" example:"1"`
	Memory    Bytes   `json:"memory,omitempty" doc:"everything that belongs to the sandbox included"`
	Disk      Bytes   `json:"disk,omitempty" doc:"what it may write"`
	Inodes    int64   `json:"inodes,omitempty" doc:"files it may create"`
	Processes int     `json:"processes,omitempty" doc:"processes and threads alive at once"`
	OpenFiles int     `json:"open_files,omitempty" doc:"descriptors per process"`
}

// A SandboxUpdate changes the fields that are present.
type SandboxUpdate struct {
	Timeout     *Duration          `json:"timeout,omitempty" doc:"from now to the new deadline, which may be earlier or later than the current one" example:"10m"`
	IdleTimeout *Duration          `json:"idle_timeout,omitempty" doc:"0s disables it"`
	MaxDuration *Duration          `json:"max_duration,omitempty"`
	OnTimeout   *string            `json:"on_timeout,omitempty" enum:"kill,hibernate"`
	DiskOnly    *bool              `json:"disk_only,omitempty"`
	AutoResume  *bool              `json:"auto_resume,omitempty"`
	Metadata    *map[string]string `json:"metadata,omitempty" doc:"replaces all labels"`
	Network     *NetworkPolicy     `json:"network,omitempty" doc:"replaces all labels"`
	Ports       *PortPolicy        `json:"ports,omitempty"`
}

// A HibernateRequest says what to keep of a sandbox.
type HibernateRequest struct {
	DiskOnly bool `json:"disk_only,omitempty" doc:"keep the disk and discard the memory"`
}

// A ResumeRequest says how to resume a sandbox.
type ResumeRequest struct {
	Timeout Duration `json:"timeout,omitempty" doc:"to the new deadline; absent means that of its lifetime" example:"5m"`
	Cold    bool     `json:"cold,omitempty" doc:"boot it from its disk although its memory was kept"`
}

// An ExtendRequest postpones a deadline; it never brings it forward.
type ExtendRequest struct {
	Timeout Duration `json:"timeout" doc:"from now to the new deadline, unless the current one is later" example:"10m"`
}

// A ForkRequest creates copies of a running sandbox.
type ForkRequest struct {
	Count   int      `json:"count,omitempty" minimum:"1" maximum:"100" doc:"absent means 1" example:"3"`
	Timeout Duration `json:"timeout,omitempty" doc:"of each copy; absent means that of the original" example:"5m"`
}

// A Fork is one copy, or why there is none.
type Fork struct {
	Sandbox *Sandbox `json:"sandbox,omitempty"`
	Error   *Problem `json:"error,omitempty"`
}

// A Sample is what a sandbox used at one moment.
type Sample struct {
	Time         time.Time `json:"time"`
	VCPUs        float64   `json:"vcpus" doc:"it may use"`
	CPUPercent   float64   `json:"cpu_percent" doc:"of one processor"`
	Memory       Bytes     `json:"memory"`
	MemoryLimit  Bytes     `json:"memory_limit"`
	MemoryCache  Bytes     `json:"memory_cache" doc:"of memory, used for files"`
	DiskUsed     Bytes     `json:"disk_used"`
	DiskCapacity Bytes     `json:"disk_capacity"`
	Processes    int       `json:"processes"`
}
