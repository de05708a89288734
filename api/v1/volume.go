package v1

import "time"

// A VolumeRequest asks for a volume.
type VolumeRequest struct {
	Name     string   `json:"name" minLength:"1" maxLength:"128" doc:"letters, digits, dots, dashes and underscores" example:"data"`
	Capacity Bytes    `json:"capacity,omitempty" doc:"absent means the node's default"`
	TTL      Duration `json:"ttl,omitempty" doc:"without access, after which it goes; absent means never" example:"30d"`
}

// A Volume is a directory with a capacity that outlives sandboxes.
type Volume struct {
	ID         string     `json:"id" example:"vol_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner      string     `json:"owner,omitempty"`
	Name       string     `json:"name" example:"data"`
	Capacity   Bytes      `json:"capacity"`
	Used       Bytes      `json:"used"`
	SandboxID  string     `json:"sandbox_id,omitempty" doc:"that has it mounted"`
	CreatedAt  time.Time  `json:"created_at"`
	AccessedAt *time.Time `json:"accessed_at,omitempty"`
	ExpiresAt  *time.Time `json:"expires_at,omitempty" doc:"absent means never"`
}

// A SecretRequest stores a secret.
type SecretRequest struct {
	Name     string            `json:"name" minLength:"1" maxLength:"128" doc:"letters, digits, dashes, dots and underscores" example:"github"`
	Value    string            `json:"value" minLength:"1" maxLength:"65536" doc:"never shown again" example:"s3cret"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// A SecretUpdate replaces a secret's value.
type SecretUpdate struct {
	Value    string             `json:"value" minLength:"1" maxLength:"65536" doc:"never shown again" example:"s3cret"`
	Metadata *map[string]string `json:"metadata,omitempty" doc:"absent keeps what is there"`
}

// A Secret is a named value that never enters a sandbox.
type Secret struct {
	ID        string            `json:"id" example:"sec_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner     string            `json:"owner,omitempty"`
	Name      string            `json:"name" example:"github"`
	Version   int               `json:"version" doc:"1, and one more with each change of the value"`
	Metadata  map[string]string `json:"metadata,omitempty"`
	CreatedAt time.Time         `json:"created_at"`
	UpdatedAt time.Time         `json:"updated_at"`
}

// A Usage is what an owner has, and what it may have.
type Usage struct {
	Owner string `json:"owner,omitempty" doc:"absent for everything on the node"`
	Used  Quota  `json:"used"`
	Quota Quota  `json:"quota" doc:"absent fields are no limit"`

	Models []ModelUsage `json:"models,omitempty" doc:"what was spent on language models since the first of last month, the newest day first"`
}

// A ModelUsage is what an owner spent on one model on one day.
type ModelUsage struct {
	Day   string `json:"day" format:"date" doc:"UTC" example:"2026-11-22"`
	Owner string `json:"owner,omitempty"`
	Model string `json:"model" example:"openai:gpt-4o"`
	TokenUsage
}

// A Quota is an amount of everything that is counted.
type Quota struct {
	Sandboxes int     `json:"sandboxes,omitempty" doc:"alive, asleep ones included"`
	PerDay    int     `json:"per_day,omitempty" doc:"created in the last 24 hours"`
	VCPUs     float64 `json:"vcpus,omitempty" doc:"of sandboxes that are awake"`
	Memory    Bytes   `json:"memory,omitempty" doc:"of sandboxes that are awake"`
	Disk      Bytes   `json:"disk,omitempty" doc:"of sandboxes, snapshots and volumes"`
	Volumes   int     `json:"volumes,omitempty"`
	Snapshots int     `json:"snapshots,omitempty"`
}
