// Package providertest has tests of the numbered promises of package provider, for
// all providers. If a provider cannot run on a host, its test must skip before it
// calls Run.
package providertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
	"github.com/engi-dev/engi/internal/sandbox/provider"
)

// Env is the environment of the tests.
type Env struct {
	// Root is a root file system that, together with Mounts, has a shell and
	// coreutils.
	Root   string
	Mounts []provider.Mount
	// Restart returns another provider for the machines of the one under test,
	// like that of a daemon after a kill -9.
	Restart func(t *testing.T) provider.Provider
	// Kill ends a machine, like a kill -9 of its processes.
	Kill func(t *testing.T, id engi.SandboxID)
	// Limited means that memory limits are enforced.
	Limited bool
	// OwnKernel means that each machine has its own kernel: saved machines
	// keep their processes, mounts can be read-only, and clock, host name and
	// random numbers belong to the machine. Otherwise only files are saved.
	OwnKernel bool
	// Link creates a link whose other end has an echo server: TCP port 7 of EchoAddr
	// echoes lines. Link returns the network namespace of the near end. It is nil if
	// machines have no links.
	Link     func(t testing.TB) (netns string)
	EchoAddr string
}

// size is large enough for shells and small enough to exceed.
var size = engi.Size{VCPUs: 2, Memory: 96 << 20, Disk: 64 << 20, Inodes: 5000, Processes: 100, OpenFiles: 1000}

// timeout is longer than each step of the tests takes, even on slow hosts.
const timeout = time.Minute

// Run tests every promise of p.
func Run(t *testing.T, p provider.Provider, env Env) {
	s := &suite{p: p, env: env}
	for _, promise := range []struct {
		name string
		test func(*suite, *testing.T)
	}{
		{"1/Start/guest answers", (*suite).startAnswers},
		{"1/Start/an error leaves nothing behind", (*suite).startUndoes},
		{"1/Start/gives up when told", (*suite).startExpires},
		{"1/Start/one machine for an ID", (*suite).startOnce},
		{"1/Start/many at once", (*suite).startMany},
		{"2/Adopt/after a crash", (*suite).adopt},
		{"2/Adopt/unknown is NotFound", (*suite).adoptUnknown},
		{"3/Found/lists and cleans", (*suite).found},
		{"4/Remove/destroys and repeats", (*suite).remove},
		{"5/Guest/many streams", (*suite).guestMany},
		{"5/Guest/after the end is Unavailable", (*suite).guestGone},
		{"5/Guest/gives up when told", (*suite).guestExpires},
		{"6/Done/guest powers off", (*suite).doneByGuest},
		{"6/Done/processes are killed", (*suite).doneByKill},
		{"6/Done/is open while it runs", (*suite).doneOpen},
		{"7/End/memory", (*suite).endMemory},
		{"7/End/cancelled", (*suite).endCancelled},
		{"8/Close/waits, cleans and repeats", (*suite).closes},
		{"9/Pause/stops and goes on", (*suite).pause},
		{"9/Pause/a paused machine can be destroyed", (*suite).pauseClose},
		{"10/Checkpoint/restore twice", (*suite).checkpoint},
		{"10/Checkpoint/a failure leaves it running", (*suite).checkpointFails},
		{"11/Restore/same ID, later, elsewhere", (*suite).restoreLater},
		{"12/Resize/memory", (*suite).resize},
		{"13/Snapshot/the machine goes on", (*suite).snapshot},
		{"14/SaveDisk/keeps files", (*suite).saveDisk},
		{"15/Netns/reaches the other end and nothing else", (*suite).linked},
		{"16/Netns/a restored machine has a link of its own", (*suite).linkedRestore},
		{"17/Weight/in bounds, and of the living", (*suite).weight},
		{"Mount/writable", (*suite).mountWritable},
		{"Mount/survives being saved", (*suite).mountSaved},
		{"Usage/counts", (*suite).usage},
		{"Diagnose/says something bounded", (*suite).diagnose},
	} {
		t.Run(promise.name, func(t *testing.T) { promise.test(s, t) })
	}
	t.Run("8/Close/nothing is left of all these", func(t *testing.T) {
		ids, err := p.Found(t.Context())
		if err != nil || len(ids) > 0 {
			t.Errorf("found %v, %v", ids, err)
		}
		if tracer, ok := p.(provider.Tracer); ok {
			leaks, err := tracer.Leaks(t.Context(), nil)
			if err != nil || len(leaks) > 0 {
				t.Errorf("leaks %v, %v", leaks, err)
			}
		}
	})
}

