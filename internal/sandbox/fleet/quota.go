package fleet

import (
	"context"
	"math"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// A booking counts an object under creation, or an execution that has not ended, against
// its owner's quota.
type booking struct {
	owner  engi.Owner
	size   engi.Size
	of     booked
	stored bool // the object is counted as stored; guarded by sandboxes.mu
}

// booked is the kind of object of a booking.
type booked int

const (
	aSandbox booked = iota
	anExecution
	aResumption // resumption of a sandbox, which is already counted except for the resources that only running sandboxes use
	aVolume     // new volume, of which only the disk counts
)

// quota returns the quota of an owner; the node itself has none.
func (s *sandboxes) quota(owner engi.Owner) engi.Quota {
	if s.opt.Quota == nil || owner == "" {
		return engi.Quota{}
	}
	return s.opt.Quota(owner)
}

// These keys differ from all idempotency keys, which are printable.
const (
	quotaKey     = "\x00quota"
	snapshotsKey = "\x00snapshots"
)

// book checks that the quota of an owner allows the object or run, and counts it
// until unbook. The stored objects are counted and b is booked under one lock, so
// that each object is counted once: as stored under the same lock, or as booked.
func (s *sandboxes) book(ctx context.Context, b *booking) (*booking, error) {
	q := s.quota(b.owner)
	if q == (engi.Quota{}) {
		return b, s.add(q, b, 0, 0)
	}
	var day int
	var stored int64
	if b.of != aResumption && (q.PerDay > 0 || q.Disk > 0) {
		unlock, err := s.quotas.Acquire(ctx, [2]string{string(b.owner), quotaKey})
		if err != nil {
			return nil, err
		}
		defer unlock()
		if q.PerDay > 0 && b.of == aSandbox {
			if day, err = s.opt.Store.CountSandboxes(ctx, b.owner, time.Now().Add(-24*time.Hour)); err != nil {
				return nil, err
			}
		}
		if stored, err = s.storedBytes(ctx, b.owner, q); err != nil {
			return nil, err
		}
	}
	return b, s.add(q, b, day, stored)
}

// store calls put, which stores the object of b, so that it is counted as stored from
// then on.
func (s *sandboxes) store(ctx context.Context, b *booking, put func() error) error {
	if q := s.quota(b.owner); q.PerDay == 0 && q.Disk == 0 {
		return put()
	}
	unlock, err := s.quotas.Acquire(ctx, [2]string{string(b.owner), quotaKey})
	if err != nil {
		return err
	}
	defer unlock()
	if err := put(); err != nil {
		return err
	}
	s.setStored(b, true)
	return nil
}

func (s *sandboxes) setStored(b *booking, stored bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.stored = stored
}

// BookVolume counts a new volume against its owner's quota until release is called.
// store calls put, which stores the volume, so that it is counted once.
func (m *Manager) BookVolume(ctx context.Context, owner engi.Owner, capacity int64) (store func(put func() error) error, release func(), err error) {
	s := m.sandboxes
	b, err := s.book(ctx, &booking{owner: owner, size: engi.Size{Disk: capacity}, of: aVolume})
	if err != nil {
		return nil, nil, err
	}
	return func(put func() error) error { return s.store(ctx, b, put) }, func() { s.unbook(b) }, nil
}

// rebook books an execution that an earlier process accepted.
func (s *sandboxes) rebook(owner engi.Owner, size engi.Size) *booking {
	b := &booking{owner: owner, size: size, of: anExecution}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bookings[b] = true
	return b
}

// add books b unless the quota does not allow it besides the bookings, the sandboxes, day
// sandboxes of the last 24 hours and stored bytes.
func (s *sandboxes) add(q engi.Quota, b *booking, day int, stored int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q != (engi.Quota{}) {
		used := s.usageLocked(b.owner)
		used.day += day
		used.disk += stored
		if quota, err := checkQuota(q, used, b); err != nil {
			s.refused(b.owner, quota)
			return err
		}
	}
	s.bookings[b] = true
	return nil
}

func (s *sandboxes) unbook(b *booking) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.bookings, b)
}

// usage is the part of a quota that an owner's sandboxes use.
type usage struct {
	sandboxes int
	day       int // sandboxes created in the last 24 hours
	disk      int64
	vcpus     float64 // sum over the sandboxes with an instance
	memory    int64   // sum over the sandboxes with an instance
}

// add adds the resources that a sandbox uses even while hibernated.
func (u *usage) add(size engi.Size) {
	u.sandboxes++
	u.disk += size.Disk
}

// addInstance adds the resources that only a sandbox with an instance uses.
func (u *usage) addInstance(size engi.Size) {
	u.vcpus += size.VCPUs
	u.memory += size.Memory
}

