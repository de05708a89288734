package app_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/app"
	"github.com/engi-dev/engi/internal/engi"
)

// A writer is a model that follows a script of answers; it repeats the last answer
// for ever.
type writer struct {
	mu      sync.Mutex
	answers []string
	asked   [][]engi.Message // guarded by mu
	systems []string
	long    bool          // answers are truncated
	cost    int64         // cost of an answer
	wait    chan struct{} // answers wait for it; nil for none
	refuse  error
	object  string // answer to requests for an object
}

func (m *writer) Answer(_ context.Context, _ engi.Owner, model, system string, said []engi.Message, _ json.RawMessage) (json.RawMessage, engi.Tokens, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked, m.systems = append(m.asked, said), append(m.systems, system)
	if m.object == "" {
		return nil, engi.Tokens{Cost: m.cost}, engi.Errorf(engi.Unavailable, "%s gave no answer that conforms to the schema", model)
	}
	return json.RawMessage(m.object), engi.Tokens{Cost: m.cost, Calls: 1}, nil
}

func (m *writer) Check(context.Context, engi.Owner, string) error { return m.refuse }

func (m *writer) Write(ctx context.Context, _ engi.Owner, _, system string, said []engi.Message, out func(string) error) (string, bool, engi.Tokens, error) {
	m.mu.Lock()
	m.asked, m.systems = append(m.asked, said), append(m.systems, system)
	text := m.answers[min(len(m.asked), len(m.answers))-1]
	wait := m.wait
	m.mu.Unlock()
	if wait != nil {
		select {
		case <-wait:
		case <-ctx.Done():
			return "", false, engi.Tokens{Cost: m.cost}, engi.Errorf(engi.Expired, "%v", ctx.Err())
		}
	}
	for _, part := range strings.SplitAfter(text, "\n") {
		if err := out(part); err != nil {
			return "", false, engi.Tokens{Cost: m.cost}, err
		}
	}
	return text, m.long, engi.Tokens{Cost: m.cost, Calls: 1}, nil
}

// told returns the last message to the model.
func (m *writer) told(t testing.TB, n int) string {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.asked) != n {
		t.Fatalf("the model was asked %d times, want %d", len(m.asked), n)
	}
	last := m.asked[n-1]
	return last[len(last)-1].Text
}

// edit runs an edit and returns its updates and its result.
func edit(t testing.TB, s *app.Service, app string, spec engi.EditSpec) (all []engi.AppUpdate, last engi.AppUpdate) {
	t.Helper()
	spec.Viewer, spec.App = "ann", app
	if spec.Prompt == "" {
		spec.Prompt = "do it"
	}
	seq, err := s.Edit(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return followEdit(t, s, app, seq)
}

func followEdit(t testing.TB, s *app.Service, app string, seq int64) (all []engi.AppUpdate, last engi.AppUpdate) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for u, err := range s.Watch(ctx, "ann", app, seq-1) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, u)
		if u.Edit == seq && u.Kind == engi.AppEdited {
			return all, u
		}
	}
	t.Fatal("the stream ended before the edit")
	return nil, last
}

