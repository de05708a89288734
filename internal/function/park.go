package function

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
)

const (
	maxSubject     = 256              // maximum bytes of a match's subject
	maxWakePause   = 30 * time.Second // maximum time between requests to wake a run
	maxEndedWakes  = 8                // maximum number of requests to wake a cancelled run
	waitRetry      = time.Second      // pause after the store or the log has failed
	lookPage       = 100              // number of events that are read at once
	unlimitedPause = 24 * time.Hour
)

// A Match selects the events of the run's owner that [Run.Await] waits for. Types or Subject
// must be set.
type Match struct {
	Types   []string // as in [engi.EventFilter]; empty means all
	Subject string   // ID of the object that the event is about; empty means any
	// After is the Seq after which the event is in the log. 0 means that of the event that has
	// started the run, or the end of the log when a schedule started it.
	After int64
}

// ErrDropped is the reason of an error of [Run.Await] if the log has dropped events
// that may have been the awaited one.
var ErrDropped = errors.New("the log has dropped events that the run has not seen")

// Await waits in a step of the given name for the first event that matches, and returns it; false
// if none was appended before the deadline, which is the one of the first call. Without a deadline it
// waits for as long as the function's timeout allows. The run has no slot while it waits, and the function is
// called again from the top afterwards.
//
// Events about the run itself never match. An event that was found is the result of the step, so that
// it stays the same when the log drops it. If events that Await has not seen were dropped, it reports
// NotFound for [ErrDropped]. It reports Exhausted if too many runs wait.
func (r *Run) Await(ctx context.Context, step string, m Match, deadline time.Time) (engi.Event, bool, error) {
	if len(m.Types) == 0 && m.Subject == "" || len(m.Subject) > maxSubject || m.After < 0 {
		return engi.Event{}, false, engi.Errorf(engi.Invalid, "step %.140s: it waits for no event that can be found", step).WithRemedy("set the types or the subject of the event")
	}
	if err := (engi.EventFilter{Types: m.Types}).Check(); err != nil {
		return engi.Event{}, false, err
	}
	result, err := r.wait(ctx, step, engi.FunctionWait{
		Step: step, Types: slices.Clone(m.Types), Subject: m.Subject, After: cmp.Or(m.After, r.position), Until: deadline.Round(0),
	})
	switch {
	case err != nil:
		return engi.Event{}, false, err
	case result.Dropped:
		return engi.Event{}, false, engi.Errorf(engi.NotFound, "step %s: %w", step, ErrDropped).WithRemedy("look at the state of the object, and wait after a later position")
	case result.Event == nil:
		return engi.Event{}, false, nil
	}
	return result.Event.event(r.Owner), true, nil
}

// Position returns the end of the log, for [Match], and remembers it in a step of the given name.
func (r *Run) Position(ctx context.Context, step string) (int64, error) {
	return Step(ctx, r, step, r.runner.opt.Events.Last)
}

// Sleep waits for d in a step of the given name, from the time at which the step begins. The
// run has no slot while it waits.
func (r *Run) Sleep(ctx context.Context, step string, d time.Duration) error {
	return r.SleepUntil(ctx, step, time.Now().Add(d))
}

// SleepUntil is like Sleep, but waits until a time, which is the one of the first call.
func (r *Run) SleepUntil(ctx context.Context, step string, t time.Time) error {
	if t.IsZero() {
		return engi.Errorf(engi.Invalid, "step %.140s: it waits for no time", step)
	}
	_, err := r.wait(ctx, step, engi.FunctionWait{Step: step, Until: t.Round(0)})
	return err
}

// A waitResult is the result of a step that waits. Without Event and Dropped, the time is over.
type waitResult struct {
	Event   *waitEvent `json:"event,omitempty"`
	Dropped bool       `json:"dropped,omitempty"`
}

// A waitEvent is an awaited event.
type waitEvent struct {
	Seq     int64           `json:"seq"`
	Prev    int64           `json:"prev,omitempty"`
	ID      engi.EventID    `json:"id"`
	Subject string          `json:"subject"`
	Type    string          `json:"type"`
	Time    time.Time       `json:"time"`
	Actor   string          `json:"actor,omitempty"`
	Replay  engi.EventID    `json:"replay,omitempty"`
	Data    json.RawMessage `json:"data"`
}

func resultOf(e engi.Event) *waitResult {
	return &waitResult{Event: &waitEvent{Seq: e.Seq, Prev: e.Prev, ID: e.ID, Subject: e.Subject, Type: e.Type, Time: e.Time, Actor: e.Actor, Replay: e.Replay, Data: e.Data}}
}

