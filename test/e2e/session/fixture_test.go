// Package session tests sessions in real sandboxes: with packages of a registry
// of its own, volumes, and an API behind the wall.
package session

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/disk"
	"github.com/engi-dev/engi/node"
	"github.com/engi-dev/engi/node/config"
	"github.com/engi-dev/engi/session/deps"
	"github.com/engi-dev/engi/test/env"
)

// settings is a configuration of a node for tests, whose data goes with the test
// and whose packages come from r.
func settings(t *testing.T, r *registry, section string) config.Config {
	t.Helper()
	env.Machine(t, "ENGI_RUNSC", "ENGI_GUEST")
	for _, name := range []string{"http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "npm_config_registry"} {
		t.Setenv(name, "")
	}
	t.Setenv("NPM_CONFIG_REGISTRY", "")
	// The path of a socket below it may have 107 bytes.
	dir, err := os.MkdirTemp("", "engi-ses-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	file := filepath.Join(dir, "config.toml")
	if err := os.WriteFile(file, []byte(section), 0o600); err != nil {
		t.Fatal(err)
	}
	c, _, err := config.Load(config.From{File: file, Env: os.Environ()})
	if err != nil {
		t.Fatal(err)
	}
	c.DataDir, c.Listen, c.Pools, c.Mirrors.NPM = filepath.Join(dir, "d"), "127.0.0.1:0", nil, r.address()
	if ok, err := node.HasTemplate(c, "base"); err != nil || !ok {
		env.Need(t, "the template base (make template)")
	}
	return c
}

// A running is a node that runs until stop, or the end of the test.
type running struct {
	*node.Node
	engi.Sessions
	stop func() // its sandboxes live on
}

func run(t *testing.T, c config.Config) *running {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	if os.Getenv("ENGI_TEST_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	n, err := node.Open(t.Context(), c, node.Options{Version: "test", Log: log})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- n.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatalf("the node: %v", err)
	case <-time.After(2 * time.Minute):
		t.Fatal("the node is never ready")
	}
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the node: %v", err)
		}
	}
	t.Cleanup(func() {
		if !stopped { // so that no volume stays mounted
			all, err := n.Sessions().List(context.Background(), "")
			for _, s := range all {
				err = errors.Join(err, n.Sessions().Terminate(context.Background(), "", string(s.ID)))
			}
			if err != nil {
				t.Error(err)
			}
		}
		stop()
		if _, err := node.Destroy(context.Background(), c); err != nil {
			t.Error(err)
		}
		forget(t, c)
	})
	return &running{n, n.Sessions(), stop}
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
	if err != nil && engi.KindOf(err) != engi.NotFound {
		t.Error(err)
	}
}

// installed waits until packages are, or the installation has failed.
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

// session makes one that ends with the test.
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
	res, err := n.RunCode(t.Context(), "", string(id), engi.CodeSpec{Code: code}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !res.OK {
		time.Sleep(time.Second) // they are written late
		events, err := n.NetworkLog().Events(t.Context(), "", res.Sandbox, 0, 50, false)
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
	res, err := n.RunCode(t.Context(), "", string(id), engi.CodeSpec{Code: code}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if res.OK || res.Error == nil || !strings.Contains(res.Error.Error(), text) {
		t.Errorf("%s: ok %t, %+v, want an error with %q; stderr %s", code, res.OK, res.Error, text, res.Stderr)
	}
	return res
}
