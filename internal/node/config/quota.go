package config

import (
	"cmp"

	"github.com/engi-dev/engi/internal/engi"
)

// Quotas limits the objects that each owner may have at once.
type Quotas struct {
	Sandboxes      int              `toml:"sandboxes" env:"SANDBOXES" help:"sandboxes of one owner, hibernated ones included; 0 is no limit"`
	PerDay         int              `toml:"per_day" env:"PER_DAY" help:"sandboxes of one owner created in 24 hours; 0 is no limit"`
	VCPUs          float64          `toml:"vcpus" env:"VCPUS" help:"processors' worth of time of one owner's sandboxes that are awake; 0 is no limit"`
	Memory         Bytes            `toml:"memory" env:"MEMORY" help:"memory of one owner's sandboxes that are awake; 0 is no limit"`
	Disk           Bytes            `toml:"disk" env:"DISK" help:"disk of one owner's sandboxes, snapshots and volumes, and of templates when the owner builds another; 0 is no limit"`
	Volumes        int              `toml:"volumes" env:"VOLUMES" help:"volumes of one owner; 0 is no limit"`
	Snapshots      int              `toml:"snapshots" env:"SNAPSHOTS" help:"snapshots of one owner; 0 is no limit"`
	Sessions       int              `toml:"sessions" env:"SESSIONS" help:"sessions of one owner that have not ended; 0 is no limit"`
	SessionsPerDay int              `toml:"sessions_per_day" env:"SESSIONS_PER_DAY" help:"sessions of one owner created in 24 hours; 0 is no limit"`
	Owner          map[string]Quota `toml:"owner" env:"-" help:"overrides for single owners: tables [quota.owner.NAME] with the same keys; -1 is no limit"`
}

// A Quota overrides Quotas for one owner. Zero fields override nothing; negative
// fields mean no limit.
type Quota struct {
	Sandboxes      int     `toml:"sandboxes"`
	PerDay         int     `toml:"per_day"`
	VCPUs          float64 `toml:"vcpus"`
	Memory         Bytes   `toml:"memory"`
	Disk           Bytes   `toml:"disk"`
	Volumes        int     `toml:"volumes"`
	Snapshots      int     `toml:"snapshots"`
	Sessions       int     `toml:"sessions"`
	SessionsPerDay int     `toml:"sessions_per_day"`
}

// Of returns the limits of one owner.
func (q Quotas) Of(owner engi.Owner) engi.Quota {
	o := q.Owner[string(owner)]
	return engi.Quota{
		Sandboxes:      max(0, cmp.Or(o.Sandboxes, q.Sandboxes)),
		PerDay:         max(0, cmp.Or(o.PerDay, q.PerDay)),
		VCPUs:          max(0, cmp.Or(o.VCPUs, q.VCPUs)),
		Memory:         max(0, int64(cmp.Or(o.Memory, q.Memory))),
		Disk:           max(0, int64(cmp.Or(o.Disk, q.Disk))),
		Volumes:        max(0, cmp.Or(o.Volumes, q.Volumes)),
		Snapshots:      max(0, cmp.Or(o.Snapshots, q.Snapshots)),
		Sessions:       max(0, cmp.Or(o.Sessions, q.Sessions)),
		SessionsPerDay: max(0, cmp.Or(o.SessionsPerDay, q.SessionsPerDay)),
	}
}

func (q Quotas) validate() error {
	if min(q.Sandboxes, q.PerDay, q.Volumes, q.Snapshots, q.Sessions, q.SessionsPerDay) < 0 || q.VCPUs < 0 || min(q.Memory, q.Disk) < 0 {
		return engi.Errorf(engi.Invalid, "[quota] has a negative number").WithRemedy("leave it out, or say 0, for no limit")
	}
	return nil
}
