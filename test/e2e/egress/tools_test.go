package egress

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"

	"github.com/engi-dev/engi/test/env"
)

// A shop is a server from which tools download files. If it has a token, it requires
// the token.
type shop struct {
	http.Handler
	mu     sync.Mutex
	token  string // guarded by mu
	served int    // guarded by mu
}

func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	want := s.token
	s.served++
	s.mu.Unlock()
	if want != "" && r.Header.Get("Authorization") != "Bearer "+want {
		http.Error(w, "the token is missing", http.StatusForbidden)
		return
	}
	s.Handler.ServeHTTP(w, r)
}

// wants sets the token and resets the number of served files.
func (s *shop) wants(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token, s.served = token, 0
}

func (s *shop) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.served
}

// files serves bytes by path.
type files map[string][]byte

func (f files) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, ok := f[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	switch {
	case strings.HasSuffix(r.URL.Path, "/"):
		w.Header().Set("Content-Type", "text/html")
	case strings.HasSuffix(r.URL.Path, ".ts"):
		w.Header().Set("Content-Type", "application/typescript")
	case bytes.HasPrefix(body, []byte("{")):
		w.Header().Set("Content-Type", "application/json")
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
}

// tools maps download tools to commands that download a file and show its content. The
// host is NAME.tools.test.
var tools = map[string]string{
	"curl":  `curl -sS --fail https://curl.tools.test/file | grep -x 'it came'`,
	"pip":   `pip install -q --no-cache-dir --target site --index-url https://pip.tools.test/simple engi-tools-test && PYTHONPATH=site python3 -c 'import engi_tools_test; print(engi_tools_test.said)' | grep -x 'it came'`,
	"npm":   `mkdir -p n && cd n && npm install --silent --no-audit --no-fund --registry https://npm.tools.test/ engi-tools-test && node -e 'console.log(require("engi-tools-test"))' | grep -x 'it came'`,
	"git":   `git clone -q https://git.tools.test/repo.git cloned && grep -x 'it came' cloned/file`,
	"go":    `mkdir -p g && cd g && export GOPROXY=https://go.tools.test GOSUMDB=off GOFLAGS=-mod=mod && printf 'module m\n\ngo 1.26\n\nrequire tools.test/said v1.0.0\n' > go.mod && go mod download && grep 'it came' "$(go env GOMODCACHE)/tools.test/said@v1.0.0/said.go"`,
	"cargo": `mkdir -p c/src .cargo && printf '[source.crates-io]\nreplace-with = "shop"\n[source.shop]\nregistry = "sparse+https://cargo.tools.test/index/"\n' > .cargo/config.toml && cd c && printf '[package]\nname = "c"\nversion = "0.1.0"\nedition = "2021"\n\n[dependencies]\nengi-tools-test = "1"\n' > Cargo.toml && echo 'fn main() {}' > src/main.rs && cargo fetch -q && grep -r 'it came' "$HOME"/.cargo/registry/src/*/engi-tools-test-1.0.0/src/lib.rs`,
	"deno":  `deno run --quiet --no-lock --reload=https://deno.tools.test --allow-net=deno.tools.test https://deno.tools.test/main.ts | grep -x 'it came'`,
}

// TestTools downloads files with all kinds of tools through an allow list: with
// TLS from end to end, and where a secret is granted to every server, so that
// the tools must trust the egress gateway. No tool turns verification off.
func TestTools(t *testing.T) {
	env.Slow(t)
	w := testInternet(t)
	n := sharedNode(t)
	if x, err := n.Templates().Get(t.Context(), "egress-cargo"); err != nil || x.Digest == "" {
		const need = "the template egress-cargo (engi template build test/e2e/egress/testdata/cargo.yaml --as egress-cargo)"
		if os.Getenv("ENGI_TEST_REQUIRE") == "1" {
			t.Fatalf("needs %s: %v", need, err)
		}
		t.Skipf("needs %s", need)
	}
	shops := openShops(t)
	var hosts []string
	for i, name := range slices.Sorted(maps.Keys(shops)) {
		host := name + ".tools.test"
		w.name(host, fmt.Sprintf("93.184.222.%d", i+1))
		w.site(host, shops[name])
		hosts = append(hosts, host)
	}
	const token = "t00ls-only-t0ken-that-n0body-sees"
	ask(t, n, "POST", "/v1/secrets", v1.SecretRequest{Name: "tools", Value: token})
	for _, c := range []struct {
		name   string
		token  string
		policy v1.NetworkPolicy
	}{
		{"end to end", "", v1.NetworkPolicy{Mode: "restricted", Allow: hosts}},
		{"intercepted", token, v1.NetworkPolicy{Mode: "restricted", Grants: []v1.Grant{{Secret: "tools", Hosts: []string{"*.tools.test"}, As: "bearer"}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var made struct {
				ID string `json:"id"`
			}
			decode(t, ask(t, n, "POST", "/v1/sandboxes", v1.SandboxRequest{Template: "egress-cargo", Network: &c.policy,
				Lifetime: v1.Lifetime{Timeout: v1.Duration(15 * time.Minute)}}), &made)
			id := engi.SandboxID(made.ID)
			g, release, err := n.Sandboxes().Enter(t.Context(), engi.Everyone, id)
			if err != nil {
				t.Fatal(err)
			}
			b := &sandbox{t: t, node: n, id: id, guest: g}
			t.Cleanup(func() {
				release()
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				if err := n.Sandboxes().Stop(ctx, engi.Everyone, id); err != nil {
					t.Errorf("stop %s: %v", id, err)
				}
			})
			env := map[string]string{}
			if c.token == "" {
				// Programs inside do not know the servers' authority, and must refuse.
				if out, exit := b.run(t, time.Minute, "curl", "-sS", "https://curl.tools.test/file"); exit.Code != 60 {
					t.Errorf("curl believes anybody: %d %s", exit.Code, out)
				}
				b.write(t, "/usr/local/share/ca-certificates/tools.crt", string(w.root.PEM))
				if out, exit := b.run(t, time.Minute, "bash", "-c", "cat /usr/local/share/ca-certificates/tools.crt >> /etc/ssl/certs/ca-certificates.crt"); exit.Code != 0 {
					t.Fatalf("%d %s", exit.Code, out)
				}
				env["NODE_EXTRA_CA_CERTS"] = "/usr/local/share/ca-certificates/tools.crt"
				env["DENO_TLS_CA_STORE"] = "system"
				env["PIP_CERT"] = "/etc/ssl/certs/ca-certificates.crt"
			}
			for _, name := range slices.Sorted(maps.Keys(tools)) {
				t.Run(name, func(t *testing.T) {
					shops[name].wants(c.token)
					p, err := g.Start(t.Context(), engi.Command{Args: []string{"bash", "-ec", "mkdir -p ~/" + name + "; cd ~/" + name + "; " + tools[name]},
						Env: env, Timeout: 3 * time.Minute})
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
					if err != nil || exit.Code != 0 || shops[name].count() == 0 {
						t.Errorf("%d, %v, %d requests:\n%s", exit.Code, err, shops[name].count(), out.String())
					}
				})
			}
			// Hosts that are not on the list cannot be reached.
			if out, exit := b.run(t, time.Minute, "curl", "-sS", "--max-time", "20", "https://evil.test/"); exit.Code == 0 {
				t.Errorf("evil.test answers: %s", out)
			}
		})
	}
}

// openShops starts the servers of all tools.
func openShops(t *testing.T) map[string]*shop {
	t.Helper()
	module := archive(t, "zip", map[string]string{"tools.test/said@v1.0.0/go.mod": "module tools.test/said\n\ngo 1.26\n", "tools.test/said@v1.0.0/said.go": "package said\n\nconst It = \"it came\"\n"})
	wheel := archive(t, "zip", map[string]string{
		"engi_tools_test/__init__.py":                 "said = 'it came'\n",
		"engi_tools_test-1.0.dist-info/METADATA":      "Metadata-Version: 2.1\nName: engi-tools-test\nVersion: 1.0\n",
		"engi_tools_test-1.0.dist-info/WHEEL":         "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"engi_tools_test-1.0.dist-info/RECORD":        "engi_tools_test/__init__.py,,\nengi_tools_test-1.0.dist-info/METADATA,,\nengi_tools_test-1.0.dist-info/WHEEL,,\nengi_tools_test-1.0.dist-info/RECORD,,\n",
		"engi_tools_test-1.0.dist-info/top_level.txt": "engi_tools_test\n",
	})
	pkg := archive(t, "tgz", map[string]string{"package/package.json": `{"name": "engi-tools-test", "version": "1.0.0", "main": "main.js"}`, "package/main.js": "module.exports = 'it came';\n"})
	crate := archive(t, "tgz", map[string]string{"engi-tools-test-1.0.0/Cargo.toml": "[package]\nname = \"engi-tools-test\"\nversion = \"1.0.0\"\nedition = \"2021\"\n", "engi-tools-test-1.0.0/src/lib.rs": "pub const SAID: &str = \"it came\";\n"})
	wheelSum, crateSum, pkgSum := sha256.Sum256(wheel), sha256.Sum256(crate), sha512.Sum512(pkg)
	npm, err := json.Marshal(map[string]any{
		"name": "engi-tools-test", "dist-tags": map[string]string{"latest": "1.0.0"},
		"versions": map[string]any{"1.0.0": map[string]any{"name": "engi-tools-test", "version": "1.0.0", "main": "main.js", "dist": map[string]string{
			"tarball": "https://npm.tools.test/engi-tools-test/-/engi-tools-test-1.0.0.tgz", "integrity": "sha512-" + base64.StdEncoding.EncodeToString(pkgSum[:])}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	index := fmt.Sprintf(`{"name":"engi-tools-test","vers":"1.0.0","deps":[],"cksum":"%s","features":{},"yanked":false}`+"\n", hex.EncodeToString(crateSum[:]))
	file := "engi_tools_test-1.0-py3-none-any.whl"
	return map[string]*shop{
		"curl": {Handler: files{"/file": []byte("it came\n")}},
		"pip": {Handler: files{
			"/simple/engi-tools-test/": fmt.Appendf(nil, `<!DOCTYPE html><html><body><a href="/files/%s#sha256=%x">%s</a></body></html>`, file, wheelSum, file),
			"/files/" + file:           wheel,
		}},
		"npm": {Handler: files{"/engi-tools-test": npm, "/engi-tools-test/-/engi-tools-test-1.0.0.tgz": pkg}},
		"git": {Handler: gitServer(t)},
		"go": {Handler: files{
			"/tools.test/said/@v/list": []byte("v1.0.0\n"), "/tools.test/said/@v/v1.0.0.info": []byte(`{"Version": "v1.0.0"}`),
			"/tools.test/said/@v/v1.0.0.mod": []byte("module tools.test/said\n\ngo 1.26\n"), "/tools.test/said/@v/v1.0.0.zip": module,
		}},
		"cargo": {Handler: files{
			"/index/config.json": []byte(`{"dl": "https://cargo.tools.test/dl"}`), "/index/en/gi/engi-tools-test": []byte(index),
			"/dl/engi-tools-test/1.0.0/download": crate,
		}},
		"deno": {Handler: files{"/main.ts": []byte("import { said } from './said.ts';\nconst r = await fetch('https://deno.tools.test/file.json');\nconst text: string = (await r.json()).ok ? said : 'no';\nconsole.log(text);\n"),
			"/said.ts": []byte("export const said: string = 'it came';\n"), "/file.json": []byte(`{"ok": true}`)}},
	}
}

// gitServer serves a repository with one commit, with git itself.
func gitServer(t *testing.T) http.Handler {
	t.Helper()
	dir := t.TempDir()
	git := func(args ...string) string {
		cmd := exec.Command("git", args...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@tools.test", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@tools.test")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	work := filepath.Join(dir, "work")
	git("init", "-q", "-b", "main", work)
	if err := os.WriteFile(filepath.Join(work, "file"), []byte("it came\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	git("-C", work, "add", "file")
	git("-C", work, "commit", "-q", "-m", "one")
	git("clone", "-q", "--bare", work, filepath.Join(dir, "repo.git"))
	return &cgi.Handler{Path: filepath.Join(git("--exec-path"), "git-http-backend"), Root: "/", Dir: dir,
		Stderr: io.Discard, // otherwise git inherits the test's standard error, which then waits for it
		Env:    []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"}}
}

// archive returns an archive of files, always with the same bytes.
func archive(t *testing.T, kind string, content map[string]string) []byte {
	t.Helper()
	var out bytes.Buffer
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	switch kind {
	case "zip":
		z := zip.NewWriter(&out)
		for _, name := range slices.Sorted(maps.Keys(content)) {
			f, err := z.Create(name)
			check(err)
			_, err = f.Write([]byte(content[name]))
			check(err)
		}
		check(z.Close())
	default:
		g := gzip.NewWriter(&out)
		z := tar.NewWriter(g)
		for _, name := range slices.Sorted(maps.Keys(content)) {
			check(z.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content[name])), ModTime: time.Unix(1e9, 0)}))
			_, err := z.Write([]byte(content[name]))
			check(err)
		}
		check(z.Close())
		check(g.Close())
	}
	return out.Bytes()
}
