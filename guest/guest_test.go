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

// twin returns a client of a guest in this process, over pipes.
func twin(t testing.TB) *guest.Client {
	t.Helper()
	s := guestd.New(guestd.Options{Root: t.TempDir(), Token: "secret", Twin: true})
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

// interpreters returns what this machine has.
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

func TestPromisesOfTwin(t *testing.T) {
	guesttest.Run(t, twin(t), guesttest.Options{
		Terminal: true,
		Interpreters: interpreters(map[engi.Language][]string{
			engi.Python: {"/usr/bin/python3"}, engi.JavaScript: {"node"}, engi.TypeScript: {os.Getenv("ENGI_TEST_DENO"), "deno"}, engi.Bash: {"bash"},
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
	s := guestd.New(guestd.Options{Root: t.TempDir(), Token: "secret", Twin: true})
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
