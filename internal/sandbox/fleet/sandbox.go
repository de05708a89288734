package fleet

import (
	"context"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest"
)

// transitionTime is the maximum time of one change of a sandbox's state, even with
// much memory.
const transitionTime = 10 * time.Minute

// A sandbox belongs to its owner. It outlives the instances in which it runs; while it
// hibernates it has none.
//
// A caller that changes its state holds its lock, from the first record to the last.
// The record in the store always changes first: after a crash the sandbox is in the state of the
// record or one step behind, and recovery handles both.
type sandbox struct {
	id      engi.SandboxID
	owner   engi.Owner
	locked  chan struct{} // holds a token while the lock is held
	ended   chan struct{} // closed when the sandbox has stopped
	unpin   func()        // releases its template
	booking *booking      // booking of the sandbox during its creation; immutable
	samples samples
	budget  cpuBudget

	editing sync.Mutex // held during I/O while the record is written; taken before mu

	mu          sync.Mutex    // guards all fields below
	rec         SandboxRecord // changed by sandboxes.edit only
	inst        *instance     // nil while it hibernates
	blocked     bool          // no user may enter, because the state is changing
	users       int           // number of users that have entered and not left
	active      time.Time     // time at which a user last entered or left
	activeDirty bool          // active is newer than the stored record
	endCause    engi.Cause    // reason why the sandbox must end as soon as possible; empty if it need not
	ending      bool          // an attempt to end or hibernate the sandbox is under way
	failedEnds  int           // number of consecutive failed attempts
	retryAt     time.Time     // earliest time of the next attempt
}

// newSandbox returns a sandbox whose lock the caller holds.
func newSandbox(rec SandboxRecord, unpin func()) *sandbox {
	sb := &sandbox{
		id:     rec.ID,
		owner:  rec.Owner,
		locked: make(chan struct{}, 1),
		ended:  make(chan struct{}),
		unpin:  unpin,
		rec:    rec,
		active: rec.Active,
	}
	sb.locked <- struct{}{}
	return sb
}

// record returns the current record.
func (sb *sandbox) record() SandboxRecord {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	rec := sb.rec
	rec.Active = sb.active
	return rec
}

// instance returns the instance in which the sandbox runs, nil while it hibernates.
func (sb *sandbox) instance() *instance {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return sb.inst
}

// setInstance gives a sandbox its instance. From then on the end of the
// instance is the end of the sandbox.
func (sb *sandbox) setInstance(inst *instance) {
	inst.mu.Lock()
	inst.sandbox = sb
	if inst.guest != nil {
		inst.guest.OnLoss(inst.lossCause)
	}
	inst.mu.Unlock()
	sb.mu.Lock()
	sb.inst = inst
	sb.mu.Unlock()
}

// lock waits for the sandbox's lock. It returns NotFound if the sandbox has
// stopped, and Expired if ctx ends.
func (sb *sandbox) lock(ctx context.Context) error {
	select {
	case sb.locked <- struct{}{}:
	case <-ctx.Done():
		return engi.Errorf(engi.Expired, "wait for sandbox %s, which is %s: %v", sb.id, sb.record().State, context.Cause(ctx)).
			WithRemedy("try again in a moment")
	}
	select {
	case <-sb.ended:
		sb.unlock()
		return sb.errStopped()
	default:
		return nil
	}
}

func (sb *sandbox) unlock() { <-sb.locked }

func (sb *sandbox) errStopped() error {
	return engi.Errorf(engi.NotFound, "sandbox %s has stopped", sb.id).WithRemedy("create another")
}

// abandon ends and unlocks a sandbox that could not be created or recovered.
func (sb *sandbox) abandon() {
	close(sb.ended)
	sb.unlock()
}

// block keeps users out until unblock.
func (sb *sandbox) block() {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.blocked = true
}

func (sb *sandbox) unblock() {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.blocked = false
}

// enter returns the guest of a running sandbox, which counts as used until
// release is called. It reports false if the sandbox does not run or its state
// is changing.
func (sb *sandbox) enter() (_ *guest.Client, release func(), ok bool) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.rec.State != engi.Running || sb.blocked || sb.inst == nil {
		return nil, nil, false
	}
	g := sb.inst.client()
	if g == nil {
		return nil, nil, false
	}
	sb.users++
	sb.active, sb.activeDirty = time.Now().UTC(), true
	return g, sync.OnceFunc(func() {
		sb.mu.Lock()
		defer sb.mu.Unlock()
		sb.users--
		sb.active, sb.activeDirty = time.Now().UTC(), true
	}), true
}

// touch records a use of the sandbox.
func (sb *sandbox) touch() {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.active, sb.activeDirty = time.Now().UTC(), true
}

// endSoon sets the sandbox's next deadline to now. Only the first cause is kept.
func (sb *sandbox) endSoon(cause engi.Cause) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.endCause == "" {
		sb.endCause = cause
	}
}

