package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/agent"
	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
)

// A fixture is a running Runner with a scripted model and a database.
type fixture struct {
	*agent.Runner
	model *scripted.Server
	stop  func() // stops everything; may be called again

	stopRunner func() // stops the runner as a node does, which closes the database later
}

// A runnerSpec says what open opens.
type runnerSpec struct {
	play  func(scripted.Conversation) scripted.Answer
	tools []tool.Tool
	from  []tool.Source
	agent engi.AgentSpec
	path  string // of the database
	runs  int
	price int64
	web   http.Handler // the provider instead of play
	key   string
	log   *slog.Logger

	inject func(context.Context, engi.Run) (any, error)
}

func (b runnerSpec) open(t *testing.T) *fixture {
	t.Helper()
	if b.path == "" {
		b.path = filepath.Join(t.TempDir(), "db")
	}
	db, err := store.Open(t.Context(), b.path)
	if err != nil {
		t.Fatal(err)
	}
	s := &scripted.Server{Play: b.play}
	var provider http.Handler = s
	if b.web != nil {
		provider = b.web
	}
	web := httptest.NewServer(provider)
	reg, err := llm.New(llm.Options{Providers: map[string]llm.Provider{"openai": {URL: web.URL, Key: b.key}}, Default: "openai:demo", Client: web.Client(), Backoff: time.Millisecond,
		Prices: map[string]llm.Price{"openai:*": {Input: float64(b.price)}}})
	if err != nil {
		t.Fatal(err)
	}
	if b.agent.Name == "" {
		b.agent.Name = "coder"
	}
	if b.agent.Tools == nil {
		b.agent.Tools = []string{"*"}
	}
	r, err := agent.New(agent.Options{Agents: []engi.AgentSpec{b.agent}, Models: reg.Model, Tools: b.tools, Sources: b.from, Store: store.Agents(db), Results: store.AgentResults(db), Dir: b.path + ".runs", MaxRuns: b.runs, Deps: b.inject, Log: b.log})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- r.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	f := &fixture{Runner: r, model: s}
	f.stopRunner = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	f.stop = sync.OnceFunc(func() {
		f.stopRunner()
		web.Close()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(f.stop)
	return f
}

// finish starts a run and watches it to its end.
func (f *fixture) finish(t *testing.T, spec engi.RunSpec) (engi.Run, []engi.RunUpdate) {
	t.Helper()
	spec.Owner = "ann"
	r, err := f.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return f.follow(t, r.ID)
}

func (f *fixture) follow(t *testing.T, id engi.RunID) (engi.Run, []engi.RunUpdate) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all []engi.RunUpdate
	var last int64
	for e, err := range f.Watch(ctx, "ann", id, 0) {
		if err != nil {
			t.Fatalf("run %s after %+v: %v", id, all, err)
		}
		if e.Seq <= last {
			t.Errorf("event %d follows %d", e.Seq, last)
		}
		last = e.Seq
		if all = append(all, e); e.Kind == engi.RunEnd {
			return *e.Run, all
		}
	}
	t.Fatalf("no end of run %s after %+v", id, all)
	return engi.Run{}, nil
}

// TestKeysStayOutOfRuns has a provider repeat its key in errors, and looks for it
// in all that a run shows, stores and logs.
func TestKeysStayOutOfRuns(t *testing.T) {
	const key = "sk-live-0123456789"
	for name, answer := range map[string]http.HandlerFunc{
		"refused": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "you sent "+key, http.StatusBadRequest) },
		"failed":  func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "you sent "+key, http.StatusBadGateway) },
		"streamed": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, "data: {\"error\":{\"message\":\"you sent %s\"}}\n\n", key)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			var log strings.Builder
			f := runnerSpec{web: answer, key: key, path: filepath.Join(dir, "db"), log: slog.New(slog.NewTextHandler(&log, nil))}.open(t)
			run, events := f.finish(t, engi.RunSpec{Input: "hello"})
			if run.State != engi.RunFailed || !strings.Contains(run.Error.Text, "you sent ***") {
				t.Errorf("the run ended as %s: %v", run.State, run.Error)
			}
			f.stop()
			shown := map[string]string{"run": fmt.Sprintf("%+v %v", run, run.Error), "events": fmt.Sprintf("%+v", events), "log": log.String()}
			err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
				if err != nil || d.IsDir() {
					return err
				}
				raw, err := os.ReadFile(path)
				shown[path] = string(raw)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			for where, text := range shown {
				if strings.Contains(text, key) {
					t.Errorf("the key is in %s", where)
				}
			}
		})
	}
}

