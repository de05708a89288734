package fleet

import (
	"context"
	"math"
	"time"

	"github.com/engi-dev/engi"
)

// A booking counts a sandbox that is being created or resumed, or an execution
// that has not ended, against its owner's quota.
type booking struct {
	owner  engi.Owner
	size   engi.Size
	resume bool // the sandbox is counted already, except for what only running ones use
}

// quota returns the bounds of an owner; the node itself has none.
func (s *sandboxes) quota(owner engi.Owner) engi.Quota {
	if s.opt.Quota == nil || owner == "" {
		return engi.Quota{}
	}
	return s.opt.Quota(owner)
}

// book makes sure that an owner may have one more sandbox, and counts it until
// unbook.
func (s *sandboxes) book(ctx context.Context, owner engi.Owner, size engi.Size) (*booking, error) {
	q := s.quota(owner)
	if q.PerDay > 0 {
		n, err := s.opt.Store.CountSandboxes(ctx, owner, time.Now().Add(-24*time.Hour))
		if err != nil {
			return nil, err
		}
		if n >= q.PerDay {
			s.refused(owner, "sandboxes per day")
			return nil, engi.Errorf(engi.Exhausted, "%d sandboxes were created in the last 24 hours, %d are allowed", n, q.PerDay).
				WithRemedy("use the sandboxes you have for longer, wait, or ask the node's administrator for a larger quota").
				WithRetry(engi.Retry{AfterMillis: time.Hour.Milliseconds()})
		}
	}
	stored, err := s.storedBytes(ctx, owner, q)
	if err != nil {
		return nil, err
	}
	return s.bookWithin(q, &booking{owner: owner, size: size}, stored)
}

// bookResume makes sure that an owner may resume a sandbox, and counts it until
// unbook.
func (s *sandboxes) bookResume(owner engi.Owner, size engi.Size) (*booking, error) {
	return s.bookWithin(s.quota(owner), &booking{owner: owner, size: size, resume: true}, 0)
}

// bookRun makes sure that an owner may have one more execution, and counts it
// until unbook.
func (s *sandboxes) bookRun(ctx context.Context, owner engi.Owner, size engi.Size) (*booking, error) {
	q := s.quota(owner)
	stored, err := s.storedBytes(ctx, owner, q)
	if err != nil {
		return nil, err
	}
	return s.bookWithin(q, &booking{owner: owner, size: size}, stored)
}

// rebook counts an execution that was accepted by an earlier process.
func (s *sandboxes) rebook(owner engi.Owner, size engi.Size) *booking {
	b := &booking{owner: owner, size: size}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bookings[b] = true
	return b
}

func (s *sandboxes) bookWithin(q engi.Quota, b *booking, stored int64) (*booking, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q != (engi.Quota{}) {
		if quota, err := checkQuota(q, s.usageLocked(b.owner), b, stored); err != nil {
			s.refused(b.owner, quota)
			return nil, err
		}
	}
	s.bookings[b] = true
	return b, nil
}

func (s *sandboxes) unbook(b *booking) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.bookings, b)
}

// usage is what an owner's sandboxes use of a quota.
type usage struct {
	sandboxes int
	disk      int64
	vcpus     float64 // of those with an instance
	memory    int64   // of those with an instance
}

// add adds what a sandbox uses whether or not it is hibernated.
func (u *usage) add(size engi.Size) {
	u.sandboxes++
	u.disk += size.Disk
}

// addInstance adds what only an instance uses.
func (u *usage) addInstance(size engi.Size) {
	u.vcpus += size.VCPUs
	u.memory += size.Memory
}

// usageLocked adds up an owner's sandboxes, those being created or resumed, and
// executions.
func (s *sandboxes) usageLocked(owner engi.Owner) (u usage) {
	for b := range s.bookings {
		if b.owner == owner {
			u.addInstance(b.size)
			if !b.resume {
				u.add(b.size)
			}
		}
	}
	for _, sb := range s.live {
		if sb.owner == owner && !s.bookings[sb.booking] {
			rec := sb.record()
			u.add(rec.Size)
			if rec.State != engi.Hibernated && rec.State != engi.Resuming {
				u.addInstance(rec.Size)
			}
		}
	}
	return u
}

// refused tells that a quota has refused something.
func (s *sandboxes) refused(owner engi.Owner, quota string) {
	if s.opt.Refused != nil {
		s.opt.Refused(owner, quota)
	}
}

