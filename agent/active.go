package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"sync"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/outputlog"
)

// live is a run that goes on.
type activeRun struct {
	runner   *Runner
	ctx      context.Context
	cancel   context.CancelCauseFunc
	recorded chan struct{} // closed once the record is in the store
	done     chan struct{} // closed when nothing of the run goes on any more

	// Of the run's own goroutine.
	rec      Record
	messages []engi.Message
	saved    int // messages that are in the store
	deps     any // of tools

	events *outputlog.Log // what is told, as lines of JSON

	mu sync.Mutex // of tell
}

// begin starts the goroutine of a run. It does nothing before kept is closed.
func (r *Runner) launch(rec Record, messages []engi.Message, again bool) (*activeRun, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return nil, errStopping
	case !again && len(r.conversations) >= r.opt.MaxRuns:
		return nil, engi.Errorf(engi.Exhausted, "%d runs of agents go on", len(r.conversations)).WithRetry(engi.Retry{AfterMillis: 1000})
	case r.conversations[rec.Conversation]:
		return nil, engi.Errorf(engi.Conflict, "another run of conversation %s goes on", rec.Conversation).WithRemedy("wait for it, or cancel it")
	}
	out, err := outputlog.Continue(r.eventFile(rec.ID))
	if err != nil {
		return nil, err
	}
	a := &activeRun{runner: r, rec: rec, messages: messages, saved: len(messages), recorded: make(chan struct{}), done: make(chan struct{}), events: out}
	a.ctx, a.cancel = context.WithCancelCause(r.base)
	r.active[rec.ID] = a
	r.conversations[rec.Conversation] = true
	if again {
		if err := a.emitMissing(); err != nil {
			r.opt.Log.Error("read what was told of a run", "run", rec.ID, "error", err)
		}
		close(a.recorded)
	}
	r.wg.Go(a.run)
	return a, nil
}

// drop ends a run that was never kept.
func (a *activeRun) discard() {
	a.cancel(errCancelled)
	<-a.done
	_ = os.Remove(a.runner.eventFile(a.rec.ID)) // else it goes with its age
}

// leave is the end of the goroutine of a run. Followers of one that has not
// ended hear that the node stops.
func (a *activeRun) finish() {
	if a.rec.Ended.IsZero() {
		a.events.Fail(errStopping)
	} else {
		a.events.End()
	}
	a.runner.mu.Lock()
	delete(a.runner.conversations, a.rec.Conversation)
	delete(a.runner.active, a.rec.ID)
	a.runner.mu.Unlock()
	close(a.done)
	a.events.Close()
}

func fingerprint(raw []byte) string {
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:16])
}

// save keeps the run as it is, with the messages that are new.
func (a *activeRun) save(ctx context.Context) error {
	a.rec.Seq = a.events.Len()
	if err := a.runner.opt.Store.Update(ctx, a.rec, a.saved, a.messages[a.saved:]); err != nil {
		return err
	}
	a.saved = len(a.messages)
	return nil
}

// partial is an object on its way as JSON.
func partial(v any) json.RawMessage {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	return raw
}
