package agent_test

import (
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/agent/llm/scripted"
	"github.com/engi-dev/engi/internal/engi"
)

// TestGoingOn continues a run from its end: once in its conversation, and again in
// others.
func TestGoingOn(t *testing.T) {
	f := runnerSpec{play: func(c scripted.Conversation) scripted.Answer {
		if c.Last().Text == "call" {
			return scripted.Answer{Calls: []scripted.Call{{ID: "c1", Name: "theirs", Arguments: "{}"}}}
		}
		if c.Last().Text == "wait" {
			return scripted.Answer{Text: strings.Repeat("so ", 10_000), Pace: 1e8}
		}
		return scripted.Answer{Text: "yes"}
	}}.open(t)
	ctx := t.Context()
	tools := []engi.Tool{{Name: "theirs", Schema: []byte(`{"type":"object"}`)}}
	first, _ := f.finish(t, engi.RunSpec{Owner: "ann", Input: "call", Tools: tools, Note: []byte(`{"a":1}`)})
	if got, err := f.Get(ctx, "ann", first.ID); err != nil || string(got.Note) != `{"a":1}` || len(first.Calls) != 1 {
		t.Fatalf("%+v %v", got, err)
	}
	result := engi.Message{Role: engi.RoleTool, Results: []engi.ToolResult{{Call: "c1", Text: "rain"}}}
	second, _ := f.finish(t, engi.RunSpec{Owner: "ann", After: first.ID, Messages: []engi.Message{result}, Tools: tools})
	if said, err := f.Messages(ctx, "ann", second.ID); err != nil || len(said) != 4 || said[2].Results[0].Text != "rain" || second.Conversation != first.Conversation {
		t.Errorf("%+v %v %+v", said, err, second)
	}
	third, _ := f.finish(t, engi.RunSpec{Owner: "ann", After: second.ID, Input: "and?"})
	fork, _ := f.finish(t, engi.RunSpec{Owner: "ann", After: second.ID, Input: "or?"})
	said, err := f.Messages(ctx, "ann", fork.ID)
	if err != nil || len(said) != 6 || said[4].Text != "or?" || third.Conversation != first.Conversation || fork.Conversation == first.Conversation {
		t.Errorf("%+v %v; %s, %s, %s", said, err, first.Conversation, third.Conversation, fork.Conversation)
	}
	active, err := f.Start(ctx, engi.RunSpec{Owner: "ann", Input: "wait"})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		spec engi.RunSpec
		kind engi.Kind
	}{
		"somebody else's":   {engi.RunSpec{Owner: "bob", After: first.ID, Input: "x"}, engi.NotFound},
		"the node's own":    {engi.RunSpec{After: first.ID, Input: "x"}, engi.NotFound},
		"without results":   {engi.RunSpec{Owner: "ann", After: first.ID, Input: "x"}, engi.Invalid},
		"of another call":   {engi.RunSpec{Owner: "ann", After: first.ID, Messages: []engi.Message{{Role: engi.RoleTool, Results: []engi.ToolResult{{Call: "c2"}}}}}, engi.Invalid},
		"with conversation": {engi.RunSpec{Owner: "ann", After: first.ID, Conversation: first.Conversation, Input: "x"}, engi.Invalid},
		"that is active":    {engi.RunSpec{Owner: "ann", After: active.ID, Input: "x"}, engi.Conflict},
		"with a long note":  {engi.RunSpec{Owner: "ann", Input: "x", Note: make([]byte, 2<<20)}, engi.Invalid},
		"odd earlier image": {engi.RunSpec{Owner: "ann", Input: "x", Messages: []engi.Message{{Role: engi.RoleUser, Images: []engi.Image{{MediaType: "text/html", Data: []byte("x")}}}}}, engi.Invalid},
	} {
		if _, err := f.Start(ctx, c.spec); !engi.Is(err, c.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// What was said before is shortened from its beginning.
	long, _ := f.finish(t, engi.RunSpec{Owner: "ann", Input: strings.Repeat("x", 1<<20)})
	for range 4 {
		long, _ = f.finish(t, engi.RunSpec{Owner: "ann", After: long.ID, Input: strings.Repeat("x", 1<<20)})
	}
	if said, err := f.Messages(ctx, "ann", long.ID); err != nil || len(said) > 9 || said[0].Role != engi.RoleUser {
		t.Errorf("%d messages, %v", len(said), err)
	}

	// Deleting an active run cancels it first.
	if err := f.Delete(ctx, "bob", active.ID); !engi.Is(err, engi.NotFound) {
		t.Errorf("%v", err)
	}
	for _, id := range []engi.RunID{active.ID, first.ID} {
		if err := f.Delete(ctx, "ann", id); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Get(ctx, "ann", id); !engi.Is(err, engi.NotFound) {
			t.Errorf("%v", err)
		}
		for _, err := range f.Watch(ctx, "ann", id, 0) {
			if !engi.Is(err, engi.NotFound) {
				t.Errorf("%v", err)
			}
		}
	}
	if said, err := f.Messages(ctx, "ann", second.ID); err != nil || len(said) != 4 {
		t.Errorf("what came after the run is gone: %+v %v", said, err)
	}
}
