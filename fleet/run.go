package fleet

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest"
	"github.com/engi-dev/engi/guest/wire"
	"github.com/engi-dev/engi/outputlog"
	"github.com/engi-dev/engi/provider"
)

const (
	// grace is how much later than the guest the host ends a program that
	// overstays: the guest's answer is the better one.
	grace = 300 * time.Millisecond
	// launchTime bounds how long a program and its input may be on their way.
	launchTime = 4 * time.Second
	// killGrace is how long a killed program has to be reported as ended
	// before its sandbox is destroyed under it.
	killGrace = 300 * time.Millisecond
	// collectTime bounds the collection of a program's answer and artifacts.
	collectTime = 30 * time.Second
	// storeGrace is how long waiting callers bear with a store that fails.
	storeGrace = time.Second
)

// nextExecution is the whole life of an execution.
var nextExecution = map[engi.ExecutionState][]engi.ExecutionState{
	engi.ExecutionQueued:  {engi.ExecutionRunning, engi.ExecutionRefused, engi.ExecutionDone},
	engi.ExecutionRunning: {engi.ExecutionDone, engi.ExecutionRefused},
}

// A run is an execution that has not ended, or whose end somebody still looks
// at. One goroutine drives it; everybody else reads.
type run struct {
	id    engi.ExecutionID
	owner engi.Owner
	tape  *outputlog.Log
	ended chan struct{} // closed when rec and err are final

	stopOnce sync.Once
	stopped  chan struct{} // closed by stop
	why      engi.Cause    // set before stopped is closed

	network engi.NetworkPolicy // set before a member is used; immutable then

	mu      sync.Mutex
	rec     Record        // guarded by mu
	err     error         // instead of an end: why nobody follows the run any more; guarded by mu
	trouble error         // the answer is there but could not be stored so far; guarded by mu
	changed chan struct{} // closed and replaced when rec, err or trouble changes; guarded by mu
}

func (m *Manager) newRun(rec Record) *run {
	return &run{
		id:      rec.ID,
		owner:   rec.Owner,
		tape:    outputlog.New(m.files.tape(rec.ID)),
		ended:   make(chan struct{}),
		stopped: make(chan struct{}),
		rec:     rec,
		changed: make(chan struct{}),
	}
}

// stop asks for the end of the run, whatever state it is in. The first cause
// counts.
func (r *run) stop(why engi.Cause) {
	r.stopOnce.Do(func() {
		r.why = why
		close(r.stopped)
	})
}

// stopCause returns the cause stop was called with, "" if it was not.
func (r *run) stopCause() engi.Cause {
	select {
	case <-r.stopped:
		return r.why
	default:
		return ""
	}
}

// look returns the run as it is and a channel that is closed when it changes.
func (r *run) look() (rec Record, trouble, err error, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rec, r.trouble, r.err, r.changed
}

func (r *run) set(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	close(r.changed)
	r.changed = make(chan struct{})
}

// next returns the run's record moved to state and edited, for the store; the
// run itself is unchanged until it is adopted with set.
func (r *run) next(state engi.ExecutionState, edit func(*Record)) (from engi.ExecutionState, rec Record, err error) {
	r.mu.Lock()
	rec = r.rec
	r.mu.Unlock()
	from = rec.State
	if !slices.Contains(nextExecution[from], state) {
		return from, rec, engi.Errorf(engi.Conflict, "a %s execution cannot become %s", from, state)
	}
	rec.State = state
	edit(&rec)
	return from, rec, nil
}

// start moves a claimed run to running in the record, before anything of it
// happens inside.
func (m *Manager) start(ctx context.Context, r *run, b *instance) error {
	now := time.Now().UTC()
	from, rec, err := r.next(engi.ExecutionRunning, func(rec *Record) {
		rec.Sandbox = b.rec.ID
		rec.Started = now
	})
	if err != nil {
		return err
	}
	used, err := b.use(r, rec)
	if err != nil {
		return err
	}
	if err := m.opt.Store.Update(ctx, from, rec, &used); err != nil {
		return err
	}
	r.set(func() { r.rec = rec })
	return nil
}

