package fleet

import (
	"cmp"
	"context"
	"errors"
	"io"
	"iter"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/fleet/pool"
	"github.com/engi-dev/engi/guest/wire"
	"github.com/engi-dev/engi/outputlog"
)

// executions is the Manager as engi.Executions.
//
// A spec that asks for nothing special is served within one store write: the
// claim is a look into the books, the record is written as running at once,
// and the program starts while the caller reads the answer.
type executions struct{ m *Manager }

var _ engi.Executions = executions{}

func (e executions) Start(ctx context.Context, spec engi.ExecutionSpec) (_ engi.Execution, err error) {
	m := e.m
	began := time.Now()
	if ctx.Err() != nil {
		return engi.Execution{}, engi.Errorf(engi.Expired, "start execution: %v", context.Cause(ctx))
	}
	// From here on nothing is given up half-way: whether a record was
	// written must not be in doubt.
	ctx = context.WithoutCancel(ctx)
	m.mu.Lock()
	serving := m.serving
	m.mu.Unlock()
	if !serving {
		return engi.Execution{}, errNotServing
	}
	if err := knownLanguage(spec.Program.Language); err != nil {
		return engi.Execution{}, err
	}
	spec.Template = cmp.Or(spec.Template, m.opt.Template)
	t, err := m.catalog.get(ctx, spec.Template)
	if err != nil {
		return engi.Execution{}, err
	}
	j, err := m.check(spec, t)
	if err != nil {
		return engi.Execution{}, err
	}
	if j.idem != "" {
		older, err := m.opt.Store.Repeated(ctx, j.owner, j.idem)
		if err == nil {
			return m.again(older, j)
		}
		if engi.KindOf(err) != engi.NotFound {
			return engi.Execution{}, err
		}
	}
	rec := Record{
		Execution: engi.Execution{
			ID:       engi.NewExecutionID(),
			Owner:    j.owner,
			State:    engi.ExecutionQueued,
			Language: j.program.Language,
			Template: spec.Template,
			Created:  began.UTC(),
		},
		Idempotency: j.idem,
		Fingerprint: j.print,
		Limits:      j.limits,
		OutputDir:   j.outputDir,
	}
	if b, ok := m.take(j.key); ok {
		return m.startNow(ctx, rec, j, b, began)
	}
	x, err := m.startLater(ctx, rec, j)
	if err != nil {
		m.metrics.refused.WithLabelValues(engi.KindOf(err).String()).Inc()
	}
	return x, err
}

// take claims a ready member: one with the interpreter waiting, else a bare
// one of the same template.
func (m *Manager) take(key pool.Key) (*instance, bool) {
	now := time.Now()
	for {
		b, ok := m.stock.Take(key, now)
		if !ok && key.Language != "" {
			bare := key
			bare.Language = ""
			b, ok = m.stock.Take(bare, now)
		}
		if !ok {
			return nil, false
		}
		select {
		case <-b.machine.Done(): // it died a moment ago
			m.stock.Retire(b.key, b, now, true)
		default:
			return b, true
		}
	}
}

// startNow records and starts an execution whose sandbox is there.
func (m *Manager) startNow(ctx context.Context, rec Record, j *job, b *instance, began time.Time) (engi.Execution, error) {
	now := time.Now().UTC()
	rec.State = engi.ExecutionRunning
	rec.Sandbox = b.rec.ID
	rec.Started = now
	r := m.newRun(rec)
	r.network = j.network
	used, err := b.use(r, rec)
	if err != nil {
		m.stock.Retire(b.key, b, now, true)
		return engi.Execution{}, err
	}
	older, err := m.opt.Store.Create(ctx, rec, &used)
	if err != nil {
		b.unuse()
		m.stock.Return(b.key, b, b.rec.Digest)
		if engi.KindOf(err) == engi.Conflict && older.ID != "" {
			return m.again(older, j)
		}
		return engi.Execution{}, err
	}
	took := time.Since(began)
	m.metrics.claims.WithLabelValues("ready").Observe(took.Seconds())
	program, size := j.program, j.size
	if !m.enlist(r, func() { m.execute(r, b, program, claim{took: took}, size) }) {
		// The node stops: the record says running, and the next life finds
		// that nothing ran.
		m.stock.Retire(b.key, b, now, true)
	}
	return rec.Execution, nil
}

