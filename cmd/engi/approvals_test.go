package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

func TestApprovalsCommands(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	_, decider, err := w.Keys.Create(t.Context(), engi.Key{Owner: "ann", Scopes: []engi.Scope{engi.ScopeApprovals}})
	if err != nil {
		t.Fatal(err)
	}
	run := func(want int, key, input string, args ...string) (out, said string) {
		t.Helper()
		code, out, said := askServer(t, srv.URL, key, input, append([]string{"approvals"}, args...)...)
		if code != want {
			t.Fatalf("engi approvals %s: exit code %d, want %d: %s%s", strings.Join(args, " "), code, want, out, said)
		}
		return out, said
	}
	has := func(text string, parts ...string) {
		t.Helper()
		for _, p := range parts {
			if !strings.Contains(text, p) {
				t.Errorf("no %q in\n%s", p, text)
			}
		}
	}

	a, told := w.Hold("ann", "/v1/pay")
	w.Hold("bob", "/v1/bobs")
	out, _ := run(0, decider, "", "list")
	has(out, string(a.ID), "pending", "POST api.example.com/v1/pay", "bank")
	if strings.Contains(out, "bobs") {
		t.Errorf("another's is listed:\n%s", out)
	}
	out, _ = run(0, decider, "", "show", string(a.ID))
	has(out, "request    POST api.example.com/v1/pay", `body       {"amount": 5}`, "rule       ask POST api.example.com/*", "expires    in 1")
	_, said := run(1, w.User, "", "allow", string(a.ID))
	has(said, "does not have the scope approvals", "engi key create --scope approvals")
	_, said = run(1, decider, "", "allow", string(a.ID), "--exact")
	has(said, "need --for")
	run(1, decider, "", "verify", string(a.ID))
	out, _ = run(0, decider, "", "allow", string(a.ID), "--for", "1h", "--all-sandboxes", "-r", "agreed")
	has(out, string(a.ID)+" allowed")
	if d := <-told; !d.Allowed || d.Reason != "agreed" {
		t.Errorf("%+v", d)
	}
	_, said = run(1, decider, "", "deny", string(a.ID))
	has(said, "it is allowed already")
	out, _ = run(0, decider, "", "remembered")
	has(out, string(a.ID), "allowed", "the same host, port, method and path, any query and body, of all sandboxes until ")

	// The signature, at the server and without it.
	out, _ = run(0, decider, "", "verify", string(a.ID))
	has(out, "decision   allowed", "decided by key_", "reason     agreed", "signature  good")
	key, _ := run(0, decider, "", "verify", "--key-only")
	record, _ := run(0, decider, "", "show", string(a.ID), "--json")
	for from, ok := range map[string]bool{`"state": "allowed"`: true, `"path": "/v1/pay"`: false, `"decider": "key_`: false, `\"decision\":\"allowed\"`: false} {
		text := record
		if !strings.Contains(text, from) {
			t.Errorf("no %s in %s", from, record)
		}
		if !ok {
			text = strings.Replace(record, from, strings.NewReplacer("pay", "steal", "key_", "key_x", "allowed", "denied").Replace(from), 1)
		}
		file := filepath.Join(t.TempDir(), "approval.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		code := engiMain([]string{"--url", "http://127.0.0.1:1", "approvals", "verify", "--file", file, "--public-key", strings.TrimSpace(key)}, os.Stdin, new(strings.Builder), new(strings.Builder))
		if (code == 0) != ok {
			t.Errorf("%s: exit code %d", from, code)
		}
	}

	run(0, decider, "", "forget", string(a.ID))
	run(1, decider, "", "forget", string(a.ID))
	out, _ = run(0, decider, "", "list", "--all", "--json")
	var all []v1.Approval
	if err := json.Unmarshal([]byte(out), &all); err != nil || len(all) != 1 || all[0].Decider == "" {
		t.Errorf("%v %s", err, out)
	}

	// The hour of a decision may be for exactly the same request, and a rule may leave nothing else.
	a, _ = w.Hold("ann", "/exact")
	run(0, decider, "", "allow", string(a.ID), "--for", "1h", "--exact")
	out, _ = run(0, decider, "", "remembered")
	has(out, string(a.ID), "exactly this request of this sandbox until ")
	run(0, decider, "", "forget", string(a.ID))
	out, _ = run(0, decider, "", "show", string(a.ID))
	has(out, "remembered exactly this request")

	// One allowed, one refused for an hour, one left, and then nobody answers.
	_, first := w.Hold("ann", "/1")
	b, second := w.Hold("ann", "/2")
	c, _ := w.Hold("ann", "/3")
	_, _ = w.Hold("ann", "/4")
	out, said = run(0, decider, "y\nNE\nwhat?\n", "watch")
	has(out, "POST api.example.com/1", "POST api.example.com/2", "POST api.example.com/3", "POST api.example.com/4")
	has(said, "4 requests wait", "yh/nh for an hour with any query and body, ye/ne for an hour for exactly this request", string(b.ID)+" is denied", string(c.ID)+" is left to others")
	if d, e := <-first, <-second; !d.Allowed || e.Allowed {
		t.Errorf("%+v %+v", d, e)
	}
	if out, _ := run(0, decider, "", "list", "-q"); strings.Count(out, "apv_") != 2 {
		t.Errorf("%s", out)
	}
}

// TestHostileRequestsAreShownSafely: what a sandbox sends does not move the cursor
// of who decides.
func TestHostileRequestsAreShownSafely(t *testing.T) {
	for _, a := range []v1.Approval{
		{ID: "apv_x", Method: "POST", Host: "a.example", Path: "/x", Body: "\x1b[2Jstate      allowed\r\nrule  \u202eevil\x07", BodySize: 9000},
		{ID: "apv_x", Method: "PO\x1bST", Host: "\u202ea", Path: "/\u009b\n", BodyBase64: []byte("\x1b[2J\xff")},
	} {
		var out strings.Builder
		g := &globals{out: &out}
		approvalFacts(a).print(g)
		if err := approvalRows.print(g, []v1.Approval{a}); err != nil {
			t.Fatal(err)
		}
		if strings.ContainsAny(out.String(), "\x1b\x07\u009b\r\u202e") {
			t.Errorf("%q", out.String())
		}
		for line := range strings.Lines(out.String()) {
			if strings.HasPrefix(line, "state ") || strings.HasPrefix(line, "rule ") {
				t.Errorf("a body poses as %q", line)
			}
		}
	}
}
