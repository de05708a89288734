package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
)

// ask runs an agent and returns its answer as a T. The schema of T, see
// [llm.SchemaOf], replaces spec.Output; the model is asked again until its
// answer conforms. partial, if not nil, is called with the answer as far as it
// has been written. When ctx ends or partial returns an error, the run is
// cancelled. In addition to the errors of [engi.Agents], ask reports Exhausted
// for a run that a limit stopped, and the error of a failed run.
func ask[T any](ctx context.Context, agents engi.Agents, spec engi.RunSpec, partial func(T) error) (v T, r engi.Run, err error) {
	schema, err := llm.SchemaOf(reflect.TypeFor[T]())
	if err != nil {
		return v, r, err
	}
	spec.Output = schema.JSON()
	if r, err = agents.Start(ctx, spec); err != nil {
		return v, r, err
	}
	viewer, id := spec.Owner.Viewer(), r.ID
	defer func() {
		if err != nil && r.State == engi.RunRunning {
			stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
			_ = agents.Cancel(stop, viewer, id)
			cancel()
		}
	}()
	for e, err := range agents.Watch(ctx, viewer, id, 0) {
		switch {
		case err != nil:
			return v, r, err
		case e.Kind == engi.RunPartial && partial != nil:
			var part T
			if json.Unmarshal(e.Object, &part) != nil {
				continue // an incomplete value may not fit
			}
			if err := partial(part); err != nil {
				return v, r, err
			}
		case e.Kind == engi.RunEnd:
			r = *e.Run
			v, err := askAnswer[T](r)
			return v, r, err
		}
	}
	return v, r, engi.Errorf(engi.Internal, "the events of run %s ended without its end", id)
}

func askAnswer[T any](r engi.Run) (v T, err error) {
	switch r.State {
	case engi.RunFailed:
		return v, r.Error
	case engi.RunCancelled:
		return v, engi.Errorf(engi.Expired, "run %s was cancelled", r.ID)
	case engi.RunStopped:
		return v, engi.Errorf(engi.Exhausted, "run %s was stopped by a limit: %s", r.ID, r.Reason).WithRemedy("raise the agent's limit, or ask for less")
	}
	if err := json.Unmarshal(r.Output, &v); err != nil {
		return v, engi.Errorf(engi.Unavailable, "the answer of run %s does not fit the type: %v", r.ID, err)
	}
	return v, nil
}

type city struct {
	Name   string   `json:"name" jsonschema:"in its own language"`
	People int      `json:"people"`
	Rivers []string `json:"rivers"`
}

// A register is a dependency of a tool.
type register struct{ password string }

func (r register) people(name string) string {
	if r.password != canary {
		return "locked"
	}
	return map[string]string{"Köln": "1087863"}[name]
}

const canary = "canary-a1b2c3"

