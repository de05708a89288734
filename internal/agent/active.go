package agent

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/outputlog"
)

// An activeRun is a run in progress, and the goroutine that works on it.
type activeRun struct {
	runner   *Runner
	ctx      context.Context
	cancel   context.CancelCauseFunc
	recorded chan struct{} // closed once the record is in the store
	done     chan struct{} // closed when the goroutine has finished
	released bool          // the run gave up its conversation and slot, see release; guarded by runner.mu

	// The goroutine owns these fields; callTools shares them with the calls, under a
	// lock of its own.
	rec      Record
	messages []engi.Message
	saved    int      // number of messages in the store
	deps     any      // dependencies of tools
	missing  []string // servers whose tools are not available
	resumed  bool
	confirm  func(tool string) bool // reports whether calls of the tool wait for a decision

	mu    sync.Mutex
	asked map[string]*question // waiting calls of this step, by call; guarded by mu

	emitMu sync.Mutex
	events *outputlog.Log // one line of JSON per event
}

// launch starts the goroutine of a run. It waits until recorded is closed,
// unless the run is resumed from the store.
func (r *Runner) launch(rec Record, messages []engi.Message, resume bool) (*activeRun, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return nil, errStopping
	case r.conversations[rec.Conversation]:
		return nil, engi.Errorf(engi.Conflict, "another run of conversation %s is active", rec.Conversation).WithRemedy("wait for it, or cancel it")
	}
	if !resume && !r.slots.Take(rec.Owner, 1) {
		return nil, engi.Errorf(engi.Exhausted, "%d runs of agents are active, %d of them yours", len(r.active), r.slots.Of(rec.Owner)).
			WithRemedy("wait for one, or cancel one").WithRetry(engi.Retry{AfterMillis: 1000})
	}
	if resume {
		r.slots.Add(rec.Owner, 1)
	}
	events, err := outputlog.Continue(r.eventFile(rec.ID))
	if err != nil {
		r.slots.Give(rec.Owner, 1)
		return nil, err
	}
	a := &activeRun{runner: r, rec: rec, messages: messages, saved: len(messages), recorded: make(chan struct{}), done: make(chan struct{}), events: events, resumed: resume}
	a.ctx, a.cancel = context.WithCancelCause(r.base)
	r.active[rec.ID] = a
	r.conversations[rec.Conversation] = true
	if resume {
		if err := a.emitMissing(); err != nil {
			r.opt.Log.Error("read the events of a run", "run", rec.ID, "error", err)
		}
		close(a.recorded)
	}
	r.wg.Go(a.run)
	return a, nil
}

// discard ends a run whose record could not be stored.
func (a *activeRun) discard() {
	a.cancel(errCancelled)
	<-a.done
	_ = os.Remove(a.runner.eventFile(a.rec.ID)) // on failure, removeOldEvents deletes the file
}

// run works on the run until the run ends or the node stops.
func (a *activeRun) run() {
	defer a.finish()
	select {
	case <-a.recorded:
	case <-a.ctx.Done():
		select {
		case <-a.recorded: // the run was cancelled right after it was stored: store the cancellation too
		default:
			return
		}
	}
	ctx, cancel := context.WithTimeoutCause(a.ctx, a.runner.opt.Timeout,
		engi.Errorf(engi.Expired, "run %s took longer than %v", a.rec.ID, a.runner.opt.Timeout))
	defer cancel()
	if err := a.loop(ctx); err != nil {
		cause := context.Cause(ctx)
		switch {
		case errors.Is(cause, errStopping):
			return // the next process resumes it
		case errors.Is(cause, errCancelled):
			a.rec.State = engi.RunCancelled
		default:
			if cause != nil {
				err = cause
			}
			a.rec.State = engi.RunFailed
			a.rec.Error = &engi.Error{Kind: engi.KindOf(err), Text: err.Error(), Remedy: engi.RemedyOf(err)}
		}
	}
	a.rec.Ended = time.Now().UTC()
	a.rec.Waiting, a.rec.Decided = nil, nil
	ended := a.rec.Run
	a.rec.Seq = a.events.Len() + 1 // the end event follows this Seq
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	if err := a.runner.opt.Store.Update(ctx, a.rec, a.saved, a.messages[a.saved:]); err != nil {
		a.runner.opt.Log.ErrorContext(ctx, "store the end of a run", "run", a.rec.ID, "error", err)
		a.rec.Ended = time.Time{}
		return // the next process resumes it
	}
	if a.runner.opt.OnEnd != nil {
		a.runner.opt.OnEnd(ctx, ended)
	}
	a.release() // a watcher that sees the end may continue the conversation
	a.emit(engi.RunUpdate{Kind: engi.RunEnd})
}

// release lets other runs use the conversation and the slot of this run. Further calls do
// nothing.
func (a *activeRun) release() {
	a.runner.mu.Lock()
	defer a.runner.mu.Unlock()
	if a.released {
		return
	}
	a.released = true
	delete(a.runner.conversations, a.rec.Conversation)
	a.runner.slots.Give(a.rec.Owner, 1)
}

// finish closes the event stream: with an error if the run is to be resumed.
func (a *activeRun) finish() {
	if a.rec.Ended.IsZero() {
		a.events.Fail(errStopping)
	} else {
		a.events.End()
	}
	a.release()
	a.runner.mu.Lock()
	delete(a.runner.active, a.rec.ID)
	a.runner.mu.Unlock()
	close(a.done)
	a.events.Close()
}

// save stores the run with its new messages.
func (a *activeRun) save(ctx context.Context) error {
	a.rec.Seq = a.events.Len()
	if err := a.runner.opt.Store.Update(ctx, a.rec, a.saved, a.messages[a.saved:]); err != nil {
		return err
	}
	a.saved = len(a.messages)
	return nil
}
