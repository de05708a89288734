package web

import (
	"os"
	"strings"
	"testing"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/test/env"
)

// TestWorkspace: a user creates a workspace in the dashboard and works in it, with real
// servers, and another user views it.
func TestWorkspace(t *testing.T) {
	env.Slow(t)
	chromium := browser(t)
	s := env.Serve(t, env.ServerOptions{})
	for _, name := range []string{"service-postgres", "service-redis"} {
		s.Run("template", "build", name)
	}
	keys := map[string]string{}
	for _, owner := range []string{"ann", "bob"} {
		k, err := s.CreateKey(t.Context(), v1.KeyRequest{Name: owner, Owner: owner})
		if err != nil {
			t.Fatal(err)
		}
		keys[owner] = k.Secret
	}
	if err := os.MkdirAll("shots", 0o755); err != nil {
		t.Fatal(err)
	}
	drive(t, "workspace.mjs", map[string]any{"url": s.URL, "keys": keys, "chromium": chromium, "shots": "shots"}, 29)
	if log := s.Log(); strings.Contains(log, "7d0e5c1b93") {
		t.Errorf("the log has what a query says in it:\n%s", log)
	}
}