type adding struct {
	A int `json:"a"`
	B int `json:"b"`
}

func add(t *testing.T) tool.Tool {
	t.Helper()
	x, err := tool.New("add", "Adds.", func(ctx context.Context, c *tool.Call, a adding) (tool.Result, error) {
		c.Out(engi.Stdout, fmt.Appendf(nil, "adding for %s\n", c.Owner))
		return tool.Result{Text: fmt.Sprint(a.A + a.B)}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func calls(args ...string) (all []scripted.Call) {
	for _, a := range args {
		all = append(all, scripted.Call{Name: "add", Arguments: a})
	}
	return all
}

func TestToolsAreCalledUntilTheAnswer(t *testing.T) {
	f := runnerSpec{tools: []tool.Tool{add(t)}, agent: engi.AgentSpec{System: "You add."}, play: func(c scripted.Conversation) scripted.Answer {
		switch c.N {
		case 1:
			return scripted.Answer{Text: "Two sums.", Calls: calls(`{"a":1,"b":2}`, `{"a":3,"b":4}`)}
		case 2:
			return scripted.Answer{Calls: calls(`{"a":3,"b":7}`)}
		}
		return scripted.Answer{Text: "It is 10."}
	}}.open(t)
	r, events := f.finish(t, engi.RunSpec{Input: "1+2+3+4?", System: "Be short."})
	if r.State != engi.RunDone || r.Text != "It is 10." || r.Steps != 3 || r.Tokens.Calls != 3 || r.Model != "openai:demo" {
		t.Errorf("%+v", r)
	}
	kinds := map[engi.RunUpdateKind]int{}
	text := ""
	for _, e := range events {
		kinds[e.Kind]++
		text += e.Text
		if e.Kind == engi.RunEnd && e.Step != 3 {
			t.Errorf("the end is in step %d", e.Step)
		}
	}
	if kinds[engi.RunCall] != 3 || kinds[engi.RunOutput] != 3 || kinds[engi.RunResult] != 3 || kinds[engi.RunEnd] != 1 || !strings.Contains(text, "adding for ann") {
		t.Errorf("%v %q", kinds, text)
	}
	seen := f.model.Seen()
	if seen[0].System != "You add.\n\nBe short." || len(seen[0].Tools) != 1 || seen[0].Tools[0] != "add" {
		t.Errorf("the model was told %+v", seen[0])
	}
	if got := seen[2].Last().Results; len(got) != 1 || got[0].Text != "10" {
		t.Errorf("the model saw %+v", got)
	}
	got, err := f.Get(t.Context(), "ann", r.ID)
	if err != nil || cmp.Diff(r, got) != "" {
		t.Errorf("%v %v", cmp.Diff(r, got), err)
	}

	// The conversation continues with its earlier messages.
	r2, _ := f.finish(t, engi.RunSpec{Input: "Sure?", Conversation: r.Conversation})
	if n := len(f.model.Seen()[3].Turns); r2.State != engi.RunDone || n != 7 {
		t.Errorf("%+v after %d turns", r2, n)
	}
}

// TestContext checks that the model reads the parts of the context in order, and
// the input alone if they are all empty.
func TestContext(t *testing.T) {
	f := runnerSpec{play: func(scripted.Conversation) scripted.Answer { return scripted.Answer{Text: "hi"} }}.open(t)
	part := func(name, text string) engi.ContextPart { return engi.ContextPart{Name: name, Text: text} }
	for i, c := range []struct {
		parts []engi.ContextPart
		want  string
	}{
		{nil, "increment"},
		{[]engi.ContextPart{part("RECENT CHANGES", "")}, "increment"},
		{[]engi.ContextPart{part("HTML", "<p>\n1</p>"), part("PAST", ""), part("RECENT CHANGES", "none")}, "[HTML] <p>\n1</p>\n[RECENT CHANGES] none\n[NOW] increment"},
	} {
		r, _ := f.finish(t, engi.RunSpec{Input: "increment", Context: c.parts})
		if got := f.model.Seen()[i].Last().Text; r.State != engi.RunDone || got != c.want {
			t.Errorf("%v: the model read %q", c.parts, got)
		}
	}
	for name, parts := range map[string][]engi.ContextPart{
		"no name": {part("", "x")}, "a long name": {part(strings.Repeat("x", 65), "x")}, "two lines": {part("A\nB", "x")}, "brackets": {part("A] [NOW", "x")},
		"the input's": {part("NOW", "x")}, "no UTF-8": {part("A", "\xff")}, "no UTF-8 name": {part("\xff", "x")},
		"many": slices.Repeat([]engi.ContextPart{part("A", "x")}, 33), "much": {part("A", strings.Repeat("x", 1<<20))},
	} {
		if _, err := f.Start(t.Context(), engi.RunSpec{Owner: "ann", Input: "x", Context: parts}); !engi.Is(err, engi.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The context is part of the request that an idempotency key stands for.
	first, _ := f.finish(t, engi.RunSpec{Input: "x", Idempotency: "k", Context: []engi.ContextPart{part("A", "1")}})
	again, err := f.Start(t.Context(), engi.RunSpec{Owner: "ann", Input: "x", Idempotency: "k", Context: []engi.ContextPart{part("A", "1")}})
	if err != nil || again.ID != first.ID {
		t.Errorf("%v %v", again.ID, err)
	}
	if _, err := f.Start(t.Context(), engi.RunSpec{Owner: "ann", Input: "x", Idempotency: "k", Context: []engi.ContextPart{part("A", "2")}}); !engi.Is(err, engi.Conflict) {
		t.Errorf("%v", err)
	}
}

func TestOwners(t *testing.T) {
	f := runnerSpec{play: func(scripted.Conversation) scripted.Answer { return scripted.Answer{Text: "hi"} }}.open(t)
	r, _ := f.finish(t, engi.RunSpec{Input: "hello"})
	ctx := t.Context()
	_, e1 := f.Get(ctx, "bob", r.ID)
	_, e2 := f.Messages(ctx, "bob", r.ID)
	var e3 error
	for _, e3 = range f.Watch(ctx, "bob", r.ID, 0) {
		break
	}
	_, e4 := f.FullResult(ctx, "bob", r.ID, "x")
	_, e5 := f.Start(ctx, engi.RunSpec{Owner: "bob", Input: "x", Conversation: r.Conversation})
	_, e6 := f.Start(ctx, engi.RunSpec{Input: "x", Conversation: r.Conversation}) // agents of the node itself, too, act as one owner
	for i, err := range []error{e1, e2, e3, e4, e5, e6, f.Cancel(ctx, "bob", r.ID)} {
		if !engi.Is(err, engi.NotFound) {
			t.Errorf("%d: %v", i, err)
		}
	}
	if l, err := f.List(ctx, "bob", 0); err != nil || len(l) != 0 {
		t.Errorf("%v %v", l, err)
	}
}

// TestMisbehavingModel has a model that gets every call wrong.
func TestMisbehavingModel(t *testing.T) {
	long := strings.Repeat("é", 200_000)
	big, err := tool.New("big", "Says much.", func(context.Context, *tool.Call, struct{}) (tool.Result, error) { return tool.Result{Text: long}, nil })
	if err != nil {
		t.Fatal(err)
	}
	wild, err := tool.New("wild", "Panics.", func(context.Context, *tool.Call, struct{}) (tool.Result, error) { panic("at the disco") })
	if err != nil {
		t.Fatal(err)
	}
	more, err := tool.Builtin(tool.Services{})
	if err != nil {
		t.Fatal(err)
	}
	bad := []scripted.Call{
		{ID: "same", Name: "add", Arguments: `{"a":1`}, {ID: "same", Name: "add", Arguments: `{"a":"1","b":2}`}, {Name: "rm_rf", Arguments: `{}`},
		{Name: "add", Arguments: `{"a":1,"b":2,"c":3}`}, {Name: "big"}, {Name: "wild", Arguments: `{}`}, {Name: "add", Arguments: `null`},
		{Name: "../../etc/passwd", Arguments: `[]`}, {ID: strings.Repeat("x", 5000), Name: "add", Arguments: strings.Repeat("[", 100_000)},
	}
	f := runnerSpec{tools: append(more, add(t), big, wild), play: func(c scripted.Conversation) scripted.Answer {
		switch c.N {
		case 1:
			return scripted.Answer{Calls: bad}
		case 2:
			for _, r := range c.Last().Results {
				if strings.Contains(r.Text, "bytes left out") {
					return scripted.Answer{Calls: []scripted.Call{{Name: "read_result", Arguments: fmt.Sprintf(`{"call":%q,"offset":9000}`, r.ID)}}}
				}
			}
		}
		return scripted.Answer{Text: "sorry"}
	}}.open(t)
	r, _ := f.finish(t, engi.RunSpec{Input: "go wild"})
	if r.State != engi.RunDone || r.Steps != 3 {
		t.Fatalf("%+v", r)
	}
	messages, err := f.Messages(t.Context(), "ann", r.ID)
	if err != nil {
		t.Fatal(err)
	}
	results := map[string]engi.ToolResult{}
	for _, r := range messages[2].Results {
		results[r.Call] = r
		if len(r.Text) > tool.ResultLimit+500 {
			t.Errorf("the model was shown %d bytes", len(r.Text))
		}
	}
	if len(results) != len(bad) {
		t.Errorf("%d results of %d calls", len(results), len(bad))
	}
	for i, c := range messages[1].Calls {
		if r := results[c.ID]; r.Failed != (bad[i].Name != "big") || r.Text == "" {
			t.Errorf("call %d of %s: %.200q", i, c.Name, r.Text)
		}
	}
	if got := messages[4].Results[0]; got.Failed || !strings.Contains(got.Text, "éé") || !strings.Contains(got.Text, "of 400000") {
		t.Errorf("%.100q", got.Text)
	}
}

func TestLimits(t *testing.T) {
	forever := func(c scripted.Conversation) scripted.Answer {
		return scripted.Answer{Calls: calls(`{"a":1,"b":1}`), Input: 1000}
	}
	t.Run("steps", func(t *testing.T) {
		f := runnerSpec{tools: []tool.Tool{add(t)}, play: forever}.open(t)
		if r, _ := f.finish(t, engi.RunSpec{Input: "x"}); r.State != engi.RunStopped || r.Reason != "steps" || r.Steps != 10 {
			t.Errorf("%+v", r)
		}
	})
	t.Run("budget", func(t *testing.T) {
		f := runnerSpec{tools: []tool.Tool{add(t)}, play: forever, price: 2, agent: engi.AgentSpec{Budget: 5000}}.open(t)
		if r, _ := f.finish(t, engi.RunSpec{Input: "x"}); r.State != engi.RunStopped || r.Reason != "budget" || r.Tokens.Cost != 6000 {
			t.Errorf("%+v", r)
		}
	})
	t.Run("runs at once", func(t *testing.T) {
		f := runnerSpec{runs: 1, play: func(scripted.Conversation) scripted.Answer { return scripted.Answer{Text: "x", Delay: time.Hour} }}.open(t)
		r, err := f.Start(t.Context(), engi.RunSpec{Owner: "ann", Input: "x"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Start(t.Context(), engi.RunSpec{Owner: "ann", Input: "x", Conversation: r.Conversation}); !engi.Is(err, engi.Conflict) {
			t.Errorf("%v", err)
		}
		if _, err := f.Start(t.Context(), engi.RunSpec{Owner: "ann", Input: "x"}); !engi.Is(err, engi.Exhausted) {
			t.Errorf("%v", err)
		}
		if err := f.Cancel(t.Context(), "ann", r.ID); err != nil {
			t.Fatal(err)
		}
		if r, err := f.Get(t.Context(), "ann", r.ID); err != nil || r.State != engi.RunCancelled {
			t.Errorf("%+v %v", r, err)
		}
		if _, err := f.Start(t.Context(), engi.RunSpec{Owner: "ann", Input: "x"}); err != nil {
			t.Errorf("after one ended: %v", err)
		}
	})
	t.Run("runs of one owner at once", func(t *testing.T) {
		f := runnerSpec{runs: 8, play: func(scripted.Conversation) scripted.Answer { return scripted.Answer{Text: "x", Delay: time.Hour} }}.open(t)
		fill := func(owner engi.Owner) (n int) {
			for {
				if _, err := f.Start(t.Context(), engi.RunSpec{Owner: owner, Input: "x"}); err != nil {
					return n
				}
				n++
			}
		}
		if hog, ann := fill("hog"), fill("ann"); hog != 6 || ann != 2 {
			t.Errorf("one owner has %d runs, the next one %d", hog, ann)
		}
	})
	t.Run("bad specs", func(t *testing.T) {
		f := runnerSpec{play: forever}.open(t)
		for name, c := range map[string]struct {
			spec engi.RunSpec
			want engi.Kind
		}{
			"nothing":              {engi.RunSpec{}, engi.Invalid},
			"much":                 {engi.RunSpec{Input: strings.Repeat("x", 2<<20)}, engi.Invalid},
			"no such agent":        {engi.RunSpec{Agent: "spy", Input: "x"}, engi.NotFound},
			"no such model":        {engi.RunSpec{Model: "nobody:x", Input: "x"}, engi.Invalid},
			"no schema":            {engi.RunSpec{Input: "x", Output: json.RawMessage(`7`)}, engi.Invalid},
			"no image":             {engi.RunSpec{Images: []engi.Image{{MediaType: "text/html", Data: []byte("x")}}}, engi.Invalid},
			"two places":           {engi.RunSpec{Input: "x", Session: "s", Workspace: "w"}, engi.Invalid},
			"both":                 {engi.RunSpec{Input: "x", Conversation: "cnv_x", Messages: []engi.Message{{Role: engi.RoleUser}}}, engi.Invalid},
			"unknown role":         {engi.RunSpec{Input: "x", Messages: []engi.Message{{Role: "root"}}}, engi.Invalid},
			"no such conversation": {engi.RunSpec{Input: "x", Conversation: engi.NewConversationID()}, engi.NotFound},
		} {
			if _, err := f.Start(t.Context(), c.spec); !engi.Is(err, c.want) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func TestOutputs(t *testing.T) {
	f := runnerSpec{tools: []tool.Tool{add(t)}, play: func(c scripted.Conversation) scripted.Answer {
		if c.Schema != nil {
			return scripted.Answer{Object: `{"sum":3}`}
		}
		if c.Last().Role == "tool" {
			return scripted.Answer{Text: "It is three."}
		}
		return scripted.Answer{Calls: calls(`{"a":1,"b":2}`)}
	}}.open(t)
	shape := json.RawMessage(`{"type":"object","properties":{"sum":{"type":"integer"}},"required":["sum"]}`)
	r, events := f.finish(t, engi.RunSpec{Input: "1+2", Output: shape})
	if r.State != engi.RunDone || string(r.Output) != `{"sum":3}` {
		t.Errorf("%+v", r)
	}
	partial := false
	for _, e := range events {
		partial = partial || e.Kind == engi.RunPartial
	}
	if !partial {
		t.Error("there was no partial object")
	}
	messages, err := f.Messages(t.Context(), "ann", r.ID)
	if err != nil || messages[len(messages)-1].Text != `{"sum":3}` || len(messages) != 4 {
		t.Errorf("%+v %v", messages, err)
	}
}

// TestOutputsAtOnce has a model give its last answer in the form that the prompt
// asks for: it is not asked again.
func TestOutputsAtOnce(t *testing.T) {
	f := runnerSpec{tools: []tool.Tool{add(t)}, play: func(c scripted.Conversation) scripted.Answer {
		if !strings.Contains(c.System, `"sum"`) {
			return scripted.Answer{Status: 400, Text: "the prompt has no schema"}
		}
		if c.Last().Role == "tool" {
			return scripted.Answer{Text: "Done:\n```json\n{\"sum\":3}\n```"}
		}
		return scripted.Answer{Calls: calls(`{"a":1,"b":2}`)}
	}}.open(t)
	r, _ := f.finish(t, engi.RunSpec{Input: "1+2", Output: json.RawMessage(`{"type":"object","properties":{"sum":{"type":"integer"}},"required":["sum"]}`)})
	if r.State != engi.RunDone || string(r.Output) != `{"sum":3}` || r.Tokens.Calls != 2 {
		t.Errorf("%+v", r)
	}
}

// TestCutCalls has answers end in the middle of a call, and calls that the
// provider cannot read. None is made, the model is told, and that has an end.
func TestCutCalls(t *testing.T) {
	for name, test := range map[string]struct {
		answer, tells string
		times         int
		reason        string
	}{
		"cut":             {`{"choices":[{"message":{"tool_calls":[{"id":"c","function":{"name":"add","arguments":"{\"a\":1"}}]},"finish_reason":"length"}]}`, "too long", 2, ""},
		"cut for ever":    {`{"choices":[{"message":{"tool_calls":[{"id":"c","function":{"name":"add","arguments":"{\"a\":1"}}]},"finish_reason":"length"}]}`, "too long", 100, "length"},
		"broken":          {`{"choices":[{"message":{},"finish_reason":"malformed_function_call"}]}`, "could not be read", 1, ""},
		"broken for ever": {`{"choices":[{"message":{},"finish_reason":"malformed_function_call"}]}`, "could not be read", 100, "malformed"},
		"refused":         {`{"choices":[{"message":{"refusal":"No."},"finish_reason":"stop"}]}`, "", 1, "filter"},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			f := runnerSpec{tools: []tool.Tool{add(t)}, web: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				if asked++; asked > 1 && !strings.Contains(string(body), test.tells) {
					t.Errorf("request %d does not tell: %s", asked, body)
				}
				answer := `{"choices":[{"message":{"content":"fine"},"finish_reason":"stop"}]}`
				if asked <= test.times {
					answer = test.answer
				}
				answer = strings.ReplaceAll(answer, `"message"`, `"delta"`)
				fmt.Fprintf(w, "data: %s\n\ndata: [DONE]\n\n", answer)
			})}.open(t)
			r, events := f.finish(t, engi.RunSpec{Input: "x"})
			for _, e := range events {
				if e.Kind == engi.RunCall {
					t.Errorf("call %+v was made", e.Call)
				}
			}
			switch {
			case test.reason == "" && (r.State != engi.RunDone || r.Text != "fine" || asked != test.times+1),
				test.reason != "" && (r.State != engi.RunStopped || r.Reason != test.reason || asked > 4),
				test.reason == "filter" && (r.Text != "No." || !engi.Is(r.Error, engi.Denied) || !strings.Contains(r.Error.Error(), "refusal")):
				t.Errorf("after %d requests: %+v, %v", asked, r, r.Error)
			}
		})
	}
}

func TestRepeatedKeys(t *testing.T) {
	f := runnerSpec{play: func(scripted.Conversation) scripted.Answer { return scripted.Answer{Text: "hi"} }}.open(t)
	a, _ := f.finish(t, engi.RunSpec{Input: "x", Idempotency: "k"})
	b, err := f.Start(t.Context(), engi.RunSpec{Owner: "ann", Input: "x", Idempotency: "k"})
	if err != nil || a.ID != b.ID || len(f.model.Seen()) != 1 {
		t.Errorf("%v %v %v", a.ID, b.ID, err)
	}
	// Concurrent requests with one key get the same run.
	var ids [8]engi.RunID
	var all sync.WaitGroup
	for i := range ids {
		all.Go(func() {
			r, err := f.Start(t.Context(), engi.RunSpec{Owner: "ann", Input: "z", Idempotency: "k2"})
			if err != nil {
				t.Error(err)
			}
			ids[i] = r.ID
		})
	}
	all.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Errorf("one key, runs %v", ids)
			break
		}
	}
	if _, err := f.Start(t.Context(), engi.RunSpec{Owner: "ann", Input: "y", Idempotency: "k"}); !engi.Is(err, engi.Conflict) {
		t.Errorf("%v", err)
	}
}

// TestRestart stops the runner during two of three calls and resumes the run
// with another runner on the same database.
func TestRestart(t *testing.T) {
	var made [3]atomic.Int32
	begun := make(chan struct{})
	path := filepath.Join(t.TempDir(), "db")
	var first atomic.Bool
	first.Store(true)
	x, err := tool.New("step", "Takes a step.", func(ctx context.Context, c *tool.Call, a adding) (tool.Result, error) {
		made[a.A].Add(1)
		if a.A > 0 && first.Load() {
			if a.A == 1 {
				close(begun)
			}
			<-ctx.Done()
			return tool.Result{}, ctx.Err()
		}
		return tool.Result{Text: "took it"}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	again := x
	again.Name, again.Repeatable = "again", true
	b := runnerSpec{path: path, tools: []tool.Tool{x, again}, play: func(c scripted.Conversation) scripted.Answer {
		if c.Last().Role == "tool" {
			return scripted.Answer{Text: "done"}
		}
		return scripted.Answer{Calls: []scripted.Call{{Name: "step", Arguments: `{"a":0,"b":0}`}, {Name: "step", Arguments: `{"a":1,"b":0}`}, {Name: "again", Arguments: `{"a":2,"b":0}`}}}
	}}
	f := b.open(t)
	r, err := f.Start(t.Context(), engi.RunSpec{Owner: "ann", Input: "go"})
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		m, err := f.Messages(t.Context(), "ann", r.ID)
		if err != nil {
			t.Fatal(err)
		}
		if len(m) == 3 && len(m[2].Results) == 1 && made[2].Load() == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", m)
		}
	}
	var seen []engi.RunUpdate
	watched := make(chan error, 1)
	go func() {
		for e, err := range f.Watch(t.Context(), "ann", r.ID, 0) {
			if err != nil {
				watched <- err
				return
			}
			seen = append(seen, e)
		}
	}()
	f.stopRunner()
	if err := <-watched; !engi.Is(err, engi.Unavailable) {
		t.Errorf("a watcher got %v when the runner stopped", err)
	}
	f.stop()
	first.Store(false)

	f = b.open(t)
	// A watcher that resumes after its last event misses nothing, sees nothing
	// twice, and has the same events as one that starts from the beginning.
	for e, err := range f.Watch(t.Context(), "ann", r.ID, seen[len(seen)-1].Seq) {
		if err != nil {
			t.Fatal(err)
		}
		seen = append(seen, e)
	}
	done, all := f.follow(t, r.ID)
	if diff := cmp.Diff(all, seen); diff != "" {
		t.Error(diff)
	}
	if n := seen[len(seen)-1].Seq; func() (some bool) {
		for range f.Watch(t.Context(), "ann", r.ID, n) {
			some = true
		}
		return some
	}() {
		t.Error("there are events after the end")
	}
	if done.State != engi.RunDone || done.Text != "done" || done.Steps != 2 {
		t.Errorf("%+v", done)
	}
	if a, b, c := made[0].Load(), made[1].Load(), made[2].Load(); a != 1 || b != 1 || c != 2 {
		t.Errorf("calls were made %d, %d and %d times", a, b, c)
	}
	m, err := f.Messages(t.Context(), "ann", r.ID)
	if err != nil {
		t.Fatal(err)
	}
	failed := 0
	for _, r := range m[2].Results {
		if r.Failed {
			failed++
			if !strings.Contains(r.Text, "interrupted") {
				t.Errorf("%q", r.Text)
			}
		}
	}
	if len(m[2].Results) != 3 || failed != 1 {
		t.Errorf("%+v", m[2].Results)
	}
}

// A downSource is a server of tools that does not answer.
type downSource struct{}

func (downSource) Name() string { return "tickets" }

func (downSource) Open(context.Context, tool.Env) ([]tool.Tool, func(), error) {
	return nil, nil, engi.Errorf(engi.Unavailable, "the MCP server tickets: connection refused")
}

// TestServerThatIsDown runs an agent one of whose servers of tools is down.
func TestServerThatIsDown(t *testing.T) {
	f := runnerSpec{from: []tool.Source{downSource{}}, play: func(c scripted.Conversation) scripted.Answer {
		return scripted.Answer{Text: "done without"}
	}}.open(t)
	r, _ := f.finish(t, engi.RunSpec{Input: "go on"})
	if r.State != engi.RunDone || r.Text != "done without" {
		t.Errorf("%+v %v", r, r.Error)
	}
	if seen := f.model.Seen(); len(seen) != 1 || !strings.Contains(string(seen[0].Raw), "tools are missing: tickets") {
		t.Errorf("the model was not told: %+v", seen)
	}
}