// TestEditRepairs makes a model build an app, break it in each way, and repair it.
func TestEditRepairs(t *testing.T) {
	good := file("src/App.tsx", "import './Card.tsx'\n") + file("src/Card.tsx", "export const card = 1\n")
	tests := map[string]struct {
		answers  []string
		source   string // source of the first problem
		problem  string // text of the first problem
		revision int64
		rounds   int
	}{
		"nothing is wrong": {[]string{good}, "", "", 2, 1},
		"syntax":           {[]string{file("src/App.tsx", "BROKEN\n"), good}, "apply", "Unexpected token", 2, 2},
		"file":             {[]string{file("src/App.tsx", "import './Card.tsx'\n"), file("src/Card.tsx", "export const card = 1\n")}, "apply", "Card.tsx", 2, 2},
		"package":          {[]string{file("src/App.tsx", "import x from 'nope'\n"), file("src/App.tsx", "export default 1\n")}, "apply", "'nope' is not in this registry", 2, 2},
		"edit": {[]string{good + "<edit path=\"src/main.tsx\">\n<<<<<<< SEARCH\nthere is no such line at all\n=======\nx\n>>>>>>> REPLACE\n</edit>", file("src/main.tsx", "import './App.tsx'\n// again\n")},
			"apply", "src/main.tsx", 2, 2},
		"type":          {[]string{file("package.json", `{"dependencies":{"react":"19"},"scripts":{"check":"tsc"}}`) + file("src/App.tsx", "TYPEERROR\n"), good}, "tsc", "TS2322", 3, 2},
		"runtime":       {[]string{file("src/App.tsx", "CRASH\n"), good}, "browser", "Cannot read properties", 3, 2},
		"nothing":       {[]string{"I think that it is fine.", good}, "apply", "changes nothing", 2, 2},
		"never":         {[]string{file("src/App.tsx", "BROKEN\n")}, "apply", "Unexpected token", 0, 3},
		"never, partly": {[]string{file("src/App.tsx", "CRASH 1\n"), file("src/App.tsx", "CRASH 2\n"), file("src/App.tsx", "BROKEN\n")}, "browser", "Cannot read", 3, 3},
		"too large":     {[]string{file("src/x.css", strings.Repeat("x\n", 1<<20+1)), good}, "apply", "", 2, 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t)
			w.models = &writer{answers: tt.answers, cost: 1000}
			s, _ := w.begin(t)
			a := create(t, s, "shop")
			all, last := edit(t, s, "shop", engi.EditSpec{Prompt: "make a card", Actor: "key_x"})
			well := !strings.HasPrefix(name, "never")
			if (last.Error == nil) != well || last.Revision != tt.revision || last.Round != tt.rounds || last.Cost != int64(1000*tt.rounds) || strings.Count(last.Text, "\n") != tt.rounds-1 {
				t.Fatalf("it ended with %+v, %v", last, last.Error)
			}
			var output strings.Builder
			var wrong []engi.AppUpdate
			seqs, applies := map[int64]bool{}, 0
			for _, u := range all {
				if u.Edit != all[0].Seq && u.Kind != engi.AppStateChanged {
					t.Errorf("%+v is not of the edit %d", u, all[0].Seq)
				}
				switch u.Kind {
				case engi.AppOutput:
					output.WriteString(u.Text)
				case engi.AppProblem:
					wrong = append(wrong, u)
				case engi.AppApplyBegun:
					applies++
				case engi.AppApplied, engi.AppApplyFailed:
					applies--
				}
				if seqs[u.Seq] && u.Seq != 0 {
					t.Errorf("%+v comes twice", u)
				}
				seqs[u.Seq] = true
			}
			if applies != 0 || tt.rounds == 1 && output.String() != tt.answers[0] {
				t.Errorf("%d applies have not ended; the model wrote %q", applies, output.String())
			}
			if (len(wrong) == 0) != (tt.source == "") {
				t.Fatalf("the problems are %+v", wrong)
			}
			if tt.source != "" && (wrong[0].Source != tt.source || !strings.Contains(wrong[0].Text, tt.problem)) {
				t.Errorf("the first problem is %+v", wrong[0])
			}
			if tt.rounds > 1 && tt.problem != "" && !strings.Contains(fmt.Sprint(w.models.(*writer).asked[1]), tt.problem) {
				t.Errorf("the model was not told of %q: %v", tt.problem, w.models.(*writer).asked[1])
			}
			if x, err := s.Get(t.Context(), "ann", "shop"); err != nil || x.Editing != 0 || x.Applying != 0 || x.Sandbox != a.Sandbox {
				t.Errorf("the app is %+v (%v)", x, err)
			}
			if files := recorded(t, s, "shop", 0); well && name != "package" && files["src/App.tsx"] != "import './Card.tsx'\n" && name != "edit" {
				t.Errorf("the files are %v", files)
			} else if name == "edit" && (files["src/Card.tsx"] == "" || !strings.Contains(files["src/main.tsx"], "again")) {
				t.Errorf("what waited was not applied: %v", files)
			}
			wantSame(t, w, s, "shop")
		})
	}
}

func TestEditAsksForWhatWasCutOff(t *testing.T) {
	w := newFixture(t)
	m := &writer{answers: []string{
		file("src/Card.tsx", "export const card = 1\n") + "<file path=\"src/App.tsx\">\nimport './Card.tsx'\nexport default",
		file("src/App.tsx", "import './Card.tsx'\n"),
	}}
	w.models = m
	s, _ := w.begin(t)
	create(t, s, "shop")
	_, last := edit(t, s, "shop", engi.EditSpec{Rounds: 1})
	if last.Error != nil || last.Revision != 2 || last.Round != 1 {
		t.Fatalf("it ended with %+v, %v", last, last.Error)
	}
	if told := m.told(t, 2); !strings.Contains(told, "src/App.tsx") || strings.Contains(told, "src/Card.tsx") {
		t.Errorf("the model was told %q", told)
	}
	if files := recorded(t, s, "shop", 2); files["src/Card.tsx"] == "" || files["src/App.tsx"] != "import './Card.tsx'\n" {
		t.Errorf("the files are %v", files)
	}
	// A model that always stops in the middle is asked this often, and no more.
	m.mu.Lock()
	m.answers, m.asked, m.long = []string{"and so on"}, nil, true
	m.mu.Unlock()
	if _, last := edit(t, s, "shop", engi.EditSpec{Rounds: 2}); last.Error == nil || last.Revision != 0 {
		t.Errorf("it ended with %+v", last)
	}
	m.told(t, 7)
}

