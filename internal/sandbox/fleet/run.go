package fleet

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
	"github.com/engi-dev/engi/internal/sandbox/outputlog"
	"github.com/engi-dev/engi/internal/sandbox/provider"
)

const (
	// timeoutGrace is the time by which the host, later than the guest, ends a program
	// that exceeds its timeout: the guest can report more details.
	timeoutGrace = 300 * time.Millisecond
	// launchTime is the maximum time for a program and its input to reach
	// the guest.
	launchTime = 4 * time.Second
	// killGrace is the time in which a killed program must be reported as ended
	// before its machine is destroyed.
	killGrace = 300 * time.Millisecond
	// collectTime is the maximum time for collecting a program's result and artifacts.
	collectTime = 30 * time.Second
	// resizeTime is the maximum time for resizing a machine.
	resizeTime = 10 * time.Second
	// storeGrace is the time that a store may fail before waiting callers are
	// told.
	storeGrace = time.Second
)

// nextExecution lists the states that may follow each state of an execution.
var nextExecution = map[engi.ExecutionState][]engi.ExecutionState{
	engi.ExecutionQueued:  {engi.ExecutionRunning, engi.ExecutionRefused, engi.ExecutionDone},
	engi.ExecutionRunning: {engi.ExecutionDone, engi.ExecutionRefused},
}

// A run is an execution that has not ended, or whose end a caller is still
// reading. One goroutine drives it; all others only read.
type run struct {
	id     engi.ExecutionID
	owner  engi.Owner
	output *outputlog.Log
	ended  chan struct{} // closed when rec and err are final

	stopOnce sync.Once
	stopped  chan struct{} // closed by stop
	why      engi.Cause    // cause of the stop; set before stopped is closed

	network engi.NetworkPolicy // set before an instance is assigned; then immutable
	booking *booking           // set before the run is known; then immutable

	mu      sync.Mutex
	rec     Record        // guarded by mu
	err     error         // reason why this node no longer follows the unfinished run; guarded by mu
	trouble error         // reason why the result is not stored yet; guarded by mu
	changed chan struct{} // closed and replaced when rec, err or trouble changes; guarded by mu
}

func (e *executions) newRun(rec Record) *run {
	return &run{
		id:      rec.ID,
		owner:   rec.Owner,
		output:  outputlog.New(e.files.output(rec.ID)),
		ended:   make(chan struct{}),
		stopped: make(chan struct{}),
		rec:     rec,
		changed: make(chan struct{}),
	}
}

// stop asks the run to end, in any state. Only the first cause is kept.
func (r *run) stop(why engi.Cause) {
	r.stopOnce.Do(func() {
		r.why = why
		close(r.stopped)
	})
}

// stopCause returns the cause passed to stop, "" if stop was not called.
func (r *run) stopCause() engi.Cause {
	select {
	case <-r.stopped:
		return r.why
	default:
		return ""
	}
}

// look returns the current state of the run, and a channel that is closed when it changes.
func (r *run) look() (rec Record, changed <-chan struct{}, trouble, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rec, r.changed, r.trouble, r.err
}

// set calls f, which changes the run, with mu held, and wakes all watchers.
func (r *run) set(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	close(r.changed)
	r.changed = make(chan struct{})
}

// next returns the run's record moved to state and edited, for the store. The
// run itself does not change until set.
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

// recordStart records that a queued run starts in inst, before any part of it
// reaches the guest.
func (e *executions) recordStart(ctx context.Context, r *run, inst *instance) error {
	now := time.Now().UTC()
	from, rec, err := r.next(engi.ExecutionRunning, func(rec *Record) {
		rec.Sandbox = inst.rec.ID
		rec.Started = now
	})
	if err != nil {
		return err
	}
	used, err := inst.assign(r, rec)
	if err != nil {
		return err
	}
	if err := e.opt.Store.Update(ctx, from, rec, recordOfUse(used)); err != nil {
		return err
	}
	r.set(func() { r.rec = rec })
	return nil
}

// A claim describes how a run got its instance.
type claim struct {
	queued time.Duration // time until it was the run's turn
	took   time.Duration // time from the run's turn to its instance
	fresh  bool          // the instance was booted while the run waited
}

