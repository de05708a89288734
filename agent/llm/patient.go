package llm

import (
	"context"
	"time"

	"github.com/engi-dev/engi"
)

// patient is a model that repeats what fails for a passing reason and then
// asks the next of its models.
type patient struct {
	reg    *Registry
	models []Model // at least one
}

func (p *patient) Name() string { return p.models[0].Name() }

func (p *patient) Generate(ctx context.Context, q Request, out func(Delta) error) (Reply, error) {
	if err := p.reg.afford(ctx, q.Owner); err != nil {
		return Reply{}, err
	}
	began := time.Now()
	var spent engi.Tokens
	var last error
	again := false // the caller has seen parts of an attempt that failed
	for _, m := range p.models {
		pause := p.reg.opt.Pause
		for attempt := range p.reg.opt.Attempts {
			if attempt > 0 {
				wait := max(pause, time.Duration(engi.RetryOf(last).AfterMillis)*time.Millisecond)
				if wait > maxWait {
					break // the next model, if there is one, is sooner
				}
				pause *= 2
				select {
				case <-time.After(wait):
				case <-ctx.Done():
					return Reply{}, classify(m.Name(), ctx.Err())
				}
			}
			if again && out != nil {
				if err := out(Delta{Again: true}); err != nil {
					return Reply{}, err
				}
			}
			again = false
			var broken error
			r, err := p.attempt(ctx, m, q, func(d Delta) error {
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
			if !passing(err) || ctx.Err() != nil {
				break
			}
		}
		if !passing(last) && engi.KindOf(last) != engi.Denied || ctx.Err() != nil {
			break // another model would not make sense of it either
		}
	}
	return Reply{Tokens: spent}, last
}

// maxWait is the longest pause that a provider can ask for without being left
// for the next model.
const maxWait = 30 * time.Second

func (p *patient) attempt(ctx context.Context, m Model, q Request, out func(Delta) error, streamed bool) (Reply, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, p.reg.opt.Timeout,
		engi.Errorf(engi.Unavailable, "ask %s: no whole answer within %v", m.Name(), p.reg.opt.Timeout))
	defer cancel()
	if !streamed {
		out = nil
	}
	r, err := m.Generate(ctx, q, out)
	r.Tokens.Calls = 1
	r.Tokens.Cost = p.reg.price(m.Name(), r.Tokens)
	if p.reg.opt.Spend != nil {
		p.reg.opt.Spend(Call{Owner: q.Owner, Model: m.Name(), Tokens: r.Tokens, Took: time.Since(began), Err: err})
	}
	return r, err
}

func (r *Registry) afford(ctx context.Context, owner engi.Owner) error {
	if r.opt.Afford == nil {
		return nil
	}
	return r.opt.Afford(ctx, owner)
}