func (e waitEvent) event(owner engi.Owner) engi.Event {
	return engi.Event{Seq: e.Seq, Prev: e.Prev, ID: e.ID, Owner: owner, Subject: e.Subject, Type: e.Type, Time: e.Time, Actor: e.Actor, Replay: e.Replay, Data: e.Data}
}

// park is the panic that unwinds a function whose run waits without a slot.
type park struct{}

// wait completes a step once the wait w is over, and until then unwinds the function.
func (r *Run) wait(ctx context.Context, step string, w engi.FunctionWait) (result waitResult, err error) {
	if err := r.beginStep(ctx, step); err != nil {
		return result, err
	}
	var known json.RawMessage
	if r.waited != nil && r.waited.Step == step {
		w.Until, known = r.waited.Until, r.waited.Result
	}
	raw, err := r.stepper.Step(ctx, step, func(ctx context.Context) (json.RawMessage, error) {
		s := r.steps[step]
		if s.Started.IsZero() {
			s = engi.FunctionStep{Name: step, Attempts: 1, Started: time.Now().UTC()}
			r.recordStep(ctx, s)
		}
		raw := known
		if raw == nil {
			found, err := r.runner.beginWait(ctx, r, w)
			if err == nil && found == nil {
				return nil, errParked
			}
			if err == nil {
				raw, err = json.Marshal(found)
			}
			if err != nil {
				s.Error, s.Ended = toError(err), time.Now().UTC()
				r.recordStep(ctx, s)
				return nil, err
			}
		}
		s.Error, s.Ended = nil, time.Now().UTC()
		if len(raw) <= maxShownOutput {
			s.Output = raw
		}
		r.recordStep(ctx, s)
		return raw, nil
	})
	switch {
	case errors.Is(err, ErrYield):
		panic(yield{})
	case errors.Is(err, errParked):
		panic(park{})
	case err != nil:
		return result, err
	}
	if err := json.Unmarshal(raw, &result); err != nil {
		return result, engi.Errorf(engi.Invalid, "step %s: its remembered result is not that of a wait: %v", step, err)
	}
	return result, nil
}

// waits are the runs that wait for an event or a time. The Runner's mu guards them.
//
// A run is added before it looks into the log, so that an event that it does not find there is passed to it by
// followWaits. The record of the run then says that it waits. Until then followWaits does
// not go beyond an event for the run, so that its position, from which it continues after a crash, never
// passes an event that the record of a run needs.
type waits struct {
	runs      map[engi.FunctionRunID]*parkedRun
	bySubject map[string]map[*parkedRun]bool     // waits for an event about an object
	byOwner   map[engi.Owner]map[*parkedRun]bool // waits for other events
	shares    *engi.Shares
	followed  int64         // Seq up to which events were passed to the runs
	changed   chan struct{} // receives a value when a run has been added
}

// A parkedRun is a run that waits, or is about to.
type parkedRun struct {
	queuedRun
	wait    engi.FunctionWait
	due     time.Time     // when the wait is over, or the run's timeout has passed; zero if never
	parked  bool          // the record says that the run waits, and the run has no slot
	settled chan struct{} // closed when the run is parked or no longer waits
	ending  sync.Mutex    // held while the result of the wait is recorded
}

func newWaits(most int) waits {
	return waits{
		runs: map[engi.FunctionRunID]*parkedRun{}, bySubject: map[string]map[*parkedRun]bool{}, byOwner: map[engi.Owner]map[*parkedRun]bool{},
		shares: engi.NewShares(int64(most)), changed: make(chan struct{}, 1),
	}
}