// enlist makes a run known and drives it in a goroutine of its own. It
// reports false when the node stops.
func (m *Manager) enlist(r *run, drive func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.serving {
		return false
	}
	m.runs[r.id] = r
	m.work.Go(drive)
	return true
}

// policy is how key's pool treats claims that find it empty.
func (m *Manager) policy(key pool.Key) (onEmpty engi.EmptyPool, patience time.Duration, cfg pool.Config) {
	sized := key.Size != engi.Size{}
	if p, ok := m.pools[key]; ok {
		return p.OnEmpty, p.ClaimTimeout, pool.Config{Target: p.Target, Max: p.Max}
	}
	cfg = pool.Config{Demand: true}
	if !sized && (m.stock.Keeps(key) || m.stock.DemandPools() < maxDemandPools) {
		cfg.Target = m.opt.Demand
	}
	return m.opt.OnEmpty, m.opt.ClaimTimeout, cfg
}

// startLater queues an execution for a sandbox that is not there yet.
func (m *Manager) startLater(ctx context.Context, rec Record, j *job) (engi.Execution, error) {
	onEmpty, patience, cfg := m.policy(j.key)
	if j.onEmpty != "" {
		onEmpty = j.onEmpty
	}
	if j.patience > 0 {
		patience = j.patience
	}
	if onEmpty == engi.PoolReject {
		return engi.Execution{}, engi.Errorf(engi.Exhausted, "no warm sandbox of %s is ready", j.key).
			WithRemedy("try again in a moment, or ask with on_empty 'wait' or 'boot_sync'").
			WithRetry(m.stock.Retry(1))
	}
	var u undo
	defer u.run()
	size := programSize(&j.program)
	total := m.queuedBytes.Add(size)
	u.add(func() { m.queuedBytes.Add(-size) })
	if total > maxQueuedBytes {
		return engi.Execution{}, engi.Errorf(engi.Exhausted, "the programs that wait for a sandbox have %d bytes already", total-size).
			WithRemedy("wait and try again").WithRetry(m.stock.Retry(1))
	}
	joined := time.Now()
	t, err := m.stock.Join(j.key, cfg, j.template.Digest, j.owner, joined)
	if err != nil {
		return engi.Execution{}, err
	}
	u.add(func() {
		if h, served := m.stock.Leave(t); served && h.Err == nil {
			m.stock.Return(h.Instance.key, h.Instance, h.Instance.rec.Digest)
		}
	})
	if err := m.files.putQueued(rec.ID, queuedProgram{Program: j.program, Key: j.key, Size: j.size, Patience: patience, Network: j.network}); err != nil {
		return engi.Execution{}, err
	}
	u.add(func() { m.files.dropQueued(rec.ID) })
	older, err := m.opt.Store.Create(ctx, rec, nil)
	if err != nil {
		if engi.KindOf(err) == engi.Conflict && older.ID != "" {
			return m.again(older, j)
		}
		return engi.Execution{}, err
	}
	u.keep()
	r := m.newRun(rec)
	if !m.enlist(r, func() { m.wait(r, t, size, patience, joined) }) {
		m.stock.Leave(t) // the next life queues it again
	}
	return rec.Execution, nil
}

// programSize is roughly what a program takes while it waits.
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

