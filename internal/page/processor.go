package page

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
)

const (
	maxRetries = 2 // runs of a batch after the first, to correct lines that did nothing
	shortWait  = 5 * time.Second
	firstWait  = 100 * time.Millisecond
)

// A processor is the goroutine that works on one page while there is something to do.
// There is one for a page at most, so that nothing else changes what it works on but
// [Service.Act] and [Service.Cancel].
type processor struct {
	*Service
	id    engi.SessionID
	log   *slog.Logger
	ctx   context.Context
	leave context.CancelFunc
	nudge chan struct{} // of capacity 1; the record was changed
	again bool          // guarded by Service.mu; look once more before the end
	queue bool          // guarded by Service.mu; it waits until it may start a run
}

// wake has a processor look at the record of a session.
func (s *Service) wake(id engi.SessionID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.serving {
		return // the next process looks at all
	}
	if p := s.processors[id]; p != nil {
		p.again = true
		select {
		case p.nudge <- struct{}{}:
		default:
		}
		return
	}
	p := &processor{Service: s, id: id, log: s.opt.Log.With("session", id), nudge: make(chan struct{}, 1)}
	p.ctx, p.leave = context.WithCancel(s.base)
	s.processors[id] = p
	s.wg.Go(p.run)
}

// run works until there is nothing to do.
func (p *processor) run() {
	defer p.leave()
	wait := firstWait
	for {
		err := p.work()
		if err != nil && p.ctx.Err() == nil {
			p.log.WarnContext(p.ctx, "answer actions on a page; it is tried again", "error", err)
			_ = clock.Sleep(p.ctx, wait)
			wait = min(2*wait, shortWait)
		}
		p.mu.Lock()
		if p.ctx.Err() != nil || err == nil && !p.again {
			delete(p.processors, p.id)
			p.mu.Unlock()
			return
		}
		p.again = false
		p.mu.Unlock()
		if err == nil {
			wait = firstWait
		}
	}
}

