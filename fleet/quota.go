package fleet

import (
	"context"
	"time"

	"github.com/engi-dev/engi"
)

// A booking is a sandbox that is being made or woken, as far as its owner's
// quota is concerned.
type booking struct {
	owner  engi.Owner
	size   engi.Size
	asleep bool // what it is made of is counted already, but for what only the awake use
}

// quota returns the bounds of an owner; the node itself has none.
func (m *Manager) quota(owner engi.Owner) engi.Quota {
	if m.opt.Quota == nil || owner == "" {
		return engi.Quota{}
	}
	return m.opt.Quota(owner)
}

// book makes sure that an owner may have one sandbox more.
func (m *Manager) book(ctx context.Context, owner engi.Owner, size engi.Size) (*booking, error) {
	q := m.quota(owner)
	if q.PerDay > 0 {
		n, err := m.opt.Store.CountSandboxes(ctx, owner, time.Now().Add(-24*time.Hour))
		if err != nil {
			return nil, err
		}
		if n >= q.PerDay {
			return nil, engi.Errorf(engi.Exhausted, "%d sandboxes were created in the last 24 hours, %d are allowed", n, q.PerDay).
				WithRemedy("use the sandboxes there are for longer, wait, or ask the node's administrator for a larger quota").
				WithRetry(engi.Retry{AfterMillis: time.Hour.Milliseconds()})
		}
	}
	kept, err := m.keptBytes(ctx, owner, q)
	if err != nil {
		return nil, err
	}
	return m.bookWithin(q, &booking{owner: owner, size: size}, kept)
}

// bookAwake makes sure that an owner may have one more sandbox awake.
func (m *Manager) bookAwake(owner engi.Owner, size engi.Size) (*booking, error) {
	return m.bookWithin(m.quota(owner), &booking{owner: owner, size: size, asleep: true}, 0)
}

func (m *Manager) bookWithin(q engi.Quota, b *booking, kept int64) (*booking, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if q != (engi.Quota{}) {
		if err := inside(q, m.usedLocked(b.owner), b, kept); err != nil {
			return nil, err
		}
	}
	m.bookings[b] = true
	return b, nil
}

func (m *Manager) unbook(b *booking) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.bookings, b)
}

// A holding is what an owner has.
type holding struct {
	sandboxes int
	vcpus     float64 // of the awake
	memory    int64   // of the awake
	disk      int64
}

// usedLocked adds up what owner has: sandboxes, those that run executions, and
// those that are being made.
func (m *Manager) usedLocked(owner engi.Owner) (h holding) {
	add := func(s engi.Size, awake, asleep bool) {
		if asleep {
			h.sandboxes++
			h.disk += s.Disk
		}
		if awake {
			h.vcpus += s.VCPUs
			h.memory += s.Memory
		}
	}
	for b := range m.bookings {
		if b.owner == owner {
			add(b.size, true, !b.asleep)
		}
	}
	for _, x := range m.boxes {
		if x.owner == owner && !m.bookings[x.booking] {
			rec := x.record()
			add(rec.Size, rec.State != engi.Hibernated && rec.State != engi.Resuming, true)
		}
	}
	for _, b := range m.members {
		if rec := b.record(); rec.Owner == owner && rec.Execution != "" {
			add(rec.Size, true, true)
		}
	}
	return h
}

func inside(q engi.Quota, h holding, b *booking, kept int64) error {
	refuse := func(what string, have, more, most any) error {
		return engi.Errorf(engi.Exhausted, "the quota of %s is %v: %v are in use and %v more are wanted", what, most, have, more).
			WithRemedy("stop or hibernate a sandbox, ask for less, or ask the node's administrator for a larger quota").
			WithRetry(engi.Retry{AfterMillis: (30 * time.Second).Milliseconds()})
	}
	switch {
	case !b.asleep && q.Sandboxes > 0 && h.sandboxes+1 > q.Sandboxes:
		return refuse("sandboxes", h.sandboxes, 1, q.Sandboxes)
	case q.VCPUs > 0 && h.vcpus+b.size.VCPUs > q.VCPUs:
		return refuse("vcpus", h.vcpus, b.size.VCPUs, q.VCPUs)
	case q.Memory > 0 && h.memory+b.size.Memory > q.Memory:
		return refuse("memory bytes", h.memory, b.size.Memory, q.Memory)
	case !b.asleep && q.Disk > 0 && h.disk+kept+b.size.Disk > q.Disk:
		return refuse("disk bytes", h.disk+kept, b.size.Disk, q.Disk)
	}
	return nil
}

// keptBytes is what an owner's snapshots and volumes may take.
func (m *Manager) keptBytes(ctx context.Context, owner engi.Owner, q engi.Quota) (n int64, err error) {
	if q.Disk == 0 {
		return 0, nil
	}
	if shelf, ok := m.opt.Snapshots.(engi.Snapshots); ok {
		all, err := shelf.List(ctx, owner, "")
		if err != nil {
			return 0, err
		}
		for _, s := range all {
			n += s.Bytes
		}
	}
	if keeper, ok := m.opt.Volumes.(engi.Volumes); ok {
		all, err := keeper.List(ctx, owner)
		if err != nil {
			return 0, err
		}
		for _, v := range all {
			n += v.Capacity
		}
	}
	return n, nil
}

// mayKeep makes sure that an owner may have one snapshot more.
func (m *Manager) mayKeep(ctx context.Context, owner engi.Owner) error {
	q := m.quota(owner)
	shelf, ok := m.opt.Snapshots.(engi.Snapshots)
	if !ok || q.Snapshots == 0 {
		return nil
	}
	all, err := shelf.List(ctx, owner, "")
	if err != nil {
		return err
	}
	if len(all) >= q.Snapshots {
		return engi.Errorf(engi.Exhausted, "the quota of snapshots is %d, and there are %d", q.Snapshots, len(all)).
			WithRemedy("remove a snapshot, or ask the node's administrator for a larger quota")
	}
	return nil
}