// wait waits for a queued run's sandbox and then drives it.
func (m *Manager) wait(r *run, t *pool.Ticket[*instance], size int64, patience time.Duration, joined time.Time) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	dequeue := sync.OnceFunc(func() { m.queuedBytes.Add(-size) })
	defer dequeue()
	var h pool.Handover[*instance]
	select {
	case h = <-t.C():
	case <-timer.C:
		place := m.stock.Position(t)
		var served bool
		if h, served = m.stock.Leave(t); !served {
			m.refuse(r, engi.Errorf(engi.Exhausted, "no sandbox became free within %v", patience).
				WithRemedy("try again, wait longer, or let the node's administrator raise the pool").
				WithRetry(m.stock.Retry(place)))
			return
		}
	case <-r.stopped:
		var served bool
		if h, served = m.stock.Leave(t); !served {
			m.settle(r, nil, engi.Result{Exit: engi.Exit{Code: -1, Cause: r.stopCause()}, Queued: time.Since(joined)})
			return
		}
	case <-m.life.Done():
		if h, served := m.stock.Leave(t); served && h.Err == nil {
			m.stock.Return(h.Instance.key, h.Instance, h.Instance.rec.Digest)
		}
		m.abandon(r)
		return
	}
	if h.Err != nil {
		if h.Err == errStopping {
			m.abandon(r)
			return
		}
		m.refuse(r, h.Err)
		return
	}
	dequeue()
	m.begin(r, h, joined)
}

// begin starts a queued run in the member it was given.
func (m *Manager) begin(r *run, h pool.Handover[*instance], joined time.Time) {
	b := h.Instance
	waited := time.Since(joined)
	if why := r.stopCause(); why != "" {
		m.stock.Return(b.key, b, b.rec.Digest)
		m.settle(r, nil, engi.Result{Exit: engi.Exit{Code: -1, Cause: why}, Queued: waited})
		return
	}
	q, err := m.files.getQueued(r.id)
	if err == nil {
		r.network = q.Network
		err = m.start(m.life, r, b)
	}
	if err != nil {
		b.unuse()
		m.stock.Return(b.key, b, b.rec.Digest)
		if m.life.Err() != nil {
			m.abandon(r)
			return
		}
		m.refuse(r, err)
		return
	}
	m.files.dropQueued(r.id)
	c := claim{queued: waited, fresh: h.Fresh}
	result := "waited"
	if h.Fresh {
		// It was our turn when the boot began, or when we came.
		c.took = min(b.born, waited)
		c.queued = waited - c.took
		result = "booted"
	}
	m.metrics.claims.WithLabelValues(result).Observe(waited.Seconds())
	m.execute(r, b, q.Program, c, q.Size)
}

// again answers a repeated request with its first execution.
func (m *Manager) again(older Record, j *job) (engi.Execution, error) {
	if older.Fingerprint != j.print {
		return engi.Execution{}, engi.Errorf(engi.Conflict, "idempotency key was used before for another request, execution %s", older.ID).
			WithRemedy("use a fresh key for each request, and the same key only to repeat one")
	}
	return m.present(older)
}

// present turns a record into what its owner sees, with both outputs.
func (m *Manager) present(rec Record) (engi.Execution, error) {
	x := rec.Execution
	if rec.State != engi.ExecutionDone {
		return x, nil
	}
	t, err := m.tapeOf(rec)
	if err != nil {
		return x, err
	}
	defer t.Close()
	return withOutput(x, t)
}

// withOutput returns x with its result's outputs, as a copy.
func withOutput(x engi.Execution, t *outputlog.Log) (_ engi.Execution, err error) {
	if x.Result == nil {
		return x, nil
	}
	answer := *x.Result
	if answer.Stdout, answer.Stderr, err = t.Split(); err != nil {
		return x, err
	}
	x.Result = &answer
	return x, nil
}

// tapeOf opens the output of an ended execution.
func (m *Manager) tapeOf(rec Record) (*outputlog.Log, error) {
	if rec.TapeFile {
		return outputlog.Open(m.files.tape(rec.ID))
	}
	return outputlog.Load(rec.Tape), nil
}

// find returns the run that is going on, if it is one of owner's.
func (m *Manager) find(owner engi.Owner, id engi.ExecutionID) *run {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.runs[id]
	if r == nil || owner != "" && r.owner != owner {
		return nil
	}
	return r
}

