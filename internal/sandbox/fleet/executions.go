package fleet

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
	"github.com/engi-dev/engi/internal/sandbox/fleet/pool"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
	"github.com/engi-dev/engi/internal/undo"
)

// maxQueuedBytes is the maximum size of all programs of waiting executions, in bytes.
const maxQueuedBytes = 1 << 30

// executions runs programs, each in a separate instance. It owns the runs
// and implements engi.Executions. It is safe for concurrent use.
//
// An execution that finds a ready instance costs one store write before it
// starts: the claim reads only memory, the record is written as running
// at once, and the program starts while the caller reads the response.
type executions struct {
	*shared
	pools       *pools
	sandboxes   *sandboxes   // books the quota of executions
	queuedBytes *engi.Shares // bytes of the programs of waiting executions
	keys        *idempotency.Keys

	mu   sync.Mutex
	runs map[engi.ExecutionID]*run // runs that have not ended; guarded by mu
}

var _ engi.Executions = (*executions)(nil)

func newExecutions(all *shared, p *pools, s *sandboxes) *executions {
	return &executions{shared: all, pools: p, sandboxes: s, queuedBytes: engi.NewShares(maxQueuedBytes), keys: idempotency.NewKeys(nil), runs: map[engi.ExecutionID]*run{}}
}

// get returns owner's run, or nil if no such run is going on.
func (e *executions) get(viewer engi.Viewer, id engi.ExecutionID) *run {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.runs[id]
	if r == nil || !viewer.Sees(r.owner) {
		return nil
	}
	return r
}

func (e *executions) insert(r *run) {
	if r.booking == nil {
		r.booking = e.sandboxes.rebook(r.owner, r.rec.Limits.Size)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.runs[r.id] = r
}

func (e *executions) remove(r *run) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.runs, r.id)
}

// drive registers a run and calls f, which drives it, in a goroutine. It
// returns false when the node is stopping.
func (e *executions) drive(r *run, f func()) bool {
	e.insert(r)
	if !e.spawn(f) {
		e.abandon(r)
		return false
	}
	return true
}

// cancelAll asks all runs to end.
func (e *executions) cancelAll() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range e.runs {
		r.stop(engi.CauseCancelled)
	}
}

// Start implements engi.Executions.
func (e *executions) Start(ctx context.Context, spec engi.ExecutionSpec) (_ engi.Execution, err error) {
	began := time.Now()
	if ctx.Err() != nil {
		return engi.Execution{}, engi.Errorf(engi.Expired, "start execution: %v", context.Cause(ctx))
	}
	// From here on the work must not be cancelled: there must be no doubt whether a
	// record was written.
	ctx = context.WithoutCancel(ctx)
	if !e.serving.Load() {
		return engi.Execution{}, errNotServing
	}
	if err := spec.Faults(e.bounds).Err(); err != nil {
		return engi.Execution{}, err
	}
	spec.Template = cmp.Or(spec.Template, e.opt.Template)
	t, err := e.catalog.get(ctx, spec.Template)
	if err == nil && !t.VisibleTo(spec.Owner.Reach()) {
		err = engi.ErrNoTemplate
	}
	if err != nil {
		return engi.Execution{}, err
	}
	j, err := e.job(ctx, spec, t)
	if err != nil {
		return engi.Execution{}, err
	}
	request := idempotency.Request{Owner: j.owner, Key: j.idempotency, Fingerprint: j.fingerprint}
	r, repeated, err := idempotency.Once(ctx, e.keys, request, e.opt.Store.ByIdempotencyKey, func() (Record, error) { return e.start(ctx, spec.Template, j, began) })
	if err != nil {
		return engi.Execution{}, err
	}
	if repeated {
		return e.present(r)
	}
	return r.Execution, nil
}

