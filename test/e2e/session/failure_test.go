package session

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node"

	"github.com/engi-dev/engi/test/env"
)

// TestMissingSecretStopsTheStart checks that the error names the variable.
func TestMissingSecretStopsTheStart(t *testing.T) {
	env.Slow(t)
	c := settings(t, newRegistry(t), `
[sandbox]
[[sandbox.dependencies]]
package = "@acme/sdk"
secret_env = "ACME_MISSING_KEY"
hosts = ["api.acme.test"]
`)
	os.Unsetenv("ACME_MISSING_KEY")
	n, err := node.Open(t.Context(), c, node.Options{})
	if err == nil {
		n.Close()
	}
	if !engi.Is(err, engi.Invalid) || !strings.Contains(err.Error(), "ACME_MISSING_KEY") || !strings.Contains(engi.RemedyOf(err), "ACME_MISSING_KEY") {
		t.Errorf("%v; %s", err, engi.RemedyOf(err))
	}
}

// TestUnreachableRegistry checks that a failing installation reports the reason and
// affects nothing else: requests without packages work, sessions get
// the packages installed before, and nothing is lost.
func TestUnreachableRegistry(t *testing.T) {
	env.Slow(t)
	r := newRegistry(t)
	acme(t, r)
	r.publish(t, "@acme/late", "1.0.0", nil, map[string]string{"index.js": "export const late = true;"})
	r.fail(true)
	section := func(packages ...string) string {
		text := "[sandbox]\ntemplate = \"base\"\n"
		for _, p := range packages {
			text += "[[sandbox.dependencies]]\npackage = \"" + p + "\"\n"
		}
		return text
	}
	// A version that was never installed on any machine.
	unheard := "@acme/late@1.0.0-" + strings.ToLower(time.Now().Format("20060102t150405.000000000"))
	unheard = strings.ReplaceAll(unheard, ".", "-")
	unheard = strings.Replace(unheard, "1-0-0", "1.0.0", 1)
	c := settings(t, r, section("@acme/sdk@1.2.0", unheard))
	n := run(t, c)
	d := n.installed(t)
	if d.State != engi.DependenciesFailed || d.Error == "" || d.Template != "" {
		t.Fatalf("%+v", d)
	}
	if !strings.Contains(d.Error+strings.Join(d.Log, "\n"), "@acme%2flate") && !strings.Contains(d.Error, "502") {
		t.Errorf("it does not say which package or why: %s", d.Error)
	}
	s := n.session(t, engi.SessionSpec{Name: "s"})
	_, err := n.RunCode(t.Context(), engi.Everyone, string(s.ID), engi.CodeSpec{Code: "1"}, nil)
	if !engi.Is(err, engi.Unavailable) || !strings.Contains(engi.RemedyOf(err), "engi session deps") {
		t.Errorf("code without packages: %v; %s", err, engi.RemedyOf(err))
	}
	// Sandboxes without packages work.
	x, err := n.Sandboxes().Create(t.Context(), engi.SandboxSpec{Template: "base"})
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Sandboxes().Stop(t.Context(), engi.Everyone, x.ID); err != nil {
		t.Error(err)
	}
	own := n.session(t, engi.SessionSpec{Template: "base"})
	if res := n.code(t, own.ID, "6 * 7"); string(res.Value) != "42" {
		t.Errorf("in a template of its own: %s", res.Value)
	}
	n.Stop()

	// The registry is back: the session still exists, and works.
	r.fail(false)
	c.Sessions.Dependencies = c.Sessions.Dependencies[:1]
	n = run(t, c)
	if d := n.installed(t); d.State != engi.DependenciesReady {
		t.Fatalf("%+v", d)
	}
	n.code(t, s.ID, `import { Acme } from "@acme/sdk"; await Deno.writeTextFile("kept", new Acme({}).greet("x"))`)
	before := n.installed(t)
	n.Stop()

	// A configuration that cannot be installed: the previous one is used.
	r.fail(true)
	c.Sessions.Dependencies = append(c.Sessions.Dependencies, c.Sessions.Dependencies[0])
	c.Sessions.Dependencies[1].Package = unheard
	n = run(t, c)
	d = n.installed(t)
	if d.State != engi.DependenciesFailed || d.Template != before.Template || d.Wanted == before.Wanted {
		t.Fatalf("%+v, want %s to serve", d, before.Template)
	}
	if res := n.code(t, s.ID, `import { Acme } from "@acme/sdk"; await Deno.readTextFile("kept") + new Acme({}).greet("y")`); string(res.Value) != `"[x][y]"` {
		t.Errorf("value %s", res.Value)
	}
	fresh := n.session(t, engi.SessionSpec{})
	n.code(t, fresh.ID, `import { Acme } from "@acme/sdk"; new Acme({}).greet("new")`)
	n.fails(t, fresh.ID, `import { late } from "@acme/late"; late`, "not installed")
}

