// Package operation carries out work that lasts longer than a request. An
// operation is recorded before it begins, and continues without its caller. Clients can watch
// it from any offset, wait for it and cancel it. An operation that a restart of the
// node interrupted begins again, so its work must be safe to repeat. Its progress
// is an output log in a file of its own.
//
// The package does not know the work: the creator of a [Manager] supplies the types
// of operations. Package rest serves them.
package operation

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/outputlog"
)

const (
	maxRunning   = 64 // maximum number of concurrent operations
	maxAttempts  = 5  // maximum number of attempts, if the node is killed each time
	maxInput     = 16 << 20
	keepCount    = 1000                // number of ended operations that are kept
	keepAge      = 30 * 24 * time.Hour // time for which ended operations are kept
	progressBeat = 250 * time.Millisecond
	endTime      = 10 * time.Second // maximum time for recording the end of an operation
)

// Work is the function of a type of operations. It begins again after a restart. It
// must end soon after ctx ends. progress must be called from one goroutine at a time.
type Work func(ctx context.Context, op engi.Operation, progress func(engi.Progress)) error

// A Store stores operations durably. A method's changes survive a kill of the process.
//
//  1. Put records a new operation; it reports Conflict if its ID exists already.
//  2. Update replaces state, error, attempt and end of a running
//     operation; it reports Conflict if it has ended, NotFound if it does not exist.
//  3. Get returns an operation that viewer sees, or reports NotFound.
//  4. List returns the operations that viewer sees, without their input, newest first.
//  5. Running returns the operations that have not ended, oldest first.
//  6. Forget deletes ended operations beyond the newest keep, and those that
//     ended before the given time, and returns their IDs.
type Store interface {
	Put(ctx context.Context, op engi.Operation) error
	Update(ctx context.Context, op engi.Operation) error
	Get(ctx context.Context, viewer engi.Viewer, id engi.OperationID) (engi.Operation, error)
	List(ctx context.Context, viewer engi.Viewer, f engi.OperationFilter) ([]engi.Operation, error)
	Running(ctx context.Context) ([]engi.Operation, error)
	Forget(ctx context.Context, keep int, before time.Time) ([]engi.OperationID, error)
}

// Options configures a Manager. Only Log may be nil.
type Options struct {
	Store Store
	Dir   string          // directory of output logs; created if missing, for the Manager alone
	Work  map[string]Work // work by type of operation
	Log   *slog.Logger    // nil discards
}

// A Manager carries out operations. It implements [engi.Operations] and is safe
// for concurrent use.
type Manager struct {
	o    Options
	life context.Context // context of all work; ends with Run
	end  context.CancelCauseFunc
	work sync.WaitGroup

	starting sync.RWMutex // held by Start for reading, and by Run while it looks for interrupted operations

	mu   sync.Mutex
	live map[engi.OperationID]*running // guarded by mu
}

var _ engi.Operations = (*Manager)(nil)

// running is an operation that runs in this process.
type running struct {
	log    *outputlog.Log
	cancel context.CancelCauseFunc
	done   chan struct{} // closed after its end was recorded, or the node stopped
}

var (
	errStopping  = engi.Errorf(engi.Unavailable, "the node stops: the operation goes on after a restart").WithRetry(engi.Retry{AfterMillis: 1000})
	errCancelled = errors.New("cancelled on request")
)

// New returns a Manager. It does not restart interrupted operations before
// Run.
func New(ctx context.Context, o Options) *Manager {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	m := &Manager{o: o, live: map[engi.OperationID]*running{}}
	m.life, m.end = context.WithCancelCause(context.WithoutCancel(ctx))
	return m
}

// Run restarts operations that a restart of the node interrupted, and returns when ctx
// has ended and all work has stopped.
func (m *Manager) Run(ctx context.Context, ready func()) error {
	defer func() {
		m.mu.Lock() // no new work starts
		m.end(errStopping)
		m.mu.Unlock()
		m.work.Wait()
	}()
	all, err := m.interrupted(ctx)
	if err != nil {
		return err
	}
	for _, op := range all {
		op.Attempt++
		m.o.Log.InfoContext(ctx, "an operation that a restart interrupted is begun again", "operation", op.ID, "type", op.Type, "attempt", op.Attempt)
		if err := m.again(ctx, op); err != nil {
			return err
		}
	}
	ready()
	<-ctx.Done()
	return nil
}

// interrupted returns the operations that were running when the node stopped. Those that have been
// started since then are not among them, even if they end meanwhile.
func (m *Manager) interrupted(ctx context.Context) ([]engi.Operation, error) {
	m.starting.Lock()
	defer m.starting.Unlock()
	m.mu.Lock()
	started := maps.Clone(m.live)
	m.mu.Unlock()
	all, err := m.o.Store.Running(ctx)
	return slices.DeleteFunc(all, func(op engi.Operation) bool { return started[op.ID] != nil }), err
}

