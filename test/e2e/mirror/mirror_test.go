// Package packages tests the mirror of package registries with real package managers in real
// sandboxes. Registries are those of the environment: ENGI_MIRROR_NPM and so on,
// or the public ones.
package packages

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node/config"
	"github.com/engi-dev/engi/test/env"
)

// installs lists commands that succeed if all packages are served, by ecosystem. Each
// begins in an empty directory with empty caches.
var installs = []struct{ name, command string }{
	{"npm", `printf '{"name": "app", "version": "1.0.0", "dependencies": {"express": "4.21.2", "lodash": "4.17.21", "semver": "7.6.3"}}' > package.json
[ -f /workspace/package-lock.json ] && cp /workspace/package-lock.json . || npm install --package-lock-only --no-audit --no-fund --silent
npm ci --no-audit --no-fund --silent --cache "$PWD/cache"
cp package-lock.json /workspace/
[ "$(ls node_modules | wc -l)" -ge 50 ]
node -e 'require("express")(); console.log(require("lodash").chunk([1, 2, 3, 4], 2).length)' | grep -x 2`},
	{"pip", `pip install -q --no-cache-dir --disable-pip-version-check --target site requests==2.32.3 six==1.16.0
PYTHONPATH=site python3 -c 'import requests, six; print(requests.__version__)' | grep -x 2.32.3`},
	{"go", `printf 'module app\n\ngo 1.21\n\nrequire rsc.io/quote v1.5.2\n' > go.mod
printf 'package main\n\nimport "rsc.io/quote"\n\nfunc main() { println(quote.Glass()) }\n' > main.go
export GOMODCACHE="$PWD/mod" GOCACHE="$PWD/build" GOFLAGS=-modcacherw
[ -f /workspace/go.sum ] && cp /workspace/go.sum . || GOFLAGS="-modcacherw -mod=mod" go mod download all
GOFLAGS="$GOFLAGS -mod=mod" go build -o app . && cp go.sum /workspace/ && ./app 2>&1 | grep glass`},
	{"apt", `apt-get -qq update && apt-get install -y -qq --no-install-recommends hello >/dev/null && hello | grep -x 'Hello, world!'`},
	{"maven", `curl -sS --fail -o junit.pom https://repo.maven.apache.org/maven2/junit/junit/4.13.2/junit-4.13.2.pom
[ "$(sha1sum junit.pom | cut -d' ' -f1)" = "$(curl -sS --fail https://repo.maven.apache.org/maven2/junit/junit/4.13.2/junit-4.13.2.pom.sha1)" ]`},
}

// cargo is the command for a template with cargo.
const cargo = `mkdir src && printf '[package]\nname = "c"\nversion = "0.1.0"\nedition = "2021"\n\n[dependencies]\nitoa = "=1.0.11"\nserde = { version = "=1.0.210", features = ["derive"] }\n' > Cargo.toml
echo 'fn main() {}' > src/main.rs
export CARGO_HOME="$PWD/home"
[ -f /workspace/Cargo.lock ] && cp /workspace/Cargo.lock .
cargo fetch -q && cp Cargo.lock /workspace/ && ls home/registry/src/*/itoa-1.0.11/src/lib.rs`

// refused lists requests that fail at once, with a reason.
var refused = []struct{ what, command, why string }{
	{"a file of npm's that is no package", `curl -sS -i https://registry.npmjs.org/-/v1/search`, "only packages"},
	{"a query", `curl -sS -i 'https://registry.npmjs.org/lodash?note=secret'`, "without a query"},
	{"a body", `curl -sS -i -X PUT -d '{}' https://registry.npmjs.org/lodash`, "read-only"},
	{"another host behind the registry's name", `curl -sS -i -H 'Host: evil.example.com' https://registry.npmjs.org/lodash`, "the connection is to"},
	{"the whole list of PyPI", `curl -sS -i https://pypi.org/simple/`, "no project"},
}

func TestInstalls(t *testing.T) {
	env.Slow(t)
	c := env.Config(t, "")
	reachable(t)
	c.Network.Max = string(engi.NetworkRestricted)
	took := map[string][3]time.Duration{}
	lock := map[string]string{}
	run := func(t *testing.T, c config.Config, round int) {
		n := env.Run(t, c)
		template := "base"
		if x, err := n.Templates().Get(t.Context(), "egress-cargo"); err == nil && x.Digest != "" {
			template = "egress-cargo"
		}
		all := installs
		if template != "base" {
			all = append(all[:len(all):len(all)], struct{ name, command string }{"cargo", cargo})
		}
		b := newSandbox(t, n, template)
		for path, text := range lock {
			b.write(t, path, text)
		}
		for _, x := range all {
			t.Run(x.name, func(t *testing.T) {
				began := time.Now()
				out, exit := b.run(t, "rm -rf /root/x; mkdir -p /workspace /root/x; cd /root/x\n"+x.command)
				d := took[x.name]
				d[round] = time.Since(began)
				took[x.name] = d
				if exit != 0 {
					t.Errorf("%d\n%s", exit, out)
					b.log(t)
				}
			})
		}
		for _, path := range []string{"/workspace/package-lock.json", "/workspace/go.sum", "/workspace/Cargo.lock"} {
			if text, exit := b.run(t, "cat "+path); exit == 0 {
				lock[path] = text
			}
		}
		for _, x := range refused {
			if out, _ := b.run(t, x.command); !strings.Contains(out, "X-Engi-Error: ") && !strings.Contains(out, "x-engi-error: ") || !strings.Contains(out, x.why) {
				t.Errorf("%s: %s", x.what, out)
			}
		}
		if out, exit := b.run(t, "curl -sS --max-time 20 https://example.com/"); exit == 0 {
			t.Errorf("another host answers: %s", out)
		}
		logged := func() bool {
			return slices.ContainsFunc(b.events(t), func(e engi.NetworkRecord) bool {
				return e.Kind == engi.NetworkRequest && e.Rule == "packages" && e.Allowed
			})
		}
		for end := time.Now().Add(time.Minute); !logged() && time.Now().Before(end); {
			time.Sleep(20 * time.Millisecond) // records are written in batches
		}
		if !logged() {
			t.Error("no request is in the network log")
		}
		b.stop(t)
		n.Stop()
	}
	t.Run("cold", func(t *testing.T) { run(t, c, 0) })
	t.Run("warm", func(t *testing.T) { run(t, c, 1) })
	// No upstream answers, and the cached metadata is no longer fresh.
	p := &c.Mirror
	for _, u := range []*string{&p.NPM, &p.PyPI, &p.Go, &p.Crates, &p.Debian, &p.DebianSecurity, &p.Maven} {
		*u = "http://127.0.0.1:9/cut"
	}
	p.Fresh = config.Duration(time.Nanosecond)
	t.Run("cut", func(t *testing.T) { run(t, c, 2) })
	for name, d := range took {
		t.Logf("%-6s cold %.1f s, warm %.1f s, without a network %.1f s", name, d[0].Seconds(), d[1].Seconds(), d[2].Seconds())
	}
}