// start records a new execution and starts or queues it.
func (e *executions) start(ctx context.Context, template string, j *job, began time.Time) (_ Record, err error) {
	if j.booking, err = e.sandboxes.book(ctx, &booking{owner: j.owner, size: j.size, of: anExecution}); err != nil {
		e.metrics.refused.WithLabelValues(engi.KindOf(err).String()).Inc()
		return Record{}, err
	}
	defer func() { e.sandboxes.unbook(j.booking) }() // a no-op if a run has taken over the booking
	rec := Record{
		Execution: engi.Execution{
			ID:       engi.NewExecutionID(),
			Owner:    j.owner,
			State:    engi.ExecutionQueued,
			Language: j.program.Language,
			Template: template,
			Created:  began.UTC(),
		},
		Idempotency: j.idempotency,
		Fingerprint: j.fingerprint,
		Limits:      j.limits,
		OutputDir:   j.outputDir,
	}
	if inst, ok := e.pools.claim(j.key); ok {
		return e.startNow(ctx, rec, j, inst, began)
	}
	x, err := e.queue(ctx, rec, j)
	if err != nil {
		e.metrics.refused.WithLabelValues(engi.KindOf(err).String()).Inc()
	}
	return x, err
}

// startNow records and starts an execution in a claimed instance.
func (e *executions) startNow(ctx context.Context, rec Record, j *job, inst *instance, began time.Time) (Record, error) {
	rec.State = engi.ExecutionRunning
	rec.Sandbox = inst.rec.ID
	rec.Started = time.Now().UTC()
	r := e.newRun(rec)
	r.network = j.network
	used, err := inst.assign(r, rec)
	if err != nil {
		e.pools.retire(inst, true)
		return Record{}, err
	}
	if err := e.opt.Store.Create(ctx, rec, recordOfUse(used)); err != nil {
		inst.unassign()
		e.pools.giveBack(inst)
		return Record{}, err
	}
	took := time.Since(began)
	e.metrics.claims.WithLabelValues("ready").Observe(took.Seconds())
	program, size := j.program, j.size
	r.booking, j.booking = j.booking, nil
	if !e.drive(r, func() { e.execute(r, inst, program, claim{took: took}, size) }) {
		// The node is stopping. The record has state running, and the next node
		// will find that no program ran.
		e.pools.retire(inst, true)
	}
	return rec, nil
}

// A queuedProgram is the program of a waiting execution, as stored on disk.
type queuedProgram struct {
	Program  wire.Run
	Key      pool.Key
	Size     engi.Size
	Patience time.Duration
	Network  engi.NetworkPolicy // without Detail
}

// queue queues an execution until there is an instance for it.
func (e *executions) queue(ctx context.Context, rec Record, j *job) (Record, error) {
	onEmpty, patience, cfg := e.pools.policy(j.key)
	onEmpty = cmp.Or(j.onEmpty, onEmpty)
	patient := j.patience > 0
	patience = cmp.Or(j.patience, patience)
	if onEmpty == engi.PoolReject {
		return Record{}, engi.Errorf(engi.Exhausted, "no warm sandbox of %s is ready", j.key).
			WithRemedy("try again in a moment, or ask with on_empty 'wait' or 'boot_sync'").
			WithRetry(e.pools.sched.Retry(1))
	}
	var u undo.Stack
	defer u.Run()
	size := programSize(&j.program)
	if !e.queuedBytes.Take(j.owner, size) {
		return Record{}, engi.Errorf(engi.Exhausted, "your programs that wait for a sandbox have %d bytes already", e.queuedBytes.Of(j.owner)).
			WithRemedy("wait and try again").WithRetry(e.pools.sched.Retry(1))
	}
	u.Add(func() { e.queuedBytes.Give(j.owner, size) })
	joined := time.Now()
	ticket, err := e.pools.sched.Join(j.key, cfg, j.template.Digest, j.owner, patient, joined)
	if err != nil {
		return Record{}, err
	}
	u.Add(func() { e.leave(ticket) })
	if err := e.files.putQueued(rec.ID, queuedProgram{Program: j.program, Key: j.key, Size: j.size, Patience: patience, Network: j.network}); err != nil {
		return Record{}, err
	}
	u.Add(func() { e.files.dropQueued(rec.ID) })
	if err := e.opt.Store.Create(ctx, rec, nil); err != nil {
		return Record{}, err
	}
	u.Keep()
	r := e.newRun(rec)
	r.booking, j.booking = j.booking, nil
	if !e.drive(r, func() { e.waitForInstance(r, ticket, size, patience, joined) }) {
		e.leave(ticket) // the next node queues it again
	}
	return rec, nil
}

