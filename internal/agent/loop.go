package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

// loop runs steps until the run ends, and records the end.
func (a *activeRun) loop(ctx context.Context) error {
	spec := a.runner.agents[a.rec.Agent]
	if spec.Name == "" {
		return engi.Errorf(engi.NotFound, "agent %s is no longer configured", a.rec.Agent)
	}
	model, err := a.runner.opt.Models(a.rec.Model)
	if err != nil {
		return err
	}
	schema := a.runner.schemas[spec.Name]
	if a.rec.Spec.Output != nil {
		if schema, err = llm.ParseSchema(a.rec.Spec.Output); err != nil {
			return err
		}
	}
	if a.runner.opt.Deps != nil {
		if a.deps, err = a.runner.opt.Deps(ctx, a.rec.Run); err != nil {
			return err
		}
	}
	tools, release, err := a.tools(ctx, spec)
	if err != nil {
		return err
	}
	defer release()
	system := a.system(ctx, spec, tools)
	if schema != nil && len(tools)+len(a.rec.Spec.Tools) > 0 {
		// A separate request for the JSON would cost one more call.
		system += "\n\nWhen the work is done, give the final answer as JSON that conforms to this schema, and nothing else:\n" + string(schema.JSON())
	}
	if a.confirm, err = a.confirms(spec, tools); err != nil {
		return err
	}
	theirs := a.rec.Spec.Tools
	tools = slices.DeleteFunc(tools, func(t tool.Tool) bool { return isNamed(theirs, t.Name) })
	s := a.rec.Spec.Sampling
	q := llm.Request{
		Owner: a.rec.Owner, System: system, MaxTokens: cmp.Or(s.MaxTokens, spec.MaxTokens), Temperature: cmp.Or(s.Temperature, spec.Temperature),
		TopP: s.TopP, Stop: s.Stop, OneCall: s.OneCall, Effort: cmp.Or(s.Effort, spec.Effort),
	}
	for _, t := range tools {
		q.Tools = append(q.Tools, t.Tool)
	}
	q.Tools = append(q.Tools, theirs...)
	// If no calls are pending, the interrupted run was waiting for the model.
	q.Interrupted = a.resumed && len(pendingCalls(a.messages)) == 0
	faults := 0 // consecutive answers that the model was asked to correct
	for {
		if calls := pendingCalls(a.messages); len(calls) > 0 {
			own := slices.DeleteFunc(slices.Clone(calls), func(c engi.ToolCall) bool { return isNamed(theirs, c.Name) })
			if len(own) > 0 {
				if err := a.callTools(ctx, tools, own); err != nil {
					return err
				}
			}
			if len(own) < len(calls) {
				return a.handOver(pendingCalls(a.messages))
			}
		}
		if n := len(a.messages); schema != nil && n > 0 && a.messages[n-1].Role == engi.RoleAssistant {
			if value, err := schema.Check(a.messages[n-1].Text); err == nil {
				return a.finishOutput(value) // the first answer conforms
			}
			q.Messages = append(slices.Clone(a.messages), engi.Message{Role: engi.RoleUser, Text: "Now give the final answer in the form that is asked for."})
			return a.generateOutput(ctx, model, q, schema)
		}
		switch {
		case a.rec.Steps >= spec.Steps:
			return a.end(engi.RunStopped, "steps")
		case spec.Budget > 0 && a.rec.Tokens.Cost >= spec.Budget:
			return a.end(engi.RunStopped, "budget")
		}
		q.Messages = a.messages
		q.Choice = llm.Choice(a.rec.Spec.Choice)
		if a.rec.Steps > 0 && q.Choice != llm.ChoiceNone {
			q.Choice = "" // a forced choice would make the model call tools for ever
		}
		if schema != nil && len(q.Tools) == 0 {
			return a.generateOutput(ctx, model, q, schema)
		}
		reply, err := model.Generate(ctx, q, a.emitDelta)
		q.Interrupted = false
		a.rec.Tokens = a.rec.Tokens.Add(reply.Tokens)
		if err != nil {
			return err
		}
		a.messages = append(a.messages, uniqueCallIDs(reply.Message, a.messages))
		a.rec.Steps++
		a.rec.Text = reply.Message.Text
		if again := correction(reply); again != "" && faults < maxFaults {
			faults++
			a.messages = append(a.messages, engi.Message{Role: engi.RoleUser, Text: again})
			if err := a.save(ctx); err != nil {
				return err
			}
			continue
		}
		faults = 0
		if len(reply.Message.Calls) == 0 {
			// The last answer is stored together with the end of the run. Otherwise, after
			// a crash in between, the model would be asked again.
			switch {
			case reply.Stop == llm.StopLength:
				return a.end(engi.RunStopped, "length")
			case reply.Stop == llm.StopFilter:
				return a.withheld(reply)
			case reply.Stop == llm.StopMalformed:
				return a.end(engi.RunStopped, "malformed")
			case schema == nil:
				return a.end(engi.RunDone, "")
			}
		}
		if err := a.save(ctx); err != nil {
			return err
		}
	}
}

