package guestd_test

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// host is a directory with the socket that a guest dials.
type host struct {
	t   *testing.T
	dir string
	l   *net.UnixListener
}

func newHost(t *testing.T, root string) *host {
	t.Helper()
	h := &host{t: t, dir: filepath.Join(root, wire.Dir)}
	if err := os.MkdirAll(h.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	h.configure("secret")
	h.listen()
	return h
}

func (h *host) configure(token string) {
	h.t.Helper()
	b, err := json.Marshal(wire.Config{Token: token})
	if err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(h.dir, wire.ConfigName), b, 0o600); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) listen() {
	h.t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(h.dir, wire.SocketName), Net: "unix"})
	if err != nil {
		h.t.Fatal(err)
	}
	h.l = l
	h.t.Cleanup(func() { l.Close() })
}

func (h *host) dial(ctx context.Context) (net.Conn, error) {
	h.l.SetDeadline(time.Now().Add(time.Minute))
	return h.l.Accept()
}

func (h *host) open(token string) *guest.Client {
	h.t.Helper()
	c, err := guest.Open(h.t.Context(), h.dial, token)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	return c
}

// shortDir returns a directory whose path is short enough for a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "g")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func run(t *testing.T, root string) (s *guestd.Server, ended chan error) {
	t.Helper()
	s = guestd.New(guestd.Options{Root: root, InProcess: true})
	ctx, cancel := context.WithCancel(context.Background())
	ended = make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		s.Close()
	})
	return s, ended
}

func TestSpareConnection(t *testing.T) {
	root := shortDir(t)
	h := newHost(t, root)
	run(t, root)
	// Open several clients, each on the spare connection at that time.
	var all []*guest.Client
	for range 3 {
		all = append(all, h.open("secret"))
	}
	for _, c := range all {
		if _, err := c.Usage(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestDaemonDies(t *testing.T) {
	root := shortDir(t)
	h := newHost(t, root)
	run(t, root)
	c := h.open("secret")
	if err := c.Setup(t.Context(), wire.Setup{}); err != nil {
		t.Fatal(err)
	}
	r, err := c.Run(t.Context(), wire.Run{ID: "survivor", Language: engi.Bash, Interpreter: "/bin/sh",
		Files: []wire.File{{Path: "main.sh", Data: []byte("echo before; sleep 0.4; echo after")}}})
	if err != nil {
		t.Fatal(err)
	}
	for c := range r.Output(t.Context(), 0) {
		if string(c.Data) == "before\n" {
			break
		}
	}
	// Close everything that the daemon has open.
	h.l.Close()
	c.Close()
	if _, err := r.Finish(t.Context()); !engi.Is(err, engi.Unavailable) {
		t.Errorf("finish over a closed client: %v", err)
	}
	time.Sleep(50 * time.Millisecond)
	h.listen()
	c = h.open("secret")
	r, err = c.Reattach(t.Context(), "survivor")
	if err != nil {
		t.Fatal(err)
	}
	out := ""
	for c, err := range r.Output(t.Context(), 3) {
		if err != nil {
			t.Fatal(err)
		}
		out += string(c.Data)
	}
	if out != "ore\nafter\n" {
		t.Errorf("got %q", out)
	}
}

func TestConnectionBreaksUnderARun(t *testing.T) {
	root := shortDir(t)
	h := newHost(t, root)
	run(t, root)
	var last net.Conn
	c, err := guest.Open(t.Context(), func(ctx context.Context) (net.Conn, error) {
		conn, err := h.dial(ctx)
		last = conn
		return conn, err
	}, "secret")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Setup(t.Context(), wire.Setup{}); err != nil {
		t.Fatal(err)
	}
	r, err := c.Run(t.Context(), wire.Run{ID: "cut", Language: engi.Bash, Interpreter: "/bin/sh",
		Files: []wire.File{{Path: "main.sh", Data: []byte("for i in 1 2 3 4 5 6; do echo $i; sleep 0.1; done")}}})
	if err != nil {
		t.Fatal(err)
	}
	out := ""
	for c, err := range r.Output(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		if out += string(c.Data); out == "1\n" {
			last.Close()
		}
	}
	if out != "1\n2\n3\n4\n5\n6\n" {
		t.Errorf("got %q", out)
	}
}

func TestQuiesce(t *testing.T) {
	root := shortDir(t)
	h := newHost(t, root)
	run(t, root)
	c, other := h.open("secret"), h.open("secret")
	if err := c.Quiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Usage(contextFor(t, 100*time.Millisecond)); err == nil {
		t.Error("another client is still connected")
	}
	// A quiesced guest has closed the spare connection, and does not dial.
	h.l.SetDeadline(time.Now().Add(200 * time.Millisecond))
	for {
		conn, err := h.l.Accept()
		if err != nil {
			break
		}
		conn.SetReadDeadline(time.Now().Add(time.Minute))
		if n, err := conn.Read(make([]byte, 1)); n > 0 || os.IsTimeout(err) {
			t.Error("a connection is open while the guest is quiet")
		}
		conn.Close()
	}
	h.configure("another")
	if err := os.WriteFile(filepath.Join(h.dir, wire.ResumeName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h.open("another")
	if _, err := guest.Open(t.Context(), h.dial, "secret"); !engi.Is(err, engi.Anonymous) {
		t.Errorf("the old token: %v", err)
	}
}

func contextFor(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestPowerOff(t *testing.T) {
	root := shortDir(t)
	h := newHost(t, root)
	_, ended := run(t, root)
	c := h.open("secret")
	if err := c.PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the guest goes on")
	}
}