func TestEditIsBounded(t *testing.T) {
	w := newFixture(t)
	m := &writer{answers: []string{file("src/App.tsx", "BROKEN\n")}, cost: 600}
	w.models = m
	s, _ := w.begin(t)
	create(t, s, "shop")
	before := recorded(t, s, "shop", 0)
	_, last := edit(t, s, "shop", engi.EditSpec{Rounds: 10, MaxCost: 1000})
	if last.Error == nil || last.Error.Kind != engi.Exhausted || last.Cost != 1200 || last.Round != 2 || last.Revision != 0 {
		t.Errorf("it ended with %+v, %v", last, last.Error)
	}
	m.told(t, 2)
	if after := recorded(t, s, "shop", 0); fmt.Sprint(before) != fmt.Sprint(after) {
		t.Errorf("the files are %v", after)
	}
	for name, spec := range map[string]engi.EditSpec{
		"empty": {}, "long": {Prompt: strings.Repeat("x", 33<<10)}, "rounds": {Prompt: "x", Rounds: 11}, "cost": {Prompt: "x", MaxCost: -1}, "bytes": {Prompt: "\xff"},
	} {
		spec.Viewer, spec.App = "ann", "shop"
		if _, err := s.Edit(t.Context(), spec); !engi.Is(err, engi.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.Edit(t.Context(), engi.EditSpec{Viewer: "bob", App: "shop", Prompt: "x"}); !engi.Is(err, engi.NotFound) {
		t.Errorf("bob edits it: %v", err)
	}
	m.refuse = engi.Errorf(engi.Unsupported, "no model").WithRemedy("configure one")
	if _, err := s.Edit(t.Context(), engi.EditSpec{Viewer: "ann", App: "shop", Prompt: "x"}); !engi.Is(err, engi.Unsupported) {
		t.Errorf("without a model: %v", err)
	}
	if x, err := s.Get(t.Context(), "ann", "shop"); err != nil || x.Editing != 0 {
		t.Errorf("the app is %+v (%v)", x, err)
	}
}

func TestEditExcludesOthers(t *testing.T) {
	w := newFixture(t)
	m := &writer{answers: []string{file("src/App.tsx", "export default 2\n")}, wait: make(chan struct{})}
	w.models = m
	s, _ := w.begin(t)
	create(t, s, "shop")
	ctx := t.Context()
	spec := engi.EditSpec{Viewer: "ann", App: "shop", Prompt: "x", Idempotency: "k"}
	seq, err := s.Edit(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.Edit(ctx, spec); err != nil || again != seq {
		t.Errorf("again: %d, %v; want %d", again, err, seq)
	}
	if _, err := s.Edit(ctx, engi.EditSpec{Viewer: "ann", App: "shop", Prompt: "x"}); !engi.Is(err, engi.Conflict) {
		t.Errorf("another edit: %v", err)
	}
	if _, err := s.Apply(ctx, engi.ApplySpec{Viewer: "ann", App: "shop", Text: file("a.js", "a")}); !engi.Is(err, engi.Conflict) {
		t.Errorf("an apply: %v", err)
	}
	if _, err := s.Rollback(ctx, "ann", "shop", 1); !engi.Is(err, engi.Conflict) {
		t.Errorf("a rollback: %v", err)
	}
	if err := s.Cancel(ctx, "bob", "shop"); !engi.Is(err, engi.NotFound) {
		t.Errorf("bob cancels it: %v", err)
	}
	if err := s.Cancel(ctx, "ann", "shop"); err != nil {
		t.Fatal(err)
	}
	if _, last := followEdit(t, s, "shop", seq); last.Error == nil || last.Error.Kind != engi.Expired || !strings.Contains(last.Error.Text, "cancelled") {
		t.Errorf("it ended with %+v, %v", last, last.Error)
	}
	close(m.wait)
	if _, last := edit(t, s, "shop", engi.EditSpec{}); last.Error != nil || last.Revision != 2 {
		t.Errorf("after that, another ended with %+v", last)
	}
	// The edit ends when the app is stopped while a command runs.
	slow := make(chan struct{})
	w.mu.Lock()
	w.slow = slow
	w.mu.Unlock()
	m.mu.Lock()
	m.answers = []string{file("src/App.tsx", "export default 3\n") + "<command>wait</command>"}
	m.mu.Unlock()
	if seq, err = s.Edit(ctx, engi.EditSpec{Viewer: "ann", App: "shop", Prompt: "x"}); err != nil {
		t.Fatal(err)
	}
	for u, err := range s.Watch(ctx, "ann", "shop", seq) {
		if err != nil {
			t.Fatal(err)
		}
		if u.Step == "command" {
			break
		}
	}
	if err := s.Stop(ctx, "ann", "shop"); err != nil {
		t.Error(err)
	}
	close(slow)
	if _, last := followEdit(t, s, "shop", seq); last.Error == nil || last.Revision != 0 {
		t.Errorf("it ended with %+v", last)
	}
}

// TestEditIsKilled cuts the power in the middle of an edit that needs two rounds, at many
// steps.
func TestEditIsKilled(t *testing.T) {
	first, second := "CRASH\n", "export default 'mended'\n"
	ran, stride := -1, 5
	if testing.Short() {
		stride = 31
	}
	for step := 0; ran < 0 || step <= ran; step += stride {
		w := newFixture(t)
		w.models = &writer{answers: []string{file("src/App.tsx", first), file("src/App.tsx", second)}}
		s, stop := w.begin(t)
		create(t, s, "shop")
		left := step
		if ran < 0 {
			left = -1
		}
		w.cut = stop // waiting for a killed node is pointless
		w.power(left)
		seq, err := s.Edit(t.Context(), engi.EditSpec{Viewer: "ann", App: "shop", Prompt: "x"})
		if left < 0 {
			if _, last := followEdit(t, s, "shop", seq); err != nil || last.Error != nil || last.Revision != 3 {
				t.Fatalf("it ended with %+v (%v)", last, err)
			}
			stop()
			ran, step = w.steps, 1-stride
			continue
		}
		for err == nil && !w.isOff() {
			if x, e := s.Get(t.Context(), "ann", "shop"); e != nil || x.Editing == 0 {
				break // the edit ended before the cut
			}
			time.Sleep(time.Millisecond)
		}
		stop()
		w.power(-1)
		s, stop = w.begin(t)
		x, err := s.Open(t.Context(), "ann", "shop")
		if err != nil || x.Editing != 0 || x.Applying != 0 {
			t.Fatalf("step %d: the app is %+v (%v)", step, x, err)
		}
		wantSame(t, w, s, "shop")
		if got := recorded(t, s, "shop", 0)["src/App.tsx"]; got != first && got != second && got != "export default 'first'\n" {
			t.Errorf("step %d: the file has %q", step, got)
		}
		if seq != 0 {
			if _, last := followEdit(t, s, "shop", seq); last.Error != nil && last.Error.Kind != engi.Unavailable {
				t.Errorf("step %d: it ended with %+v, %v", step, last, last.Error)
			}
		}
		stop()
	}
	t.Logf("%d steps", ran)
}

func TestEditFails(t *testing.T) {
	w := newFixture(t)
	s, _ := w.begin(t)
	create(t, s, "shop")
	if _, err := s.Edit(t.Context(), engi.EditSpec{Viewer: "ann", App: "shop", Prompt: "x"}); !engi.Is(err, engi.Unsupported) {
		t.Errorf("without models: %v", err)
	}
	w.models = brokenModel{}
	s, _ = w.begin(t)
	_, last := edit(t, s, "shop", engi.EditSpec{})
	if last.Error == nil || last.Error.Kind != engi.Denied || last.Cost != 7 || last.Round != 1 {
		t.Errorf("it ended with %+v, %v", last, last.Error)
	}
}

type brokenModel struct{ app.Models }

func (brokenModel) Check(context.Context, engi.Owner, string) error { return nil }

func (brokenModel) Write(context.Context, engi.Owner, string, string, []engi.Message, func(string) error) (string, bool, engi.Tokens, error) {
	return "", false, engi.Tokens{Cost: 7}, errors.Join(engi.Errorf(engi.Denied, "the key is not accepted"))
}
