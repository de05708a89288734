// Package session tests sessions in real sandboxes: with packages of a registry
// in the test, volumes, and an API behind the egress gateway.
package session

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node/config"
	"github.com/engi-dev/engi/internal/sandbox/disk"
	"github.com/engi-dev/engi/internal/session/deps"
	"github.com/engi-dev/engi/test/env"
)

// settings returns a configuration of a node for tests, whose data is removed with the test
// and whose packages come from r.
func settings(t *testing.T, r *registry, section string) config.Config {
	t.Helper()
	for _, name := range []string{"http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "npm_config_registry", "NPM_CONFIG_REGISTRY"} {
		t.Setenv(name, "")
	}
	c := env.Config(t, section)
	c.Registries.NPM = r.address()
	return c
}

// A running is a node that runs until stop, or the end of the test.
type running struct {
	*env.Running
	engi.Sessions
}

func run(t *testing.T, c config.Config) *running {
	t.Helper()
	t.Cleanup(func() { forget(t, c) })
	n := &running{Running: env.Run(t, c)}
	n.Sessions = n.Node.Sessions()
	t.Cleanup(func() {
		if n.Stopped() {
			return
		}
		// Terminate all sessions, so that no volume stays mounted.
		all, err := n.List(context.Background(), engi.Everyone, engi.Paging{})
		for _, s := range all {
			err = errors.Join(err, n.Terminate(context.Background(), engi.Everyone, string(s.ID)))
		}
		if err != nil {
			t.Error(err)
		}
	})
	return n
}

// forget removes the packages of a test from the cache that nodes share.
func forget(t *testing.T, c config.Config) {
	t.Helper()
	packages := c.Sessions.Packages()
	if len(packages) == 0 {
		return
	}
	templates, err := disk.Open(context.Background(), disk.Options{Dir: filepath.Join(c.CacheDir, "templates")})
	if err != nil {
		t.Error(err)
		return
	}
	err = templates.Remove(context.Background(), deps.Name(c.Sessions.Template, packages))
	if err != nil && !engi.Is(err, engi.NotFound) {
		t.Error(err)
	}
}

// installed waits until the packages are installed, or the installation has failed.
func (n *running) installed(t *testing.T) engi.Dependencies {
	t.Helper()
	return wait(t, "the packages are installed", func() (engi.Dependencies, bool) {
		d, err := n.Dependencies(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return d, d.State != engi.DependenciesBuilding
	})
}

func wait[X any](t *testing.T, what string, f func() (X, bool)) X {
	t.Helper()
	var x X
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		var ok bool
		if x, ok = f(); ok {
			return x
		}
		if time.Now().After(end) {
			t.Fatalf("never: %s: %+v", what, x)
		}
	}
}

// session creates a session that ends with the test.
func (n *running) session(t *testing.T, spec engi.SessionSpec) engi.Session {
	t.Helper()
	s, err := n.Sessions.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// code runs code, which must come to its end.
func (n *running) code(t *testing.T, id engi.SessionID, code string) engi.CodeResult {
	t.Helper()
	res, err := n.RunCode(t.Context(), engi.Everyone, string(id), engi.CodeSpec{Code: code}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !res.OK {
		time.Sleep(time.Second) // the records are written late
		events, err := n.NetworkLog().Events(t.Context(), engi.Everyone, res.Sandbox, 0, 50, false)
		for _, e := range events {
			t.Logf("%s %s %s allowed %t by %q: %s", e.Kind, e.Host, e.Address, e.Allowed, e.Rule, e.Reason)
		}
		if err != nil {
			t.Log(err)
		}
		t.Fatalf("%s:\n%v\n%s\n%s", code, res.Error, res.Stderr, res.Error.Stack)
	}
	return res
}

// fails runs code, which must fail with text in its error.
func (n *running) fails(t *testing.T, id engi.SessionID, code, text string) engi.CodeResult {
	t.Helper()
	res, err := n.RunCode(t.Context(), engi.Everyone, string(id), engi.CodeSpec{Code: code}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if res.OK || res.Error == nil || !strings.Contains(res.Error.Error(), text) {
		t.Errorf("%s: ok %t, %+v, want an error with %q; stderr %s", code, res.OK, res.Error, text, res.Stderr)
	}
	return res
}
