package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi"
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

	mu     sync.Mutex
	events []engi.RunEvent // the last ones, bounded
	size   int             // bytes of them
	seq    int64
	more   chan struct{} // closed and replaced with each event
}

const (
	maxEvents     = 20_000
	maxEventBytes = 4 << 20
	// remembered is how long the events of a run that ended are there for
	// those who follow it.
	remembered = time.Minute
)

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
	l := &running{o: o, rec: rec, messages: messages, saved: len(messages), kept: make(chan struct{}), over: make(chan struct{}), more: make(chan struct{}), seq: rec.Seq}
	l.ctx, l.cancel = context.WithCancelCause(o.base)
	o.live[rec.ID] = l
	o.talking[rec.Conversation] = true
	o.wg.Go(l.run)
	if again {
		close(l.kept)
	}
	return l, nil
}

// drop ends a run that was never kept.
func (l *running) drop() {
	l.cancel(errCancelled)
	<-l.over
}

func (l *running) leave() {
	l.o.mu.Lock()
	delete(l.o.talking, l.rec.Conversation)
	l.o.mu.Unlock()
	close(l.over)
	// Those who follow the run may not have come to its end yet.
	time.AfterFunc(remembered, func() {
		l.o.mu.Lock()
		delete(l.o.live, l.rec.ID)
		l.o.mu.Unlock()
	})
}

// tell adds an event.
func (l *running) tell(e engi.RunEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	e.Seq, e.Time, e.Step = l.seq, time.Now().UTC(), l.rec.Steps+1
	l.events = append(l.events, e)
	l.size += heft(e)
	for len(l.events) > 1 && (len(l.events) > maxEvents || l.size > maxEventBytes) {
		l.size -= heft(l.events[0])
		l.events = l.events[1:]
	}
	close(l.more)
	l.more = make(chan struct{})
}

func heft(e engi.RunEvent) int {
	n := 200 + len(e.Text) + len(e.Object)
	if e.Result != nil {
		n += len(e.Result.Text)
	}
	if e.Call != nil {
		n += len(e.Call.Arguments)
	}
	return n
}

// after returns the events after seq, and a channel that is closed when there
// are more.
func (l *running) after(seq int64) ([]engi.RunEvent, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, _ := slices.BinarySearchFunc(l.events, seq+1, func(e engi.RunEvent, s int64) int { return int(e.Seq - s) })
	return slices.Clone(l.events[i:]), l.more
}

// Events returns what happened after seq.
func (o *Runner) Events(ctx context.Context, owner engi.Owner, id engi.RunID, seq int64, wait bool) ([]engi.RunEvent, error) {
	rec, err := o.opt.Store.Get(ctx, owner, id)
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	l := o.live[id]
	o.mu.Unlock()
	if l == nil {
		return o.past(ctx, rec, seq)
	}
	for {
		events, more := l.after(seq)
		if len(events) > 0 || !wait {
			return events, nil
		}
		select {
		case <-l.over:
			if events, _ := l.after(seq); len(events) > 0 {
				return events, nil
			}
			rec, err := o.opt.Store.Get(ctx, owner, id)
			if err != nil || rec.State == engi.RunRunning {
				return nil, err // the node stops; the run goes on with the next one
			}
			return o.past(ctx, rec, seq)
		case <-more:
		case <-ctx.Done():
			return nil, nil
		}
	}
}

// past tells a run that ended a while ago from what was said in it.
func (o *Runner) past(ctx context.Context, rec Record, seq int64) ([]engi.RunEvent, error) {
	messages, err := o.opt.Store.Messages(ctx, rec.ID)
	if err != nil {
		return nil, err
	}
	first := len(messages)
	for first > 0 && messages[first-1].Role != engi.RoleUser {
		first--
	}
	var all []engi.RunEvent
	add := func(e engi.RunEvent) { all = append(all, e) }
	step := 0
	for _, m := range messages[first:] {
		if m.Role == engi.RoleAssistant {
			step++
			if m.Thought != "" {
				add(engi.RunEvent{Kind: engi.RunThought, Step: step, Text: m.Thought})
			}
			if m.Text != "" {
				add(engi.RunEvent{Kind: engi.RunText, Step: step, Text: m.Text})
			}
			for _, c := range m.Calls {
				add(engi.RunEvent{Kind: engi.RunCall, Step: step, Call: &c})
			}
		}
		for _, r := range m.Results {
			add(engi.RunEvent{Kind: engi.RunResult, Step: step, Call: &engi.ToolCall{ID: r.Call, Name: r.Name}, Result: &r})
		}
	}
	if rec.State != engi.RunRunning {
		add(engi.RunEvent{Kind: engi.RunEnd, Step: step, Run: &rec.Run})
	}
	// What was told live had more and smaller events: the last numbers are
	// the same, and whoever has seen everything sees nothing twice.
	for i := range all {
		all[i].Seq = max(rec.Seq-int64(len(all)-1-i), int64(i+1))
		all[i].Time = rec.Created
	}
	if n := len(all); n > 0 && !rec.Ended.IsZero() {
		all[n-1].Time = rec.Ended
	}
	return slices.DeleteFunc(all, func(e engi.RunEvent) bool { return e.Seq <= seq }), nil
}

func digest(raw []byte) string {
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:16])
}

// save keeps the run as it is, with the messages that are new.
func (l *running) save(ctx context.Context) error {
	l.mu.Lock()
	l.rec.Seq = l.seq
	l.mu.Unlock()
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
