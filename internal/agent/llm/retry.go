package llm

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
)

// A retryingModel retries temporary failures and then falls back to the next of
// its models.
type retryingModel struct {
	registry *Registry
	models   []Model // at least one; the others are fallbacks
}

func (m *retryingModel) Name() string { return m.models[0].Name() }

func (m *retryingModel) Generate(ctx context.Context, q Request, out func(Delta) error) (Reply, error) {
	if err := m.registry.checkBudget(ctx, q.Owner); err != nil {
		return Reply{}, err
	}
	began := time.Now()
	var spent engi.Tokens
	if q.Interrupted {
		spent = m.charge(q.Owner, m.models[0].Name(), estimate(q, 0, engi.Tokens{}), 0, engi.Errorf(engi.Unavailable, "the node stopped before the answer came"))
	}
	var last error
	partial := false // out has received parts of a failed attempt
	var outErr error
	var stream func(Delta) error
	if out != nil {
		stream = func(d Delta) error {
			partial = true
			outErr = out(d)
			return outErr
		}
	}
	for _, model := range m.models {
		pause := m.registry.opt.Backoff
		for attempt := range m.registry.opt.Attempts {
			if attempt > 0 {
				wait := max(pause, time.Duration(engi.RetryOf(last).AfterMillis)*time.Millisecond)
				if wait > maxWait {
					break // the next model, if there is one, is faster
				}
				pause *= 2
				if clock.Sleep(ctx, wait) != nil {
					return Reply{Tokens: spent}, source{name: model.Name()}.classify(ctx.Err())
				}
			}
			if partial {
				if err := out(Delta{Reset: true}); err != nil {
					return Reply{Tokens: spent}, err
				}
			}
			partial = false
			r, err := m.attempt(ctx, model, q, stream)
			spent = spent.Add(r.Tokens)
			if err == nil {
				r.Tokens, r.Took = spent, time.Since(began)
				return r, nil
			}
			if outErr != nil {
				return Reply{Tokens: spent}, outErr
			}
			last = err
			if !temporary(err) || ctx.Err() != nil {
				break
			}
		}
		if !temporary(last) && !engi.Is(last, engi.Denied) || ctx.Err() != nil {
			break // another model would refuse it too
		}
	}
	return Reply{Tokens: spent}, last
}

// maxWait is the maximum wait before a retry. If a provider asks for more, the
// next model is tried instead.
const maxWait = 30 * time.Second

func (m *retryingModel) attempt(ctx context.Context, model Model, q Request, out func(Delta) error) (Reply, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, m.registry.opt.Timeout,
		engi.Errorf(engi.Unavailable, "ask %s: the answer was not complete within %v", model.Name(), m.registry.opt.Timeout))
	defer cancel()
	r, err := model.Generate(ctx, q, out)
	r.Tokens = m.charge(q.Owner, model.Name(), r.Tokens, time.Since(began), err)
	return r, err
}

// charge reports an attempt, and returns its tokens with their cost.
func (m *retryingModel) charge(owner engi.Owner, model string, t engi.Tokens, took time.Duration, err error) engi.Tokens {
	t.Calls = 1
	t.Cost = m.registry.price(model, t)
	if m.registry.opt.OnCall != nil {
		m.registry.opt.OnCall(Call{Owner: owner, Model: model, Tokens: t, Took: took, Err: err})
	}
	return t
}

func (r *Registry) checkBudget(ctx context.Context, owner engi.Owner) error {
	if r.opt.CheckBudget == nil {
		return nil
	}
	return r.opt.CheckBudget(ctx, owner)
}