func isNamed(tools []engi.Tool, name string) bool {
	return slices.ContainsFunc(tools, func(t engi.Tool) bool { return t.Name == name })
}

// handOver ends the run with calls of the caller's tools.
func (a *activeRun) handOver(calls []engi.ToolCall) error {
	for _, c := range calls {
		a.emit(engi.RunUpdate{Kind: engi.RunCall, Call: &c})
	}
	a.rec.Calls = calls
	return a.end(engi.RunDone, "")
}

// maxFaults is the maximum number of consecutive requests to correct an answer.
const maxFaults = 3

// correction returns a message for a model whose calls cannot be made, because
// they are cut off or broken. Without a message, the model would repeat them
// for ever. It is empty if there is nothing to correct.
func correction(r llm.Reply) string {
	switch {
	case r.Stop == llm.StopLength && r.Dropped > 0:
		return "(Your answer became too long in the middle of a tool call, which was not made. Write less at once, for example in several calls.)"
	case r.Stop == llm.StopMalformed:
		return "(Your answer could not be read: " + r.Reason + ". No tool was called. Answer again, with valid calls.)"
	}
	return ""
}

// withheld ends the run because the provider withheld the answer, or the model
// refused to give it.
func (a *activeRun) withheld(r llm.Reply) error {
	a.rec.Error = engi.Errorf(engi.Denied, "%s withheld the answer: %s", r.Model, cmp.Or(r.Reason, "no reason given")).
		WithRemedy("change the input, or choose another model")
	return a.end(engi.RunStopped, "filter")
}

func (a *activeRun) end(s engi.RunState, reason string) error {
	a.rec.State, a.rec.Reason = s, reason
	return nil
}

// generateOutput requests the answer in the form of schema, and ends the run.
func (a *activeRun) generateOutput(ctx context.Context, model llm.Model, q llm.Request, schema *llm.Schema) error {
	q.Tools = nil
	value, reply, err := llm.GenerateJSON(ctx, model, q, schema, a.emitDelta)
	a.rec.Tokens = a.rec.Tokens.Add(reply.Tokens)
	switch {
	case err == nil:
	case reply.Stop == llm.StopFilter:
		a.rec.Text = reply.Message.Text
		return a.withheld(reply)
	case reply.Stop == llm.StopLength:
		a.rec.Text = reply.Message.Text
		return a.end(engi.RunStopped, "length")
	default:
		return err
	}
	a.rec.Steps++
	return a.finishOutput(value)
}

// finishOutput ends the run with the answer in the requested form.
func (a *activeRun) finishOutput(value json.RawMessage) error {
	a.rec.Output, a.rec.Text = value, string(value)
	if n := len(a.messages); n > 0 && a.messages[n-1].Role == engi.RoleAssistant {
		// The value replaces the prose before it.
		a.messages[n-1].Text, a.messages[n-1].Signed = string(value), nil
		a.saved = min(a.saved, n-1)
	} else {
		a.messages = append(a.messages, engi.Message{Role: engi.RoleAssistant, Text: string(value)})
	}
	return a.end(engi.RunDone, "")
}

// system returns the system prompt: the agent's, the one of its tools, and the
// run's.
func (a *activeRun) system(ctx context.Context, spec engi.AgentSpec, tools []tool.Tool) string {
	parts := []string{spec.System}
	for _, t := range tools {
		if t.Prompt != nil {
			parts = append(parts, t.Prompt(ctx, a.env()))
		}
	}
	parts = append(parts, a.rec.Spec.System)
	if len(a.missing) > 0 {
		parts = append(parts, "These servers do not answer, so their tools are missing: "+strings.Join(a.missing, ", ")+". Say so if the task needs them.")
	}
	parts = slices.DeleteFunc(parts, func(s string) bool { return strings.TrimSpace(s) == "" })
	return strings.Join(parts, "\n\n")
}