// again restarts an interrupted operation, or fails it if restarting is pointless.
func (m *Manager) again(ctx context.Context, op engi.Operation) error {
	var why *engi.Error
	switch {
	case m.o.Work[op.Type] == nil:
		why = engi.Errorf(engi.Unsupported, "this engi does not know operations of type %q", op.Type).WithRemedy("start it again with a newer engi")
	case op.Attempt > maxAttempts:
		why = engi.Errorf(engi.Unavailable, "the node was stopped in the middle of it %d times", op.Attempt-1).WithRemedy("look into the server's log, and start it again")
	default:
		if err := m.o.Store.Update(ctx, op); err != nil {
			return err
		}
		return m.begin(op)
	}
	op.State, op.Error, op.Ended = engi.OperationFailed, why, now()
	return m.o.Store.Update(ctx, op)
}

// Start implements [engi.Operations].
func (m *Manager) Start(ctx context.Context, spec engi.OperationSpec) (_ engi.Operation, err error) {
	defer engi.Annotate(&err, "start operation %s", spec.Type)
	if m.o.Work[spec.Type] == nil {
		return engi.Operation{}, engi.Errorf(engi.Unsupported, "this node does not know the type")
	}
	if len(spec.Input) > maxInput {
		return engi.Operation{}, engi.TooLarge("its input has %d bytes, %d at most", len(spec.Input), maxInput)
	}
	op := engi.Operation{
		ID: spec.ID, Owner: spec.Owner, Type: spec.Type, Subject: spec.Subject, Input: spec.Input,
		State: engi.OperationRunning, Attempt: 1, Created: now(),
	}
	if op.ID == "" {
		op.ID = engi.NewOperationID()
	}
	if m.life.Err() != nil {
		return engi.Operation{}, errStopping
	}
	m.mu.Lock()
	count := len(m.live)
	m.mu.Unlock()
	if count >= maxRunning {
		return engi.Operation{}, engi.Errorf(engi.Exhausted, "%d operations go on already", count).WithRetry(engi.Retry{AfterMillis: 5000})
	}
	m.starting.RLock()
	defer m.starting.RUnlock()
	if err := m.o.Store.Put(ctx, op); err != nil {
		return engi.Operation{}, err
	}
	return op, m.begin(op)
}

// begin carries out a recorded operation in a new goroutine.
func (m *Manager) begin(op engi.Operation) error {
	log, err := outputlog.Continue(m.path(op.ID))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(m.life)
	r := &running{log: log, cancel: cancel, done: make(chan struct{})}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.life.Err() != nil {
		log.Close()
		return errStopping
	}
	m.live[op.ID] = r
	m.work.Go(func() {
		defer cancel(nil)
		m.carryOut(ctx, op, r)
	})
	return nil
}

// carryOut does the work and records its end.
func (m *Manager) carryOut(ctx context.Context, op engi.Operation, r *running) {
	err := m.do(ctx, op, r)
	// The end is recorded before anybody who waits is notified.
	switch cause := context.Cause(ctx); {
	case err != nil && errors.Is(cause, errStopping):
		r.log.Fail(errStopping) // the record stays in the state running, and the next start of the node continues it
	default:
		op.State, op.Ended = engi.OperationDone, now()
		if err != nil {
			op.State, op.Error = engi.OperationFailed, kept(err)
			if errors.Is(cause, errCancelled) {
				op.State, op.Error = engi.OperationCancelled, nil
			}
		}
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
		defer cancel()
		if err := m.o.Store.Update(late, op); err != nil {
			m.o.Log.Error("record the end of an operation; it is begun again after a restart", "operation", op.ID, "error", err)
		}
		r.log.End()
		m.tidy(late)
	}
	m.mu.Lock()
	delete(m.live, op.ID)
	m.mu.Unlock()
	close(r.done)
	r.log.Close()
}

// do calls the work.
func (m *Manager) do(ctx context.Context, op engi.Operation, r *running) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = engi.Errorf(engi.Internal, "panic: %v\n%s", p, debug.Stack())
		}
		if engi.Is(err, engi.Internal) {
			m.o.Log.Error("an operation failed", "operation", op.ID, "type", op.Type, "error", err)
		}
	}()
	var last engi.Progress
	var told time.Time
	return m.o.Work[op.Type](ctx, op, func(p engi.Progress) {
		// Mere changes of a step's progress are written at most once in progressBeat.
		if p.Log == "" && p.Step == last.Step && p.Done != p.Total && time.Since(told) < progressBeat {
			return
		}
		line, err := json.Marshal(p)
		if err == nil {
			err = r.log.Append(engi.Stdout, append(line, '\n'))
		}
		if err != nil {
			return // the disk is full: the work continues, and the record will have its end
		}
		last, told = p, time.Now()
	})
}

// kept returns an error in the form for the record: texts of internal errors are only in the
// log.
func kept(err error) *engi.Error {
	kind := engi.KindOf(err)
	if kind == engi.Internal {
		return engi.Errorf(kind, "an internal error; the server's log has it").WithRemedy("report it with the ID of the operation and the server's log")
	}
	return engi.Errorf(kind, "%v", err).WithRemedy("%s", engi.RemedyOf(err)).WithRetry(engi.RetryOf(err))
}

