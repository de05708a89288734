package guest_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
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

// deaf is the end of a stream of a guest that may stop reading.
type deaf struct {
	net.Conn
	hears chan struct{} // closed while the guest reads
	now   *atomic.Bool
}

func (d deaf) Read(b []byte) (int, error) {
	n, err := d.Conn.Read(b)
	if d.now.Load() {
		<-d.hears
	}
	return n, err
}

// TestGuestThatDoesNotRead uses a guest that begins an answer and reads nothing more: a call ends with its
// context nevertheless.
func TestGuestThatDoesNotRead(t *testing.T) {
	defer guest.SetStalled(300 * time.Millisecond)()
	s := guestd.New(guestd.Options{Root: t.TempDir(), Token: "secret", InProcess: true})
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	hears, now := make(chan struct{}), new(atomic.Bool)
	c, err := guest.Open(t.Context(), func(context.Context) (net.Conn, error) {
		a, b := net.Pipe()
		serving.Go(func() { s.Serve(ctx, deaf{b, hears, now}) })
		return a, nil
	}, "secret")
	must(t, err)
	t.Cleanup(func() {
		close(hears)
		c.Close()
		cancel()
		serving.Wait()
		s.Close()
	})
	must(t, c.Setup(t.Context(), wire.Setup{}))
	p, err := c.Start(t.Context(), engi.Command{Args: []string{"sh", "-c", "echo ready; exec sleep 600"}, Output: 1 << 16})
	must(t, err)
	ended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for _, err := range p.Output(ctx, 0) {
			if err != nil {
				ended <- err
				return
			}
			now.Store(true) // the next bytes are the last that it reads
			go c.Usage(ctx)
			time.AfterFunc(100*time.Millisecond, cancel)
		}
		ended <- nil
	}()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the output of a program that runs has ended")
		}
	case <-time.After(time.Minute):
		t.Error("the call does not end with its context")
	}
}

// wakeups returns the number of times that threads of this process waited during a time.
func wakeups(t *testing.T, during time.Duration) int64 {
	t.Helper()
	count := func() int64 {
		var u unix.Rusage
		must(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
		return u.Nvcsw
	}
	before := count()
	time.Sleep(during)
	return count() - before
}

// TestTerminalsSleep keeps idle terminals: no thread wakes for them.
func TestTerminalsSleep(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: make test-all")
	}
	const terminals, during = 100, 3 * time.Second
	c := inProcess(t)
	alone := wakeups(t, during)
	for range terminals {
		p, err := c.Start(t.Context(), engi.Command{Args: []string{"sh", "-c", "echo ready; exec sleep 600"}, Output: 1 << 16, Terminal: &engi.TerminalSize{Cols: 80, Rows: 24}})
		must(t, err)
		t.Cleanup(func() { p.Signal(context.Background(), "KILL") }) // the process may have ended
		ctx, cancel := context.WithCancel(t.Context())
		for _, err := range p.Output(ctx, 0) { // a reader attaches, and leaves
			must(t, err)
			break
		}
		cancel()
		p.(interface{ Release() }).Release()
	}
	var n int64
	for range 20 { // the programs need a while to start
		if n = wakeups(t, during); n <= alone+terminals/2 {
			return
		}
	}
	t.Errorf("%d wakeups in %s with %d terminals, %d without", n, during, terminals, alone)
}

func TestPromisesInProcess(t *testing.T) {
	promises(t, inProcess(t), promiseOptions{
		Terminal: true,
		Interpreters: interpreters(map[engi.Language][]string{
			engi.Python: {"/usr/bin/python3"}, engi.JavaScript: {"node"}, engi.TypeScript: {os.Getenv("ENGI_TEST_DENO"), "deno"}, engi.Bash: {"bash"},
			engi.Go: {os.Getenv("ENGI_TEST_GO")}, // only on request: without a warm cache a run takes long
		}),
	})
}

func TestPromisesInGVisor(t *testing.T) {
	sb := boot(t)
	c := sb.open()
	must(t, c.Setup(t.Context(), inside))
	o := promiseOptions{Terminal: true, Limited: true, Interpreters: interpreters(map[engi.Language][]string{
		engi.Python: {"/usr/bin/python3"}, engi.JavaScript: {"/usr/bin/node"}, engi.Bash: {"/usr/bin/bash"},
	})}
	if os.Getenv("ENGI_TEST_DENO") != "" {
		o.Interpreters[engi.TypeScript] = "/opt/deno"
	}
	promises(t, c, o)
}

func TestOpenChecksToken(t *testing.T) {
	s := guestd.New(guestd.Options{Root: t.TempDir(), Token: "secret", InProcess: true})
	dial := func(context.Context) (net.Conn, error) {
		a, b := net.Pipe()
		go s.Serve(t.Context(), b)
		return a, nil
	}
	for _, token := range []string{"", "wrong", "secret2"} {
		if _, err := guest.Open(t.Context(), dial, token); !engi.Is(err, engi.Anonymous) {
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

// TestSFTP checks that a guest serves files as the user of the command.
func TestSFTP(t *testing.T) {
	if _, err := inProcess(t).Start(t.Context(), engi.Command{Builtin: engi.BuiltinSFTP}); !engi.Is(err, engi.Unsupported) {
		t.Errorf("a guest in this process: %v", err)
	}
	c := boot(t).open()
	must(t, c.Setup(t.Context(), inside))
	p, err := c.Start(t.Context(), engi.Command{Builtin: engi.BuiltinSFTP, Stdin: engi.StdinPipe})
	must(t, err)
	// Version 3, then a directory that only root may make.
	must(t, p.Input(t.Context(), []byte("\x00\x00\x00\x05\x01\x00\x00\x00\x03"+"\x00\x00\x00\x11\x0e\x00\x00\x00\x07\x00\x00\x00\x04/new\x00\x00\x00\x00")))
	must(t, p.CloseInput(t.Context()))
	var got []byte
	for chunk, err := range p.Output(t.Context(), 0) {
		must(t, err)
		got = append(got, chunk.Data...)
	}
	exit, err := p.Wait(t.Context())
	must(t, err)
	if !strings.HasPrefix(string(got[4:]), "\x02\x00\x00\x00\x03") || !strings.Contains(string(got), "\x65\x00\x00\x00\x07\x00\x00\x00\x03\x00\x00\x00\x11Permission denied") || exit.Code != 0 {
		t.Errorf("%q, exit %+v", got, exit)
	}
}
