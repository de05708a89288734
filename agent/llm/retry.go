package llm

import (
	"context"
	"time"

	"github.com/engi-dev/engi"
)

// patient is a model that repeats what fails for a passing reason and then
// asks the next of its models.
type retryingModel struct {
	registry *Registry
	models   []Model // at least one
}

func (m *retryingModel) Name() string { return m.models[0].Name() }

func (m *retryingModel) Generate(ctx context.Context, q Request, out func(Delta) error) (Reply, error) {
	if err := m.registry.checkBudget(ctx, q.Owner); err != nil {
		return Reply{}, err
	}
	began := time.Now()
	var spent engi.Tokens
	var last error
	again := false // the caller has seen parts of an attempt that failed
	for _, model := range m.models {
		pause := m.registry.opt.Backoff
		for attempt := range m.registry.opt.Attempts {
			if attempt > 0 {
				wait := max(pause, time.Duration(engi.RetryOf(last).AfterMillis)*time.Millisecond)
				if wait > maxWait {
					break // the next model, if there is one, is sooner
				}
				pause *= 2
				select {
				case <-time.After(wait):
				case <-ctx.Done():
					return Reply{}, classify(model.Name(), ctx.Err())
				}
			}
			if again && out != nil {
				if err := out(Delta{Again: true}); err != nil {
					return Reply{}, err
				}
			}
			again = false
			var broken error
			r, err := m.attempt(ctx, model, q, func(d Delta) error {
				again = true
				broken = out(d)
				return broken
			}, out != nil)
			spent = spent.Add(r.Tokens)
			if err == nil {
				r.Tokens, r.Took = spent, time.Since(began)
				return r, nil
			}
			if broken != nil {
				return Reply{}, broken
			}
			last = err
			if !temporary(err) || ctx.Err() != nil {
				break
			}
		}
		if !temporary(last) && engi.KindOf(last) != engi.Denied || ctx.Err() != nil {
			break // another model would not make sense of it either
		}
	}
	return Reply{Tokens: spent}, last
}

// maxWait is the longest pause that a provider can ask for without being left
// for the next model.
const maxWait = 30 * time.Second

func (m *retryingModel) attempt(ctx context.Context, model Model, q Request, out func(Delta) error, streamed bool) (Reply, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, m.registry.opt.Timeout,
		engi.Errorf(engi.Unavailable, "ask %s: no whole answer within %v", model.Name(), m.registry.opt.Timeout))
	defer cancel()
	if !streamed {
		out = nil
	}
	r, err := model.Generate(ctx, q, out)
	r.Tokens.Calls = 1
	r.Tokens.Cost = m.registry.price(model.Name(), r.Tokens)
	if m.registry.opt.OnCall != nil {
		m.registry.opt.OnCall(Call{Owner: q.Owner, Model: model.Name(), Tokens: r.Tokens, Took: time.Since(began), Err: err})
	}
	return r, err
}

func (r *Registry) checkBudget(ctx context.Context, owner engi.Owner) error {
	if r.opt.CheckBudget == nil {
		return nil
	}
	return r.opt.CheckBudget(ctx, owner)
}