// checkQuota reports Exhausted if b is too much for q, and the name of what has
// refused it.
func checkQuota(q engi.Quota, used usage, b *booking, stored int64) (quota string, err error) {
	refuse := func(what string, have, more, most any) (string, error) {
		return what, engi.Errorf(engi.Exhausted, "the quota of %s is %v: %v are in use and %v more are wanted", what, most, have, more).
			WithRemedy("stop or hibernate a sandbox, wait for an execution, ask for less, or ask the node's administrator for a larger quota").
			WithRetry(engi.Retry{AfterMillis: (30 * time.Second).Milliseconds()})
	}
	switch {
	case !b.resume && q.Sandboxes > 0 && used.sandboxes+1 > q.Sandboxes:
		return refuse("sandboxes", used.sandboxes, 1, q.Sandboxes)
	case q.VCPUs > 0 && used.vcpus+b.size.VCPUs > q.VCPUs:
		return refuse("vcpus", used.vcpus, b.size.VCPUs, q.VCPUs)
	case q.Memory > 0 && used.memory+b.size.Memory > q.Memory:
		return refuse("memory bytes", used.memory, b.size.Memory, q.Memory)
	case !b.resume && q.Disk > 0 && used.disk+stored+b.size.Disk > q.Disk:
		return refuse("disk bytes", used.disk+stored, b.size.Disk, q.Disk)
	}
	return "", nil
}

// DiskLeft returns the bytes of disk that an owner's sandboxes, snapshots and volumes
// leave of its quota; [math.MaxInt64] if there is none.
func (m *Manager) DiskLeft(ctx context.Context, owner engi.Owner) (int64, error) {
	s := m.sandboxes
	q := s.quota(owner)
	if q.Disk == 0 {
		return math.MaxInt64, nil
	}
	stored, err := s.storedBytes(ctx, owner, q)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return q.Disk - s.usageLocked(owner).disk - stored, nil
}

// storedBytes is what an owner's snapshots and volumes may take, if the quota
// needs to know.
func (s *sandboxes) storedBytes(ctx context.Context, owner engi.Owner, q engi.Quota) (n int64, err error) {
	if q.Disk == 0 {
		return 0, nil
	}
	if snapshots, ok := s.opt.Snapshots.(engi.Snapshots); ok {
		all, err := snapshots.List(ctx, owner, "")
		if err != nil {
			return 0, err
		}
		for _, snap := range all {
			n += snap.Bytes
		}
	}
	if volumes, ok := s.opt.Volumes.(engi.Volumes); ok {
		all, err := volumes.List(ctx, owner)
		if err != nil {
			return 0, err
		}
		for _, v := range all {
			n += v.Capacity
		}
	}
	return n, nil
}

// snapshotsKey is no idempotency key, which are printable.
const snapshotsKey = "\x00snapshots"

// reserveSnapshot reports Exhausted if an owner may not have another snapshot.
// Until release is called nobody else reserves one for an owner with a quota, so
// that the next one is counted with this one.
func (s *sandboxes) reserveSnapshot(ctx context.Context, owner engi.Owner) (release func(), err error) {
	q := s.quota(owner)
	snapshots, ok := s.opt.Snapshots.(engi.Snapshots)
	if !ok || q.Snapshots == 0 && q.Disk == 0 {
		return func() {}, nil
	}
	unlock, err := s.lockKey(ctx, owner, snapshotsKey)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			unlock()
		}
	}()
	all, err := snapshots.List(ctx, owner, "")
	if err != nil {
		return nil, err
	}
	if q.Snapshots > 0 && len(all) >= q.Snapshots {
		s.refused(owner, "snapshots")
		return nil, engi.Errorf(engi.Exhausted, "the quota of snapshots is %d, and there are %d", q.Snapshots, len(all)).
			WithRemedy("remove a snapshot, or ask the node's administrator for a larger quota")
	}
	stored, err := s.storedBytes(ctx, owner, q)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	used := s.usageLocked(owner).disk + stored
	s.mu.Unlock()
	if q.Disk > 0 && used >= q.Disk {
		s.refused(owner, "disk bytes")
		return nil, engi.Errorf(engi.Exhausted, "the quota of disk bytes is %d, and %d are in use", q.Disk, used).
			WithRemedy("remove a snapshot, a volume or a sandbox, or ask the node's administrator for a larger quota")
	}
	return unlock, nil
}