// leave gives up a ticket, and returns its instance to the pool if the ticket was served.
func (e *executions) leave(ticket *pool.Ticket[*instance]) {
	if h, served := e.pools.sched.Leave(ticket); served && h.Err == nil {
		e.pools.giveBack(h.Instance)
	}
}

// programSize returns the approximate memory of a waiting program, in bytes.
func programSize(p *wire.Run) (n int64) {
	n = int64(len(p.Stdin)) + 1024
	for _, f := range p.Files {
		n += int64(len(f.Data) + len(f.Path))
	}
	for _, a := range p.Args {
		n += int64(len(a))
	}
	for k, v := range p.Env {
		n += int64(len(k) + len(v))
	}
	return n
}

// waitForInstance waits for a queued run's instance, and then drives the run.
func (e *executions) waitForInstance(r *run, ticket *pool.Ticket[*instance], size int64, patience time.Duration, joined time.Time) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	dequeued := sync.OnceFunc(func() { e.queuedBytes.Give(r.owner, size) })
	defer dequeued()
	var h pool.Handover[*instance]
	select {
	case h = <-ticket.C():
	case <-timer.C:
		place := e.pools.sched.Position(ticket)
		var served bool
		if h, served = e.pools.sched.Leave(ticket); !served {
			e.refuse(r, nil, engi.Errorf(engi.Exhausted, "no sandbox became free within %v", patience).
				WithRemedy("try again, wait longer, or let the node's administrator raise the pool").
				WithRetry(e.pools.sched.Retry(place)))
			return
		}
	case <-r.stopped:
		var served bool
		if h, served = e.pools.sched.Leave(ticket); !served {
			e.settle(r, nil, engi.Result{Exit: engi.Exit{Code: -1, Cause: r.stopCause()}, Queued: time.Since(joined)})
			return
		}
	case <-e.life.Done():
		e.leave(ticket)
		e.abandon(r)
		return
	}
	if h.Err != nil {
		if h.Err == errStopping {
			e.abandon(r)
			return
		}
		e.refuse(r, nil, h.Err)
		return
	}
	dequeued()
	e.startQueued(r, h, joined)
}

// startQueued starts a queued run in the instance of the handover.
func (e *executions) startQueued(r *run, h pool.Handover[*instance], joined time.Time) {
	inst := h.Instance
	waited := time.Since(joined)
	if why := r.stopCause(); why != "" {
		e.pools.giveBack(inst)
		e.settle(r, nil, engi.Result{Exit: engi.Exit{Code: -1, Cause: why}, Queued: waited})
		return
	}
	q, err := e.files.getQueued(r.id)
	if err == nil {
		r.network = q.Network
		err = e.recordStart(e.life, r, inst)
	}
	if err != nil {
		inst.unassign()
		e.pools.giveBack(inst)
		if e.life.Err() != nil {
			e.abandon(r)
			return
		}
		e.refuse(r, nil, err)
		return
	}
	e.files.dropQueued(r.id)
	c := claim{queued: waited, fresh: h.Fresh}
	result := "waited"
	if h.Fresh {
		// The run's turn came when the boot began, or when the run joined the queue.
		c.took = min(inst.bootTime, waited)
		c.queued = waited - c.took
		result = "booted"
	}
	e.metrics.claims.WithLabelValues(result).Observe(waited.Seconds())
	e.execute(r, inst, q.Program, c, q.Size)
}