// tidy deletes old operations with their logs.
func (m *Manager) tidy(ctx context.Context) {
	ids, err := m.o.Store.Forget(ctx, keepCount, now().Add(-keepAge))
	for _, id := range ids {
		if e := os.Remove(m.path(id)); e != nil && !os.IsNotExist(e) {
			err = e
		}
	}
	if err != nil {
		m.o.Log.Warn("forget old operations", "error", err)
	}
}

func (m *Manager) path(id engi.OperationID) string { return filepath.Join(m.o.Dir, string(id)) }

func (m *Manager) find(id engi.OperationID) *running {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.live[id]
}

// Get implements [engi.Operations].
func (m *Manager) Get(ctx context.Context, viewer engi.Viewer, id engi.OperationID) (engi.Operation, error) {
	return m.o.Store.Get(ctx, viewer, id)
}

// List implements [engi.Operations].
func (m *Manager) List(ctx context.Context, viewer engi.Viewer, f engi.OperationFilter) ([]engi.Operation, error) {
	return m.o.Store.List(ctx, viewer, f)
}

// Wait implements [engi.Operations].
func (m *Manager) Wait(ctx context.Context, viewer engi.Viewer, id engi.OperationID) (engi.Operation, error) {
	// Look in memory before reading the record: in the other order, the operation could end
	// in between.
	r := m.find(id)
	op, err := m.o.Store.Get(ctx, viewer, id)
	if err != nil || !op.Ended.IsZero() {
		return op, err
	}
	if r != nil {
		select {
		case <-r.done:
		case <-ctx.Done():
			return op, engi.Errorf(engi.Expired, "wait for operation %s: %v", id, context.Cause(ctx))
		}
		if op, err = m.o.Store.Get(ctx, viewer, id); err != nil || !op.Ended.IsZero() {
			return op, err
		}
	}
	return op, errStopping
}

// Watch implements [engi.Operations].
func (m *Manager) Watch(ctx context.Context, viewer engi.Viewer, id engi.OperationID, after int64) iter.Seq2[engi.OperationUpdate, error] {
	return func(yield func(engi.OperationUpdate, error) bool) {
		end, left, err := m.replay(ctx, viewer, id, after, func(e engi.OperationUpdate) bool { return yield(e, nil) })
		if left {
			return
		}
		op, werr := m.Wait(ctx, viewer, id)
		if err == nil {
			err = werr
		}
		yield(engi.OperationUpdate{Offset: end, Operation: &op}, err)
	}
}

// replay yields the log of an operation after an offset, until the log ends. It
// returns the offset after the log, and whether the reader has left.
func (m *Manager) replay(ctx context.Context, viewer engi.Viewer, id engi.OperationID, after int64, yield func(engi.OperationUpdate) bool) (end int64, left bool, err error) {
	r := m.find(id)
	if _, err := m.o.Store.Get(ctx, viewer, id); err != nil {
		return after, false, err
	}
	var log *outputlog.Log
	if r != nil {
		log = r.log
	} else if log, err = outputlog.Open(m.path(id)); err != nil {
		return after, false, nil // the log is empty or was deleted
	} else {
		defer log.Close()
	}
	// Read from the byte before the offset, which is a line end if the offset is valid.
	in := log.Read(max(0, after-1))
	if in == nil { // the operation has ended in the meantime
		return m.replay(ctx, viewer, id, after, yield)
	}
	defer in.Close()
	lines := splitter{offset: max(0, after-1), skip: after > 0}
	for {
		c, err := in.Next(ctx)
		if err == io.EOF {
			return max(after, lines.offset), false, nil
		}
		if err != nil {
			return max(after, lines.offset), false, err
		}
		for line := range lines.add(c.Data) {
			var p engi.Progress
			if json.Unmarshal(line, &p) != nil {
				continue // an incomplete line after a crash
			}
			if !yield(engi.OperationUpdate{Offset: lines.offset, Progress: p}) {
				return lines.offset, true, nil
			}
		}
	}
}

// Cancel implements [engi.Operations].
func (m *Manager) Cancel(ctx context.Context, viewer engi.Viewer, id engi.OperationID) error {
	r := m.find(id)
	op, err := m.o.Store.Get(ctx, viewer, id)
	if err != nil || !op.Ended.IsZero() {
		return err
	}
	if r != nil {
		r.cancel(errCancelled)
		select {
		case <-r.done:
			return nil
		case <-ctx.Done():
			return engi.Errorf(engi.Expired, "cancel operation %s: %v", id, context.Cause(ctx))
		}
	}
	// A restart interrupted the operation, and Run has not restarted it yet.
	op.State, op.Ended = engi.OperationCancelled, now()
	return m.o.Store.Update(ctx, op)
}

func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }
