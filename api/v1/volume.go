package v1

import "time"

// A VolumeRequest creates a volume.
type VolumeRequest struct {
	Name     string   `json:"name" minLength:"1" maxLength:"128" doc:"Name: letters, digits, dots, dashes and underscores" example:"data"`
	Capacity Bytes    `json:"capacity,omitempty" doc:"Name; absent means the node's default"`
	TTL      Duration `json:"ttl,omitempty" doc:"Time without use after which the volume is deleted; absent means never" example:"30d"`
}

// A Volume is a directory with a capacity that outlives sandboxes.
type Volume struct {
	ID         string     `json:"id" example:"vol_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner      string     `json:"owner,omitempty"`
	Name       string     `json:"name" example:"data"`
	Capacity   Bytes      `json:"capacity"`
	Used       Bytes      `json:"used"`
	SandboxID  string     `json:"sandbox_id,omitempty" doc:"IDs of sandboxes that have the volume mounted"`
	CreatedAt  time.Time  `json:"created_at"`
	AccessedAt *time.Time `json:"accessed_at,omitempty"`
	ExpiresAt  *time.Time `json:"expires_at,omitempty" doc:"Time; absent means never"`
}
