package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
)

func TestQuotas(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.toml")
	text := "[quota]\nsandboxes = 5\nmemory = \"2GiB\"\n[quota.owner.team-a]\nsandboxes = 20\nvcpus = 4.0\n[quota.owner.root]\nsandboxes = -1\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, _, err := Load(From{File: file, Env: []string{"ENGI_QUOTA_VOLUMES=3"}})
	if err != nil {
		t.Fatal(err)
	}
	for owner, want := range map[engi.Owner]engi.Quota{
		"x":      {Sandboxes: 5, Memory: 2 << 30, Volumes: 3},
		"team-a": {Sandboxes: 20, Memory: 2 << 30, VCPUs: 4, Volumes: 3},
		"root":   {Memory: 2 << 30, Volumes: 3},
	} {
		if got := c.Quota.Of(owner); got != want {
			t.Errorf("quota of %s is %+v, want %+v", owner, got, want)
		}
	}
	for text, says := range map[string]string{
		"[quota]\nsandboxs = 1\n":              "unknown key quota.sandboxs",
		"[quota.owner.a]\nsandboxs = 1\n":      "unknown key quota.owner.a.sandboxs",
		"[quota]\nsandboxes = -1\n":            "negative",
		"[quota.owner.a]\nmemory = \"much\"\n": "much",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Load(From{File: file}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v does not say %q", text, err, says)
		}
	}
}
