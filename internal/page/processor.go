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
	"github.com/engi-dev/engi/internal/idempotency"
)

const (
	maxRetries = 2 // maximum number of runs of a batch after the first, to correct lines without effect
	shortWait  = 5 * time.Second
	firstWait  = 100 * time.Millisecond
)

// A processor is the goroutine that handles one page while it has work to do.
// Each page has at most one, so that only [Service.Act] and [Service.Cancel] change the record
// concurrently.
type processor struct {
	*Service
	id    engi.SessionID
	log   *slog.Logger
	ctx   context.Context
	leave context.CancelFunc
	nudge chan struct{} // capacity 1; receives a value when the record has changed
	again bool          // guarded by Service.mu; the record must be checked once more before the end
	queue bool          // guarded by Service.mu; the processor waits for its turn to start a run
}

// wake makes a processor check the record of a session.
func (s *Service) wake(id engi.SessionID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.serving {
		return // the next process checks all records
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

// run works until the page has no work to do.
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
// this process or another, because all its progress is in the record or in the log.
func (p *processor) work() (err error) {
	defer func() {
		// A panic on hostile input must not end the process, nor happen again in the next one.
		if v := recover(); v != nil {
			p.log.ErrorContext(p.ctx, "answering actions on a page panicked", "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			err = p.giveUp(engi.Errorf(engi.Internal, "engi could not work on the answer"))
		} else if engi.Is(err, engi.Invalid) { // every attempt would fail in the same way
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

// giveUp ends the batch and its run.
func (p *processor) giveUp(cause error) error {
	r, err := p.opt.Store.Get(p.ctx, p.id)
	if err == nil && r.Batch != nil && r.Batch.Run != "" {
		err = p.opt.Agents.Cancel(p.ctx, r.Owner.Viewer(), r.Batch.Run)
	}
	if err == nil {
		_, err = p.fail(cause)
	}
	return err
}

// begin makes a batch of the waiting actions, with the complete prompt of the run, because
// a repeated start after a crash must send the same request.
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
			return nil // the actions were cancelled
		}
		r.Batch = &Batch{Actions: some, Input: input}
		r.Waiting = r.Waiting[len(some):]
		return nil
	})
}

// start starts the run of a batch exactly once, even if it is called repeatedly, and records the run.
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
			// Other runs of the owner will end.
		case engi.Is(err, engi.Conflict) && b.Talk != "" && wait < shortWait:
			// The earlier run of the conversation has ended, but is not completely removed.
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

// next wakes one processor that waits for its turn to start a run.
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

// started records the run that answers the batch.
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
		err = p.opt.Agents.Cancel(p.ctx, r.Owner.Viewer(), run)
	}
	return r, err
}

// fail ends a batch without a run.
func (p *processor) fail(cause error) (Record, error) {
	return p.finish(
		eventData{Text: cause.Error(), Remedy: engi.RemedyOf(cause)},
		eventData{State: engi.RunFailed},
	)
}

// finish ends the batch and appends events, the last of which reports the end.
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
			if _, err := emit(kind, data, idempotency.Request{}); err != nil {
				return err
			}
		}
		r.Batch = nil
		return nil
	})
}
