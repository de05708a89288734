package mirror

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
)

func TestReadsLockFiles(t *testing.T) {
	b := open(t, Options{Dir: t.TempDir(), Offline: true})
	for _, c := range []struct{ name, text, want string }{
		{"package-lock.json", `{"lockfileVersion":3,"packages":{"":{"name":"app"},"node_modules/a":{"version":"1.0.0","resolved":"https://registry.npmjs.org/a/-/a-1.0.0.tgz"},
			"node_modules/a/node_modules/@s/b":{"version":"2.0.0-rc.1"},"node_modules/alias":{"name":"real","version":"3.0.0"},"node_modules/git":{"version":"1.0.0","resolved":"git+ssh://git@github.com/x/y.git#abc"},
			"node_modules/linked":{"version":"1.0.0","link":true},"node_modules/mirrored":{"version":"4.0.0","resolved":"https://mirror.example.com/npm/mirrored/-/mirrored-4.0.0.tgz"}}}`,
			"https://registry.npmjs.org/@s/b/-/b-2.0.0-rc.1.tgz https://registry.npmjs.org/a/-/a-1.0.0.tgz https://registry.npmjs.org/mirrored/-/mirrored-4.0.0.tgz https://registry.npmjs.org/real/-/real-3.0.0.tgz"},
		{"x/npm-shrinkwrap.json", `{"dependencies":{"a":{"version":"1.0.0","dependencies":{"b":{"version":"2.0.0"}}}}}`, "https://registry.npmjs.org/a/-/a-1.0.0.tgz https://registry.npmjs.org/b/-/b-2.0.0.tgz"},
		{"pnpm-lock.yaml", "packages:\n\n  '@s/b@2.0.0':\n    resolution: {}\n  a@1.0.0:\n  /c@3.0.0(d@1.0.0):\n", "https://registry.npmjs.org/@s/b/-/b-2.0.0.tgz https://registry.npmjs.org/a/-/a-1.0.0.tgz https://registry.npmjs.org/c/-/c-3.0.0.tgz"},
		{"yarn.lock", "a@^1:\n  version \"1.0.0\"\n  resolved \"https://registry.yarnpkg.com/a/-/a-1.0.0.tgz#65101baf\"\n", "https://registry.yarnpkg.com/a/-/a-1.0.0.tgz"},
		{"go.sum", "example.com/M v1.0.0 h1:x=\nexample.com/M v1.0.0/go.mod h1:y=\n",
			"https://proxy.golang.org/example.com/!m/@v/v1.0.0.info https://proxy.golang.org/example.com/!m/@v/v1.0.0.mod https://proxy.golang.org/example.com/!m/@v/v1.0.0.zip"},
		{"Cargo.lock", "[[package]]\nname = \"own\"\nversion = \"0.1.0\"\n\n[[package]]\nname = \"some\"\nversion = \"1.2.3\"\nsource = \"registry+https://github.com/rust-lang/crates.io-index\"\n\n[[package]]\nname = \"git\"\nversion = \"1.0.0\"\nsource = \"git+https://x\"\n",
			"https://static.crates.io/crates/some/1.2.3/download"},
		{"requirements-dev.txt", "# comment\n-r other.txt\nSome_Thing[extra]==1.0 ; python_version > '3' # why\nother===2 \\\n  --hash=sha256:" + strings.Repeat("0", 64) + "\n", "other==2 some-thing==1.0"},
		{"uv.lock", `wheels = [{ url = "https://files.pythonhosted.org/packages/a/x-1-py3-none-any.whl", hash = "x" }, { url = "https://files.pythonhosted.org/packages/a/x-1-cp312-cp312-win_amd64.whl" }]`, "https://files.pythonhosted.org/packages/a/x-1-py3-none-any.whl"},
		{"list", "http://deb.debian.org/debian/pool/main/h/hello/hello_2.10_amd64.deb\nhttps://evil.example.com/x\n", "http://deb.debian.org/debian/pool/main/h/hello/hello_2.10_amd64.deb"},
	} {
		all, err := b.Read(c.name, []byte(c.text))
		var got []string
		for _, w := range all {
			got = append(got, w.String())
		}
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, %v", c.name, got, err)
		}
	}
	for name, text := range map[string]string{"package-lock.json": "x", "requirements.txt": "a>=1\n", "go.sum": "\x00 v1 h1:\n", "Cargo.lock": "", "what": "nothing"} {
		if _, err := b.Read(name, []byte(text)); !engi.Is(err, engi.Invalid) || engi.RemedyOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestWarm: packages named by lock files are served afterwards without an upstream; packages that
// cannot be downloaded are reported.
func TestWarm(t *testing.T) {
	u := newUpstream(t)
	o := u.options(t)
	all := fill(t, u, &o)
	wheel, source := []byte("wheel"), []byte("source")
	u.put("/pypi/simple/other/", fmt.Appendf(nil, `{"files":[{"filename":"other-2.0-py3-none-any.whl","url":"w","hashes":{"sha256":"%x"}},{"filename":"other-2.0.tar.gz","url":"s","hashes":{"sha256":"%x"}},
		{"filename":"other-2.0-cp312-cp312-win_amd64.whl","url":"x","hashes":{"sha256":"%x"}}, {"filename":"other-3.0.tar.gz","url":"s","hashes":{"sha256":"%x"}}]}`,
		sha256.Sum256(wheel), sha256.Sum256(source), sha256.Sum256(nil), sha256.Sum256(source)))
	u.put("/pypi/simple/other/w", wheel)
	u.put("/pypi/simple/other/s", source)
	b := open(t, o)
	var want []Wanted
	read := func(name, text string) {
		t.Helper()
		more, err := b.Read(name, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, more...)
	}
	read("requirements.txt", "other==2\nother==3\nsome-thing==1.0.0\nmissing==1\n")
	read("Cargo.lock", "name = \"some\"\nversion = \"1.2.3\"\nsource = \"registry+x\"\n")
	read("package-lock.json", `{"packages":{"node_modules/@a/left":{"version":"1.0.0"},"node_modules/right":{"version":"1.0.0"}}}`)
	read("go.sum", "example.com/m v1.0.0/go.mod h1:x=\n")
	failed, n := "", 0
	for x := range b.Warm(t.Context(), want) {
		n++
		if x.Err != nil {
			failed += x.Wanted.String() + " "
		} else if x.Bytes == 0 {
			t.Errorf("%s has no bytes", x.Wanted)
		}
	}
	if n != len(want) || len(strings.Fields(failed)) != 2 || !strings.Contains(failed, "missing==1") || !strings.Contains(failed, "right-1.0.0.tgz") {
		t.Errorf("%d of %d, failed: %s", n, len(want), failed)
	}
	b.Close()
	u.Close()
	o.Offline = true
	b = open(t, o)
	for _, s := range all[:2] {
		if w := get(b, s.url); w.Code != 200 || w.Body.String() != string(s.body) {
			t.Errorf("%s: %d %s", s.url, w.Code, w.Body)
		}
	}
	for file, there := range map[string]bool{"other-2.0-py3-none-any.whl": true, "other-2.0.tar.gz": false, "other-3.0.tar.gz": true} {
		if w := get(b, "https://files.pythonhosted.org/packages/"+file); (w.Code == 200) != there {
			t.Errorf("%s: %d %s", file, w.Code, w.Body)
		}
	}
	// Warm ends with its caller.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range b.Warm(ctx, want) {
	}
	for range b.Warm(t.Context(), want) {
		break
	}
}