// TestFullVolume checks that a full volume is an error of the code,
// and that nothing in it is lost.
func TestFullVolume(t *testing.T) {
	env.Slow(t)
	c := settings(t, newRegistry(t), "[sandbox]\nvolume_capacity_mb = 32\n")
	n := run(t, c)
	n.installed(t)
	s := n.session(t, engi.SessionSpec{})
	n.code(t, s.ID, `await Deno.writeTextFile("important.txt", "keep me")`)
	n.fails(t, s.ID, `const piece = new Uint8Array(1 << 20);
for (let i = 0; i < 64; i++) await Deno.writeFile("big-" + i, piece);`, "No space left")
	// Code still runs, sees all files, and can free space.
	if res := n.code(t, s.ID, `await Deno.readTextFile("important.txt")`); string(res.Value) != `"keep me"` {
		t.Errorf("value %s", res.Value)
	}
	n.code(t, s.ID, `for await (const e of Deno.readDir(".")) if (e.name.startsWith("big-")) await Deno.remove(e.name);
await Deno.writeTextFile("more.txt", "room again")`)
	if err := n.Release(t.Context(), engi.Everyone, string(s.ID)); err != nil {
		t.Fatal(err)
	}
	if res := n.code(t, s.ID, `[await Deno.readTextFile("important.txt"), await Deno.readTextFile("more.txt")]`); string(res.Value) != `["keep me","room again"]` {
		t.Errorf("value %s", res.Value)
	}
}