// tools returns the tools that the model may call in this run. The caller calls
// release.
func (a *activeRun) tools(ctx context.Context, spec engi.AgentSpec) (all []tool.Tool, release func(), err error) {
	env := a.env()
	wants := func(name string) bool { return slices.Contains(spec.Tools, "*") || slices.Contains(spec.Tools, name) }
	for _, t := range a.runner.tools {
		if env.May(t.Scope()) != nil {
			continue // the run's caller lacks the scope for this tool
		}
		if env.Reviews && !t.Reviews() {
			continue
		}
		if (wants(t.Name) || t.Name == "read_result" && len(spec.Tools) > 0) && env.Has(t.Needs) && (t.Available == nil || t.Available(ctx, env)) {
			all = append(all, t)
		}
	}
	var releases []func()
	release = func() {
		for _, f := range slices.Backward(releases) {
			f()
		}
	}
	for _, s := range a.runner.opt.Sources {
		if !wants(s.Name()) || env.Reviews {
			continue
		}
		more, releaseSource, err := s.Open(ctx, env)
		if err != nil && ctx.Err() == nil {
			// If a server is down, the run goes on without its tools.
			a.runner.opt.Log.WarnContext(ctx, "run without the tools of a server", "run", a.rec.ID, "server", s.Name(), "error", err)
			a.missing = append(a.missing, s.Name())
			continue
		}
		if err != nil {
			release()
			return nil, nil, engi.Errorf(engi.KindOf(err), "tools of %s: %w", s.Name(), err)
		}
		releases = append(releases, releaseSource)
		for _, t := range more {
			if !slices.ContainsFunc(all, func(o tool.Tool) bool { return o.Name == t.Name }) {
				all = append(all, t)
			}
		}
	}
	if len(all) == 1 && all[0].Name == "read_result" && !wants("read_result") {
		all = nil // there are no results to read
	}
	// Providers cache the beginning of a request: the order must not change.
	slices.SortFunc(all, func(spec, b tool.Tool) int { return strings.Compare(spec.Name, b.Name) })
	return all, release, nil
}

func (a *activeRun) env() tool.Env {
	return tool.Env{Owner: a.rec.Owner, Run: a.rec.ID, Sandbox: a.rec.Sandbox, Session: a.rec.Session, Workspace: a.rec.Workspace, Scopes: a.rec.Spec.Scopes, Reviews: a.rec.Spec.Reviews, Deps: a.deps,
		FullResult: func(ctx context.Context, call string) ([]byte, error) {
			return a.runner.opt.Results.GetResult(ctx, a.rec.ID, call)
		}}
}

// emitDelta emits a part of an answer.
func (a *activeRun) emitDelta(d llm.Delta) error {
	switch {
	case d.Reset:
		a.emit(engi.RunUpdate{Kind: engi.RunReset})
	case d.Text != "":
		a.emit(engi.RunUpdate{Kind: engi.RunText, Text: d.Text})
	case d.Thought != "":
		a.emit(engi.RunUpdate{Kind: engi.RunThought, Text: d.Thought})
	case d.Object != nil:
		if raw, err := json.Marshal(d.Object); err == nil {
			a.emit(engi.RunUpdate{Kind: engi.RunPartial, Object: raw})
		}
	}
	return nil
}

// uniqueCallIDs replaces missing, overlong and duplicate IDs of calls, so that
// they are unique within the messages. Not all providers ensure this.
func uniqueCallIDs(m engi.Message, before []engi.Message) engi.Message {
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
	parallel   = 8  // maximum number of calls at once
	maxPerStep = 64 // maximum number of calls in one answer
)

