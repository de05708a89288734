package agent

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/agent/llm"
	"github.com/engi-dev/engi/agent/tool"
)

// run is the life of a run.
func (l *running) run() {
	defer l.leave()
	select {
	case <-l.kept:
	case <-l.ctx.Done():
		select {
		case <-l.kept: // cancelled as soon as it was kept: that must be kept, too
		default:
			return
		}
	}
	ctx, cancel := context.WithTimeoutCause(l.ctx, l.o.opt.Timeout,
		engi.Errorf(engi.Expired, "run %s took longer than %v", l.rec.ID, l.o.opt.Timeout))
	defer cancel()
	if err := l.work(ctx); err != nil {
		cause := context.Cause(ctx)
		switch {
		case errors.Is(cause, errStopping):
			return // this node when it is back, or another one, goes on
		case errors.Is(cause, errCancelled):
			l.rec.State = engi.RunCancelled
		default:
			if cause != nil {
				err = cause
			}
			l.rec.State = engi.RunFailed
			l.rec.Error = &engi.Error{Kind: engi.KindOf(err), Text: err.Error(), Remedy: engi.RemedyOf(err)}
		}
	}
	l.rec.Ended = time.Now().UTC()
	done := l.rec.Run
	l.rec.Seq = l.out.Len() + 1 // the end is told at a greater one
	keep, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	if err := l.o.opt.Store.Update(keep, l.rec, l.saved, l.messages[l.saved:]); err != nil {
		l.o.opt.Log.ErrorContext(ctx, "keep the end of a run", "run", l.rec.ID, "error", err)
		l.rec.Ended = time.Time{}
		return // it goes on after the next start
	}
	l.saved = len(l.messages)
	if l.o.opt.Ended != nil {
		l.o.opt.Ended(keep, done)
	}
	l.rec.Steps-- // tell counts the step that is not over yet
	l.tell(engi.RunEvent{Kind: engi.RunEnd})
}

// work takes steps until the run is over, and says in the record how it ended.
func (l *running) work(ctx context.Context) error {
	a := l.o.agents[l.rec.Agent]
	if a.Name == "" {
		return engi.Errorf(engi.NotFound, "agent %s is not configured any more", l.rec.Agent)
	}
	model, err := l.o.opt.Models(l.rec.Model)
	if err != nil {
		return err
	}
	shape := l.o.shapes[a.Name]
	if l.rec.Spec.Output != nil {
		if shape, err = llm.ParseShape(l.rec.Spec.Output); err != nil {
			return err
		}
	}
	if l.o.opt.Inject != nil {
		if l.deps, err = l.o.opt.Inject(ctx, l.rec.Run); err != nil {
			return err
		}
	}
	tools, release, err := l.tools(ctx, a)
	if err != nil {
		return err
	}
	defer release()
	q := llm.Request{Owner: l.rec.Owner, System: l.system(ctx, a, tools), MaxTokens: a.MaxTokens, Temperature: a.Temperature}
	for _, t := range tools {
		q.Tools = append(q.Tools, t.Tool)
	}
	for {
		if calls := open(l.messages); len(calls) > 0 {
			if err := l.call(ctx, tools, calls); err != nil {
				return err
			}
		}
		if n := len(l.messages); shape != nil && n > 0 && l.messages[n-1].Role == engi.RoleAssistant {
			q.Messages = append(slices.Clone(l.messages), engi.Message{Role: engi.RoleUser, Text: "Now give the final answer in the form that is asked for."})
			return l.shaped(ctx, model, q, shape)
		}
		switch {
		case l.rec.Steps >= a.Steps:
			return l.end(engi.RunStopped, "steps")
		case a.Budget > 0 && l.rec.Tokens.Cost >= a.Budget:
			return l.end(engi.RunStopped, "budget")
		}
		q.Messages = l.messages
		if shape != nil && len(tools) == 0 {
			return l.shaped(ctx, model, q, shape)
		}
		r, err := model.Generate(ctx, q, l.delta)
		l.rec.Tokens = l.rec.Tokens.Add(r.Tokens)
		if err != nil {
			return err
		}
		l.messages = append(l.messages, distinct(r.Message, l.messages))
		l.rec.Steps++
		l.rec.Text = r.Message.Text
		if len(r.Message.Calls) == 0 {
			// The last answer is kept together with the end of the run: a
			// crash in between would ask for it again.
			switch {
			case r.Stop == llm.StopLength:
				return l.end(engi.RunStopped, "length")
			case r.Stop == llm.StopFilter:
				return l.end(engi.RunStopped, "filter")
			case shape == nil:
				return l.end(engi.RunDone, "")
			}
		}
		if err := l.save(ctx); err != nil {
			return err
		}
	}
}