// TestCodeInADenoOfItsOwn checks the environment and the permissions of a piece of
// code.
func TestCodeInADenoOfItsOwn(t *testing.T) {
	env.Slow(t)
	c := settings(t, newRegistry(t), "[sandbox]\nmode = \"warm\"\ntimeout_seconds = 60\nmemory_mb = 512\n")
	n := run(t, c)
	n.installed(t)
	s := n.session(t, engi.SessionSpec{Env: map[string]string{"COLOR": "blue"}})
	wait(t, "the warm session runs", func() (engi.SessionState, bool) {
		x, err := n.Sessions.Get(t.Context(), engi.Everyone, string(s.ID))
		if err != nil {
			t.Fatal(err)
		}
		return x.State, x.State == engi.SessionRunning
	})
	var printed strings.Builder
	res, err := n.RunCode(t.Context(), engi.Everyone, string(s.ID), engi.CodeSpec{Code: `console.log("out"); console.error("err"); Deno.env.get("COLOR") + Deno.env.get("MORE")`, Env: map[string]string{"MORE": "!"}},
		func(c engi.Chunk) { printed.Write(c.Data) })
	if err != nil || string(res.Value) != `"blue!"` || res.Stdout != "out\n" || res.Stderr != "err\n" || printed.Len() != 8 || res.BootTime != 0 {
		t.Errorf("%+v, %q, %v", res, printed.String(), err)
	}

	// Only files are kept between runs.
	n.code(t, s.ID, `globalThis.left = 1; Deno.env.set("COLOR", "red")`)
	if res := n.code(t, s.ID, `[typeof left, Deno.env.get("COLOR")]`); string(res.Value) != `["undefined","blue"]` {
		t.Errorf("left behind: %s", res.Value)
	}
	for code, want := range map[string]string{
		`await Deno.readTextFile("/etc/passwd")`:                      "Requires read access",
		`await Deno.writeTextFile("/tmp/x", "")`:                      "Requires write access",
		`await new Deno.Command("id").output()`:                       "Requires run access",
		`await fetch("http://example.com")`:                           "Requires net access",
		`import x from "npm:left-pad"; x`:                             `the package "left-pad" is not installed`,
		`import "https://example.com/x.ts"`:                           "example.com",
		"let x = 1;\nx.y.z":                                           "(line 2, column 5)",
		"const a = 1;\nlet b = ;":                                     "SyntaxError",
		`await new Promise(() => {})`:                                 "nothing will settle",
		`Deno.exit(7)`:                                                "exit status 7",
		`const all = []; for (;;) all.push(new Array(1e6).fill(0.5))`: "memory",
		`import "./no/such.ts"`:                                       "no/such.ts",
	} {
		n.fails(t, s.ID, code, want)
	}
	// An endless loop is ended, and nothing else.
	res, err = n.RunCode(t.Context(), engi.Everyone, string(s.ID), engi.CodeSpec{Code: `console.log("begun"); for (;;);`, Timeout: 2 * time.Second}, nil)
	if err != nil || res.Error == nil || res.Error.Cause != engi.CauseTimeout || res.Stdout != "begun\n" {
		t.Errorf("%+v, %v", res, err)
	}
	if again := n.code(t, s.ID, `1`); again.Sandbox != res.Sandbox {
		t.Errorf("the loop took the sandbox with it")
	}
	if _, err := n.RunCode(t.Context(), engi.Everyone, string(s.ID), engi.CodeSpec{Code: "1", Timeout: time.Hour}, nil); !engi.Is(err, engi.Invalid) {
		t.Errorf("a timeout over the node's: %v", err)
	}
}

// TestDormancy checks that a session without use loses its sandbox and
// keeps its volume, and that one with persistence snapshot keeps everything.
func TestDormancy(t *testing.T) {
	env.Slow(t)
	c := settings(t, newRegistry(t), "[sandbox]\n")
	n := run(t, c)
	n.installed(t)
	for _, p := range []engi.Persistence{engi.PersistSession, engi.PersistSnapshot, engi.PersistNone} {
		s := n.session(t, engi.SessionSpec{Persistence: p, Dormancy: 2 * time.Second})
		before := n.code(t, s.ID, `await Deno.writeTextFile("here", "still"); 1`)
		g, release, err := n.Sessions.Enter(t.Context(), engi.Everyone, string(s.ID))
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Write(t.Context(), "/var/tmp/outside", strings.NewReader("x"), engi.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second) // the session is in use
		if x, err := n.Sessions.Get(t.Context(), engi.Everyone, string(s.ID)); err != nil || x.State != engi.SessionRunning {
			t.Errorf("%s: in use: %+v, %v", p, x, err)
		}
		release()
		want := engi.SessionIdle
		if p == engi.PersistSnapshot {
			want = engi.SessionHibernated
		}
		wait(t, "it is dormant", func() (engi.SessionState, bool) {
			x, err := n.Sessions.Get(t.Context(), engi.Everyone, string(s.ID))
			if err != nil {
				t.Fatal(err)
			}
			return x.State, x.State == want
		})
		res, err := n.RunCode(t.Context(), engi.Everyone, string(s.ID), engi.CodeSpec{Code: `await Deno.readTextFile("here")`}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if res.OK != (p != engi.PersistNone) {
			t.Errorf("%s: %+v %v", p, res, res.Error)
		}
		if same := res.Sandbox == before.Sandbox; same != (p == engi.PersistSnapshot) {
			t.Errorf("%s: the same sandbox: %t", p, same)
		}
		g, release, err = n.Sessions.Enter(t.Context(), engi.Everyone, string(s.ID))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.Stat(t.Context(), "/var/tmp/outside"); (err == nil) != (p == engi.PersistSnapshot) {
			t.Errorf("%s: the file outside the volume: %v", p, err)
		}
		release()
	}
}
