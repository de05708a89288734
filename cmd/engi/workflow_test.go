package main

import (
	"encoding/json"
	"strings"
	"testing"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/test/apitest"
)

func TestWorkflowCommands(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	as := func(key string) func(want int, args ...string) (out, said string) {
		return func(want int, args ...string) (out, said string) {
			t.Helper()
			code, out, said := askServer(t, srv.URL, key, "", append([]string{"workflow"}, args...)...)
			if code != want {
				t.Fatalf("engi workflow %s: exit code %d, want %d: %s%s", strings.Join(args, " "), code, want, out, said)
			}
			return out, said
		}
	}
	space := asWorkspace(t, srv.URL, w.User)
	space(0, "", "create", "shop")
	space(0, "", "share", "shop", "bob", "--role", "reviewer")
	space(0, "one\n", "write", "shop", "a", "--with", "-")
	run, other := as(w.User), as(w.Other)
	out, _ := run(0, "create", "shop", "--name", "page", "--task", "a page", "--reviewer", "bob", "--max-revisions", "2", "--review-limit", "24h", "--json")
	var x v1.Workflow
	if err := json.Unmarshal([]byte(out), &x); err != nil || x.Name != "page" || x.Reviewer != "bob" || x.MaxRevisions != 2 || x.Limits.Review.String() != "24h0m0s" {
		t.Fatalf("%v in %s", err, out)
	}
	if out, _ := run(0, "templates"); !strings.Contains(out, "static-website") || !strings.Contains(out, "postgres redis") {
		t.Errorf("%s", out)
	}
	out, _ = run(0, "create", "site", "--template", "static-website", "-c", "Hours", "--reviewer", "bob")
	site := strings.TrimSpace(out)
	if out, _ := run(0, "show", site); !strings.Contains(out, "criterion  Accessibility\n") || !strings.Contains(out, "criterion  Hours\n") {
		t.Errorf("%s", out)
	}
	space(0, "", "share", "site", "bob", "--role", "reviewer")
	run(0, "submit", site)
	if _, said := other(1, "review", site, "approve", "--revision", "1", "--met", "Hours"); !strings.Contains(said, "HTML validity") {
		t.Errorf("%s", said)
	}
	if out, _ := other(0, "review", site, "approve", "--revision", "1", "--all-met", "--unmet", "Hours: Sunday is missing"); out != "approved\n" {
		t.Errorf("%q", out)
	}
	if out, _ := run(0, "feedback", site); !strings.Contains(out, "criterion  Hours: not met. Sunday is missing\n") || !strings.Contains(out, "criterion  Accessibility: met") {
		t.Errorf("%s", out)
	}
	if out, _ := run(0, "create", "shop"); !strings.HasPrefix(out, "wfl_") || strings.Count(out, "\n") != 1 {
		t.Errorf("%q", out)
	}
	if out, _ := run(0, "list", "--workspace", "shop", "--stage", "creation"); strings.Count(out, "wfl_") != 2 || !strings.Contains(out, "creator") {
		t.Errorf("%s", out)
	}
	if out, _ := other(0, "list", "-q"); !strings.HasSuffix(out, x.ID+"\n") {
		t.Errorf("%s", out)
	}
	if _, said := run(1, "feedback", x.ID); !strings.Contains(said, "no review yet") {
		t.Errorf("%s", said)
	}
	if out, _ := run(0, "submit", x.ID, "--notes", "done"); out != "review\n" {
		t.Errorf("%q", out)
	}
	if out, _ := run(0, "wait", x.ID, "--stage", "review"); out != "review\n" {
		t.Errorf("%q", out)
	}
	if _, said := run(1, "review", x.ID, "approve", "--revision", "1"); !strings.Contains(said, "only a participant with the role reviewer") {
		t.Errorf("%s", said)
	}
	if out, _ := other(0, "review", x.ID, "send_back", "--grade", "C", "--feedback", "no", "--suggest", "a, b", "--suggest", "c"); out != "revision\n" {
		t.Errorf("%q", out)
	}
	if out, _ := run(0, "feedback", x.ID); !strings.Contains(out, "revision 1 sent back by key_") || !strings.Contains(out, "suggestion a, b\nsuggestion c\n") {
		t.Errorf("%s", out)
	}
	space(0, "two\n", "write", "shop", "a", "--with", "-")
	run(0, "submit", x.ID)
	if out, _ := run(0, "show", x.ID); !strings.Contains(out, "stage      review, waits for the reviewer\n") || !strings.Contains(out, "submitted  revision 2 by key_") || !strings.Contains(out, "sent back  1 times, at most 2\n") || !strings.Contains(out, "deadline   ") || !strings.Contains(out, "grade      C\n") {
		t.Errorf("%s", out)
	}
	if out, _ := other(0, "review", x.ID, "approve", "-r", "2"); out != "approved\n" {
		t.Errorf("%q", out)
	}
	if out, _ := run(0, "wait", x.ID); out != "approved\n" {
		t.Errorf("%q", out)
	}
	if out, _ := run(0, "history", x.ID); strings.Count(out, "\n") != 6 || !strings.Contains(out, "send_back") {
		t.Errorf("%s", out)
	}
	second, _ := run(0, "list", "--stage", "creation", "-q")
	second = strings.TrimSpace(second)
	if out, _ := run(0, "escalate", second, "--reason", "late"); out != "creation\n" {
		t.Errorf("%q", out)
	}
	if out, _ := run(0, "cancel", second); out != "rejected\n" {
		t.Errorf("%q", out)
	}
	if _, said := run(1, "wait", second); !strings.Contains(said, "the work is rejected") {
		t.Errorf("%s", said)
	}
	run(0, "wait", second, "--stage", "rejected")
	if out, _ := run(0, "delete", x.ID, second, "--json"); !strings.Contains(out, x.ID) {
		t.Errorf("%s", out)
	}
	run(1, "show", x.ID)
}