// use gives a ready member to a run.
func (b *instance) use(r *run, rec Record) (SandboxRecord, error) {
	return b.move(engi.Running, func(s *SandboxRecord) {
		s.Owner = rec.Owner
		s.Execution = rec.ID
		s.Network = r.network
		b.run = r
	})
}

// unuse takes back use, when nothing has run.
func (b *instance) unuse() SandboxRecord {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rec.State, b.rec.Owner, b.rec.Execution, b.rec.Network, b.run = engi.Ready, "", "", engi.NetworkPolicy{}, nil
	return b.rec
}

// A claim says how a run got its member.
type claim struct {
	queued time.Duration
	took   time.Duration
	fresh  bool // booted while the run waited
}

// execute runs a program in a member that was claimed for it and recorded as
// its own, and leaves the run ended, unless the node stops first.
func (m *Manager) execute(r *run, b *instance, program wire.Run, c claim, want engi.Size) {
	answer := engi.Result{Queued: c.queued, Claim: c.took, Tier: b.key.Tier, NotEnforced: m.notEnforced(b.key.Tier)}
	switch err := m.fit(b, want); {
	case err == nil:
	case engi.KindOf(err) == engi.Unsupported: // it keeps the size of its pool, and says so
		answer.NotEnforced = append(slices.Clone(answer.NotEnforced), "vcpus", "memory")
		slices.Sort(answer.NotEnforced)
		answer.NotEnforced = slices.Compact(answer.NotEnforced)
	case engi.KindOf(err) == engi.Conflict: // the sandbox alone needs more
		answer.Exit = engi.Exit{Code: -1, Cause: engi.CauseMemory}
		answer.Error = err.Error()
		m.settle(r, b, answer)
		return
	case engi.KindOf(err) == engi.Invalid:
		m.refuse(r, err)
		m.stock.Retire(b.key, b, time.Now(), false)
		return
	default:
		m.lose(r, b, answer, err)
		return
	}
	if err := m.connect(r, b); err != nil {
		if m.life.Err() != nil || engi.KindOf(err) == engi.Unavailable {
			m.lose(r, b, answer, err)
			return
		}
		m.refuse(r, err)
		m.stock.Retire(b.key, b, time.Now(), false)
		return
	}
	watch := m.guard(r, b, program.Timeout+launchTime)
	defer watch.end()
	program.ID = string(r.id)
	g, err := m.launch(b, program)
	if err == nil {
		watch.within(program.Timeout)
		m.follow(r, b, g, answer, c.fresh, watch)
		return
	}
	switch engi.KindOf(err) {
	case engi.Invalid, engi.Unsupported, engi.NotFound, engi.Denied:
		m.refuse(r, err)
		m.stock.Retire(b.key, b, time.Now(), false)
	case engi.Exhausted:
		answer.Exit = engi.Exit{Code: -1, Cause: engi.CauseDisk}
		answer.Error = err.Error()
		m.settle(r, b, answer)
	default:
		m.lose(r, b, answer, err)
	}
}

// connect opens the network of a run that asks for one.
func (m *Manager) connect(r *run, b *instance) error {
	if !opens(r.network) {
		return nil
	}
	ctx, cancel := context.WithTimeout(m.life, wireTime)
	defer cancel()
	wiring, err := m.openWall(ctx, b.rec.ID, r.owner, r.network)
	if err != nil {
		return err
	}
	return b.guest.Setup(ctx, wire.Setup{Wiring: wiring})
}

