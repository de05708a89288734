// Package dialect is shared by the formats of other servers of language models. A
// request becomes a run of an agent, which the request names as its model. The client
// runs the request's own tools. The package decodes requests strictly, gives
// a run the conversation that a client sends back, and streams the updates of the run.
//
// To add a format, add a package beside this one with a function that returns a
// [rest.Resource] of routes made with [rest.Foreign]; see package openai.
package dialect

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
	"github.com/engi-dev/engi/internal/server/rest"
)

// Resource returns the resource of a format's routes; agents may be nil.
func Resource(agents engi.Agents, routes ...rest.Route) rest.Resource {
	if agents == nil {
		return rest.NewResource("agents", rest.ErrNoAgents, routes...)
	}
	return rest.NewResource("agents", nil, routes...)
}

// Decode decodes the body into v, a pointer to a struct, and returns its size in bytes. A top-level member of the body
// that v lacks must have one of the given values. Null is always accepted, and a
// member without given values accepts any. Nested members may be unknown, because
// clients send back members that servers add to their answers.
func Decode(x *rest.Exchange, v any, values map[string][]string) (size int, err error) {
	body, free, err := x.ReadBody()
	if err != nil {
		return 0, err
	}
	defer free()
	if _, err := io.Copy(io.Discard, httpio.LimitValues(bytes.NewReader(body))); err != nil {
		return 0, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return 0, engi.Errorf(engi.Invalid, "the body is not a JSON object: %v", err)
	}
	known := map[string]bool{}
	for f := range reflect.TypeOf(v).Elem().Fields() {
		known[f.Tag.Get("json")] = true
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		value := string(fields[name])
		allowed, neutral := values[name]
		if known[name] || value == "null" || neutral && (allowed == nil || slices.Contains(allowed, value)) {
			continue
		}
		e := engi.Errorf(engi.Invalid, "%.60s: this is not supported", name)
		if neutral {
			return 0, e.WithRemedy("leave it out, or send %s", allowed[0])
		}
		return 0, e.WithRemedy("leave it out")
	}
	if err := json.Unmarshal(body, v); err != nil {
		return 0, engi.Errorf(engi.Invalid, "the body is no request of this kind: %v", err)
	}
	return len(body), nil
}

// Elements decodes a JSON list of possibly large elements, up to the first invalid
// one. Unmarshal would also allocate the rest.
func Elements[T any](raw []byte) (all []T, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return nil, engi.Errorf(engi.Invalid, "it is not a list")
	}
	for d.More() {
		var x T
		if err := d.Decode(&x); err != nil {
			return nil, err
		}
		all = append(all, x)
	}
	return all, nil
}

// WithRemedy returns the text and the remedy of a problem as one text, because other servers' errors have only one.
func WithRemedy(p v1.Problem) string {
	if p.Remedy == "" {
		return p.Detail
	}
	return p.Detail + " (" + p.Remedy + ")"
}

// Typed reports whether the answer of a run is JSON. Text that the model writes before it
// is then not part of the answer.
func Typed(agents engi.Agents, spec engi.RunSpec) bool {
	return spec.Output != nil || slices.ContainsFunc(agents.Agents(), func(x engi.AgentSpec) bool { return x.Name == spec.Agent && x.Output != nil })
}

// endTime is the maximum time to cancel a run whose client has left.
const endTime = 10 * time.Second

// Abandon cancels runs whose client has left.
func Abandon(x *rest.Exchange, agents engi.Agents, runs ...engi.Run) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.Context()), endTime)
	defer cancel()
	for _, r := range runs {
		if err := agents.Cancel(ctx, r.Owner.Viewer(), r.ID); err != nil {
			x.Log().ErrorContext(ctx, "end a run that was left", "run", r.ID, "error", err)
		}
	}
}

// AddResult adds a result to the last message if that message has results, and
// otherwise in a new message.
func AddResult(spec *engi.RunSpec, r engi.ToolResult) {
	if n := len(spec.Messages); n > 0 && spec.Messages[n-1].Role == engi.RoleTool {
		spec.Messages[n-1].Results = append(spec.Messages[n-1].Results, r)
		return
	}
	spec.Messages = append(spec.Messages, engi.Message{Role: engi.RoleTool, Results: []engi.ToolResult{r}})
}

// CallID returns the ID that a client sees for a run's call. It contains the run's ID.
func CallID(x engi.Run, n int) string { return fmt.Sprintf("%s_%d", x.ID, n) }

// Continue makes the last of spec.Messages the input, unless that message has the
// results of calls. If a run of this node made these calls, the run's own messages replace
// those before the results: they include the calls of the agent's tools, which
// the client has not seen. field names the messages in errors.
func Continue(x *rest.Exchange, agents engi.Agents, spec *engi.RunSpec, field string) error {
	all := spec.Messages
	for i, m := range slices.Backward(all) {
		if m.Role != engi.RoleAssistant || len(m.Calls) == 0 {
			continue
		}
		at := strings.LastIndexByte(m.Calls[0].ID, '_')
		id, err := engi.ParseRunID(m.Calls[0].ID[:max(at, 0)])
		if err != nil {
			break // a call of another server
		}
		run, err := agents.Get(x.Context(), x.Owner().Viewer(), id) // an administrator sees the runs of others, but continues only its own
		if engi.Is(err, engi.NotFound) {
			break
		}
		if err != nil {
			return err
		}
		before, err := agents.Messages(x.Context(), x.Owner().Viewer(), id)
		if err != nil {
			return err
		}
		later := all[i+1:]
		NameCalls(run, later)
		// The same answer may also have called the agent's own tools.
		if n := len(before); n > 0 && before[n-1].Role == engi.RoleTool && len(later) > 0 && later[0].Role == engi.RoleTool {
			before[n-1].Results = append(slices.Clone(before[n-1].Results), later[0].Results...)
			later = later[1:]
		}
		all = append(before, later...)
		break
	}
	spec.Messages = all
	return LastIsInput(spec, field)
}

// NameCalls gives calls of a run, in results from a client, the IDs that the node
// uses.
func NameCalls(x engi.Run, messages []engi.Message) {
	for _, m := range messages {
		for j := range m.Results {
			for n, made := range x.Calls {
				if m.Results[j].Call == CallID(x, n) {
					m.Results[j].Call = made.ID
				}
			}
		}
	}
}

// LastIsInput makes the last message the input, unless it has the results of calls.
// field names the messages in errors.
func LastIsInput(spec *engi.RunSpec, field string) error {
	all := spec.Messages
	last := len(all) - 1
	switch {
	case last >= 0 && all[last].Role == engi.RoleUser:
		spec.Input, spec.Images, spec.Messages = all[last].Text, all[last].Images, all[:last]
	case last < 0 || all[last].Role != engi.RoleTool:
		return engi.Errorf(engi.Invalid, "%s: the last message is neither the user's nor the result of a call", field)
	}
	return nil
}
