package tool_test

import (
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/agent/tool"
	"github.com/engi-dev/engi/internal/engi"
)

// TestNodesAgentsSeeNothingOfOthers looks for what a tenant has in what tools tell
// the model of an agent of the node itself, before it calls any. internal/server/mcp calls
// them all.
func TestNodesAgentsSeeNothingOfOthers(t *testing.T) {
	s, sessions := docsServices(t)
	add(t, s, engi.DocumentSpec{Owner: "ann", Package: "annlib", Text: "# Marmalade\n\nOf ann.\n"})
	if err := s.Docs.SaveModules(t.Context(), "ann", "one", []engi.CodeModule{{Path: "lib/ann.ts", Scope: engi.ModuleUser}}); err != nil {
		t.Fatal(err)
	}
	all, err := tool.Builtin(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []tool.Env{{}, {Session: string(sessions[0].ID)}, {Session: "one"}} {
		for _, x := range all {
			if x.Name == "search_docs" && x.Available(t.Context(), e) {
				t.Errorf("%s is offered in %+v: there is nothing to find", x.Name, e)
			}
			if x.Prompt == nil {
				continue
			}
			if text := x.Prompt(t.Context(), e); strings.Contains(text, "annlib") || strings.Contains(text, "documentation") {
				t.Errorf("%s tells the model: %s", x.Name, text)
			}
		}
	}
	for _, session := range []string{string(sessions[0].ID), "one"} {
		if err := s.CheckTarget(t.Context(), tool.Env{Session: session}); !engi.Is(err, engi.NotFound) {
			t.Errorf("a run in session %s of another: %v", session, err)
		}
		if err := s.CheckTarget(t.Context(), tool.Env{Owner: "ann", Session: session}); err != nil {
			t.Errorf("a run in session %s of its owner: %v", session, err)
		}
	}
	// What is the node's own is there.
	add(t, s, engi.DocumentSpec{Package: "nodelib", Text: "# Jam\n\nOf the node.\n"})
	if got := use(t, find(t, s, "search_docs"), tool.Env{}, `{"query":"of ann the node"}`).Text; !strings.Contains(got, "nodelib") || strings.Contains(got, "annlib") {
		t.Errorf("%q", got)
	}
}
