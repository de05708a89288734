package disk

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/disk/recipe"
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
	for _, name := range []string{"base", "host", "python-dev", "node-fullstack", "blank-ubuntu", "node22", "python3.13"} {
		if builtins()[name] == nil {
			t.Errorf("there is no built-in %s", name)
		}
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
// whose keys mmdebstrap does not look for by itself, with a key that is missing.
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
	wantKind(t, err, engi.Unsupported, "signed with a key")
	if args, err := os.ReadFile(said); err != nil || !strings.Contains(string(args), "--keyring="+mine.keyring) {
		t.Errorf("mmdebstrap was called with %q, %v, without the keyring", args, err)
	}
}