// execute runs a program in an instance that was assigned to it and recorded
// as its own. It returns when the run has ended or the node stops.
func (e *executions) execute(r *run, inst *instance, program wire.Run, c claim, want engi.Size) {
	defer e.pools.begin(inst, r.owner)()
	result := engi.Result{Queued: c.queued, Claim: c.took, Tier: inst.key.Tier, NotEnforced: e.notEnforced(inst.key.Tier)}
	switch err := e.resize(inst, want); {
	case err == nil:
	case engi.Is(err, engi.Unsupported): // the instance keeps its pool's size, and the result reports this
		result.NotEnforced = append(slices.Clone(result.NotEnforced), "vcpus", "memory")
		slices.Sort(result.NotEnforced)
		result.NotEnforced = slices.Compact(result.NotEnforced)
	case engi.Is(err, engi.Conflict): // the sandbox itself already uses more
		result.Exit = engi.Exit{Code: -1, Cause: engi.CauseMemory}
		result.Error = err.Error()
		e.settle(r, inst, result)
		return
	case engi.Is(err, engi.Invalid):
		e.refuse(r, inst, err)
		e.pools.retire(inst, false)
		return
	default:
		e.settleLost(r, inst, result, err)
		return
	}
	if err := e.setNetwork(r, inst); err != nil {
		if e.life.Err() != nil || engi.Is(err, engi.Unavailable) {
			e.settleLost(r, inst, result, err)
			return
		}
		e.refuse(r, inst, err)
		e.pools.retire(inst, false)
		return
	}
	watch := e.guard(r, inst, program.Timeout+launchTime)
	defer watch.end()
	program.ID = string(r.id)
	g, err := e.launch(inst, program)
	if err == nil {
		watch.within(program.Timeout)
		e.follow(r, inst, g, result, c.fresh, watch)
		return
	}
	switch engi.KindOf(err) {
	case engi.Invalid, engi.Unsupported, engi.NotFound, engi.Denied:
		e.refuse(r, inst, err)
		e.pools.retire(inst, false)
	case engi.Exhausted:
		result.Exit = engi.Exit{Code: -1, Cause: engi.CauseDisk}
		result.Error = err.Error()
		e.settle(r, inst, result)
	default:
		e.settleLost(r, inst, result, err)
	}
}

// setNetwork puts the run's network policy in force, if it requests a network.
func (e *executions) setNetwork(r *run, inst *instance) error {
	if !opens(r.network) {
		return nil
	}
	ctx, cancel := context.WithTimeout(e.life, networkTime)
	defer cancel()
	setup, err := e.openNetwork(ctx, inst.rec.ID, r.owner, r.network)
	if err != nil {
		return err
	}
	return inst.guest.Setup(ctx, wire.Setup{Network: setup})
}

// launch starts a program. If the connection breaks, it asks the guest whether
// the program has started, and sends it again if not. A guest accepts each ID
// once, so that the program cannot run twice.
func (e *executions) launch(inst *instance, program wire.Run) (*guest.Run, error) {
	g, err := inst.guest.Run(e.life, program)
	for tries := 1; engi.Is(err, engi.Unavailable) && tries <= 3; tries++ {
		if !e.alive(inst, time.Duration(tries)*100*time.Millisecond) || e.life.Err() != nil {
			break
		}
		if g, err = inst.guest.Reattach(e.life, program.ID); engi.Is(err, engi.NotFound) {
			g, err = inst.guest.Run(e.life, program)
		}
	}
	return g, err
}

// resize gives an instance the processor time and memory that its run asks
// for.
func (e *executions) resize(inst *instance, want engi.Size) error {
	have := inst.record().Size
	if want.VCPUs == have.VCPUs && want.Memory == have.Memory {
		return nil
	}
	ctx, cancel := context.WithTimeout(e.life, resizeTime)
	defer cancel()
	if err := provider.Resize(ctx, inst.machine, want); err != nil {
		return err
	}
	inst.mu.Lock()
	inst.rec.Size = want
	inst.mu.Unlock()
	return nil
}

// A guard ends a program that exceeds its timeout, by destroying its machine, or
// a stopped program: it kills the program first, and if the program does not end,
// destroys the machine.
type guard struct {
	timer *time.Timer
	end   func() // ends the guard and waits for it; may be repeated
}

// within sets the remaining time of the program.
func (g guard) within(d time.Duration) { g.timer.Reset(d + timeoutGrace) }

// guard starts a guard for a run whose program may run for d.
func (e *executions) guard(r *run, inst *instance, d time.Duration) guard {
	timer := time.NewTimer(d + timeoutGrace)
	over := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		defer timer.Stop()
		select {
		case <-over:
			return
		case <-e.life.Done():
			return
		case <-timer.C:
			r.stop(engi.CauseTimeout)
		case <-r.stopped:
			e.kill(r, inst)
			patience := time.NewTimer(killGrace)
			defer patience.Stop()
			select {
			case <-over:
				return
			case <-e.life.Done():
				return
			case <-patience.C:
			}
		}
		if err := inst.machine.Close(); err != nil {
			e.log.Error("destroy sandbox of a program that does not end", "sandbox", inst.rec.ID, "execution", r.id, "error", err)
		}
	})
	return guard{timer, sync.OnceFunc(func() {
		close(over)
		watch.Wait()
	})}
}

// kill kills the run's program if the guest can be reached.
func (e *executions) kill(r *run, inst *instance) {
	ctx, cancel := context.WithTimeout(e.life, killGrace)
	defer cancel()
	g, err := inst.guest.Reattach(ctx, string(r.id))
	if err == nil {
		err = g.Signal(ctx, "KILL")
	}
	if err != nil && !engi.Is(err, engi.NotFound) {
		e.log.Debug("kill program; destroying its sandbox instead", "execution", r.id, "error", err)
	}
}

// follow copies a program's output until it ends, collects its result and
// settles the run. It ends the guard when the program has ended.
func (e *executions) follow(r *run, inst *instance, g *guest.Run, result engi.Result, fresh bool, watch guard) {
	fin, err := e.drain(r, g)
	for tries := 1; err != nil; tries++ {
		if e.life.Err() != nil {
			e.abandon(r)
			return
		}
		if !engi.Is(err, engi.Unavailable) || tries > 3 || !e.alive(inst, time.Duration(tries)*100*time.Millisecond) {
			e.settleLost(r, inst, result, err)
			return
		}
		ctx, cancel := context.WithTimeout(e.life, 5*time.Second)
		g, err = inst.guest.Reattach(ctx, string(r.id))
		cancel()
		if err == nil {
			fin, err = e.drain(r, g)
		}
	}
	watch.end()
	result.Exit = fin.Exit
	result.Duration = fin.Duration
	result.Warm = fin.Warm && !fresh
	result.StdoutTruncated, result.StderrTruncated = fin.StdoutTruncated, fin.StderrTruncated
	result.ArtifactsLeft = fin.ArtifactsLeft
	result.Error = fin.Error
	if !slices.Contains(engi.Causes(), fin.Exit.Cause) { // the guest is not trusted
		result.Exit.Cause = engi.CauseSandboxLost
	}
	if why := r.stopCause(); why != "" && fin.Exit.Cause == engi.CauseExited && fin.Exit.Signal != "" {
		result.Exit.Cause = why // the host killed it
		result.Error = ""
	}
	if len(fin.Artifacts) > 0 {
		if err := e.collect(r, g, fin.Artifacts, &result); err != nil {
			e.log.Warn("collect artifacts", "execution", r.id, "error", err)
			if result.Error == "" {
				result.Error = "not all artifacts could be collected: " + err.Error()
			}
		}
		if e.life.Err() != nil {
			e.abandon(r)
			return
		}
	}
	e.settle(r, inst, result)
}

// drain copies the output, starting at the end of the log, and returns how the program
// ended.
func (e *executions) drain(r *run, g *guest.Run) (wire.Finish, error) {
	rec, _, _, _ := r.look()
	left := rec.Limits.Output - r.output.Len()
	for c, err := range g.Output(e.life, r.output.Len()) {
		if err != nil {
			return wire.Finish{}, err
		}
		if int64(len(c.Data)) > left {
			return wire.Finish{}, engi.Errorf(engi.Internal, "the guest sent more output than it may store")
		}
		left -= int64(len(c.Data))
		if err := r.output.Append(c.Stream, c.Data); err != nil {
			return wire.Finish{}, err
		}
	}
	ctx, cancel := context.WithTimeout(e.life, collectTime)
	defer cancel()
	return g.Finish(ctx)
}

// alive reports whether the instance's machine is still alive after moment: the
// connection to a dying machine breaks shortly before the machine ends.
func (e *executions) alive(inst *instance, moment time.Duration) bool {
	timer := time.NewTimer(moment)
	defer timer.Stop()
	select {
	case <-inst.machine.Done():
		return false
	case <-timer.C:
		return true
	case <-e.life.Done():
		return true
	}
}

// collect saves the artifacts that a finished program left. Cancelling the run
// ends the collection.
func (e *executions) collect(r *run, g *guest.Run, manifest []wire.Artifact, result *engi.Result) error {
	ctx, cancel := context.WithTimeout(e.life, collectTime)
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
		result.ArtifactsLeft += len(manifest)
		return err
	}
	defer stream.Close()
	saved, left, err := e.files.saveArtifacts(r.id, manifest, stream, rec.Limits)
	result.Artifacts = saved
	result.ArtifactsLeft += left
	return err
}

// settleLost settles a run whose guest no longer answers.
func (e *executions) settleLost(r *run, inst *instance, result engi.Result, err error) {
	if e.life.Err() != nil {
		e.abandon(r)
		return
	}
	cause := engi.CauseSandboxLost
	if !e.alive(inst, 500*time.Millisecond) && inst.machine.End() == engi.CauseMemory {
		cause = engi.CauseMemory
	}
	if why := r.stopCause(); why != "" {
		cause = why
	}
	rec, _, _, _ := r.look()
	result.Exit = engi.Exit{Code: -1, Signal: "KILL", Cause: cause}
	result.Duration = time.Since(rec.Started)
	if cause == engi.CauseSandboxLost {
		result.Error = err.Error()
	}
	e.settle(r, inst, result)
}

// settle records a run's result, notifies all watchers, and retires its instance;
// inst is nil if the run has none. The record is written first, so that a result that a caller
// has received survives a crash.
func (e *executions) settle(r *run, inst *instance, result engi.Result) {
	if text := result.Exit.Cause.Remedy(); text != "" && result.Error == "" {
		result.Error = text
	}
	r.output.End()
	e.finish(r, inst, engi.ExecutionDone, func(rec *Record) {
		rec.Result = &result
	})
	if inst != nil {
		e.pools.retire(inst, result.Exit.Cause != engi.CauseExited)
	}
}

// refuse ends a run whose program did not start; inst is nil if the run has none.
func (e *executions) refuse(r *run, inst *instance, err error) {
	refusal, ok := errors.AsType[*engi.Error](err)
	if !ok {
		refusal = engi.Errorf(engi.KindOf(err), "%s", err.Error())
	}
	r.output.End()
	e.finish(r, inst, engi.ExecutionRefused, func(rec *Record) { rec.Refusal = refusal })
}

// finish stores a run's end and notifies its watchers. While the store fails it tries
// again, and after storeGrace reports the error to waiting callers; the run stays open until
// its end is stored or the node stops.
func (e *executions) finish(r *run, inst *instance, state engi.ExecutionState, edit func(*Record)) {
	from, rec, err := r.next(state, func(rec *Record) {
		rec.Ended = time.Now().UTC()
		if frames, inline := r.output.Frames(); inline {
			rec.Output = frames
		} else {
			rec.OutputFile = true
		}
		edit(rec)
	})
	if err != nil {
		e.log.Error("end execution", "execution", r.id, "error", err) // unreachable: one goroutine drives a run
		return
	}
	var used *SandboxRecord
	if inst != nil {
		s, err := inst.setState(engi.Stopping, func(s *SandboxRecord) {
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
		err := e.opt.Store.Update(e.life, from, rec, used)
		if err == nil {
			break
		}
		if e.life.Err() != nil {
			e.abandon(r)
			return
		}
		if engi.Is(err, engi.NotFound, engi.Conflict) {
			// Another process has ended or removed the record; its change is kept.
			e.log.Error("record end of execution", "execution", r.id, "error", err)
			if used != nil {
				if err := e.opt.Store.PutSandbox(e.life, *used); err != nil {
					e.log.Error("record use of sandbox", "sandbox", used.ID, "error", err)
				}
			}
			e.closeRun(r, func() { r.err = err })
			return
		}
		if time.Since(began) > storeGrace {
			e.log.Error("record end of execution; trying again", "execution", r.id, "error", err)
			r.set(func() { r.trouble = err })
		}
		_ = clock.Sleep(e.life, pause)
	}
	if from == engi.ExecutionQueued {
		e.files.dropQueued(r.id)
	}
	e.count(rec) // first: a caller that has seen the end may read the metrics
	e.closeRun(r, func() { r.rec = rec })
}

// abandon leaves a run to be resumed by the next node.
func (e *executions) abandon(r *run) {
	r.output.Fail(errStopping)
	e.closeRun(r, func() { r.err = errStopping })
}

// closeRun makes a run's last change and forgets it.
func (e *executions) closeRun(r *run, last func()) {
	e.sandboxes.unbook(r.booking) // first: a caller that has seen the end may start another execution
	r.set(last)
	close(r.ended)
	e.remove(r)
	r.output.Close()
}

// count counts an ended execution in the metrics.
func (e *executions) count(rec Record) {
	switch rec.State {
	case engi.ExecutionDone:
		e.metrics.executions.WithLabelValues(string(rec.Language), string(rec.Result.Exit.Cause)).Inc()
		e.metrics.duration.WithLabelValues(string(rec.Language)).Observe(rec.Ended.Sub(rec.Created).Seconds())
	case engi.ExecutionRefused:
		e.metrics.refused.WithLabelValues(rec.Refusal.Kind.String()).Inc()
	}
}