func (e executions) Get(ctx context.Context, owner engi.Owner, id engi.ExecutionID) (engi.Execution, error) {
	if r := e.m.find(owner, id); r != nil {
		if rec, _, err, _ := r.look(); err == nil && rec.Ended.IsZero() {
			return rec.Execution, nil
		}
	}
	rec, err := e.m.opt.Store.Get(ctx, owner, id)
	if err != nil {
		return engi.Execution{}, err
	}
	return e.m.present(rec)
}

func (e executions) Wait(ctx context.Context, owner engi.Owner, id engi.ExecutionID) (engi.Execution, error) {
	r := e.m.find(owner, id)
	if r == nil {
		x, err := e.Get(ctx, owner, id)
		switch {
		case err != nil:
			return x, err
		case x.Refusal != nil:
			return x, x.Refusal
		case x.State != engi.ExecutionDone:
			return x, errNotServing // it goes on, and nobody here follows it
		}
		return x, nil
	}
	for {
		rec, trouble, err, changed := r.look()
		switch {
		case err != nil:
			return rec.Execution, err
		case rec.Refusal != nil:
			return rec.Execution, rec.Refusal
		case rec.State == engi.ExecutionDone:
			return e.m.present(rec)
		case trouble != nil:
			return rec.Execution, trouble
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return rec.Execution, engi.Errorf(engi.Expired, "wait for execution %s: %v", id, context.Cause(ctx)).
				WithRemedy("it goes on: ask for it again by its ID")
		}
	}
}

func (e executions) Watch(ctx context.Context, owner engi.Owner, id engi.ExecutionID, from int64) iter.Seq2[engi.ExecutionEvent, error] {
	return func(yield func(engi.ExecutionEvent, error) bool) {
		if from < 0 {
			yield(engi.ExecutionEvent{}, engi.Errorf(engi.Invalid, "negative offset %d", from))
			return
		}
		if r := e.m.find(owner, id); r != nil {
			if reader := r.tape.Read(from); reader != nil {
				defer reader.Close()
				watchRun(ctx, r, reader, from, yield)
				return
			}
		}
		rec, err := e.m.opt.Store.Get(ctx, owner, id)
		switch {
		case err != nil:
		case rec.Refusal != nil:
			err = rec.Refusal
		case rec.State != engi.ExecutionDone:
			err = errNotServing
		}
		if err != nil {
			yield(engi.ExecutionEvent{}, err)
			return
		}
		t, err := e.m.tapeOf(rec)
		if err != nil {
			yield(engi.ExecutionEvent{}, err)
			return
		}
		defer t.Close()
		reader := t.Read(from)
		defer reader.Close()
		if from == 0 && !rec.Started.IsZero() && !yield(started(rec.Execution), nil) {
			return
		}
		if at, ok := play(ctx, reader, from, yield); ok {
			yield(engi.ExecutionEvent{Type: engi.EventResult, Offset: at, Execution: &rec.Execution}, nil)
		}
	}
}

// started is the first event of a run: the record as it was then.
func started(x engi.Execution) engi.ExecutionEvent {
	x.State, x.Ended, x.Result = engi.ExecutionRunning, time.Time{}, nil
	return engi.ExecutionEvent{Type: engi.EventStarted, Execution: &x}
}

// watchRun follows a run that goes on.
func watchRun(ctx context.Context, r *run, reader *outputlog.Reader, from int64, yield func(engi.ExecutionEvent, error) bool) {
	rec, ok := await(ctx, r, yield, func(rec Record) bool { return rec.State != engi.ExecutionQueued })
	if !ok {
		return
	}
	if from == 0 && !rec.Started.IsZero() && !yield(started(rec.Execution), nil) {
		return
	}
	at, ok := play(ctx, reader, from, yield)
	if !ok {
		return
	}
	if rec, ok = await(ctx, r, yield, func(rec Record) bool { return rec.State == engi.ExecutionDone }); ok {
		yield(engi.ExecutionEvent{Type: engi.EventResult, Offset: at, Execution: &rec.Execution}, nil)
	}
}

