// Package env is what tests of the whole system stand on: it probes for what
// they need and starts a node that the tests of one package share. What is
// missing skips a test, and fails it where everything must be there. It is not
// for tests of one room.
package env

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/engi-dev/engi/node"
	"github.com/engi-dev/engi/node/config"
)

// Need skips a test that lacks what it needs, or fails it under
// ENGI_TEST_REQUIRE=1, as in CI.
func Need(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("ENGI_TEST_REQUIRE") == "1" {
		t.Fatalf("needs %s", what)
	}
	t.Skipf("needs %s", what)
}

// Machine needs root, and the programs that these variables name.
func Machine(t testing.TB, variables ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		Need(t, "root")
	}
	for _, v := range variables {
		if _, err := os.Stat(os.Getenv(v)); err != nil {
			Need(t, "a program named by "+v+" (make build)")
		}
	}
}

// A Shared is a private node for all tests of a package, started by the first
// that asks for it. The zero value is ready.
type Shared struct {
	mu    sync.Mutex
	node  *node.Private
	err   error
	Dir   string // of the node, once it is started
	Cache string
}

// Node returns the node, which has the base template and no pools.
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
	// The path of a socket below it may have 107 bytes.
	if s.Dir, err = os.MkdirTemp("", "engi-test-"); err != nil {
		return nil, err
	}
	c.DataDir, c.Pools, s.Cache = s.Dir, nil, c.CacheDir
	p, err := node.OpenPrivate(context.Background(), c, node.Options{})
	if err != nil {
		return nil, err
	}
	if base, err := p.Templates().Get(context.Background(), "base"); err != nil || base.Digest == "" {
		p.Close()
		return nil, fmt.Errorf("these tests need the base template (make template): %v", err)
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