func (w *waits) add(p *parkedRun) {
	w.runs[p.id] = p
	switch {
	case p.wait.Subject != "":
		index(w.bySubject, p.wait.Subject, p)
	case len(p.wait.Types) > 0:
		index(w.byOwner, p.owner, p)
	}
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

func index[K comparable](m map[K]map[*parkedRun]bool, key K, p *parkedRun) {
	if m[key] == nil {
		m[key] = map[*parkedRun]bool{}
	}
	m[key][p] = true
}

func unindex[K comparable](m map[K]map[*parkedRun]bool, key K, p *parkedRun) {
	if delete(m[key], p); len(m[key]) == 0 {
		delete(m, key)
	}
}

func (w *waits) remove(p *parkedRun) {
	delete(w.runs, p.id)
	unindex(w.bySubject, p.wait.Subject, p)
	unindex(w.byOwner, p.owner, p)
	w.shares.Give(p.owner, 1)
	if !p.parked {
		close(p.settled)
	}
}

// forEvent returns the runs that wait for an event, in the order of their places.
func (w *waits) forEvent(e engi.Event) (all []*parkedRun) {
	for _, m := range []map[*parkedRun]bool{w.bySubject[e.Subject], w.byOwner[e.Owner]} {
		for p := range m {
			if p.owner == e.Owner && p.id != engi.FunctionRunID(e.Subject) && matches(p.wait, e) {
				all = append(all, p)
			}
		}
	}
	slices.SortFunc(all, func(a, b *parkedRun) int { return cmp.Compare(a.place, b.place) })
	return all
}

// matches reports whether an event is one that w waits for.
func matches(w engi.FunctionWait, e engi.Event) bool {
	return (engi.EventFilter{Types: w.Types, Subject: w.Subject, After: w.After}).Matches(e) && (w.Until.IsZero() || e.Time.Before(w.Until))
}

// dueOf returns the time at which a run that waits must be executed; zero if there is none. That of a
// removed function is in the past: it fails at once.
func (r *Runner) dueOf(function string, started time.Time, w engi.FunctionWait) time.Time {
	f, ok := r.function(function)
	if !ok {
		return started
	}
	due := w.Until
	if end := started.Add(f.Timeout); f.Timeout > 0 && (due.IsZero() || end.Before(due)) {
		due = end
	}
	return due
}

// beginWait returns the result of a wait if it is already known. Otherwise it adds the run to those that
// wait; the caller unwinds the function.
func (r *Runner) beginWait(ctx context.Context, run *Run, w engi.FunctionWait) (*waitResult, error) {
	r.settle(run.active, false) // if the function has recovered from the panic
	isOver := !w.Until.IsZero() && !time.Now().Before(w.Until)
	after := w.After
	if !isOver {
		if !r.waits.shares.Take(run.Owner, 1) {
			return nil, engi.Errorf(engi.Exhausted, "step %s: %d of your runs wait for events and times", w.Step, r.waits.shares.Of(run.Owner)).WithRemedy("wait, or cancel some").WithRetry(engi.Retry{AfterMillis: 60_000})
		}
		r.mu.Lock()
		w.After = max(w.After, r.waits.followed)
		p := &parkedRun{queuedRun: r.slots[run.ID], wait: w, due: r.dueOf(run.Function, run.started, w), settled: make(chan struct{})}
		p.id, p.function, p.owner = run.ID, run.Function, run.Owner
		r.waits.add(p)
		run.active.parking = p
		r.mu.Unlock()
	}
	w.After = after
	result, err := r.look(ctx, run.ID, run.Owner, w)
	if err == nil && result == nil && isOver {
		result = &waitResult{}
	}
	if result != nil || err != nil {
		r.settle(run.active, false)
	}
	return result, err
}

// look returns the result of a wait for an event that is in the log, or may have been there; nil if there
// is none.
func (r *Runner) look(ctx context.Context, id engi.FunctionRunID, owner engi.Owner, w engi.FunctionWait) (*waitResult, error) {
	if len(w.Types) == 0 && w.Subject == "" {
		return nil, nil
	}
	f := engi.EventFilter{Types: w.Types, Subject: w.Subject, After: w.After, Oldest: true, Limit: lookPage}
	for {
		events, err := r.opt.Events.List(ctx, owner.Viewer(), f)
		if err != nil {
			return nil, err
		}
		for _, e := range events {
			if e.Subject != string(id) && matches(w, e) {
				return resultOf(e), nil
			}
			f.After = e.Seq
		}
		if len(events) == 0 || !w.Until.IsZero() && !events[len(events)-1].Time.Before(w.Until) {
			break
		}
	}
	lost, err := r.opt.Store.Lost(ctx, owner, w.After)
	if err != nil || !lost {
		return nil, err
	}
	return &waitResult{Dropped: true}, nil
}

// park records that a run waits, and takes its slot.
func (r *Runner) park(ctx context.Context, id engi.FunctionRunID, active *activeRun) Outcome {
	out := r.update(ctx, id, Outcome{Next: Parked}, func(rec *Record) {
		if rec.CancelRequested {
			endRun(rec, engi.FunctionCancelled)
			return
		}
		rec.State, rec.Wait, rec.Waited, rec.Error = engi.FunctionWaiting, &active.parking.wait, nil, nil
	})
	r.settle(active, out.Next == Parked)
	return out
}

// settle parks the run that an attempt has added to those that wait, or removes it.
func (r *Runner) settle(active *activeRun, parked bool) {
	p := active.parking
	active.parking = nil
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case p == nil || r.waits.runs[p.id] != p: // it has been cancelled
	case !parked:
		r.waits.remove(p)
	default:
		p.parked = true
		if q, ok := r.slots[p.id]; ok {
			delete(r.slots, p.id)
			r.charge(q, -1)
			r.count(q, -1)
		}
		close(p.settled)
		r.wakeUp()
	}
}