// edit changes a sandbox's record: first the stored one, then the one in
// memory.
func (s *sandboxes) edit(ctx context.Context, sb *sandbox, change func(*SandboxRecord) error) (SandboxRecord, error) {
	sb.editing.Lock()
	defer sb.editing.Unlock()
	next := sb.record()
	if err := change(&next); err != nil {
		return next, err
	}
	if err := s.opt.Store.PutSandbox(ctx, next); err != nil {
		return next, err
	}
	sb.mu.Lock()
	sb.rec = next
	sb.mu.Unlock()
	return next, nil
}

// setState is edit for a change of state; change may be nil.
func (s *sandboxes) setState(ctx context.Context, sb *sandbox, to engi.State, change func(*SandboxRecord)) (SandboxRecord, error) {
	return s.edit(ctx, sb, func(rec *SandboxRecord) (err error) {
		if rec.State, err = rec.State.To(to); err == nil && change != nil {
			change(rec)
		}
		return err
	})
}

// transition runs f with the sandbox's lock held. Once begun, f runs to its
// end, even if ctx ends or the node stops: only a crash interrupts it.
func (s *sandboxes) transition(ctx context.Context, sb *sandbox, f func(ctx context.Context) error) error {
	if err := sb.lock(ctx); err != nil {
		return err
	}
	return s.transitionLocked(ctx, sb, f)
}

// transitionLocked is transition for callers that hold the lock, which it
// releases.
func (s *sandboxes) transitionLocked(ctx context.Context, sb *sandbox, f func(ctx context.Context) error) error {
	done := make(chan error, 1)
	began := s.spawn(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), transitionTime)
		defer cancel()
		err := f(ctx)
		sb.unlock()
		done <- err
	})
	if !began {
		sb.unlock()
		return errNotServing
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return engi.Errorf(engi.Expired, "sandbox %s: %v", sb.id, context.Cause(ctx)).
			WithRemedy("the operation continues: look at the sandbox again later")
	}
}

// destroyInstance destroys a sandbox's instance, if it has one, and waits until
// it is gone completely.
func (s *sandboxes) destroyInstance(sb *sandbox) {
	inst := sb.instance()
	if inst == nil {
		return
	}
	s.pools.discard(inst)
	sb.mu.Lock()
	sb.inst = nil
	sb.mu.Unlock()
}

// instanceDied ends the sandbox whose instance ended by itself. It waits for
// the lock first: a transition may have ended the instance on purpose.
func (s *sandboxes) instanceDied(sb *sandbox, inst *instance) {
	if err := sb.lock(s.life); err != nil {
		return
	}
	defer sb.unlock()
	if sb.instance() != inst {
		return
	}
	cause := inst.machine.End()
	s.log.Warn("sandbox died", "sandbox", sb.id, "cause", cause)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.life), transitionTime)
	defer cancel()
	if err := s.terminate(ctx, sb, cause); err != nil {
		sb.endSoon(cause)
		s.log.Error("record the end of a sandbox; trying again", "sandbox", sb.id, "error", err)
	}
	s.deadlineChanged()
}

// terminate ends a sandbox, whose lock the caller holds, and removes everything except
// its record. After an error it may be repeated.
func (s *sandboxes) terminate(ctx context.Context, sb *sandbox, cause engi.Cause) (err error) {
	defer engi.Annotate(&err, "stop sandbox %s", sb.id)
	sb.block()
	rec := sb.record()
	if rec.State != engi.Stopping && rec.State != engi.Stopped {
		if rec, err = s.setState(ctx, sb, engi.Stopping, func(r *SandboxRecord) { r.End = cause }); err != nil {
			return err
		}
	}
	s.destroyInstance(sb)
	if err := s.cleanUp(ctx, rec); err != nil {
		return err
	}
	if rec.State != engi.Stopped {
		if rec, err = s.setState(ctx, sb, engi.Stopped, endRecord); err != nil {
			return err
		}
	}
	s.remove(sb)
	close(sb.ended)
	sb.unpin()
	s.metrics.ended.WithLabelValues(string(rec.End)).Inc()
	return nil
}

// endRecord makes the last change of a record: it removes the secrets of the sandbox.
func endRecord(r *SandboxRecord) {
	r.Stopped = time.Now().UTC()
	r.Deadline = time.Time{}
	r.Token, r.Env = "", nil
	if p := r.Network.Proxy; p != nil && p.Password != "" {
		q := *p
		q.Password = ""
		r.Network.Proxy = &q
	}
}

// startClock sets a record's times for a sandbox that starts running now, with the given
// timeout or, if it is 0, the timeout of its lifetime.
func startClock(r *SandboxRecord, timeout time.Duration) {
	if timeout <= 0 {
		timeout = r.Lifetime.Timeout
	}
	r.Started = time.Now().UTC()
	r.Deadline = r.Started.Add(min(timeout, r.Lifetime.Max))
}

// cleanUp releases the volumes of an ended sandbox and removes its files.
func (s *sandboxes) cleanUp(ctx context.Context, rec SandboxRecord) error {
	if len(rec.Volumes) > 0 && s.opt.Volumes != nil {
		if err := s.opt.Volumes.Unmount(ctx, rec.ID); err != nil {
			return err
		}
	}
	return s.files.dropSandbox(rec.ID)
}
