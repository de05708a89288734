package function

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
)

// Options configures a Runner.
type Options struct {
	Functions   []Function
	Source      Source // source of more functions; nil for none
	Store       Store
	Events      engi.EventLog // event log to which Store appends
	Engine      Engine
	Log         *slog.Logger  // nil discards
	MaxQueue    int           // maximum number of unfinished runs; Send is refused beyond; as many more may wait for events and times; 0 means 10000
	MaxRuns     int           // maximum number of runs with slots; 0 means 256
	Retention   time.Duration // time for which ended runs are kept; 0 means 30 days
	RetainCount int           // maximum number of ended runs that are kept; 0 means 100000
}

// A Runner starts functions on events and schedules, and manages their runs. It
// implements [engi.Functions], and [Executor] for its engine.
//
// A run is recorded as queued together with its event. When the limits allow, it
// gets a slot: it is recorded as running and started in the engine. It keeps the
// slot until it ends, even while it waits for another attempt, but not while it
// waits for an event or a time; then it is queued again. Runs of a
// function get slots in the order of their events, except that runs of an owner
// at its limit are skipped. The record is always ahead of the engine: after
// a crash, runs that are recorded as having a slot are started again.
type Runner struct {
	opt       Options
	functions map[string]Function
	inputs    map[string]*jsonschema.Resolved
	schedules map[string]schedule
	keys      *idempotency.Keys

	wake chan struct{} // receives a value when a queued run may get a slot

	mu          sync.Mutex
	queues      map[string][]queuedRun // by function, oldest first
	waiting     int                    // number of runs in queues
	slots       map[engi.FunctionRunID]queuedRun
	active      map[engi.FunctionRunID]*activeRun
	open        map[string]int                     // number of unfinished runs, by function
	places      int64                              // number of places given to runs so far; places order runs by the time of their record
	functionOf  map[engi.FunctionRunID]string      // functions of runs in queues
	shares      *engi.Shares                       // owners' shares of the queue, without runs of Source's functions
	waits       waits                              // runs without slots that wait
	unheard     map[engi.FunctionRunID]*unheardRun // runs that the engine must wake
	dynamic     int                                // number of runs of Source's functions in queues and slots
	dynamicBusy int                                // number of slots used by runs of Source's functions
	perFunction map[string]int                     // number of slots in use, by function
	perOwner    map[[2]string]int                  // number of slots in use, by function and owner
}

// A queuedRun is a run that waits for a slot, or has one.
type queuedRun struct {
	id       engi.FunctionRunID
	function string
	owner    engi.Owner
	dynamic  bool // its function is from the Source
	place    int64
}

// An activeRun is a run that is being executed.
type activeRun struct {
	parking   *parkedRun // wait that is being recorded; only for the goroutine that executes
	cancelled chan struct{}
	once      sync.Once
}

func (a *activeRun) cancel() { a.once.Do(func() { close(a.cancelled) }) }

func (a *activeRun) isCancelled() bool {
	select {
	case <-a.cancelled:
		return true
	default:
		return false
	}
}

var (
	_ engi.Functions = (*Runner)(nil)
	_ Executor       = (*Runner)(nil)
)

const (
	maxDynamic = 1024 // maximum number of slots for functions of a Source
)