// TestAsk fills a Go value. The first answer breaks the schema, and the model
// never sees the dependencies of the tool it uses.
func TestAsk(t *testing.T) {
	people, err := tool.New("people", "Counts people.", func(_ context.Context, c *tool.Call, a struct {
		City string `json:"city"`
	}) (tool.Result, error) {
		return tool.Result{Text: c.Deps.(register).people(a.City)}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	objects := []string{`{"name":"Köln","people":"many"}`, `{"name":"Köln","people":1087863,"rivers":["Rhein"]}`}
	f := runnerSpec{tools: []tool.Tool{people}, inject: func(_ context.Context, r engi.Run) (any, error) {
		if r.Owner != "ann" {
			return nil, engi.Errorf(engi.Denied, "%s may not read the register", r.Owner)
		}
		return register{canary}, nil
	}, play: func(c scripted.Conversation) scripted.Answer {
		switch {
		case c.Schema != nil:
			return scripted.Answer{Object: objects[min(c.N-3, 1)]}
		case c.Last().Role == "tool":
			return scripted.Answer{Text: "It has " + c.Last().Results[0].Text}
		}
		return scripted.Answer{Calls: []scripted.Call{{Name: "people", Arguments: `{"city":"Köln"}`}}}
	}}.open(t)
	var parts []city
	got, r, err := ask(t.Context(), f, engi.RunSpec{Owner: "ann", Input: "Tell me of Köln."}, func(c city) error { parts = append(parts, c); return nil })
	if err != nil {
		t.Fatal(err)
	}
	want := city{"Köln", 1087863, []string{"Rhein"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if len(parts) < 2 || !cmp.Equal(parts[len(parts)-1], want) || !slices.ContainsFunc(parts, func(c city) bool { return !cmp.Equal(c, want) }) {
		t.Errorf("partial answers %+v", parts)
	}
	if r.State != engi.RunDone || r.Tokens.Calls != 4 {
		t.Errorf("%+v", r)
	}
	for _, c := range f.model.Seen() {
		if strings.Contains(string(c.Raw), canary) || strings.Contains(string(c.Raw), "password") {
			t.Errorf("the model saw a dependency of the tool: %s", c.Raw)
		}
	}
	if !strings.Contains(f.model.Seen()[1].Last().Results[0].Text, "1087863") {
		t.Error("the tool did not get its dependency")
	}
	if _, _, err := ask[city](t.Context(), f, engi.RunSpec{Owner: "bob", Input: "x"}, nil); !engi.Is(err, engi.Denied) {
		t.Errorf("%v", err)
	}
}

func TestAskFails(t *testing.T) {
	t.Run("answers never conform", func(t *testing.T) {
		f := runnerSpec{play: func(scripted.Conversation) scripted.Answer { return scripted.Answer{Object: `{"name":7}`} }}.open(t)
		if _, r, err := ask[city](t.Context(), f, engi.RunSpec{Owner: "ann", Input: "x"}, nil); !engi.Is(err, engi.Unavailable) || r.State != engi.RunFailed {
			t.Errorf("%v %+v", err, r)
		}
	})
	t.Run("a limit", func(t *testing.T) {
		f := runnerSpec{tools: []tool.Tool{add(t)}, play: func(scripted.Conversation) scripted.Answer { return scripted.Answer{Calls: calls(`{"a":1,"b":1}`)} }}.open(t)
		if _, _, err := ask[city](t.Context(), f, engi.RunSpec{Owner: "ann", Input: "x"}, nil); !engi.Is(err, engi.Exhausted) || engi.RemedyOf(err) == "" {
			t.Errorf("%v", err)
		}
	})
	t.Run("a type without a schema", func(t *testing.T) {
		f := runnerSpec{play: func(scripted.Conversation) scripted.Answer { return scripted.Answer{} }}.open(t)
		if _, _, err := ask[chan int](t.Context(), f, engi.RunSpec{Owner: "ann", Input: "x"}, nil); !engi.Is(err, engi.Invalid) {
			t.Errorf("%v", err)
		}
	})
	long := `{"name":"` + strings.Repeat("Llanfair", 100) + `","people":1,"rivers":[]}`
	slow := func(scripted.Conversation) scripted.Answer {
		return scripted.Answer{Object: long, Pace: 10 * time.Millisecond}
	}
	t.Run("partial returns an error", func(t *testing.T) {
		f := runnerSpec{play: slow}.open(t)
		enough := errors.New("enough")
		_, r, err := ask(t.Context(), f, engi.RunSpec{Owner: "ann", Input: "x"}, func(city) error { return enough })
		if !errors.Is(err, enough) {
			t.Errorf("%v", err)
		}
		if r, err := f.Get(t.Context(), "ann", r.ID); err != nil || r.State != engi.RunCancelled {
			t.Errorf("%+v %v", r, err)
		}
	})
	t.Run("the context ends", func(t *testing.T) {
		f := runnerSpec{play: slow}.open(t)
		ctx, cancel := context.WithCancel(t.Context())
		_, r, err := ask(ctx, f, engi.RunSpec{Owner: "ann", Input: "x"}, func(city) error { cancel(); return nil })
		if !engi.Is(err, engi.Expired) {
			t.Errorf("%v", err)
		}
		if r, err := f.Get(t.Context(), "ann", r.ID); err != nil || r.State != engi.RunCancelled {
			t.Errorf("%+v %v", r, err)
		}
	})
}
