package guestd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// newNetworkFixture returns a server with its root, and a function that applies a
// network setup.
func newNetworkFixture(t *testing.T) (s *Server, root string, put func(*wire.NetworkSetup)) {
	t.Helper()
	root = t.TempDir()
	s = New(Options{Root: root, Token: "t", InProcess: true})
	t.Cleanup(func() { s.Close() })
	return s, root, func(w *wire.NetworkSetup) {
		t.Helper()
		in := mergeSetup(s.settings().requested, wire.Setup{Network: w})
		if err := checkNetwork(w); err != nil {
			t.Fatal(err)
		}
		a, err := s.newSettings(in, s.settings())
		if err != nil {
			t.Fatal(err)
		}
		s.current = a
	}
}

func TestNetworkSetup(t *testing.T) {
	s, root, put := newNetworkFixture(t)
	write := func(name, text string) {
		t.Helper()
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := func(name, text string) {
		t.Helper()
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil && text != "" {
			t.Error(err)
		}
		if string(got) != text {
			t.Errorf("%s is %q, want %q", name, got, text)
		}
	}
	const system = "-----BEGIN CERTIFICATE-----\nroot\n-----END CERTIFICATE-----"
	write(wire.BundlePath, system)
	write(hostsPath, "127.0.0.1 localhost")
	one := wire.NetworkSetup{Resolver: "10.88.0.1", Search: "team.internal", Authority: []byte("PEM one\n"),
		Env: map[string]string{"KEY": "placeholder", "SSL_CERT_FILE": wire.BundlePath}}
	put(&one)
	want(resolvPath, "search team.internal\nnameserver 10.88.0.1\n")
	want(hostsPath, "127.0.0.1 localhost")
	want(wire.AuthorityPath, "PEM one\n")
	want(wire.BundlePath, system+"\n"+trustBegin+"PEM one\n"+trustEnd)
	if env := s.settings().env; env["KEY"] != "placeholder" || env["SSL_CERT_FILE"] != wire.BundlePath {
		t.Errorf("the environment is %v", env)
	}

	// The same setup again leaves files alone that have changed.
	write(resolvPath, "nameserver 9.9.9.9\n")
	put(&one)
	want(resolvPath, "nameserver 9.9.9.9\n")

	// Another authority replaces the first, as in a fork of a sandbox.
	two := one
	two.Authority, two.Env = []byte("PEM two"), map[string]string{"OTHER": "x", "PATH": "/evil"}
	put(&two)
	want(wire.BundlePath, system+"\n"+trustBegin+"PEM two\n"+trustEnd)
	if env := s.settings().env; env["KEY"] != "" || env["OTHER"] != "x" || env["PATH"] != defaultPath {
		t.Errorf("the environment is %v", env)
	}

	// No authority removes it.
	put(&wire.NetworkSetup{})
	want(resolvPath, "")
	want(wire.BundlePath, system+"\n")
	want(wire.AuthorityPath, "")
	if env := s.settings().env; env["OTHER"] != "" {
		t.Errorf("the environment is %v", env)
	}
}

// TestNetworkSetupOnReadOnlyFiles expects certificates elsewhere if their usual
// directory is read-only.
func TestNetworkSetupOnReadOnlyFiles(t *testing.T) {
	s, root, put := newNetworkFixture(t)
	for _, dir := range []string{"etc/ssl", "usr/local/share"} { // files in place of directories: no process can write below
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(dir)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, dir), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put(&wire.NetworkSetup{Authority: []byte("PEM"), Env: map[string]string{"SSL_CERT_FILE": wire.BundlePath, "DENO_CERT": wire.AuthorityPath, "X": "y"}})
	env := s.settings().env
	for _, name := range []string{"SSL_CERT_FILE", "DENO_CERT"} {
		raw, err := os.ReadFile(env[name])
		if err != nil || !strings.Contains(string(raw), "PEM") || !strings.Contains(env[name], trustDir) {
			t.Errorf("%s is %s with %q, %v", name, env[name], raw, err)
		}
	}
	if env["X"] != "y" {
		t.Errorf("the environment is %v", env)
	}
	put(&wire.NetworkSetup{Authority: []byte("PEM"), Env: map[string]string{"SSL_CERT_FILE": wire.BundlePath}})
	if got := s.settings().env["SSL_CERT_FILE"]; !strings.Contains(got, trustDir) {
		t.Errorf("told again it is %s", got)
	}
}

func TestNetworkSetupRefusesNonsense(t *testing.T) {
	for name, w := range map[string]wire.NetworkSetup{
		"resolver":  {Resolver: "1.1.1.1\nnameserver 2.2.2.2"},
		"search":    {Search: "a\nnameserver 2.2.2.2"},
		"authority": {Authority: []byte(trustEnd)},
		"huge":      {Authority: make([]byte, wire.MaxAuthority+1)},
		"env":       {Env: map[string]string{"A=B": "c"}},
	} {
		if checkNetwork(&w) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestNetworkSetupKeepsWarmInterpreter expects that a waiting interpreter gets the
// variables of a later network setup.
func TestNetworkSetupKeepsWarmInterpreter(t *testing.T) {
	s, _, _ := newNetworkFixture(t)
	a, err := s.newSettings(wire.Setup{Env: map[string]string{"A": "1"}}, s.settings())
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.newSettings(mergeSetup(a.requested, wire.Setup{Network: &wire.NetworkSetup{Env: map[string]string{"A": "2", "B": "3"}}}), a)
	if err != nil {
		t.Fatal(err)
	}
	if !startsAlike(a, b) {
		t.Errorf("the interpreter would be started again: %v and %v", a.ownEnv(), b.ownEnv())
	}
	if b.env["A"] != "1" || b.env["B"] != "3" || len(b.networkEnv) != 1 {
		t.Errorf("the environment is %v, wired %v", b.env, b.networkEnv)
	}
}