// parkAgain adds a run that an earlier process has parked. The caller holds mu.
func (r *Runner) parkAgain(rec Record) {
	q := r.opened(rec)
	r.charge(q, -1)
	p := &parkedRun{queuedRun: q, wait: *rec.Wait, due: r.dueOf(rec.Function, rec.Started, *rec.Wait), parked: true, settled: make(chan struct{})}
	close(p.settled)
	r.waits.shares.Add(q.owner, 1)
	r.waits.add(p)
}

// unpark records the result of a run's wait, and queues the run; without a result, the run looks for it
// again.
func (r *Runner) unpark(ctx context.Context, p *parkedRun, result *waitResult) error {
	select {
	case <-p.settled:
	case <-ctx.Done():
		return engi.Errorf(engi.Expired, "wait for run %s: %v", p.id, context.Cause(ctx))
	}
	p.ending.Lock()
	defer p.ending.Unlock()
	r.mu.Lock()
	gone := r.waits.runs[p.id] != p
	r.mu.Unlock()
	if gone {
		return nil
	}
	var raw json.RawMessage
	if result != nil {
		var err error
		if raw, err = json.Marshal(result); err != nil {
			return engi.Errorf(engi.Internal, "%v", err) // unreachable: the data of events is JSON
		}
	}
	_, err := r.opt.Store.Update(ctx, engi.Everyone, p.id, func(rec *Record) error {
		switch {
		case rec.HasEnded():
			return errEnded
		case rec.Wait != nil: // otherwise an earlier call was told of an error although it has recorded the result
			rec.State, rec.Wait, rec.Waited = engi.FunctionQueued, nil, &Waited{Step: p.wait.Step, Until: p.wait.Until, Result: raw}
		}
		return nil
	})
	switch {
	case errors.Is(err, errEnded), engi.Is(err, engi.NotFound):
		r.release(p.id)
		return nil
	case err != nil:
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waits.runs[p.id] == p { // not cancelled in the meantime
		r.waits.remove(p)
		r.charge(p.queuedRun, 1)
		r.places++
		p.place = r.places
		r.queueUp(p.queuedRun)
		r.wakeUp()
	}
	return nil
}

// startWaits determines the position from which events are passed to the runs that wait. It is called
// after these were added and before any run is executed.
func (r *Runner) startWaits(ctx context.Context) error {
	last, err := r.opt.Events.Last(ctx)
	if err != nil {
		return err
	}
	cursor, err := r.opt.Store.Cursor(ctx, true)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waits.followed = last
	for _, p := range r.waits.runs {
		// Runs that were parked before the cursor was stored got all events up to it.
		p.wait.After = max(p.wait.After, cursor)
		r.waits.followed = min(r.waits.followed, p.wait.After)
	}
	return nil
}

// followWaits ends the waits whose event is appended or whose time has come, until ctx ends. The
// caller waits for the returned group.
func (r *Runner) followWaits(ctx context.Context) *sync.WaitGroup {
	var group sync.WaitGroup
	group.Go(func() {
		stored := time.Now()
		for ctx.Err() == nil {
			for e, err := range r.opt.Events.Follow(ctx, engi.Everyone, engi.EventFilter{After: r.followed()}) {
				if err == nil {
					err = r.passEvent(ctx, e, &stored)
				}
				if err != nil {
					r.failedWait(ctx, err)
					break
				}
			}
		}
		if err := r.keepFollowed(context.WithoutCancel(ctx)); err != nil {
			r.opt.Log.WarnContext(ctx, "store the position of waiting runs; they read the log again", "error", err)
		}
	})
	group.Go(func() {
		for ctx.Err() == nil {
			timer := time.NewTimer(r.endDue(ctx))
			select {
			case <-ctx.Done():
			case <-r.waits.changed:
			case <-timer.C:
			}
			timer.Stop()
		}
	})
	return &group
}

func (r *Runner) failedWait(ctx context.Context, err error) {
	if ctx.Err() == nil {
		r.opt.Log.WarnContext(ctx, "end the waits of runs; it is retried", "error", err)
		_ = clock.Sleep(ctx, waitRetry) // fails if ctx ends
	}
}

func (r *Runner) followed() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waits.followed
}

