package env

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/node"
	"github.com/engi-dev/engi/internal/node/config"
)

// Config returns the configuration of a node for one test: this process's
// environment, then file, the text of a config.toml. The node has a data directory that
// is removed with the test, any free port and no pools. It needs root, the
// programs and the template base.
func Config(t testing.TB, file string) config.Config {
	t.Helper()
	Machine(t, "ENGI_RUNSC", "ENGI_GUEST")
	dir := Dir(t)
	from := config.From{Env: os.Environ()}
	if file != "" {
		from.File = filepath.Join(dir, "config.toml")
		if err := os.WriteFile(from.File, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, _, err := config.Load(from)
	if err != nil {
		t.Fatal(err)
	}
	c.DataDir, c.Listen, c.Pools = filepath.Join(dir, "d"), "127.0.0.1:0", nil
	if ok, err := node.HasTemplate(c, "base"); err != nil || !ok {
		Need(t, "the template base (make template)")
	}
	return c
}

// A Running is a node in this process.
type Running struct {
	*node.Node
	t       testing.TB
	stop    func() error
	stopped bool
}

// Run runs a node until Stop, or the end of the test, which destroys its
// sandboxes. With ENGI_TEST_LOG set, its log goes to standard error.
func Run(t testing.TB, c config.Config) *Running {
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
	r := &Running{Node: n, t: t, stop: sync.OnceValue(func() error {
		cancel()
		return <-done
	})}
	t.Cleanup(func() {
		r.Stop()
		if _, err := node.Destroy(context.Background(), c); err != nil {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		done <- err
		t.Fatalf("the node: %v", err)
	case <-time.After(2 * time.Minute):
		t.Fatal("the node is never ready")
	}
	return r
}

// Stopped reports whether Stop was called.
func (r *Running) Stopped() bool { return r.stopped }

// Stop ends the node; its sandboxes keep running. It may be called again.
func (r *Running) Stop() {
	r.stopped = true
	if err := r.stop(); err != nil {
		r.t.Errorf("the node: %v", err)
	}
}

// A Shared is a private node for all tests of a package, started by the first
// that calls Node. The zero value is ready.
type Shared struct {
	// Configure changes the configuration of the node, which has no pools;
	// nil does not change it.
	Configure func(*config.Config)

	Dir   string // data directory of the node, once it is started
	Cache string

	mu   sync.Mutex
	node *node.Private
	err  error
}

// Node returns the node, which has the base template.
func (s *Shared) Node(t testing.TB) *node.Private {
	t.Helper()
	Machine(t, "ENGI_RUNSC", "ENGI_GUEST")
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.node == nil && s.err == nil {
		s.node, s.err = s.start()
	}
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.node
}

func (s *Shared) start() (*node.Private, error) {
	c, _, err := config.Load(config.From{Env: os.Environ()})
	if err != nil {
		return nil, err
	}
	if s.Dir == "" {
		// The path of a socket below the directory may have 107 bytes.
		if s.Dir, err = os.MkdirTemp("", "engi-"); err != nil {
			return nil, err
		}
	}
	c.DataDir, c.Pools, s.Cache = s.Dir, nil, c.CacheDir
	if s.Configure != nil {
		s.Configure(&c)
	}
	p, err := node.OpenPrivate(context.Background(), c, node.Options{})
	if err != nil {
		return nil, err
	}
	if base, err := p.Templates().Get(context.Background(), "base"); err != nil || base.Digest == "" {
		p.Close()
		return nil, fmt.Errorf("these tests need the template base (make template): %v", err)
	}
	return p, nil
}

// Main runs the tests of a package, ends the node and returns the exit code.
func (s *Shared) Main(m *testing.M) int {
	code := m.Run()
	if s.node != nil {
		if err := s.node.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "close the node:", err)
			code = 1
		}
	}
	if s.Dir != "" {
		if err := os.RemoveAll(s.Dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}