// launch starts a program. When the stream breaks on the way, the guest is
// asked whether it did start: it takes each ID once, so that sending it again
// cannot make it run twice.
func (m *Manager) launch(b *instance, program wire.Run) (*guest.Run, error) {
	g, err := b.guest.Run(m.life, program)
	for tries := 1; err != nil && engi.KindOf(err) == engi.Unavailable && tries <= 3; tries++ {
		if !m.stillThere(b, time.Duration(tries)*100*time.Millisecond) || m.life.Err() != nil {
			break
		}
		if g, err = b.guest.Reattach(m.life, program.ID); engi.KindOf(err) == engi.NotFound && err != nil {
			g, err = b.guest.Run(m.life, program)
		}
	}
	return g, err
}

// notEnforced names the limits the tier cannot enforce on this host.
func (m *Manager) notEnforced(t engi.Tier) []string {
	if e, ok := m.providerOf(t).(provider.Enforcer); ok {
		return e.NotEnforced()
	}
	return nil
}

// fit gives a member the processor time and memory its run asks for.
func (m *Manager) fit(b *instance, want engi.Size) error {
	have := b.record().Size
	if want.VCPUs == have.VCPUs && want.Memory == have.Memory {
		return nil
	}
	ctx, cancel := context.WithTimeout(m.life, 10*time.Second)
	defer cancel()
	if err := provider.Resize(ctx, b.machine, want); err != nil {
		return err
	}
	b.mu.Lock()
	b.rec.Size = want
	b.mu.Unlock()
	return nil
}

// A guard ends a run's program when its time is over or somebody stops it:
// first the program, then, if that does not help, its machine.
type guard struct {
	timer *time.Timer
	end   func() // ends the watch and waits for it; may be called twice
}

// within sets the time the program has from now on.
func (g guard) within(d time.Duration) { g.timer.Reset(d + grace) }

// guard watches over a run whose program has the given time.
func (m *Manager) guard(r *run, b *instance, d time.Duration) guard {
	timer := time.NewTimer(d + grace)
	over := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		defer timer.Stop()
		select {
		case <-over:
			return
		case <-m.life.Done():
			return
		case <-timer.C:
			r.stop(engi.CauseTimeout)
		case <-r.stopped:
			m.kill(r, b)
			patience := time.NewTimer(killGrace)
			defer patience.Stop()
			select {
			case <-over:
				return
			case <-m.life.Done():
				return
			case <-patience.C:
			}
		}
		if err := b.machine.Close(); err != nil {
			m.log.Error("destroy sandbox of a program that overstays", "sandbox", b.rec.ID, "execution", r.id, "error", err)
		}
	})
	return guard{timer, sync.OnceFunc(func() {
		close(over)
		watch.Wait()
	})}
}

// kill kills the run's program, if it can be reached.
func (m *Manager) kill(r *run, b *instance) {
	ctx, cancel := context.WithTimeout(m.life, killGrace)
	defer cancel()
	g, err := b.guest.Reattach(ctx, string(r.id))
	if err == nil {
		err = g.Signal(ctx, "KILL")
	}
	if err != nil && engi.KindOf(err) != engi.NotFound {
		m.log.Debug("kill program; its sandbox goes instead", "execution", r.id, "error", err)
	}
}

