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
type running struct {
	o      *Runner
	ctx    context.Context
	cancel context.CancelCauseFunc
	kept   chan struct{} // closed once the record is in the store
	over   chan struct{} // closed when nothing of the run goes on any more

	// Of the run's own goroutine.
	rec      Record
	messages []engi.Message
	saved    int // messages that are in the store
	deps     any // of tools

	out *outputlog.Log // what is told, as lines of JSON

	mu sync.Mutex // of tell
}

// begin starts the goroutine of a run. It does nothing before kept is closed.
func (o *Runner) begin(rec Record, messages []engi.Message, again bool) (*running, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed:
		return nil, errStopping
	case !again && len(o.talking) >= o.opt.MaxRuns:
		return nil, engi.Errorf(engi.Exhausted, "%d runs of agents go on", len(o.talking)).WithRetry(engi.Retry{AfterMillis: 1000})
	case o.talking[rec.Conversation]:
		return nil, engi.Errorf(engi.Conflict, "another run of conversation %s goes on", rec.Conversation).WithRemedy("wait for it, or cancel it")
	}
	out, err := outputlog.Continue(o.stream(rec.ID))
	if err != nil {
		return nil, err
	}
	l := &running{o: o, rec: rec, messages: messages, saved: len(messages), kept: make(chan struct{}), over: make(chan struct{}), out: out}
	l.ctx, l.cancel = context.WithCancelCause(o.base)
	o.live[rec.ID] = l
	o.talking[rec.Conversation] = true
	if again {
		if err := l.retell(); err != nil {
			o.opt.Log.Error("read what was told of a run", "run", rec.ID, "error", err)
		}
		close(l.kept)
	}
	o.wg.Go(l.run)
	return l, nil
}

// drop ends a run that was never kept.
func (l *running) drop() {
	l.cancel(errCancelled)
	<-l.over
	_ = os.Remove(l.o.stream(l.rec.ID)) // else it goes with its age
}

// leave is the end of the goroutine of a run. Followers of one that has not
// ended hear that the node stops.
func (l *running) leave() {
	if l.rec.Ended.IsZero() {
		l.out.Fail(errStopping)
	} else {
		l.out.End()
	}
	l.o.mu.Lock()
	delete(l.o.talking, l.rec.Conversation)
	delete(l.o.live, l.rec.ID)
	l.o.mu.Unlock()
	close(l.over)
	l.out.Close()
}

func digest(raw []byte) string {
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:16])
}

// save keeps the run as it is, with the messages that are new.
func (l *running) save(ctx context.Context) error {
	l.rec.Seq = l.out.Len()
	if err := l.o.opt.Store.Update(ctx, l.rec, l.saved, l.messages[l.saved:]); err != nil {
		return err
	}
	l.saved = len(l.messages)
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