type suite struct {
	p   provider.Provider
	env Env
}

func (s *suite) spec() provider.Spec {
	return provider.Spec{
		ID: engi.NewSandboxID(), Root: s.env.Root, Mounts: s.env.Mounts, Size: size,
		Hostname: "promise", Token: string(engi.NewRequestID()),
	}
}

func (s *suite) start(t *testing.T) (provider.Machine, provider.Spec) {
	t.Helper()
	spec := s.spec()
	m, err := s.p.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	s.closeAfter(t, m)
	return m, spec
}

func (s *suite) closeAfter(t *testing.T, m provider.Machine) {
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
}

// open opens a client to the guest.
func open(t *testing.T, m provider.Machine, spec provider.Spec) *guest.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	c, err := guest.Open(ctx, m.Guest, spec.Token)
	if err != nil {
		t.Fatalf("%v\n%s", err, diagnosis(m))
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func diagnosis(m provider.Machine) string {
	if d, ok := m.(provider.Diagnoser); ok {
		return d.Diagnose(context.Background())
	}
	return ""
}

// sh runs a shell command in the sandbox and returns its output.
func sh(t *testing.T, c *guest.Client, script string) (string, engi.Exit, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	proc, err := c.Start(ctx, engi.Command{Args: []string{"/bin/sh", "-c", script}, Dir: "/", User: "root"})
	if err != nil {
		return "", engi.Exit{}, err
	}
	var out bytes.Buffer
	for chunk, err := range proc.Output(ctx, 0) {
		if err != nil {
			return out.String(), engi.Exit{}, err
		}
		out.Write(chunk.Data)
	}
	exit, err := proc.Wait(ctx)
	return out.String(), exit, err
}

func mustSh(t *testing.T, c *guest.Client, script string) string {
	t.Helper()
	out, exit, err := sh(t, c, script)
	if err != nil || exit.Code != 0 {
		t.Fatalf("%s: %+v, %v: %s", script, exit, err, out)
	}
	return strings.TrimSpace(out)
}

// wantDone waits for the end of m.
func wantDone(t *testing.T, m provider.Machine, want engi.Cause) {
	t.Helper()
	select {
	case <-m.Done():
	case <-time.After(timeout):
		t.Fatalf("%s does not end\n%s", m.ID(), diagnosis(m))
	}
	if got := m.End(); got != want {
		t.Errorf("the end is %q, want %q", got, want)
	}
}

func wantKind(t *testing.T, err error, want engi.Kind) {
	t.Helper()
	if !engi.Is(err, want) {
		t.Errorf("got %v, want kind %s", err, want)
	}
}

// wantGone fails the test if p still has id, or traces of it.
func (s *suite) wantGone(t *testing.T, id engi.SandboxID) {
	t.Helper()
	ids, err := s.p.Found(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(ids, id) {
		t.Errorf("%s is still found", id)
	}
	tracer, ok := s.p.(provider.Tracer)
	if !ok {
		return
	}
	leaks, err := tracer.Leaks(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range leaks {
		if strings.Contains(l.Name, string(id)) {
			t.Errorf("a %s is left: %s", l.Kind, l.Name)
		}
	}
}

func (s *suite) startAnswers(t *testing.T) {
	m, spec := s.start(t)
	if m.ID() != spec.ID {
		t.Errorf("machine %s was started as %s", m.ID(), spec.ID)
	}
	c := open(t, m, spec)
	if got := mustSh(t, c, "echo $((6*7))"); got != "42" {
		t.Errorf("got %q, want 42", got)
	}
}

func (s *suite) startUndoes(t *testing.T) {
	for name, spoil := range map[string]func(*provider.Spec){
		"no root":  func(spec *provider.Spec) { spec.Root = filepath.Join(spec.Root, "missing") },
		"no size":  func(spec *provider.Spec) { spec.Size.Memory = 0 },
		"wrong ID": func(spec *provider.Spec) { spec.ID = "../../etc" },
	} {
		spec := s.spec()
		spoil(&spec)
		m, err := s.p.Start(t.Context(), spec)
		if err == nil {
			m.Close()
		}
		if kind := engi.KindOf(err); err == nil || kind != engi.Invalid {
			t.Errorf("%s: got %v, want kind invalid", name, err)
		}
		s.wantGone(t, spec.ID)
	}
}

func (s *suite) startExpires(t *testing.T) {
	for _, d := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond, 60 * time.Millisecond} {
		spec := s.spec()
		ctx, cancel := context.WithTimeout(t.Context(), d)
		m, err := s.p.Start(ctx, spec)
		cancel()
		if err != nil {
			wantKind(t, err, engi.Expired)
		} else if err := m.Close(); err != nil {
			t.Error(err)
		}
		s.wantGone(t, spec.ID)
	}
}

func (s *suite) startOnce(t *testing.T) {
	m, spec := s.start(t)
	if other, err := s.p.Start(t.Context(), spec); err == nil {
		other.Close()
		t.Fatal("the same ID was started twice")
	} else {
		wantKind(t, err, engi.Conflict)
	}
	mustSh(t, open(t, m, spec), "true")
}

func (s *suite) startMany(t *testing.T) {
	const n = 4
	var wg sync.WaitGroup
	specs := make([]provider.Spec, n)
	machines := make([]provider.Machine, n)
	errs := make([]error, n)
	for i := range n {
		specs[i] = s.spec()
		wg.Go(func() { machines[i], errs[i] = s.p.Start(t.Context(), specs[i]) })
	}
	wg.Wait()
	for _, m := range machines {
		if m != nil {
			s.closeAfter(t, m)
		}
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for i, m := range machines {
		c := open(t, m, specs[i])
		mustSh(t, c, fmt.Sprintf("echo %d > tmp/who", i))
	}
	for i, m := range machines {
		if got := mustSh(t, open(t, m, specs[i]), "cat tmp/who"); got != fmt.Sprint(i) {
			t.Errorf("machine %d has the file of machine %s", i, got)
		}
	}
}

func (s *suite) adopt(t *testing.T) {
	m, spec := s.start(t)
	c := open(t, m, spec)
	mustSh(t, c, "echo kept > tmp/state")
	proc, err := c.Start(t.Context(), engi.Command{Args: []string{"/bin/sh", "-c", "sleep 1000"}, Dir: "/", User: "root"})
	if err != nil {
		t.Fatal(err)
	}

	again := s.env.Restart(t)
	for range 2 {
		adopted, err := again.Adopt(t.Context(), spec.ID)
		if err != nil {
			t.Fatal(err)
		}
		s.closeAfter(t, adopted)
		c2 := open(t, adopted, spec)
		if got := mustSh(t, c2, "cat tmp/state"); got != "kept" {
			t.Errorf("after adoption: got %q, want kept", got)
		}
		if _, err := c2.Attach(t.Context(), proc.ID()); err != nil {
			t.Errorf("a process of before is gone: %v", err)
		}
		again = s.env.Restart(t)
	}
	last, err := again.Adopt(t.Context(), spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := last.Close(); err != nil {
		t.Fatal(err)
	}
	wantDone(t, last, engi.CauseCancelled)
	select {
	case <-m.Done():
	case <-time.After(timeout):
		t.Error("its first owner is not told of the end")
	}
	s.wantGone(t, spec.ID)
	_, err = again.Adopt(t.Context(), spec.ID)
	wantKind(t, err, engi.NotFound)
}

func (s *suite) adoptUnknown(t *testing.T) {
	for _, id := range []engi.SandboxID{engi.NewSandboxID(), "", "sbx_", "../x"} {
		m, err := s.p.Adopt(t.Context(), id)
		if err == nil {
			m.Close()
		}
		wantKind(t, err, engi.NotFound)
	}
}

func (s *suite) found(t *testing.T) {
	m, spec := s.start(t)
	ids, err := s.env.Restart(t).Found(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(ids, spec.ID) {
		t.Fatalf("%s is not among %v", spec.ID, ids)
	}
	if tracer, ok := s.p.(provider.Tracer); ok {
		leaks, err := tracer.Leaks(t.Context(), ids)
		if err != nil || len(leaks) > 0 {
			t.Errorf("leaks beside living machines: %v, %v", leaks, err)
		}
		leaks, err = tracer.Leaks(t.Context(), nil)
		if err != nil || len(leaks) == 0 {
			t.Errorf("a machine nobody wants is no leak: %v", err)
		}
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	s.wantGone(t, spec.ID)
}

func (s *suite) remove(t *testing.T) {
	m, spec := s.start(t)
	again := s.env.Restart(t)
	for range 2 {
		if err := again.Remove(t.Context(), spec.ID); err != nil {
			t.Fatal(err)
		}
	}
	wantDone(t, m, engi.CauseSandboxLost)
	s.wantGone(t, spec.ID)
	if err := again.Remove(t.Context(), engi.NewSandboxID()); err != nil {
		t.Errorf("remove of an unknown machine: %v", err)
	}
}

func (s *suite) guestMany(t *testing.T) {
	m, spec := s.start(t)
	var wg sync.WaitGroup
	conns := make(chan net.Conn, 16)
	for range cap(conns) {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			// Each stream is used before the next is dialed, as HTTP/2 clients do.
			c, err := guest.Open(ctx, func(ctx context.Context) (net.Conn, error) {
				conn, err := m.Guest(ctx)
				if err == nil {
					conns <- conn
				}
				return conn, err
			}, spec.Token)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			if _, err := c.Stat(ctx, "/"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(conns) != cap(conns) {
		t.Errorf("%d streams for %d clients", len(conns), cap(conns))
	}
	_, err := guest.Open(t.Context(), m.Guest, "not the token")
	wantKind(t, err, engi.Anonymous)
}

func (s *suite) guestGone(t *testing.T) {
	m, _ := s.start(t)
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	conn, err := m.Guest(t.Context())
	if err == nil {
		conn.Close()
	}
	wantKind(t, err, engi.Unavailable)
}

func (s *suite) guestExpires(t *testing.T) {
	m, _ := s.start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	// Guests that dial keep one unused connection and dial another once it is
	// used, so that a call blocks until its context ends. With other providers
	// no call blocks.
	for range 1000 {
		conn, err := m.Guest(ctx)
		if err != nil {
			wantKind(t, err, engi.Expired)
			return
		}
		defer conn.Close()
		time.Sleep(time.Millisecond)
	}
	t.Error("the deadline passed without an error")
}

func (s *suite) doneOpen(t *testing.T) {
	m, _ := s.start(t)
	select {
	case <-m.Done():
		t.Fatal("Done is closed while the machine runs")
	case <-time.After(50 * time.Millisecond):
	}
}

func (s *suite) doneByGuest(t *testing.T) {
	m, spec := s.start(t)
	c := open(t, m, spec)
	if !slices.Contains(c.Hello().Capabilities, wire.CapPowerOff) {
		t.Skip("this guest cannot power off")
	}
	if err := engi.Ignore(c.PowerOff(t.Context()), engi.Unavailable); err != nil {
		t.Fatal(err)
	}
	s.wantLost(t, m)
}

func (s *suite) doneByKill(t *testing.T) {
	m, spec := s.start(t)
	c := open(t, m, spec)
	s.env.Kill(t, spec.ID)
	s.wantLost(t, m)
	_, err := c.Stat(t.Context(), "/")
	wantKind(t, err, engi.Unavailable)
}

// wantLost checks the promises for a machine that has ended unexpectedly.
func (s *suite) wantLost(t *testing.T, m provider.Machine) {
	t.Helper()
	wantDone(t, m, engi.CauseSandboxLost)
	_, err := s.p.Adopt(t.Context(), m.ID())
	if !engi.Is(err, engi.NotFound, engi.Conflict) {
		t.Errorf("adopt a dead machine: %v, want not_found or conflict", err)
	}
	ids, err := s.p.Found(t.Context())
	if err != nil || !slices.Contains(ids, m.ID()) {
		t.Errorf("its traces are not found: %v, %v", ids, err)
	}
	_, err = m.Guest(t.Context())
	wantKind(t, err, engi.Unavailable)
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	wantDone(t, m, engi.CauseSandboxLost)
	s.wantGone(t, m.ID())
}

// hog returns a command that uses n bytes of memory at once.
func hog(n int64) string { return fmt.Sprintf("dd if=/dev/zero of=/dev/null bs=%d count=1", n) }

func (s *suite) endMemory(t *testing.T) {
	if !s.env.Limited {
		t.Skip("memory is not limited here")
	}
	m, spec := s.start(t)
	c := open(t, m, spec)
	mustSh(t, c, hog(8<<20))
	overuse(t, m, c)
	// Files in memory and many small programs: none could end in the machine's place.
	sh(t, c, fmt.Sprintf("dd if=/dev/zero of=/dev/shm/fill bs=1048576 count=%d; mkfifo /workspace/p; sleep 1000 < /workspace/p & "+
		"for i in $(seq 40); do dd if=/dev/zero of=/workspace/p bs=2097152 & done; wait", size.Memory>>20))
	wantDone(t, m, engi.CauseMemory)
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	wantDone(t, m, engi.CauseMemory)
}

// overuse runs a program that uses more memory than the machine has. Only this program is
// ended.
func overuse(t *testing.T, m provider.Machine, c *guest.Client) {
	t.Helper()
	_, exit, err := sh(t, c, "exec "+hog(2*size.Memory))
	if err != nil || exit.Cause != engi.CauseMemory {
		t.Errorf("a program that used too much: %+v, %v\n%s", exit, err, diagnosis(m))
	}
	mustSh(t, c, hog(8<<20))
}

func (s *suite) endCancelled(t *testing.T) {
	m, _ := s.start(t)
	if got := m.End(); got != "" {
		t.Errorf("the end of a running machine is %q", got)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	wantDone(t, m, engi.CauseCancelled)
}

func (s *suite) closes(t *testing.T) {
	m, spec := s.start(t)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
			select {
			case <-m.Done():
			default:
				t.Error("Close returned before Done was closed")
			}
		})
	}
	wg.Wait()
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	s.wantGone(t, spec.ID)
}

func (s *suite) pause(t *testing.T) {
	m, spec := s.start(t)
	if _, ok := m.(provider.Pauser); !ok {
		wantKind(t, provider.Pause(t.Context(), m), engi.Unsupported)
		return
	}
	c := open(t, m, spec)
	ticker, err := c.Start(t.Context(), engi.Command{
		Args: []string{"/bin/sh", "-c", "while :; do echo tick; sleep 0.01; done"}, Dir: "/", User: "root"})
	if err != nil {
		t.Fatal(err)
	}
	ticks := make(chan int64, 1<<16)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for chunk, err := range ticker.Output(ctx, 0) {
			if err != nil {
				return
			}
			select {
			case ticks <- chunk.Offset:
			default:
			}
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	<-ticks

	for range 2 { // pausing a paused machine is no error
		if err := provider.Pause(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(50 * time.Millisecond) // data on its way arrives
	for len(ticks) > 0 {
		<-ticks
	}
	short, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	_, err = c.Stat(short, "/")
	stop()
	wantKind(t, err, engi.Expired)
	if n := len(ticks); n > 0 {
		t.Errorf("%d pieces of output while paused", n)
	}
	for range 2 {
		if err := provider.Resume(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-ticks:
	case <-time.After(timeout):
		t.Error("the stream does not go on")
	}
	if _, err := c.Stat(t.Context(), "/"); err != nil {
		t.Errorf("after resume: %v", err)
	}
}

func (s *suite) pauseClose(t *testing.T) {
	m, spec := s.start(t)
	if err := provider.Pause(t.Context(), m); engi.Is(err, engi.Unsupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	wantDone(t, m, engi.CauseCancelled)
	s.wantGone(t, spec.ID)
}

func (s *suite) resize(t *testing.T) {
	m, spec := s.start(t)
	if _, ok := m.(provider.Resizer); !ok {
		wantKind(t, provider.Resize(t.Context(), m, size), engi.Unsupported)
		return
	}
	wantKind(t, provider.Resize(t.Context(), m, engi.Size{Memory: -1}), engi.Invalid)
	larger := size
	larger.Memory, larger.VCPUs, larger.Processes = 4*size.Memory, 1, 200
	if err := provider.Resize(t.Context(), m, larger); err != nil {
		t.Fatal(err)
	}
	c := open(t, m, spec)
	if !s.env.Limited {
		return
	}
	mustSh(t, c, hog(size.Memory))
	if err := provider.Resize(t.Context(), m, size); err != nil {
		t.Fatal(err)
	}
	overuse(t, m, c)
}

func (s *suite) weight(t *testing.T) {
	m, _ := s.start(t)
	w, ok := m.(provider.Weigher)
	if !ok {
		t.Skip("this kind of machine has no weight")
	}
	for _, bad := range []int{-1, 0, 101} {
		wantKind(t, w.SetWeight(bad), engi.Invalid)
	}
	for _, good := range []int{1, 2, 100} {
		if err := engi.Ignore(w.SetWeight(good), engi.Unsupported); err != nil {
			t.Errorf("a weight of %d: %v", good, err)
		}
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	wantKind(t, w.SetWeight(1), engi.Unavailable)
}

func (s *suite) usage(t *testing.T) {
	m, spec := s.start(t)
	meter, ok := m.(provider.Meter)
	if !ok {
		t.Skip("this kind of machine is no meter")
	}
	before, err := meter.Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Where usage is polled, short processes may not be counted, but the count
	// never decreases.
	c := open(t, m, spec)
	after := before
	for began := time.Now(); after.CPU < before.CPU+100*time.Millisecond; {
		if time.Since(began) > timeout {
			t.Fatalf("work is not counted: %+v, then %+v", before, after)
		}
		mustSh(t, c, "i=0; while test $i -lt 100000; do i=$((i+1)); done")
		last := after
		if after, err = meter.Usage(t.Context()); err != nil {
			t.Fatal(err)
		}
		if after.CPU < last.CPU || after.Memory <= 0 {
			t.Errorf("%+v, then %+v", last, after)
		}
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := meter.Usage(t.Context()); err != nil {
		wantKind(t, err, engi.Unavailable)
	}
}

func (s *suite) diagnose(t *testing.T) {
	m, _ := s.start(t)
	d, ok := m.(provider.Diagnoser)
	if !ok {
		t.Skip("this kind of machine has nothing to say")
	}
	if text := d.Diagnose(t.Context()); text == "" || len(text) > 64<<10 {
		t.Errorf("%d bytes of diagnosis", len(text))
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	d.Diagnose(t.Context())
}