// follow copies a program's output until it ends, collects its answer and
// settles the run. The guard's work is over when the program has ended.
func (m *Manager) follow(r *run, b *instance, g *guest.Run, answer engi.Result, fresh bool, watch guard) {
	fin, err := m.drain(r, g)
	for tries := 1; err != nil; tries++ {
		if m.life.Err() != nil {
			m.abandon(r)
			return
		}
		if engi.KindOf(err) != engi.Unavailable || tries > 3 || !m.stillThere(b, time.Duration(tries)*100*time.Millisecond) {
			m.lose(r, b, answer, err)
			return
		}
		ctx, cancel := context.WithTimeout(m.life, 5*time.Second)
		again, e := b.guest.Reattach(ctx, string(r.id))
		cancel()
		if e != nil {
			err = e
			continue
		}
		g = again
		fin, err = m.drain(r, g)
	}
	watch.end()
	answer.Exit = fin.Exit
	answer.Duration = fin.Duration
	answer.Warm = fin.Warm && !fresh
	answer.StdoutTruncated, answer.StderrTruncated = fin.StdoutTruncated, fin.StderrTruncated
	answer.ArtifactsLeft = fin.ArtifactsLeft
	answer.Error = fin.Error
	if !slices.Contains(engi.Causes(), fin.Exit.Cause) { // a guest may say anything
		answer.Exit.Cause = engi.CauseSandboxLost
	}
	if why := r.stopCause(); why != "" && fin.Exit.Cause == engi.CauseExited && fin.Exit.Signal != "" {
		answer.Exit.Cause = why // we killed it
		answer.Error = ""
	}
	if len(fin.Artifacts) > 0 {
		if err := m.collect(r, g, fin.Artifacts, &answer); err != nil {
			m.log.Warn("collect artifacts", "execution", r.id, "error", err)
			if answer.Error == "" {
				answer.Error = "not all artifacts could be collected: " + err.Error()
			}
		}
		if m.life.Err() != nil {
			m.abandon(r)
			return
		}
	}
	m.settle(r, b, answer)
}

// drain copies the output from where the tape ends, and returns the last word.
func (m *Manager) drain(r *run, g *guest.Run) (wire.Finish, error) {
	rec, _, _, _ := r.look()
	room := rec.Limits.Output - r.tape.Len()
	for c, err := range g.Output(m.life, r.tape.Len()) {
		if err != nil {
			return wire.Finish{}, err
		}
		if int64(len(c.Data)) > room {
			return wire.Finish{}, engi.Errorf(engi.Internal, "the guest sent more output than it may keep")
		}
		room -= int64(len(c.Data))
		if err := r.tape.Append(c.Stream, c.Data); err != nil {
			return wire.Finish{}, err
		}
	}
	ctx, cancel := context.WithTimeout(m.life, collectTime)
	defer cancel()
	return g.Finish(ctx)
}

// stillThere reports whether the member's machine is alive after a moment:
// the stream to a dying one breaks a little earlier than the machine ends.
func (m *Manager) stillThere(b *instance, moment time.Duration) bool {
	timer := time.NewTimer(moment)
	defer timer.Stop()
	select {
	case <-b.machine.Done():
		return false
	case <-timer.C:
		return true
	case <-m.life.Done():
		return true
	}
}

// collect saves the artifacts a finished program left. Who cancels the run now
// does not wait for them.
func (m *Manager) collect(r *run, g *guest.Run, manifest []wire.Artifact, answer *engi.Result) error {
	ctx, cancel := context.WithTimeout(m.life, collectTime)
	defer cancel()
	over := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-r.stopped:
			cancel()
		case <-over:
		}
	})
	defer watch.Wait()
	defer close(over)
	rec, _, _, _ := r.look()
	stream, err := g.Artifacts(ctx)
	if err != nil {
		answer.ArtifactsLeft += len(manifest)
		return err
	}
	defer stream.Close()
	saved, left, err := m.files.saveArtifacts(r.id, manifest, stream, rec.Limits)
	answer.Artifacts = saved
	answer.ArtifactsLeft += left
	return err
}

// lose settles a run whose sandbox does not answer any more.
func (m *Manager) lose(r *run, b *instance, answer engi.Result, err error) {
	if m.life.Err() != nil {
		m.abandon(r)
		return
	}
	cause := engi.CauseSandboxLost
	if !m.stillThere(b, 500*time.Millisecond) && b.machine.End() == engi.CauseMemory {
		cause = engi.CauseMemory
	}
	if why := r.stopCause(); why != "" {
		cause = why
	}
	rec, _, _, _ := r.look()
	answer.Exit = engi.Exit{Code: -1, Signal: "KILL", Cause: cause}
	answer.Duration = time.Since(rec.Started)
	if cause == engi.CauseSandboxLost {
		answer.Error = err.Error()
	}
	m.settle(r, b, answer)
}

