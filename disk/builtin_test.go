package disk

import (
	"testing"

	"github.com/google/go-cmp/cmp"

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
