package v1

import "time"

// A SnapshotRequest holds the options of a snapshot.
type SnapshotRequest struct {
	Name     string   `json:"name,omitempty" maxLength:"128" doc:"Name; an older snapshot with this name loses it" example:"ready"`
	DiskOnly bool     `json:"disk_only,omitempty" doc:"Do not save the memory"`
	TTL      Duration `json:"ttl,omitempty" doc:"Time after which the snapshot is deleted; absent means never" example:"7d"`
}

// A Snapshot is a copy of a sandbox from which others can start.
type Snapshot struct {
	ID        string     `json:"id" example:"snp_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner     string     `json:"owner,omitempty"`
	Name      string     `json:"name,omitempty" example:"ready"`
	SandboxID string     `json:"sandbox_id,omitempty" doc:"ID of the sandbox that the snapshot was taken of"`
	Template  string     `json:"template" example:"base"`
	Digest    string     `json:"digest,omitempty" doc:"Digest of the template, which cannot be deleted while the snapshot exists"`
	Tier      string     `json:"tier" enum:"script,gvisor,microvm,memory"`
	Size      Size       `json:"size"`
	DiskOnly  bool       `json:"disk_only" doc:"The snapshot has no memory"`
	Bytes     Bytes      `json:"bytes" doc:"Bytes on disk"`
	CreatedAt time.Time  `json:"created_at"`
	UsedAt    *time.Time `json:"used_at,omitempty" doc:"Time at which a sandbox last started from the snapshot"`
	ExpiresAt *time.Time `json:"expires_at,omitempty" doc:"Time; absent means never"`
}