// settle records a run's answer, tells everybody, and retires its sandbox.
// The record comes first: what a caller was told survives a crash.
func (m *Manager) settle(r *run, b *instance, answer engi.Result) {
	if text := answer.Exit.Cause.Remedy(); text != "" && answer.Error == "" {
		answer.Error = text
	}
	r.tape.End()
	m.finish(r, b, engi.ExecutionDone, func(rec *Record) {
		rec.Result = &answer
	})
	if b != nil {
		m.stock.Retire(b.key, b, time.Now(), answer.Exit.Cause != engi.CauseExited)
	}
}

// refuse ends a run that got no sandbox.
func (m *Manager) refuse(r *run, err error) {
	refusal, ok := asError(err)
	if !ok {
		refusal = engi.Errorf(engi.KindOf(err), "%s", err.Error())
	}
	r.tape.End()
	m.finish(r, nil, engi.ExecutionRefused, func(rec *Record) { rec.Refusal = refusal })
}

// finish writes a run's end to the store and makes it known. While the store
// fails it tries again; callers who wait are told after a while, and the run
// stays open until its end is stored or the node stops.
func (m *Manager) finish(r *run, b *instance, state engi.ExecutionState, edit func(*Record)) {
	from, rec, err := r.next(state, func(rec *Record) {
		rec.Ended = time.Now().UTC()
		if frames, short := r.tape.Frames(); short {
			rec.Tape = frames
		} else {
			rec.TapeFile = true
		}
		edit(rec)
	})
	if err != nil {
		m.log.Error("end execution", "execution", r.id, "error", err) // unreachable: one goroutine drives a run
		return
	}
	var used *SandboxRecord
	if b != nil {
		s, err := b.move(engi.Stopping, func(s *SandboxRecord) {
			if rec.Result != nil {
				s.End = rec.Result.Exit.Cause
			}
		})
		if err == nil {
			used = &s
		}
	}
	began := time.Now()
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := m.opt.Store.Update(m.life, from, rec, used)
		if err == nil {
			break
		}
		if m.life.Err() != nil {
			m.abandon(r)
			return
		}
		if kind := engi.KindOf(err); kind == engi.NotFound || kind == engi.Conflict {
			// Somebody else ended or removed the record: theirs counts.
			m.log.Error("record end of execution", "execution", r.id, "error", err)
			m.close(r, func() { r.err = err })
			return
		}
		if time.Since(began) > storeGrace {
			m.log.Error("record end of execution; trying again", "execution", r.id, "error", err)
			r.set(func() { r.trouble = err })
		}
		select {
		case <-time.After(pause):
		case <-m.life.Done():
		}
	}
	if from == engi.ExecutionQueued {
		m.files.dropQueued(r.id)
	}
	m.close(r, func() { r.rec = rec })
	m.count(rec)
}

// abandon leaves a run to the node's next life.
func (m *Manager) abandon(r *run) {
	r.tape.Fail(errStopping)
	m.close(r, func() { r.err = errStopping })
}

// close makes a run's last change and takes it from the list.
func (m *Manager) close(r *run, last func()) {
	r.set(last)
	close(r.ended)
	m.mu.Lock()
	delete(m.runs, r.id)
	m.mu.Unlock()
	r.tape.Close()
}

func (m *Manager) count(rec Record) {
	switch rec.State {
	case engi.ExecutionDone:
		m.metrics.executions.WithLabelValues(string(rec.Language), string(rec.Result.Exit.Cause)).Inc()
		m.metrics.duration.WithLabelValues(string(rec.Language)).Observe(rec.Ended.Sub(rec.Created).Seconds())
	case engi.ExecutionRefused:
		m.metrics.refused.WithLabelValues(rec.Refusal.Kind.String()).Inc()
	}
}
