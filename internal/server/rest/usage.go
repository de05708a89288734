package rest

import (
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

// Counted holds the services whose objects count as usage. Only Sandboxes is required.
type Counted struct {
	Sandboxes engi.Sandboxes
	Snapshots engi.Snapshots
	Volumes   engi.Volumes
	Spending  engi.UsageReporter
	Quota     func(engi.Owner) engi.Quota // returns an owner's limits; nil means no limits
}

// Usage returns the routes of owners' usage. Sandboxes count with the disk space that they may
// use, as they do for quotas.
func Usage(of Counted) Resource {
	return Resource{tag: "node", routes: []Route{
		fetch(Route{Pattern: "GET /v1/usage", ID: "get-usage", Summary: "Get your usage and quota", Text: "An admin key without an owner gets the usage of the whole node.", Access: anyKey}, of.get),
	}}
}

func (of Counted) get(c *call, _ *none) (u v1.Usage, err error) {
	u.Owner = string(c.owner())
	if of.Quota != nil {
		u.Quota = quotaOf(of.Quota(c.owner()))
	}
	live, err := of.Sandboxes.List(c, c.viewer(), engi.SandboxFilter{Owned: true, Limit: -1})
	if err != nil {
		return u, err
	}
	for _, x := range live {
		u.Used.Sandboxes++
		u.Used.Disk += v1.Bytes(x.Size.Disk)
		if x.State != engi.Hibernated {
			u.Used.VCPUs += x.Size.VCPUs
			u.Used.Memory += v1.Bytes(x.Size.Memory)
		}
	}
	if of.Snapshots != nil {
		xs, err := of.Snapshots.List(c, c.viewer(), "", engi.Paging{})
		if err != nil {
			return u, err
		}
		for _, x := range xs {
			u.Used.Snapshots++
			u.Used.Disk += v1.Bytes(x.Bytes)
		}
	}
	if of.Volumes != nil {
		xs, err := of.Volumes.List(c, c.viewer(), engi.Paging{})
		if err != nil {
			return u, err
		}
		for _, x := range xs {
			u.Used.Volumes++
			u.Used.Disk += v1.Bytes(x.Capacity)
		}
	}
	if of.Spending != nil {
		now := time.Now().UTC()
		xs, err := of.Spending.ModelUsage(c, c.viewer(), time.Date(now.Year(), now.Month()-1, 1, 0, 0, 0, 0, time.UTC))
		if err != nil {
			return u, err
		}
		for _, x := range xs {
			u.Models = append(u.Models, v1.ModelUsage{Day: x.Day.UTC().Format(time.DateOnly), Owner: string(x.Owner), Model: x.Model, TokenUsage: tokensOf(x.Tokens)})
		}
	}
	return u, nil
}

func quotaOf(x engi.Quota) v1.Quota {
	return v1.Quota{
		Sandboxes: x.Sandboxes, PerDay: x.PerDay, VCPUs: x.VCPUs, Memory: v1.Bytes(x.Memory), Disk: v1.Bytes(x.Disk), Volumes: x.Volumes, Snapshots: x.Snapshots,
	}
}