var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9/._-]{0,127}$`)

// New returns a Runner; call Serve. It reports Invalid for invalid
// functions.
func New(opt Options) (*Runner, error) {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	opt.MaxQueue = cmp.Or(opt.MaxQueue, 10000)
	opt.MaxRuns = cmp.Or(opt.MaxRuns, 256)
	opt.Retention = cmp.Or(opt.Retention, 30*24*time.Hour)
	opt.RetainCount = cmp.Or(opt.RetainCount, 100000)
	r := &Runner{
		opt: opt, functions: map[string]Function{}, inputs: map[string]*jsonschema.Resolved{}, schedules: map[string]schedule{},
		wake: make(chan struct{}, 1), waits: newWaits(opt.MaxQueue), unheard: map[engi.FunctionRunID]*unheardRun{}, slots: map[engi.FunctionRunID]queuedRun{}, active: map[engi.FunctionRunID]*activeRun{},
		keys: idempotency.NewKeys(nil), queues: map[string][]queuedRun{}, functionOf: map[engi.FunctionRunID]string{}, shares: engi.NewShares(int64(opt.MaxQueue)), open: map[string]int{}, perFunction: map[string]int{}, perOwner: map[[2]string]int{},
	}
	for _, f := range opt.Functions {
		if err := r.add(f); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *Runner) add(f Function) (err error) {
	defer engi.Annotate(&err, "function %.140q", f.Name)
	switch {
	case !namePattern.MatchString(f.Name):
		return engi.Errorf(engi.Invalid, "bad name").WithRemedy("use up to 128 letters, digits and /._-, beginning with a letter or a digit")
	case r.functions[f.Name].Name != "":
		return engi.Errorf(engi.Invalid, "there are two functions of that name")
	case f.Event == "" && f.Cron == "":
		return engi.Errorf(engi.Invalid, "it has neither events nor a schedule").WithRemedy("set its event or its cron")
	case f.Event != "" && !namePattern.MatchString(f.Event):
		return engi.Errorf(engi.Invalid, "%.140q is not a type of an event", f.Event).WithRemedy("use up to 128 letters, digits and /._-, beginning with a letter or a digit")
	case f.Event == engi.EventFunctionLoop || f.Event == engi.EventsDropped:
		return engi.Errorf(engi.Invalid, "events of type %s cannot start functions", f.Event)
	case f.Retries < 0 || f.Retries > 100:
		return engi.Errorf(engi.Invalid, "%d retries are not between 0 and 100", f.Retries)
	case f.Concurrency < 0 || f.PerOwner < 0 || f.Timeout < 0 || f.Backoff.First < 0 || f.Backoff.Max < 0:
		return engi.Errorf(engi.Invalid, "it has a negative limit").WithRemedy("leave it out for no limit")
	case f.Run == nil:
		return engi.Errorf(engi.Invalid, "it has no code")
	}
	if f.Cron != "" {
		if r.schedules[f.Name], err = parseCron(f.Cron); err != nil {
			return err
		}
	}
	if f.Input != nil {
		var s jsonschema.Schema
		if err := json.Unmarshal(f.Input, &s); err != nil {
			return engi.Errorf(engi.Invalid, "its input is not a JSON schema: %v", err)
		}
		if r.inputs[f.Name], err = s.Resolve(nil); err != nil {
			return engi.Errorf(engi.Invalid, "its input is not a JSON schema: %v", err)
		}
	}
	r.functions[f.Name] = f
	return nil
}

// function returns a function by name.
func (r *Runner) function(name string) (f Function, ok bool) {
	if f, ok = r.functions[name]; !ok && r.opt.Source != nil {
		f, ok = r.opt.Source.Function(name)
	}
	return f, ok
}

// Functions implements [engi.Functions] and [Executor].
func (r *Runner) Functions() []engi.Function {
	all := make([]engi.Function, 0, len(r.functions))
	for _, name := range slices.Sorted(maps.Keys(r.functions)) {
		all = append(all, r.functions[name].Function)
	}
	return all
}

// boundTo returns the functions that are bound to a type of event, sorted by
// name.
func (r *Runner) boundTo(event string) (all []Function) {
	for _, f := range r.Functions() {
		if f.Event == event {
			all = append(all, r.functions[f.Name])
		}
	}
	return all
}

// Send implements [engi.Functions].
func (r *Runner) Send(ctx context.Context, spec engi.EventSpec) (engi.Event, []engi.FunctionRunID, error) {
	return r.send(ctx, spec, r.boundTo(spec.Type))
}

// Replay implements [engi.Functions].
func (r *Runner) Replay(ctx context.Context, viewer engi.Viewer, id engi.EventID, function string) (engi.Event, []engi.FunctionRunID, error) {
	old, err := r.opt.Events.Get(ctx, viewer, id)
	if err != nil {
		return old, nil, err
	}
	functions := r.boundTo(old.Type)
	if function != "" {
		functions = slices.DeleteFunc(functions, func(f Function) bool { return f.Name != function })
		if len(functions) == 0 {
			return engi.Event{}, nil, engi.Errorf(engi.NotFound, "no function %.140q is bound to event %s", function, old.Type).WithRemedy("leave the function out to run all functions of the event")
		}
	}
	return r.send(ctx, engi.EventSpec{Owner: old.Owner, Type: old.Type, Data: old.Data, Replay: old.ID}, functions)
}

// send appends an event and starts functions on it.
func (r *Runner) send(ctx context.Context, spec engi.EventSpec, functions []Function) (e engi.Event, ids []engi.FunctionRunID, err error) {
	if len(spec.Data) == 0 || string(spec.Data) == "null" {
		spec.Data = json.RawMessage("{}")
	}
	switch {
	case !namePattern.MatchString(spec.Type):
		return e, nil, engi.Errorf(engi.Invalid, "%.140q is not a type of an event", spec.Type).WithRemedy("use up to 128 letters, digits and /._-, beginning with a letter or a digit")
	case slices.Contains(engi.EventTypes(), spec.Type) && spec.Replay == "":
		return e, nil, engi.Errorf(engi.Invalid, "events of type %s are appended by engi only", spec.Type).WithRemedy("choose another type, such as yours/%s", spec.Type)
	case len(spec.Data) > engi.MaxEventData:
		return e, nil, engi.TooLarge("the data of the event has %d bytes, %d at most", len(spec.Data), engi.MaxEventData).WithRemedy("keep the data in a file or volume and send its location")
	}
	var object map[string]any
	if err := json.Unmarshal(spec.Data, &object); err != nil {
		return e, nil, engi.Errorf(engi.Invalid, "the data of the event is not a JSON object: %v", err)
	}
	request := idempotency.Request{Owner: spec.Owner, Key: spec.Idempotency, Fingerprint: spec.Fingerprint}
	sent, repeated, err := idempotency.Once(ctx, r.keys, request, r.opt.Store.ByIdempotencyKey, func() (e idempotency.Event, err error) {
		e.Event, ids, err = r.append(ctx, spec, object, functions)
		return e, err
	})
	if err != nil {
		return engi.Event{}, nil, err
	}
	if repeated {
		return r.alreadySent(ctx, sent.Event)
	}
	return sent.Event, ids, nil
}

// append appends an event with an object as its data, and starts functions on it.
func (r *Runner) append(ctx context.Context, spec engi.EventSpec, object map[string]any, functions []Function) (e engi.Event, ids []engi.FunctionRunID, err error) {
	for _, f := range functions {
		if input := r.inputs[f.Name]; input != nil {
			if err := input.Validate(object); err != nil {
				return e, nil, engi.Errorf(engi.Invalid, "function %s does not accept the event's data: %.500v", f.Name, err).
					WithRemedy("'engi events functions --json' shows its input schema")
			}
		}
	}
	if len(functions) > 0 {
		causes, err := r.causes(ctx, engi.Event{Actor: engi.ActorOf(ctx)})
		if err != nil {
			return e, nil, err
		}
		if len(causes) >= maxCauses {
			return e, nil, engi.Errorf(engi.Denied, "the event ends a chain of %d functions that started each other", len(causes)).WithRemedy("make sure that functions do not start each other endlessly")
		}
	}
	if err := r.checkShare(spec.Owner, len(functions)); err != nil {
		return e, nil, err
	}
	spec.ID = engi.NewEventID()
	var runs []Record
	for _, f := range functions {
		rec := newRun(f, engi.Event{ID: spec.ID, Owner: spec.Owner, Type: spec.Type})
		runs, ids = append(runs, rec), append(ids, rec.ID)
	}
	if e, err = r.opt.Store.Send(ctx, spec, runs); err != nil {
		return engi.Event{}, nil, err
	}
	r.enqueue(runs...)
	return e, ids, nil
}

// Start runs a function of the Source for an event, regardless of its bindings.
func (r *Runner) Start(ctx context.Context, name string, event engi.EventID) (engi.FunctionRun, error) {
	f, ok := r.function(name)
	if !ok {
		return engi.FunctionRun{}, engi.Errorf(engi.NotFound, "there is no function %.140q", name)
	}
	e, err := r.opt.Events.Get(ctx, f.Owner.Reach(), event)
	if err != nil {
		return engi.FunctionRun{}, err
	}
	if r.isFull(f) {
		return engi.FunctionRun{}, engi.Errorf(engi.Exhausted, "%d runs of function %s have not ended", f.MaxOpen, name).WithRemedy("wait, or cancel some").WithRetry(engi.Retry{AfterMillis: 5000})
	}
	rec := newRun(f, e)
	rec.Owner = f.Owner
	if err := r.opt.Store.Put(ctx, rec); err != nil {
		return engi.FunctionRun{}, err
	}
	r.enqueue(rec)
	return rec.FunctionRun, nil
}

// alreadySent returns an event that was sent before, with its runs.
func (r *Runner) alreadySent(ctx context.Context, e engi.Event) (engi.Event, []engi.FunctionRunID, error) {
	runs, err := r.opt.Store.Runs(ctx, e.Owner.Viewer(), Filter{FunctionFilter: engi.FunctionFilter{Event: e.ID}})
	var ids []engi.FunctionRunID
	for _, rec := range slices.Backward(runs) {
		ids = append(ids, rec.ID)
	}
	return e, ids, err
}

func newRun(f Function, e engi.Event) Record {
	return Record{Type: e.Type, FunctionRun: engi.FunctionRun{
		ID: engi.NewFunctionRunID(), Owner: e.Owner, Function: f.Name, Event: e.ID, State: engi.FunctionQueued, Created: time.Now().UTC(),
	}}
}

// checkShare reports Exhausted if the queue has no room for n more runs, or the
// owner has used up its share of it.
func (r *Runner) checkShare(owner engi.Owner, n int) error {
	if n > 0 && !r.shares.Fits(owner, int64(n)) {
		return engi.Errorf(engi.Exhausted, "%d runs of your functions are queued or active", r.shares.Of(owner)).WithRemedy("wait, or cancel some").WithRetry(engi.Retry{AfterMillis: 5000})
	}
	return r.checkQueue(n)
}

// checkQueue reports Exhausted if the queue has no room for n more runs.
func (r *Runner) checkQueue(n int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n > 0 && r.waiting+len(r.slots)-r.dynamic+n > r.opt.MaxQueue {
		return engi.Errorf(engi.Exhausted, "%d runs of functions are queued or active", r.opt.MaxQueue).WithRemedy("wait, or cancel some").WithRetry(engi.Retry{AfterMillis: 5000})
	}
	return nil
}

// enqueue queues recorded runs.
func (r *Runner) enqueue(runs ...Record) {
	if len(runs) == 0 {
		return
	}
	r.mu.Lock()
	for _, rec := range runs {
		r.queueUp(r.opened(rec))
	}
	r.mu.Unlock()
	r.wakeUp()
}

// queueUp adds a run to its function's queue. The caller holds mu.
func (r *Runner) queueUp(q queuedRun) {
	r.queues[q.function] = append(r.queues[q.function], q)
	r.functionOf[q.id] = q.function
	r.waiting++
}

// unqueue removes the i-th run from a queue. The caller holds mu.
func (r *Runner) unqueue(function string, i int) queuedRun {
	queue := r.queues[function]
	q := queue[i]
	if i == 0 {
		queue[0] = queuedRun{}
		queue = queue[1:] // without moving the others
	} else {
		queue = slices.Delete(queue, i, i+1)
	}
	if r.queues[function] = queue; len(queue) == 0 {
		delete(r.queues, function)
	}
	delete(r.functionOf, q.id)
	r.waiting--
	return q
}

// opened counts an unfinished run that was recorded. The caller holds mu.
func (r *Runner) opened(rec Record) queuedRun {
	_, static := r.functions[rec.Function]
	r.places++
	q := queuedRun{id: rec.ID, function: rec.Function, owner: rec.Owner, dynamic: !static && r.opt.Source != nil, place: r.places}
	r.open[q.function]++
	r.charge(q, 1)
	return q
}

// charge counts a run that is queued or has a slot. The caller holds mu.
func (r *Runner) charge(q queuedRun, n int) {
	if q.dynamic {
		r.dynamic += n
	} else {
		r.shares.Add(q.owner, int64(n))
	}
}

// ended undoes the counting of opened. The caller holds mu.
func (r *Runner) ended(q queuedRun) {
	r.closed(q)
	r.charge(q, -1)
}

// closed counts a run that is no longer open. The caller holds mu.
func (r *Runner) closed(q queuedRun) {
	if r.open[q.function]--; r.open[q.function] == 0 {
		delete(r.open, q.function)
	}
}

// isFull reports whether f has too many runs for another event.
func (r *Runner) isFull(f Function) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return f.MaxOpen > 0 && r.open[f.Name] >= f.MaxOpen
}

func (r *Runner) wakeUp() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func clampLimit(n int) int {
	if n <= 0 {
		return 100
	}
	return min(n, 1000)
}

// Runs implements [engi.Functions].
func (r *Runner) Runs(ctx context.Context, viewer engi.Viewer, f engi.FunctionFilter) ([]engi.FunctionRun, error) {
	f.Limit = clampLimit(f.Limit)
	records, err := r.opt.Store.Runs(ctx, viewer, Filter{FunctionFilter: f})
	if err != nil {
		return nil, err
	}
	all := make([]engi.FunctionRun, 0, len(records))
	for _, rec := range records {
		all = append(all, rec.FunctionRun)
	}
	return all, nil
}

// Run implements [engi.Functions].
func (r *Runner) Run(ctx context.Context, viewer engi.Viewer, id engi.FunctionRunID) (engi.FunctionRun, error) {
	rec, err := r.opt.Store.Run(ctx, viewer, id)
	return rec.FunctionRun, err
}

// Wait implements [engi.Functions].
func (r *Runner) Wait(ctx context.Context, viewer engi.Viewer, id engi.FunctionRunID) (engi.FunctionRun, error) {
	last, err := r.opt.Events.Last(ctx)
	if err != nil {
		return engi.FunctionRun{}, err
	}
	run, err := r.Run(ctx, viewer, id)
	if err != nil || !run.Ended.IsZero() {
		return run, err
	}
	for e, err := range r.opt.Events.Follow(ctx, viewer, engi.EventFilter{Subject: string(id), After: last}) {
		if err != nil {
			return run, err
		}
		switch strings.TrimPrefix(e.Type, engi.EventFunctionPrefix) {
		case string(engi.FunctionDone), string(engi.FunctionFailed), string(engi.FunctionCancelled):
			return r.Run(ctx, viewer, id)
		}
	}
	return run, nil // unreachable: Follow ends with an error
}

// Cancel implements [engi.Functions].
func (r *Runner) Cancel(ctx context.Context, viewer engi.Viewer, id engi.FunctionRunID) error {
	rec, err := r.opt.Store.Update(ctx, viewer, id, func(rec *Record) error {
		switch rec.State {
		case engi.FunctionQueued, engi.FunctionWaiting:
			endRun(rec, engi.FunctionCancelled)
		case engi.FunctionRunning:
			rec.CancelRequested = true
		}
		return nil
	})
	if err != nil {
		return err
	}
	if rec.HasEnded() {
		r.release(id)
		if rec.Attempt > 0 {
			r.mustHear(id, true)
		}
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if run := r.active[id]; run != nil {
		run.cancel()
	}
	return nil
}

func endRun(r *Record, s engi.FunctionState) {
	r.State, r.Ended, r.NextAttempt, r.Wait, r.Waited = s, time.Now().UTC(), time.Time{}, nil, nil
	if s != engi.FunctionFailed {
		r.Error = nil
	}
}

// release removes a run from the queue or from those that wait, or frees its slot.
func (r *Runner) release(id engi.FunctionRunID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f, ok := r.functionOf[id]; ok {
		r.ended(r.unqueue(f, slices.IndexFunc(r.queues[f], func(q queuedRun) bool { return q.id == id })))
	}
	if p := r.waits.runs[id]; p != nil {
		r.waits.remove(p)
		if p.parked {
			r.closed(p.queuedRun)
		}
	}
	if q, ok := r.slots[id]; ok {
		delete(r.slots, id)
		r.ended(q)
		r.count(q, -1)
		r.wakeUp()
	}
}

func (r *Runner) count(q queuedRun, n int) {
	if q.dynamic {
		r.dynamicBusy += n
	}
	if r.perFunction[q.function] += n; r.perFunction[q.function] == 0 {
		delete(r.perFunction, q.function)
	}
	if r.perOwner[[2]string{q.function, string(q.owner)}] += n; r.perOwner[[2]string{q.function, string(q.owner)}] == 0 {
		delete(r.perOwner, [2]string{q.function, string(q.owner)})
	}
}

// next moves the first run that the limits allow from a queue to a slot. It checks
// each function once, and skips runs of owners at their limit, so that a
// function at its own limit costs nothing however many of its runs wait.
func (r *Runner) next() (queuedRun, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	full := len(r.slots)-r.dynamicBusy >= r.opt.MaxRuns
	best, function, at := int64(math.MaxInt64), "", 0
	for name, queue := range r.queues {
		if queue[0].place > best || queue[0].dynamic && r.dynamicBusy >= maxDynamic || !queue[0].dynamic && full {
			continue
		}
		f, _ := r.function(name) // the run of a removed function fails at once
		if f.Concurrency > 0 && r.perFunction[name] >= f.Concurrency {
			continue
		}
		i := slices.IndexFunc(queue, func(q queuedRun) bool {
			return f.PerOwner == 0 || r.perOwner[[2]string{name, string(q.owner)}] < f.PerOwner
		})
		if i >= 0 && queue[i].place < best {
			best, function, at = queue[i].place, name, i
		}
	}
	if function == "" {
		return queuedRun{}, false
	}
	q := r.unqueue(function, at)
	r.slots[q.id] = q
	r.count(q, 1)
	return q, true
}