func (l *running) end(s engi.RunState, reason string) error {
	l.rec.State, l.rec.Reason = s, reason
	return nil
}

// shaped asks for the answer in a form.
func (l *running) shaped(ctx context.Context, model llm.Model, q llm.Request, shape *llm.Shape) error {
	q.Tools = nil
	value, r, err := llm.Shaped(ctx, model, q, shape, l.delta)
	l.rec.Tokens = l.rec.Tokens.Add(r.Tokens)
	if err != nil {
		return err
	}
	l.rec.Output, l.rec.Text = value, string(value)
	l.rec.Steps++
	if n := len(l.messages); n > 0 && l.messages[n-1].Role == engi.RoleAssistant {
		l.messages[n-1].Text = string(value) // what it said before was on the way to this
		l.saved = min(l.saved, n-1)
	} else {
		l.messages = append(l.messages, engi.Message{Role: engi.RoleAssistant, Text: string(value)})
	}
	return l.end(engi.RunDone, "")
}

// system is what the model is told first. Tools that are not offered leave no
// trace in it.
func (l *running) system(ctx context.Context, a engi.AgentSpec, tools []tool.Tool) string {
	parts := []string{a.System}
	for _, t := range tools {
		if t.Prompt != nil {
			parts = append(parts, t.Prompt(ctx, l.env()))
		}
	}
	parts = append(parts, l.rec.Spec.System)
	parts = slices.DeleteFunc(parts, func(s string) bool { return strings.TrimSpace(s) == "" })
	return strings.Join(parts, "\n\n")
}

// tools returns what the model may call in this run, and what lets go of it.
func (l *running) tools(ctx context.Context, a engi.AgentSpec) (all []tool.Tool, release func(), err error) {
	env := l.env()
	wants := func(name string) bool { return slices.Contains(a.Tools, "*") || slices.Contains(a.Tools, name) }
	for _, t := range l.o.tools {
		if (wants(t.Name) || t.Name == "read_result" && len(a.Tools) > 0) && env.Has(t.Needs) && (t.Offered == nil || t.Offered(ctx, env)) {
			all = append(all, t)
		}
	}
	var opened []func()
	release = func() {
		for _, f := range slices.Backward(opened) {
			f()
		}
	}
	for _, s := range l.o.opt.Sources {
		if !wants(s.Name()) {
			continue
		}
		more, leave, err := s.Open(ctx, env)
		if err != nil {
			release()
			return nil, nil, engi.Errorf(engi.KindOf(err), "tools of %s: %w", s.Name(), err).WithRemedy("take %s out of the agent's tools to go on without", s.Name())
		}
		opened = append(opened, leave)
		for _, t := range more {
			if !slices.ContainsFunc(all, func(o tool.Tool) bool { return o.Name == t.Name }) {
				all = append(all, t)
			}
		}
	}
	// Providers keep what they have read before: the order must not change.
	slices.SortFunc(all, func(a, b tool.Tool) int { return strings.Compare(a.Name, b.Name) })
	return all, release, nil
}

func (l *running) env() tool.Env {
	return tool.Env{Owner: l.rec.Owner, Run: l.rec.ID, Sandbox: l.rec.Sandbox, Session: l.rec.Session, Deps: l.deps,
		Kept: func(ctx context.Context, call string) ([]byte, error) {
			return l.o.opt.Results.Kept(ctx, l.rec.ID, call)
		}}
}

// delta tells what the model says.
func (l *running) delta(d llm.Delta) error {
	switch {
	case d.Again:
		l.tell(engi.RunEvent{Kind: engi.RunReset})
	case d.Text != "":
		l.tell(engi.RunEvent{Kind: engi.RunText, Text: d.Text})
	case d.Thought != "":
		l.tell(engi.RunEvent{Kind: engi.RunThought, Text: d.Thought})
	case d.Object != nil:
		if raw := partial(d.Object); raw != nil {
			l.tell(engi.RunEvent{Kind: engi.RunPartial, Object: raw})
		}
	}
	return nil
}

// distinct gives calls IDs that tell them apart within the run: what a
// provider sends may repeat itself.
func distinct(m engi.Message, before []engi.Message) engi.Message {
	m.Calls = slices.Clone(m.Calls)
	seen, n := map[string]bool{}, len(before)
	for _, old := range before {
		for _, c := range old.Calls {
			seen[c.ID] = true
		}
	}
	for i := range m.Calls {
		c := &m.Calls[i]
		if c.ID == "" || len(c.ID) > 100 || seen[c.ID] {
			c.ID = fmt.Sprintf("call_%d_%d", n, i)
			for seen[c.ID] {
				c.ID += "_"
			}
		}
		seen[c.ID] = true
	}
	return m
}

