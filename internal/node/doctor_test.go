package node

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/engi-dev/engi/internal/node/config"
)

func TestExamine(t *testing.T) {
	c := config.Defaults()
	c.CacheDir, c.DataDir = t.TempDir(), filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(c.DataDir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	checks, err := Examine(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	for name, ok := range map[string]bool{"data directory": false, "cache directory": true, "template base": false} {
		i := slices.IndexFunc(checks, func(x Check) bool { return x.Name == name })
		if i < 0 || checks[i].OK != ok || checks[i].Detail == "" || !ok && checks[i].Fix == "" {
			t.Errorf("%s: %+v", name, checks)
		}
	}
}