// await waits until the run's record is good; a run that comes to nothing
// yields its error and reports false.
func await(ctx context.Context, r *run, yield func(engi.ExecutionEvent, error) bool, good func(Record) bool) (Record, bool) {
	for {
		rec, trouble, err, changed := r.look()
		switch {
		case err != nil:
		case rec.Refusal != nil:
			err = rec.Refusal
		case good(rec):
			return rec, true
		case trouble != nil:
			err = trouble
		}
		if err == nil {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				err = engi.Errorf(engi.Expired, "watch execution %s: %v", r.id, context.Cause(ctx))
			}
		}
		yield(engi.ExecutionEvent{}, err)
		return rec, false
	}
}

// play yields output until its end, and returns the offset there. It reports
// false if the watch is over.
func play(ctx context.Context, reader *outputlog.Reader, from int64, yield func(engi.ExecutionEvent, error) bool) (at int64, ok bool) {
	at = from
	for {
		c, err := reader.Next(ctx)
		if errors.Is(err, io.EOF) {
			return at, true
		}
		if err != nil {
			yield(engi.ExecutionEvent{}, err)
			return at, false
		}
		kind := engi.EventStdout
		if c.Stream == engi.Stderr {
			kind = engi.EventStderr
		}
		at = c.Offset + int64(len(c.Data))
		if !yield(engi.ExecutionEvent{Type: kind, Offset: c.Offset, Data: slices.Clone(c.Data)}, nil) {
			return at, false
		}
	}
}

func (e executions) Cancel(ctx context.Context, owner engi.Owner, id engi.ExecutionID) error {
	r := e.m.find(owner, id)
	if r == nil {
		rec, err := e.m.opt.Store.Get(ctx, owner, id)
		if err == nil && rec.Ended.IsZero() {
			return errNotServing
		}
		return err
	}
	r.stop(engi.CauseCancelled)
	select {
	case <-r.ended:
		_, _, err, _ := r.look()
		return err
	case <-ctx.Done():
		return engi.Errorf(engi.Expired, "cancel execution %s: %v", id, context.Cause(ctx)).
			WithRemedy("it is being cancelled: ask for it again by its ID")
	}
}

func (e executions) List(ctx context.Context, owner engi.Owner, f engi.ExecutionFilter) ([]engi.Execution, error) {
	recs, err := e.m.opt.Store.List(ctx, owner, f)
	if err != nil {
		return nil, err
	}
	list := make([]engi.Execution, len(recs))
	for i, rec := range recs {
		list[i] = rec.Execution
	}
	return list, nil
}

func (e executions) Artifact(ctx context.Context, owner engi.Owner, id engi.ExecutionID, path string) (io.ReadCloser, error) {
	rec, err := e.m.opt.Store.Get(ctx, owner, id)
	if err != nil {
		return nil, err
	}
	if rec.Result == nil {
		return nil, engi.Errorf(engi.NotFound, "execution %s is %s and has no artifacts", id, rec.State)
	}
	n := slices.IndexFunc(rec.Result.Artifacts, func(a engi.Artifact) bool { return a.Path == path })
	if n < 0 {
		return nil, engi.Errorf(engi.NotFound, "execution %s has no artifact %.200q", id, path)
	}
	f, err := os.Open(e.m.files.artifact(id, n))
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "open artifact %d of %s: %v", n, id, err)
	}
	return f, nil
}

// asError finds the classified error in err.
func asError(err error) (*engi.Error, bool) { return errors.AsType[*engi.Error](err) }

// A queuedProgram is what is kept of an execution that waits.
type queuedProgram struct {
	Program  wire.Run
	Key      pool.Key
	Size     engi.Size
	Patience time.Duration
	Network  engi.NetworkPolicy // without Detail
}