// usageLocked adds up an owner's sandboxes, including those being created or resumed, and
// executions.
func (s *sandboxes) usageLocked(owner engi.Owner) (u usage) {
	for b := range s.bookings {
		switch {
		case b.owner != owner || b.of == aVolume && b.stored:
		case b.of == aVolume:
			u.disk += b.size.Disk
		default:
			u.addInstance(b.size)
			if b.of != aResumption {
				u.add(b.size)
			}
			if b.of == aSandbox && !b.stored {
				u.day++
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

// refused reports a refusal by a quota to Options.Refused.
func (s *sandboxes) refused(owner engi.Owner, quota string) {
	if s.opt.Refused != nil {
		s.opt.Refused(owner, quota)
	}
}

// checkQuota returns Exhausted if b exceeds q, and the name of the quota that
// refused b.
func checkQuota(q engi.Quota, used usage, b *booking) (quota string, err error) {
	refuse := func(what string, have, more, most any, remedy string) (string, error) {
		return what, engi.Errorf(engi.Exhausted, "the quota of %s is %v: %v are in use and %v more are wanted", what, most, have, more).
			WithRemedy("%s, request less, or ask the node's administrator for a larger quota", remedy).
			WithRetry(engi.Retry{AfterMillis: (30 * time.Second).Milliseconds()})
	}
	const wait = "stop or hibernate a sandbox, wait for an execution"
	stays, boots := b.of != aResumption, b.of != aVolume
	switch {
	case b.of == aSandbox && q.PerDay > 0 && used.day >= q.PerDay:
		return "sandboxes per day", engi.Errorf(engi.Exhausted, "%d sandboxes were created in the last 24 hours, %d are allowed", used.day, q.PerDay).
			WithRemedy("use the sandboxes you have for longer, wait, or ask the node's administrator for a larger quota").
			WithRetry(engi.Retry{AfterMillis: time.Hour.Milliseconds()})
	case stays && boots && q.Sandboxes > 0 && used.sandboxes+1 > q.Sandboxes:
		return refuse("sandboxes", used.sandboxes, 1, q.Sandboxes, wait)
	case boots && q.VCPUs > 0 && used.vcpus+b.size.VCPUs > q.VCPUs:
		return refuse("vcpus", used.vcpus, b.size.VCPUs, q.VCPUs, wait)
	case boots && q.Memory > 0 && used.memory+b.size.Memory > q.Memory:
		return refuse("memory bytes", used.memory, b.size.Memory, q.Memory, wait)
	case stays && q.Disk > 0 && used.disk+b.size.Disk > q.Disk:
		return refuse("disk bytes", used.disk, b.size.Disk, q.Disk, "stop a sandbox, remove a volume or a snapshot")
	}
	return "", nil
}

// DiskLeft returns the bytes of an owner's disk quota that its sandboxes, snapshots and volumes
// do not use; [math.MaxInt64] if there is no quota.
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

// A counted store returns the number of an owner's objects, and the bytes of disk they may use.
type counted interface {
	Usage(ctx context.Context, owner engi.Owner) (count int, bytes int64, err error)
}

// storedBytes returns the bytes that an owner's snapshots and volumes may use, if the quota
// needs to know.
func (s *sandboxes) storedBytes(ctx context.Context, owner engi.Owner, q engi.Quota) (n int64, err error) {
	if q.Disk == 0 {
		return 0, nil
	}
	for _, kept := range []any{s.opt.Snapshots, s.opt.Volumes} {
		if kept, ok := kept.(counted); ok {
			_, bytes, err := kept.Usage(ctx, owner)
			if err != nil {
				return 0, err
			}
			n += bytes
		}
	}
	return n, nil
}

// reserveSnapshot returns Exhausted if an owner may not have another snapshot.
// Until release is called, no other caller can reserve one for an owner with a quota, so
// that the next check counts this snapshot.
func (s *sandboxes) reserveSnapshot(ctx context.Context, owner engi.Owner) (release func(), err error) {
	q := s.quota(owner)
	snapshots, ok := s.opt.Snapshots.(counted)
	if !ok || q.Snapshots == 0 && q.Disk == 0 {
		return func() {}, nil
	}
	unlock, err := s.quotas.Acquire(ctx, [2]string{string(owner), snapshotsKey})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			unlock()
		}
	}()
	count, _, err := snapshots.Usage(ctx, owner)
	if err != nil {
		return nil, err
	}
	if q.Snapshots > 0 && count >= q.Snapshots {
		s.refused(owner, "snapshots")
		return nil, engi.Errorf(engi.Exhausted, "the quota of snapshots is %d, and there are %d", q.Snapshots, count).
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