// work answers the actions on the page. After an error it can be called again, in
// this process or another: whatever it has done is in the record or in the log.
func (p *processor) work() (err error) {
	defer func() {
		// What models and users write must not end the process, nor do it again in the next.
		if v := recover(); v != nil {
			p.log.ErrorContext(p.ctx, "answering actions on a page panicked", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			err = p.giveUp(engi.Errorf(engi.Internal, "engi could not work on the answer"))
		} else if engi.Is(err, engi.Invalid) { // however often it is tried
			err = p.giveUp(err)
		}
	}()
	for {
		r, err := p.opt.Store.Get(p.ctx, p.id)
		switch {
		case engi.Is(err, engi.NotFound):
			return nil
		case err != nil:
			return err
		case r.Batch == nil && len(r.Waiting) == 0:
			return nil
		case r.Batch == nil:
			r, err = p.begin(r)
		}
		if err == nil && r.Batch != nil && r.Batch.Run == "" {
			r, err = p.start(r)
		}
		if err == nil && r.Batch != nil && r.Batch.Run != "" {
			err = p.watch(r)
		}
		if err != nil {
			if _, e := p.opt.Store.Get(p.ctx, p.id); engi.Is(e, engi.NotFound) {
				return nil // the session has ended
			}
			return err
		}
	}
}

// giveUp ends the batch and the run that answers it.
func (p *processor) giveUp(cause error) error {
	r, err := p.opt.Store.Get(p.ctx, p.id)
	if err == nil && r.Batch != nil && r.Batch.Run != "" {
		err = p.opt.Agents.Cancel(p.ctx, r.Owner, r.Batch.Run)
	}
	if err == nil {
		_, err = p.fail(cause)
	}
	return err
}

// begin makes a batch of the actions that wait, with all that the run is to be told:
// whoever starts it again after a crash must ask for the same.
func (p *processor) begin(r Record) (Record, error) {
	some, size := r.Waiting[:1], len(r.Waiting[0].Data)
	for _, a := range r.Waiting[1:] {
		first := some[0]
		size += len(a.Data)
		if size > maxBatch || a.Agent != first.Agent || a.Model != first.Model || !slices.Equal(a.Scopes, first.Scopes) {
			break
		}
		some = r.Waiting[:len(some)+1]
	}
	page, err := p.pageAt(p.ctx, r, 0)
	if err != nil {
		return r, err
	}
	recent, past, err := p.history(p.ctx, r, some)
	if err != nil {
		return r, err
	}
	input := promptText(page.HTML(), recent, past, some)
	return p.opt.Store.Change(p.ctx, p.id, func(r *Record, _ Emit) error {
		if r.Batch != nil || len(r.Waiting) < len(some) || r.Waiting[0].Seq != some[0].Seq {
			return nil // somebody has cancelled them
		}
		r.Batch = &Batch{Actions: some, Input: input}
		r.Waiting = r.Waiting[len(some):]
		return nil
	})
}

// start starts the run of a batch, once, however often it is called, and records it.
func (p *processor) start(r Record) (_ Record, err error) {
	for wait := firstWait; ; wait = min(2*wait, shortWait) {
		b := r.Batch
		if b == nil || b.Run != "" {
			return r, nil
		}
		if b.Cancelled {
			return p.finish(eventData{State: engi.RunCancelled})
		}
		spec := engi.RunSpec{
			Owner: r.Owner, Agent: b.Actions[0].Agent, Model: b.Actions[0].Model, Scopes: b.Actions[0].Scopes, System: p.system(),
			Input: b.Input, Conversation: b.Talk, Note: noteOf(p.id), Idempotency: fmt.Sprintf("ui:%s:%d:%d", p.id, b.Actions[0].Seq, b.Retry),
		}
		if p.opt.Sandbox {
			spec.Session = string(p.id)
		}
		run, err := p.opt.Agents.Start(p.ctx, spec)
		if err == nil {
			return p.started(run.ID)
		}
		switch again := engi.RetryOf(err).AfterMillis; {
		case p.ctx.Err() != nil:
			return r, err
		case engi.Is(err, engi.Unavailable):
		case engi.Is(err, engi.Exhausted) && again > 0 && again <= shortWait.Milliseconds():
			// Other runs of the owner end some time.
		case engi.Is(err, engi.Conflict) && b.Talk != "" && wait < shortWait:
			// The run before it in the conversation has ended, but not all of it is gone.
		default:
			return p.fail(err)
		}
		p.setQueue(true)
		select {
		case <-time.After(wait):
		case <-p.nudge:
			wait = firstWait
		case <-p.ctx.Done():
		}
		p.setQueue(false)
		if r, err = p.opt.Store.Get(p.ctx, p.id); err != nil {
			return r, err
		}
	}
}

func (p *processor) setQueue(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = on
}

// next has one of those that wait for others to end try again to start a run.
func (s *Service) next() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.processors {
		if p.queue {
			p.queue = false
			select {
			case p.nudge <- struct{}{}:
			default:
			}
			return
		}
	}
}

// started records which run answers.
func (p *processor) started(run engi.RunID) (Record, error) {
	r, err := p.opt.Store.Change(p.ctx, p.id, func(r *Record, _ Emit) error {
		if r.Batch != nil {
			b := *r.Batch
			b.Run, b.Input = run, ""
			r.Batch = &b
		}
		return nil
	})
	if err == nil && r.Batch != nil && r.Batch.Cancelled {
		err = p.opt.Agents.Cancel(p.ctx, r.Owner, run)
	}
	return r, err
}

// fail ends a batch that no run answers.
func (p *processor) fail(cause error) (Record, error) {
	return p.finish(
		eventData{Text: cause.Error(), Remedy: engi.RemedyOf(cause)},
		eventData{State: engi.RunFailed},
	)
}

// finish ends the batch, with events that end with the one of its end.
func (p *processor) finish(last ...eventData) (Record, error) {
	return p.opt.Store.Change(p.ctx, p.id, func(r *Record, emit Emit) error {
		if r.Batch == nil {
			return nil
		}
		for i, d := range last {
			d.Run = r.Batch.Run
			data, err := d.encode()
			if err != nil {
				return err
			}
			kind := engi.EventPageFailed
			if i == len(last)-1 {
				kind = engi.EventPageDone
			}
			if _, err := emit(kind, data, ""); err != nil {
				return err
			}
		}
		r.Batch = nil
		return nil
	})
}