// callTools makes calls in parallel and stores each result when it arrives. Calls
// that a crash has interrupted are repeated only if the tool is repeatable.
func (a *activeRun) callTools(ctx context.Context, tools []tool.Tool, calls []engi.ToolCall) error {
	last := len(a.messages) - 1
	resumed := a.messages[last].Role == engi.RoleTool
	if !resumed {
		a.messages = append(a.messages, engi.Message{Role: engi.RoleTool})
		last++
		// After this save, the stored message says that the calls may have started.
		if err := a.save(ctx); err != nil {
			return err
		}
	}
	made := slices.DeleteFunc(slices.Clone(calls[:min(len(calls), maxPerStep)]), func(c engi.ToolCall) bool {
		return !slices.ContainsFunc(tools, func(t tool.Tool) bool { return t.Name == c.Name })
	})
	if err := a.ask(ctx, made); err != nil {
		return err
	}
	var mu sync.Mutex // guards a.messages, a.rec, a.saved and first
	var first error
	slots := make(chan struct{}, parallel)
	var wg sync.WaitGroup
	for i, c := range calls {
		wg.Go(func() {
			r, err := a.decideAndCall(ctx, tools, c, i, resumed, &mu, slots)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				m := a.messages[last]
				m.Results = append(slices.Clone(m.Results), r)
				a.messages[last] = m
				a.saved = min(a.saved, last)
				err = a.save(ctx)
			}
			if err == nil {
				a.emit(engi.RunUpdate{Kind: engi.RunResult, Call: &engi.ToolCall{ID: c.ID, Name: c.Name}, Result: &r})
			} else if first == nil {
				first = err
			}
		})
	}
	wg.Wait()
	a.rec.Decided = nil
	return first
}

// decideAndCall makes a call after it was allowed, if it needs a decision, and when
// a slot is free. lock guards the record.
func (a *activeRun) decideAndCall(ctx context.Context, tools []tool.Tool, c engi.ToolCall, i int, resumed bool, lock *sync.Mutex, slots chan struct{}) (engi.ToolResult, error) {
	d, now, err := a.decide(ctx, lock, c)
	switch {
	case err != nil:
		return engi.ToolResult{}, err
	case !d.Allowed:
		r := refusal(d)
		return engi.ToolResult{Call: c.ID, Name: c.Name, Text: r.Text, Failed: true}, nil
	}
	slots <- struct{}{}
	defer func() { <-slots }()
	return a.callTool(ctx, tools, c, i, resumed && !now)
}

// callTool makes the i-th call of an answer. An error of the call becomes a
// result; a returned error ends the run.
func (a *activeRun) callTool(ctx context.Context, tools []tool.Tool, c engi.ToolCall, i int, resumed bool) (_ engi.ToolResult, err error) {
	result := engi.ToolResult{Call: c.ID, Name: c.Name}
	a.emit(engi.RunUpdate{Kind: engi.RunCall, Call: &c})
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
		r = tool.Failure(engi.Errorf(engi.Unavailable, "a restart interrupted the call; it may have been done in part").
			WithRemedy("check its effects before you repeat it"))
	default:
		if r, err = a.runTool(ctx, tools[at], c); err != nil {
			return result, err
		}
	}
	result.Failed, result.Images = r.Failed, r.Images
	if result.Text, err = a.truncate(ctx, c, r.Text); err != nil {
		return result, err
	}
	return result, nil
}

// runTool runs a tool. A panic becomes a failed result.
func (a *activeRun) runTool(ctx context.Context, t tool.Tool, c engi.ToolCall) (r tool.Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			a.runner.opt.Log.ErrorContext(ctx, "a tool panicked", "tool", t.Name, "run", a.rec.ID, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			r, err = tool.Failure(engi.Errorf(engi.Internal, "the tool %s crashed", t.Name)), nil
		}
	}()
	return t.Run(engi.WithActor(ctx, string(a.rec.ID)), &tool.Call{Env: a.env(), ID: c.ID, Out: func(s engi.Stream, data []byte) {
		if len(data) > 0 {
			a.emit(engi.RunUpdate{Kind: engi.RunOutput, Stream: s, Text: strings.ToValidUTF8(string(data), "\ufffd"), Call: &engi.ToolCall{ID: c.ID, Name: c.Name}})
		}
	}}, c.Arguments)
}

// truncate stores a text that is too long for the model and returns its
// beginning and end.
func (a *activeRun) truncate(ctx context.Context, c engi.ToolCall, text string) (string, error) {
	text = strings.ToValidUTF8(text, "\ufffd")
	if len(text) <= tool.ResultLimit {
		return text, nil
	}
	if err := a.runner.opt.Results.PutResult(ctx, a.rec.ID, c.ID, []byte(text)); err != nil {
		return "", err
	}
	head, tail := clip.Bytes(text, tool.ResultLimit/2), clip.Tail(text, tool.ResultLimit/4)
	return fmt.Sprintf("%s\n[… %d of %d bytes left out; read_result with call %q and an offset shows them …]\n%s", head, len(text)-len(head)-len(tail), len(text), c.ID, tail), nil
}
