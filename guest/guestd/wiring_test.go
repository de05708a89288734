package guestd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/engi-dev/engi/guest/wire"
)

// wired returns a server whose files are below root, and what wires it.
func wired(t *testing.T) (s *Server, root string, put func(*wire.NetworkSetup)) {
	t.Helper()
	root = t.TempDir()
	s = New(Options{Root: root, Token: "t", Twin: true})
	t.Cleanup(func() { s.Close() })
	return s, root, func(w *wire.NetworkSetup) {
		t.Helper()
		in := later(s.account().said, wire.Setup{Wiring: w})
		if err := checkWiring(w); err != nil {
			t.Fatal(err)
		}
		a, err := s.newAccount(in, s.account())
		if err != nil {
			t.Fatal(err)
		}
		s.setup = a
	}
}

func TestWiring(t *testing.T) {
	s, root, put := wired(t)
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
	if env := s.account().env; env["KEY"] != "placeholder" || env["SSL_CERT_FILE"] != wire.BundlePath {
		t.Errorf("the environment is %v", env)
	}

	// The same again leaves alone what somebody changed meanwhile.
	write(resolvPath, "nameserver 9.9.9.9\n")
	put(&one)
	want(resolvPath, "nameserver 9.9.9.9\n")

	// Another authority takes the place of the first: a copy of a sandbox has
	// its own.
	two := one
	two.Authority, two.Env = []byte("PEM two"), map[string]string{"OTHER": "x", "PATH": "/evil"}
	put(&two)
	want(wire.BundlePath, system+"\n"+trustBegin+"PEM two\n"+trustEnd)
	if env := s.account().env; env["KEY"] != "" || env["OTHER"] != "x" || env["PATH"] != defaultPath {
		t.Errorf("the environment is %v", env)
	}

	// And none takes everything back.
	put(&wire.NetworkSetup{})
	want(resolvPath, "")
	want(wire.BundlePath, system+"\n")
	want(wire.AuthorityPath, "")
	if env := s.account().env; env["OTHER"] != "" {
		t.Errorf("the environment is %v", env)
	}
}

// TestWiringReadOnly puts certificates elsewhere where their place cannot be
// written.
func TestWiringReadOnly(t *testing.T) {
	s, root, put := wired(t)
	for _, dir := range []string{"etc/ssl", "usr/local/share"} { // files where directories must be: nobody writes below
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(dir)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, dir), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put(&wire.NetworkSetup{Authority: []byte("PEM"), Env: map[string]string{"SSL_CERT_FILE": wire.BundlePath, "DENO_CERT": wire.AuthorityPath, "X": "y"}})
	env := s.account().env
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
	if got := s.account().env["SSL_CERT_FILE"]; !strings.Contains(got, trustDir) {
		t.Errorf("told again it is %s", got)
	}
}

func TestWiringRefusesNonsense(t *testing.T) {
	for name, w := range map[string]wire.NetworkSetup{
		"resolver":  {Resolver: "1.1.1.1\nnameserver 2.2.2.2"},
		"search":    {Search: "a\nnameserver 2.2.2.2"},
		"authority": {Authority: []byte(trustEnd)},
		"huge":      {Authority: make([]byte, wire.MaxAuthority+1)},
		"env":       {Env: map[string]string{"A=B": "c"}},
	} {
		if checkWiring(&w) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestWiringKeepsWaiting tells an interpreter that waits what the network
// brought meanwhile.
func TestWiringKeepsWaiting(t *testing.T) {
	s, _, _ := wired(t)
	a, err := s.newAccount(wire.Setup{Env: map[string]string{"A": "1"}}, s.account())
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.newAccount(later(a.said, wire.Setup{Wiring: &wire.NetworkSetup{Env: map[string]string{"A": "2", "B": "3"}}}), a)
	if err != nil {
		t.Fatal(err)
	}
	if !sameStart(a, b) {
		t.Errorf("the interpreter would be started again: %v and %v", a.own(), b.own())
	}
	if b.env["A"] != "1" || b.env["B"] != "3" || len(b.wired) != 1 {
		t.Errorf("the environment is %v, wired %v", b.env, b.wired)
	}
}
