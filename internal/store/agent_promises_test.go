package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/agent"
	"github.com/engi-dev/engi/internal/engi"
)

// agentPromises tests an [agent.Store] with its [agent.Results]. fresh returns an empty one, and the results in the
// same database.
func agentPromises(t *testing.T, fresh func(t *testing.T) (agent.Store, agent.Results)) {
	record := func(owner engi.Owner, key string) agent.Record {
		r := agent.Record{Fingerprint: "f", Seq: 3, Run: engi.Run{
			ID: engi.NewRunID(), Owner: owner, Agent: "coder", Model: "openai:a", Conversation: engi.NewConversationID(),
			Sandbox: engi.NewSandboxID(), Session: "s", Workspace: "w", State: engi.RunRunning, Created: time.Unix(100, 5).UTC(), Note: []byte(`{"n":1}`),
		}}
		r.Spec = engi.RunSpec{Owner: owner, Agent: "coder", System: "sys", Input: "in", Output: []byte(`{"type":"object"}`), Sandbox: r.Sandbox, Session: "s", Workspace: "w", Scopes: []engi.Scope{engi.ScopeAgents}, Idempotency: key}
		return r
	}
	messages := []engi.Message{
		{Role: engi.RoleUser, Text: "look", Images: []engi.Image{{MediaType: engi.PDF, Data: []byte{0, 255}, Name: "a.pdf"}}},
		{Role: engi.RoleAssistant, Text: "well", Thought: "hm", Calls: []engi.ToolCall{{ID: "1", Name: "t", Arguments: `{"broken`}}},
		{Role: engi.RoleTool, Results: []engi.ToolResult{{Call: "1", Name: "t", Text: "no", Failed: true, Images: []engi.Image{{MediaType: "image/gif", Data: []byte("GIF")}}}}},
	}

	t.Run("what is put is got", func(t *testing.T) {
		s, _ := fresh(t)
		ctx := t.Context()
		r := record("ann", "k")
		if err := s.Put(ctx, r, messages[:1]); err != nil {
			t.Fatal(err)
		}
		r.Steps, r.Text, r.Seq = 2, "well", 9
		r.Tokens = engi.Tokens{Input: 1, Output: 2, Reasoning: 3, CacheRead: 4, CacheWrite: 5, Cost: 6, Calls: 7}
		if err := s.Update(ctx, r, 1, messages[1:2]); err != nil {
			t.Fatal(err)
		}
		r.State, r.Reason, r.Ended = engi.RunFailed, "steps", time.Unix(200, 0).UTC()
		r.Error = &engi.Error{Kind: engi.Denied, Text: "no key", Remedy: "get one"}
		r.Output = []byte(`{"a":1}`)
		if err := s.Update(ctx, r, 1, messages[1:]); err != nil {
			t.Fatal(err)
		}
		got, err := s.Get(ctx, "ann", r.ID)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(fmt.Sprintf("%+v %+v", r, *r.Error), fmt.Sprintf("%+v %+v", got, *got.Error), cmp.Transformer("", dropPointers)); diff != "" {
			t.Error(diff)
		}
		said, err := s.Messages(ctx, r.ID)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(messages, said); diff != "" {
			t.Error(diff)
		}
		// Fewer messages than before: the rest is deleted.
		if err := s.Update(ctx, r, 1, nil); err != nil {
			t.Fatal(err)
		}
		if said, err := s.Messages(ctx, r.ID); err != nil || len(said) != 1 {
			t.Errorf("%d messages, %v", len(said), err)
		}
	})
	t.Run("what is deleted is gone", func(t *testing.T) {
		s, results := fresh(t)
		ctx := t.Context()
		r, other := record("ann", "k"), record("ann", "l")
		for _, r := range []agent.Record{r, other} {
			if err := s.Put(ctx, r, messages); err != nil {
				t.Fatal(err)
			}
			if err := results.PutResult(ctx, r.ID, "1", []byte("no")); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			if err := s.Delete(ctx, r.ID); err != nil {
				t.Fatal(err)
			}
		}
		for want, id := range map[int]engi.RunID{0: r.ID, len(messages): other.ID} {
			_, err := s.Get(ctx, "ann", id)
			_, e := results.GetResult(ctx, id, "1")
			if said, err := s.Messages(ctx, id); err != nil || len(said) != want {
				t.Errorf("%d messages, %v", len(said), err)
			}
			if gone := want == 0; gone != engi.Is(err, engi.NotFound) || gone != engi.Is(e, engi.NotFound) {
				t.Errorf("%v, %v", err, e)
			}
		}
	})
	t.Run("owners are kept apart", func(t *testing.T) {
		s, _ := fresh(t)
		ctx := t.Context()
		r := record("ann", "k")
		if err := s.Put(ctx, r, messages); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Get(ctx, "bob", r.ID); !engi.Is(err, engi.NotFound) {
			t.Errorf("%v", err)
		}
		if l, err := s.List(ctx, "bob", agent.Filter{Conversation: r.Conversation}); err != nil || len(l) != 0 {
			t.Errorf("%v %v", l, err)
		}
		if _, err := s.ByIdempotencyKey(ctx, "bob", "k"); !engi.Is(err, engi.NotFound) {
			t.Errorf("%v", err)
		}
		for _, viewer := range []engi.Viewer{"bob", ""} {
			if l, err := s.List(ctx, viewer, agent.Filter{Limit: 10}); err != nil || len(l) != 0 {
				t.Errorf("%q: %v %v", viewer, l, err)
			}
		}
		for _, viewer := range []engi.Viewer{engi.Everyone, "ann"} {
			if l, err := s.List(ctx, viewer, agent.Filter{}); err != nil || len(l) != 1 {
				t.Errorf("%q: %v %v", viewer, l, err)
			}
		}
	})
	t.Run("keys are used once", func(t *testing.T) {
		s, _ := fresh(t)
		ctx := t.Context()
		r := record("ann", "k")
		if err := s.Put(ctx, r, nil); err != nil {
			t.Fatal(err)
		}
		if err := s.Put(ctx, record("ann", "k"), nil); !engi.Is(err, engi.Conflict) {
			t.Errorf("%v", err)
		}
		if err := s.Put(ctx, record("bob", "k"), nil); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := s.Put(ctx, record("ann", ""), nil); err != nil {
				t.Error(err)
			}
		}
		if got, err := s.ByIdempotencyKey(ctx, "ann", "k"); err != nil || got.ID != r.ID || got.Fingerprint != "f" {
			t.Errorf("%+v %v", got, err)
		}
		if _, err := s.ByIdempotencyKey(ctx, "ann", ""); !engi.Is(err, engi.NotFound) {
			t.Errorf("%v", err)
		}
	})
	t.Run("running runs are found, old ones forgotten", func(t *testing.T) {
		s, results := fresh(t)
		ctx := t.Context()
		runs, old := record("ann", ""), record("ann", "")
		old.Conversation = runs.Conversation
		old.State, old.Ended = engi.RunDone, time.Unix(150, 0)
		for _, r := range []agent.Record{old, runs} {
			if err := s.Put(ctx, r, messages); err != nil {
				t.Fatal(err)
			}
			if err := results.PutResult(ctx, r.ID, "1", []byte("much")); err != nil {
				t.Fatal(err)
			}
		}
		if l, err := s.List(ctx, engi.Everyone, agent.Filter{Running: true}); err != nil || len(l) != 1 || l[0].ID != runs.ID {
			t.Errorf("%v %v", l, err)
		}
		if l, err := s.List(ctx, "ann", agent.Filter{Conversation: runs.Conversation}); err != nil || len(l) != 2 || l[0].ID != runs.ID {
			t.Errorf("%v %v", l, err)
		}
		if err := s.Forget(ctx, time.Unix(151, 0)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Get(ctx, "ann", old.ID); !engi.Is(err, engi.NotFound) {
			t.Errorf("%v", err)
		}
		if _, err := results.GetResult(ctx, old.ID, "1"); !engi.Is(err, engi.NotFound) {
			t.Errorf("%v", err)
		}
		if m, err := s.Messages(ctx, old.ID); err != nil || len(m) != 0 {
			t.Errorf("%v %v", m, err)
		}
		if data, err := results.GetResult(ctx, runs.ID, "1"); err != nil || string(data) != "much" {
			t.Errorf("%q %v", data, err)
		}
		if err := s.Update(ctx, old, 0, nil); !engi.Is(err, engi.NotFound) {
			t.Errorf("%v", err)
		}
	})
}

// dropPointers removes addresses, which differ between equal values.
func dropPointers(s string) string {
	out := []rune{}
	for i := 0; i < len(s); i++ {
		if i+2 < len(s) && s[i:i+2] == "0x" {
			for i < len(s) && s[i] != ' ' {
				i++
			}
		}
		if i < len(s) {
			out = append(out, rune(s[i]))
		}
	}
	return string(out)
}