const (
	parallel   = 8  // calls at once
	maxPerStep = 64 // calls of one answer
)

// call makes calls side by side and keeps each result as it comes. Calls that
// a crash has cut short are made again only if that does no harm.
func (l *running) call(ctx context.Context, tools []tool.Tool, calls []engi.ToolCall) error {
	last := len(l.messages) - 1
	resumed := l.messages[last].Role == engi.RoleTool
	if !resumed {
		l.messages = append(l.messages, engi.Message{Role: engi.RoleTool})
		last++
		// From here on it is known that the calls may have begun.
		if err := l.save(ctx); err != nil {
			return err
		}
	}
	var mu sync.Mutex // of the message, the record and what is saved
	var first error
	slots := make(chan struct{}, parallel)
	var wg sync.WaitGroup
	for i, c := range calls {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			r, err := l.one(ctx, tools, c, i, resumed)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				if first == nil {
					first = err
				}
				return
			}
			m := l.messages[last]
			m.Results = append(slices.Clone(m.Results), r)
			l.messages[last] = m
			l.saved = min(l.saved, last)
			err = l.save(ctx)
			if err == nil {
				l.tell(engi.RunEvent{Kind: engi.RunResult, Call: &engi.ToolCall{ID: c.ID, Name: c.Name}, Result: &r})
			} else if first == nil {
				first = err
			}
		})
	}
	wg.Wait()
	return first
}

// one makes a call.
func (l *running) one(ctx context.Context, tools []tool.Tool, c engi.ToolCall, i int, resumed bool) (_ engi.ToolResult, err error) {
	result := engi.ToolResult{Call: c.ID, Name: c.Name}
	l.tell(engi.RunEvent{Kind: engi.RunCall, Call: &c})
	var r tool.Result
	at := slices.IndexFunc(tools, func(t tool.Tool) bool { return t.Name == c.Name })
	switch {
	case i >= maxPerStep:
		r = tool.Failure(engi.Errorf(engi.Invalid, "more than %d calls at once", maxPerStep).WithRemedy("make them in several steps"))
	case at < 0:
		names := make([]string, len(tools))
		for i, t := range tools {
			names[i] = t.Name
		}
		r = tool.Failure(engi.Errorf(engi.NotFound, "there is no tool %.80q", c.Name).WithRemedy("use one of: %s", strings.Join(names, ", ")))
	case resumed && !tools[at].Repeatable:
		r = tool.Failure(engi.Errorf(engi.Unavailable, "the call was cut short by a restart, and it is unknown how far it came").
			WithRemedy("look at what it has done before you make it again"))
	default:
		if r, err = l.guarded(ctx, tools[at], c); err != nil {
			return result, err
		}
	}
	result.Failed, result.Images = r.Failed, r.Images
	if result.Text, err = l.shorten(ctx, c, r.Text); err != nil {
		return result, err
	}
	return result, nil
}

// guarded makes a call whose panic is its own.
func (l *running) guarded(ctx context.Context, t tool.Tool, c engi.ToolCall) (r tool.Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			l.o.opt.Log.ErrorContext(ctx, "a tool panicked", "tool", t.Name, "run", l.rec.ID, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			r, err = tool.Failure(engi.Errorf(engi.Internal, "the tool %s broke", t.Name)), nil
		}
	}()
	return t.Run(ctx, &tool.Call{Env: l.env(), ID: c.ID, Out: func(s engi.Stream, data []byte) {
		if len(data) > 0 {
			l.tell(engi.RunEvent{Kind: engi.RunOutput, Stream: s, Text: strings.ToValidUTF8(string(data), "\ufffd"), Call: &engi.ToolCall{ID: c.ID, Name: c.Name}})
		}
	}}, c.Arguments)
}

// shorten keeps a text that is too long for the model and returns its
// beginning and end.
func (l *running) shorten(ctx context.Context, c engi.ToolCall, text string) (string, error) {
	text = strings.ToValidUTF8(text, "\ufffd")
	if len(text) <= tool.ResultLimit {
		return text, nil
	}
	if err := l.o.opt.Results.Keep(ctx, l.rec.ID, c.ID, []byte(text)); err != nil {
		return "", err
	}
	const head, tail = tool.ResultLimit / 2, tool.ResultLimit / 4
	a, b := head, len(text)-tail
	for !utf8.RuneStart(text[a]) {
		a--
	}
	for !utf8.RuneStart(text[b]) {
		b++
	}
	return fmt.Sprintf("%s\n[… %d of %d bytes left out; read_result with call %q and an offset shows them …]\n%s", text[:a], b-a, len(text), c.ID, text[b:]), nil
}
