package guest_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest"
	"github.com/engi-dev/engi/guest/guestd"
	"github.com/engi-dev/engi/guest/guesttest"
	"github.com/engi-dev/engi/guest/wire"
)

// inProcess returns a client of a guest in this process, over pipes.
func inProcess(t testing.TB) *guest.Client {
	t.Helper()
	s := guestd.New(guestd.Options{Root: t.TempDir(), Token: "secret", InProcess: true})
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	c, err := guest.Open(t.Context(), func(context.Context) (net.Conn, error) {
		a, b := net.Pipe()
		serving.Go(func() { s.Serve(ctx, b) })
		return a, nil
	}, "secret")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		cancel()
		serving.Wait()
		s.Close()
	})
	must(t, c.Setup(t.Context(), wire.Setup{}))
	return c
}

// interpreters returns the interpreters of this host.
func interpreters(paths map[engi.Language][]string) map[engi.Language]string {
	found := map[engi.Language]string{}
	for l, names := range paths {
		for _, name := range names {
			if path, err := exec.LookPath(name); err == nil && name != "" {
				found[l] = path
				break
			}
		}
	}
	return found
}

func TestPromisesInProcess(t *testing.T) {
	guesttest.Run(t, inProcess(t), guesttest.Options{
		Terminal: true,
		Interpreters: interpreters(map[engi.Language][]string{
			engi.Python: {"/usr/bin/python3"}, engi.JavaScript: {"node"}, engi.TypeScript: {os.Getenv("ENGI_TEST_DENO"), "deno"}, engi.Bash: {"bash"},
			engi.Go: {os.Getenv("ENGI_TEST_GO")}, // only on request: without a warm cache it takes long
		}),
	})
}

func TestPromisesInGVisor(t *testing.T) {
	sb := boot(t)
	c := sb.open()
	must(t, c.Setup(t.Context(), inside))
	o := guesttest.Options{Terminal: true, Limited: true, Interpreters: interpreters(map[engi.Language][]string{
		engi.Python: {"/usr/bin/python3"}, engi.JavaScript: {"/usr/bin/node"}, engi.Bash: {"/usr/bin/bash"},
	})}
	if os.Getenv("ENGI_TEST_DENO") != "" {
		o.Interpreters[engi.TypeScript] = "/opt/deno"
	}
	guesttest.Run(t, c, o)
}

func TestOpenChecksToken(t *testing.T) {
	s := guestd.New(guestd.Options{Root: t.TempDir(), Token: "secret", InProcess: true})
	dial := func(context.Context) (net.Conn, error) {
		a, b := net.Pipe()
		go s.Serve(t.Context(), b)
		return a, nil
	}
	for _, token := range []string{"", "wrong", "secret2"} {
		if _, err := guest.Open(t.Context(), dial, token); engi.KindOf(err) != engi.Anonymous {
			t.Errorf("token %q: %v", token, err)
		}
	}
}

// TestRootInsideCannotEndTheGuest leaves out KILL and STOP, which gVisor lets root
// send to PID 1. The host detects a guest that has ended or does not answer.
func TestRootInsideCannotEndTheGuest(t *testing.T) {
	sb := boot(t)
	c := sb.open()
	must(t, c.Setup(t.Context(), inside))
	before := c.Hello().Boot
	p, err := c.Start(t.Context(), engi.Command{User: "root", Dir: "/", Args: []string{"bash", "-c",
		"id -u; for s in 1 2 3 4 5 6 7 8 10 11 12 13 14 15 16 17 18 20 21 22 23 24 25 26 27 28 29 30 31; do kill -$s 1 2>/dev/null; done; for i in 1 2 3; do (sleep 0.01 &); done; cat /.engi/guest.json | wc -c"}})
	must(t, err)
	exit, err := p.Wait(t.Context())
	must(t, err)
	if exit.Code != 0 {
		t.Errorf("got %+v", exit)
	}
	if again := sb.open(); again.Hello().Boot != before {
		t.Error("the guest was restarted")
	}
	// The template's user cannot reach the guest's channel.
	p, err = c.Start(t.Context(), engi.Command{Args: []string{"python3", "-c",
		"import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect('/.engi/sock')"}})
	must(t, err)
	if exit, err := p.Wait(t.Context()); err != nil || exit.Code == 0 {
		t.Errorf("a program reached the host's socket: %+v, %v", exit, err)
	}
}