// keepFollowed stores the position up to which events were passed to runs that wait, if there
// are any.
func (r *Runner) keepFollowed(ctx context.Context) error {
	r.mu.Lock()
	seq, n := r.waits.followed, len(r.waits.runs)
	r.mu.Unlock()
	if n == 0 {
		return nil
	}
	return r.opt.Store.Woken(ctx, seq)
}

// passEvent passes an event to the runs that wait for it; stored is the time at which the
// position was last stored.
func (r *Runner) passEvent(ctx context.Context, e engi.Event, stored *time.Time) error {
	if e.Type == engi.EventsDropped {
		return r.passDropped(ctx)
	}
	r.mu.Lock()
	runs := r.waits.forEvent(e)
	r.mu.Unlock()
	for _, p := range runs {
		if err := r.unpark(ctx, p, resultOf(e)); err != nil {
			return err
		}
	}
	r.mu.Lock()
	r.waits.followed = e.Seq
	r.mu.Unlock()
	if time.Since(*stored) < keepCursor {
		return nil
	}
	*stored = time.Now()
	return r.keepFollowed(ctx)
}

// passDropped ends the waits whose event may have been dropped.
func (r *Runner) passDropped(ctx context.Context) error {
	r.mu.Lock()
	var runs []*parkedRun
	for _, p := range r.waits.runs {
		runs = append(runs, p)
	}
	r.mu.Unlock()
	for _, p := range runs {
		result, err := r.look(ctx, p.id, p.owner, p.wait)
		if err == nil && result != nil {
			err = r.unpark(ctx, p, result)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// endDue ends the waits whose time has come, and returns the time until the next.
func (r *Runner) endDue(ctx context.Context) time.Duration {
	now, next := time.Now(), unlimitedPause
	var due []*parkedRun
	r.mu.Lock()
	followed := r.waits.followed
	for _, p := range r.waits.runs {
		switch {
		case p.due.IsZero():
		case p.due.After(now):
			next = min(next, p.due.Sub(now))
		default:
			due = append(due, p)
		}
	}
	r.mu.Unlock()
	slices.SortFunc(due, func(a, b *parkedRun) int { return a.due.Compare(b.due) })
	for _, p := range due {
		w := p.wait
		w.After = max(w.After, followed)
		result, err := r.look(ctx, p.id, p.owner, w)
		if err == nil && result == nil && !w.Until.IsZero() && !now.Before(w.Until) {
			result = &waitResult{}
		}
		if err == nil {
			err = r.unpark(ctx, p, result)
		}
		if err != nil {
			r.failedWait(ctx, err)
			return 0
		}
	}
	return next
}

// An unheardRun is a run that the engine must wake.
type unheardRun struct {
	ended bool // it was cancelled
	tries int
	next  time.Time
	pause time.Duration
}

// mustHear has the engine woken for a run until it is executed.
func (r *Runner) mustHear(id engi.FunctionRunID, ended bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unheard[id] = &unheardRun{ended: ended}
	r.wakeUp()
}

// heard ends mustHear.
func (r *Runner) heard(id engi.FunctionRunID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.unheard, id)
}

// wakeUnheard wakes the engine for the runs whose turn it is, and returns the time until the
// next; 0 if there is none.
func (r *Runner) wakeUnheard(ctx context.Context) (next time.Duration) {
	now := time.Now()
	var due []engi.FunctionRunID
	r.mu.Lock()
	for id, u := range r.unheard {
		if u.ended && u.tries >= maxEndedWakes { // the engine learns it by itself, later
			delete(r.unheard, id)
			continue
		}
		if !u.next.After(now) {
			u.tries++
			u.pause = min(max(2*u.pause, time.Second), maxWakePause)
			u.next = now.Add(u.pause)
			due = append(due, id)
		}
		if left := u.next.Sub(now); next == 0 || left < next {
			next = left
		}
	}
	r.mu.Unlock()
	for _, id := range due {
		if err := r.opt.Engine.Wake(ctx, id); err != nil {
			if ctx.Err() == nil {
				r.opt.Log.WarnContext(ctx, "wake a run; it is retried", "run", id, "error", err)
			}
			break // it would be the same for the others
		}
	}
	return next
}
