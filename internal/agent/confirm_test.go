package agent_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/store"
)

// waiting waits until so many calls of a run wait for a decision.
func (f *fixture) waiting(t *testing.T, id engi.RunID, n int) []engi.ToolCall {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		r, err := f.Get(t.Context(), "ann", id)
		if err != nil || r.State != engi.RunRunning || time.Now().After(deadline) {
			t.Fatalf("%+v %v", r, err)
		}
		if len(r.Waiting) == n {
			return r.Waiting
		}
	}
}

// counted returns a tool that counts its calls by their argument a. It waits for the
// end of its run while hang has that number, after it has said so.
func counted(t *testing.T, name string, made *[8]atomic.Int32, hang *atomic.Int32, began chan<- struct{}) tool.Tool {
	t.Helper()
	x, err := tool.New(name, "Takes a step.", func(ctx context.Context, _ *tool.Call, a adding) (tool.Result, error) {
		made[a.A].Add(1)
		if hang != nil && int(hang.Load()) == a.A {
			began <- struct{}{}
			<-ctx.Done()
			return tool.Result{}, ctx.Err()
		}
		return tool.Result{Text: "took it"}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// numbered answers with calls of tools, numbered in their arguments, and then with done.
func numbered(names ...string) func(scripted.Conversation) scripted.Answer {
	return func(c scripted.Conversation) (a scripted.Answer) {
		if c.Last().Role == "tool" {
			return scripted.Answer{Text: "done"}
		}
		for i, name := range names {
			a.Calls = append(a.Calls, scripted.Call{ID: fmt.Sprint("c", i), Name: name, Arguments: fmt.Sprintf(`{"a":%d,"b":0}`, i)})
		}
		return a
	}
}

func TestConfirm(t *testing.T) {
	var made [8]atomic.Int32
	path := filepath.Join(t.TempDir(), "db")
	f := runnerSpec{path: path, tools: []tool.Tool{counted(t, "step", &made, nil, nil), counted(t, "free", &made, nil, nil)}, play: numbered("step", "free", "step", "nothing")}.open(t)
	r, err := f.Start(t.Context(), engi.RunSpec{Owner: "ann", Input: "go", Confirm: []string{"step"}})
	if err != nil {
		t.Fatal(err)
	}
	wait := f.waiting(t, r.ID, 2)
	if wait[0].ID != "c0" || wait[1].ID != "c2" || wait[1].Arguments != `{"a":2,"b":0}` {
		t.Errorf("%+v", wait)
	}
	for deadline := time.Now().Add(time.Minute); made[1].Load() == 0 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
	}
	if made[0].Load() != 0 || made[1].Load() != 1 || made[2].Load() != 0 {
		t.Errorf("made %d, %d and %d before a decision", made[0].Load(), made[1].Load(), made[2].Load())
	}
	ctx := engi.WithActor(t.Context(), "key_boss")
	decide := func(viewer engi.Viewer, call string, allow bool, reason string, want engi.Kind) {
		t.Helper()
		err := f.Decide(ctx, viewer, r.ID, call, allow, reason)
		if (want == 0) != (err == nil) || err != nil && !engi.Is(err, want) {
			t.Errorf("call %s: %v, want %v", call, err, want)
		}
	}
	decide("bob", "c0", true, "", engi.NotFound)
	decide("ann", "c1", true, "", engi.Conflict)
	decide("ann", "c9", true, "", engi.Conflict)
	decide("ann", "c0", true, strings.Repeat("x", 501), engi.Invalid)
	decide("ann", "c0", true, "two\nlines", engi.Invalid)
	decide("ann", "c0", true, "", 0)
	decide("ann", "c0", false, "", engi.Conflict)
	if left := f.waiting(t, r.ID, 1); left[0].ID != "c2" {
		t.Errorf("%+v", left)
	}
	decide("ann", "c2", false, "not on a Friday", 0)
	r, updates := f.follow(t, r.ID)
	if r.State != engi.RunDone || len(r.Waiting) != 0 || made[0].Load() != 1 || made[2].Load() != 0 {
		t.Errorf("%+v, made %d and %d", r, made[0].Load(), made[2].Load())
	}
	decide("ann", "c2", true, "", engi.Conflict)
	kinds := map[string][]string{} // by call; calls overtake each other
	for _, u := range updates {
		if u.Call != nil {
			kinds[u.Call.ID] = append(kinds[u.Call.ID], string(u.Kind))
		}
	}
	for call, want := range map[string]string{"c0": "waiting call result", "c2": "waiting result"} {
		if got := strings.Join(kinds[call], " "); got != want {
			t.Errorf("%s: %s, want %s", call, got, want)
		}
	}
	messages, err := f.Messages(t.Context(), "ann", r.ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range messages[2].Results {
		if x.Call == "c2" && (!x.Failed || !strings.Contains(x.Text, "not on a Friday")) {
			t.Errorf("%+v", x)
		}
	}
	f.stop()
	db, err := store.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	events, err := store.Events(db).List(t.Context(), "ann", engi.EventFilter{Subject: string(r.ID), Types: []string{"tool.waiting", "tool.decided"}})
	if err != nil {
		t.Fatal(err)
	}
	var log []string
	for _, e := range slices.Backward(events) {
		log = append(log, e.Type+" "+e.Actor+" "+string(e.Data))
	}
	for i, want := range []string{`tool.waiting`, `tool.waiting`, `tool.decided key_boss`, `tool.decided key_boss`} {
		if len(log) != 4 || !strings.Contains(log[i], want) {
			t.Fatalf("%q", log)
		}
	}
	if !strings.Contains(log[3], "not on a Friday") {
		t.Errorf("%q", log[3])
	}
}

// TestConfirmIsNotAvoided has runs that would rather not be asked.
func TestConfirmIsNotAvoided(t *testing.T) {
	var made [8]atomic.Int32
	f := runnerSpec{agent: engi.AgentSpec{Confirm: []string{"*"}}, tools: []tool.Tool{counted(t, "step", &made, nil, nil)}, play: numbered("step")}.open(t)
	r, err := f.Start(t.Context(), engi.RunSpec{Owner: "ann", Input: "go", Confirm: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	f.waiting(t, r.ID, 1)
	if err := f.Cancel(t.Context(), "ann", r.ID); err != nil {
		t.Fatal(err)
	}
	if r, err = f.Get(t.Context(), "ann", r.ID); err != nil || r.State != engi.RunCancelled || len(r.Waiting) != 0 || made[0].Load() != 0 {
		t.Errorf("%+v, made %d; %v", r, made[0].Load(), err)
	}
	if r, _ = f.finish(t, engi.RunSpec{Input: "go", Confirm: []string{"setp"}}); r.State != engi.RunFailed || r.Error.Kind != engi.Invalid || made[0].Load() != 0 {
		t.Errorf("a tool that does not exist: %+v", r)
	}
	for _, names := range [][]string{{""}, make([]string, 65), {strings.Repeat("x", 201)}} {
		if _, err := f.Start(t.Context(), engi.RunSpec{Owner: "ann", Input: "go", Confirm: names}); !engi.Is(err, engi.Invalid) {
			t.Errorf("%d names: %v", len(names), err)
		}
	}
}

// TestConfirmOutlivesARestart stops a runner while one call waits, one was refused and
// one was allowed and began.
func TestConfirmOutlivesARestart(t *testing.T) {
	var made [8]atomic.Int32
	var hang atomic.Int32
	hang.Store(1)
	began := make(chan struct{})
	b := runnerSpec{path: filepath.Join(t.TempDir(), "db"), tools: []tool.Tool{counted(t, "step", &made, &hang, began)}, play: numbered("step", "step", "step")}
	f := b.open(t)
	r, err := f.Start(t.Context(), engi.RunSpec{Owner: "ann", Input: "go", Confirm: []string{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	f.waiting(t, r.ID, 3)
	for call, allow := range map[string]bool{"c1": true, "c2": false} {
		if err := f.Decide(t.Context(), "ann", r.ID, call, allow, ""); err != nil {
			t.Fatal(err)
		}
	}
	<-began
	f.stop()

	hang.Store(-1)
	f = b.open(t)
	if wait := f.waiting(t, r.ID, 1); wait[0].ID != "c0" {
		t.Errorf("%+v", wait)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		err := f.Decide(t.Context(), "ann", r.ID, "c0", true, "")
		if err == nil {
			break
		}
		if !engi.Is(err, engi.Conflict) || time.Now().After(deadline) { // it is not resumed yet
			t.Fatal(err)
		}
	}
	r, _ = f.follow(t, r.ID)
	if r.State != engi.RunDone || made[0].Load() != 1 || made[1].Load() != 1 || made[2].Load() != 0 {
		t.Errorf("%+v, made %d, %d and %d", r, made[0].Load(), made[1].Load(), made[2].Load())
	}
	messages, err := f.Messages(t.Context(), "ann", r.ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range messages[2].Results {
		want := map[string]string{"c0": "took it", "c1": "interrupted", "c2": "refused"}[x.Call]
		if !strings.Contains(x.Text, want) {
			t.Errorf("%s: %q, want %q", x.Call, x.Text, want)
		}
	}
}