// reachable skips a test if the registries cannot be reached.
func reachable(t *testing.T) {
	t.Helper()
	client := http.Client{Timeout: time.Minute}
	resp, err := client.Get("https://registry.npmjs.org/semver/7.6.3")
	if err != nil {
		env.Need(t, "a network with package registries: "+err.Error())
		return
	}
	resp.Body.Close()
}

// A sandbox is a sandbox that may reach only packages.
type sandbox struct {
	n       *env.Running
	id      engi.SandboxID
	guest   engi.Guest
	release func()
}

func newSandbox(t *testing.T, n *env.Running, template string) *sandbox {
	t.Helper()
	s, err := n.Sandboxes().Create(t.Context(), engi.SandboxSpec{Owner: "ann", Template: template, Lifetime: engi.Lifetime{Timeout: 20 * time.Minute},
		Network: engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: []string{"packages"}}})
	if err != nil {
		t.Fatal(err)
	}
	g, release, err := n.Sandboxes().Enter(t.Context(), "ann", s.ID)
	if err != nil {
		t.Fatal(err)
	}
	return &sandbox{n, s.ID, g, release}
}

func (b *sandbox) stop(t *testing.T) {
	b.release()
	if err := b.n.Sandboxes().Stop(context.WithoutCancel(t.Context()), "ann", b.id); err != nil {
		t.Error(err)
	}
}

func (b *sandbox) run(t *testing.T, command string) (string, int) {
	t.Helper()
	p, err := b.guest.Start(t.Context(), engi.Command{Args: []string{"bash", "-ec", command}, User: "root", Timeout: 5 * time.Minute, Output: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for chunk, err := range p.Output(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		out.Write(chunk.Data)
	}
	exit, err := p.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), exit.Code
}

func (b *sandbox) write(t *testing.T, path, text string) {
	t.Helper()
	if err := b.guest.Write(t.Context(), path, strings.NewReader(text), engi.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (b *sandbox) events(t *testing.T) []engi.NetworkRecord {
	t.Helper()
	all, err := b.n.NetworkLog().Events(t.Context(), "ann", b.id, 0, 1000, false)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// log logs the refused requests.
func (b *sandbox) log(t *testing.T) {
	for _, e := range b.events(t) {
		if !e.Allowed {
			t.Logf("%s %s %s: %s", e.Kind, e.Host, e.Address, e.Reason)
		}
	}
}

// TestBuilds: builds of owners install packages through the mirror, and their
// templates do not trust it afterwards.
func TestBuilds(t *testing.T) {
	env.Slow(t)
	c := env.Config(t, "")
	reachable(t)
	c.Network.Max = string(engi.NetworkRestricted)
	n := env.Run(t, c)
	builder, ok := n.Templates().(engi.TemplateBuilder)
	if !ok {
		t.Fatal("the node builds no templates")
	}
	var said strings.Builder
	const name = "packages-test-build"
	x, err := builder.BuildSteps(t.Context(), engi.BuildSpec{Name: name, Owner: "ann", FromTemplate: "base", Force: true, Steps: []engi.BuildStep{
		{Type: engi.StepRun, Args: []string{"pip install -q --break-system-packages six==1.16.0 && mkdir /npm && cd /npm && npm install --silent semver@7.6.3 && apt-get -qq update && apt-get install -y -qq hello && update-ca-certificates", "root"}},
		{Type: engi.StepRun, Args: []string{"curl -sS --max-time 10 https://example.com/ && exit 1 || true", "root"}},
	}}, func(p engi.Progress) { said.WriteString(p.Log + "\n") })
	t.Cleanup(func() {
		if err := engi.Ignore(n.Templates().Remove(context.WithoutCancel(t.Context()), name), engi.NotFound); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, said.String())
	}
	for _, path := range []string{"usr/bin/hello", "npm/node_modules/semver/package.json"} {
		if _, err := os.Stat(filepath.Join(x.Root, path)); err != nil {
			t.Error(err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(x.Root, "usr/local/share/ca-certificates/engi-*")); len(left) != 0 {
		t.Errorf("%q are left", left)
	}
	bundle, err := os.ReadFile(filepath.Join(x.Root, "etc/ssl/certs/ca-certificates.crt"))
	if err != nil {
		t.Fatal(err)
	}
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil && strings.Contains(cert.Subject.String(), "engi") {
			t.Errorf("the template trusts %s", cert.Subject)
		}
	}
}
