package v1

import "time"

// A SnapshotRequest says what to keep of a sandbox.
type SnapshotRequest struct {
	Name     string   `json:"name,omitempty" maxLength:"128" doc:"an older snapshot of the name loses it" example:"ready"`
	DiskOnly bool     `json:"disk_only,omitempty" doc:"leave the memory out"`
	TTL      Duration `json:"ttl,omitempty" doc:"after which it is deleted; absent means never" example:"7d"`
}

// A Snapshot is a copy of a sandbox that can start others.
type Snapshot struct {
	ID        string     `json:"id" example:"snp_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner     string     `json:"owner,omitempty"`
	Name      string     `json:"name,omitempty" example:"ready"`
	SandboxID string     `json:"sandbox_id,omitempty" doc:"it is a copy of"`
	Template  string     `json:"template" example:"base"`
	Digest    string     `json:"digest,omitempty" doc:"of the template, which cannot be removed while the snapshot exists"`
	Tier      string     `json:"tier" enum:"script,gvisor,microvm,memory"`
	Size      Size       `json:"size"`
	DiskOnly  bool       `json:"disk_only" doc:"without memory"`
	Bytes     Bytes      `json:"bytes" doc:"on disk"`
	CreatedAt time.Time  `json:"created_at"`
	UsedAt    *time.Time `json:"used_at,omitempty" doc:"from which it was last started"`
	ExpiresAt *time.Time `json:"expires_at,omitempty" doc:"absent means never"`
}
