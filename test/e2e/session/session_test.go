package session

import (
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"

	"github.com/engi-dev/engi/test/env"
)

// acme publishes a small SDK, with a dependency.
func acme(t *testing.T, r *registry) {
	t.Helper()
	r.publish(t, "@acme/sdk", "1.2.0", map[string]string{"tiny-pad": "^1.0.0"}, map[string]string{
		"index.js": `import { pad } from "tiny-pad";
export class Acme {
  constructor({ key, url = "https://api.acme.test" }) { this.key = key; this.url = url; }
  greet(name) { return pad(name); }
  async issues() {
    const r = await fetch(this.url + "/issues", { headers: { authorization: "Bearer " + this.key } });
    if (!r.ok) throw new Error("acme says " + r.status);
    return await r.json();
  }
}`,
		"sub.js": "export const sub = 7;",
	})
	r.publish(t, "tiny-pad", "1.0.3", nil, map[string]string{"index.js": `export const pad = (s) => "[" + s + "]";`})
}

const plain = `
[sandbox]
[[sandbox.dependencies]]
package = "@acme/sdk"
docs = ["https://acme.example/sdk.md"]
`

// TestSnapshotOfPackages checks the life of installed packages: built once,
// named by a hash, used by every session and after a restart without requests to
// the registry, and booted by a session in less than a second.
func TestSnapshotOfPackages(t *testing.T) {
	env.Slow(t)
	r := newRegistry(t)
	acme(t, r)
	c := settings(t, r, plain)
	n := run(t, c)
	began := time.Now()
	d := n.installed(t)
	if d.State != engi.DependenciesReady || d.Template != d.Wanted || !strings.HasPrefix(d.Template, "deps-") {
		t.Fatalf("%+v", d)
	}
	t.Logf("installed in %v", time.Since(began).Round(time.Millisecond))
	s := n.session(t, engi.SessionSpec{})
	res := n.code(t, s.ID, `import { Acme } from "@acme/sdk"; import { sub } from "@acme/sdk/sub"; new Acme({key: "k"}).greet("you") + sub`)
	if string(res.Value) != `"[you]7"` {
		t.Errorf("value %s", res.Value)
	}
	asked := r.requests()
	r.fail(true)
	second := n.session(t, engi.SessionSpec{})
	res = n.code(t, second.ID, `import { Acme } from "@acme/sdk"; new Acme({}).greet("again")`)
	t.Logf("second session: sandbox after %v, code in %v", res.BootTime.Round(time.Millisecond), res.Duration.Round(time.Millisecond))
	for range 3 {
		res = n.code(t, second.ID, `1 + 1`)
		t.Logf("code in a session that is awake: %v", res.Duration.Round(time.Millisecond))
	}
	n.Stop()

	n = run(t, c)
	if again := n.installed(t); again.Digest != d.Digest {
		t.Errorf("after a restart %s, want %s", again.Digest, d.Digest)
	}
	n.code(t, second.ID, `import { Acme } from "@acme/sdk"; new Acme({}).greet("back")`)
	if got := r.requests(); got != asked {
		t.Errorf("the registry was asked %d times more", got-asked)
	}
}
