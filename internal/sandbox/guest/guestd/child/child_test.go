package child

import (
	"bytes"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

func start(t *testing.T, table *Table, spec Spec) (*Child, func() string) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	defer w.Close()
	spec.Files = [3]int{int(null.Fd()), int(w.Fd()), int(w.Fd())}
	if spec.Dir == "" {
		spec.Dir = "/"
	}
	c, err := table.Start(spec)
	if err != nil {
		r.Close()
		t.Fatal(err)
	}
	return c, func() string {
		defer r.Close()
		var b bytes.Buffer
		b.ReadFrom(r)
		return b.String()
	}
}

func TestStart(t *testing.T) {
	table := NewTable(false)
	c, out := start(t, table, Spec{Path: "/bin/sh", Args: []string{"sh", "-c", "echo $0 $1 $X; pwd; ulimit -n; exit 3", "a", "b"},
		Env: []string{"X=env", "PATH=/usr/bin:/bin"}, Dir: "/tmp", Limits: Limits{OpenFiles: 77}})
	if got := out(); got != "a b env\n/tmp\n77\n" {
		t.Errorf("got %q", got)
	}
	<-c.Done()
	if got := c.Exit(); got != (engi.Exit{Code: 3, Cause: engi.CauseExited}) {
		t.Errorf("got %+v", got)
	}
	if err := table.Signal(c, syscall.SIGTERM); !engi.Is(err, engi.NotFound) {
		t.Errorf("signal to the dead: %v", err)
	}
}

func TestStartWithFreshSignals(t *testing.T) {
	c, out := start(t, NewTable(false), Spec{Path: "/bin/grep", Args: []string{"grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"}})
	got := out()
	<-c.Done()
	// The C library reserves signals 32 and 33. The parent of this test may
	// ignore these, or SIGHUP, like nohup, and this program inherits the ignored state.
	allowed := uint64(3 << 31)
	if signal.Ignored(syscall.SIGHUP) {
		allowed |= 1
	}
	for line := range strings.Lines(got) {
		name, text, _ := strings.Cut(line, ":")
		mask, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
		if err != nil || mask&^allowed != 0 {
			t.Errorf("%s is %s", name, text)
		}
	}
	if strings.Count(got, "\n") != 2 {
		t.Errorf("got %q", got)
	}
}

func TestStartFails(t *testing.T) {
	table := NewTable(false)
	for _, x := range []struct {
		spec Spec
		want engi.Kind
	}{
		{Spec{Path: "/no/such", Args: []string{"x"}, Dir: "/"}, engi.NotFound},
		{Spec{Path: "/etc/passwd", Args: []string{"x"}, Dir: "/"}, engi.Denied},
		{Spec{Path: "/bin/sh", Args: []string{"x"}, Dir: "/no/such"}, engi.Invalid},
		{Spec{Path: "/bin/sh", Args: []string{"a\x00b"}, Dir: "/"}, engi.Invalid},
		{Spec{Path: "/bin/sh", Args: []string{"x", strings.Repeat("x", 200<<10)}, Dir: "/"}, engi.Invalid},
	} {
		f, err := os.Open("/dev/null")
		if err != nil {
			t.Fatal(err)
		}
		fd := int(f.Fd())
		x.spec.Files = [3]int{fd, fd, fd}
		if _, err := table.Start(x.spec); !engi.Is(err, x.want) {
			t.Errorf("%s %.20q: got %v, want %v", x.spec.Path, x.spec.Args, err, x.want)
		}
		f.Close()
	}
}

// TestManyStarts stresses the custom fork with a busy runtime.
func TestManyStarts(t *testing.T) {
	table := NewTable(false)
	stop := make(chan struct{})
	var busy, work sync.WaitGroup
	busy.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = fmt.Sprint(make([]byte, 4096)) // makes work for the garbage collector
			}
		}
	})
	for range 4 {
		work.Go(func() {
			for i := range 25 {
				c, out := start(t, table, Spec{Path: "/bin/sh", Args: []string{"sh", "-c", fmt.Sprint("echo ", i)}})
				if got := out(); got != fmt.Sprintln(i) {
					t.Errorf("got %q, want %d", got, i)
				}
				<-c.Done()
			}
		})
	}
	work.Wait()
	close(stop)
	busy.Wait()
}

func TestKillFindsTheDoubleForked(t *testing.T) {
	table := NewTable(false)
	marker := fmt.Sprintf("ENGI_TEST_HERD=%d", os.Getpid())
	c, out := start(t, table, Spec{Path: "/bin/sh", Args: []string{"sh", "-c", "echo up; (setsid sleep 1000 >/dev/null 2>&1 &) ; sleep 1000 & wait"},
		Env: []string{marker, "PATH=/usr/bin:/bin"}})
	deadline := time.Now().Add(time.Minute)
	herd := ProcessTree{Child: c, Marker: marker}
	for len(table.members(herd)) < 3 && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	if !table.Kill(herd, 10*time.Second) {
		t.Error("some are left")
	}
	<-c.Done()
	if got := c.Exit(); got.Signal != "KILL" {
		t.Errorf("got %+v", got)
	}
	if got := out(); got != "up\n" {
		t.Errorf("got %q", got)
	}
}

func TestLog(t *testing.T) {
	l := NewLog(10, 0)
	l.Append(engi.Stdout, []byte("0123456789"), nil)
	l.Append(engi.Stderr, []byte("abc"), nil)
	l.Append(engi.Stdout, []byte("xyz"), nil)
	r, err := l.Read(10)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, want := range []string{"abc", "xyz"} {
		if _, data, done := r.TryNext(); string(data) != want || done {
			t.Errorf("got %q, want %q", data, want)
		}
	}
	if _, data, done := r.TryNext(); data != nil || done {
		t.Errorf("got %q, done %v at the end of an open log", data, done)
	}
	l.Close()
	if _, _, done := r.TryNext(); !done {
		t.Error("a closed log is not done")
	}
	if _, err := l.Read(17); !engi.Is(err, engi.Invalid) {
		t.Errorf("read after the end: %v", err)
	}
}

func TestLogForgets(t *testing.T) {
	l := NewLog(100_000, 0)
	for range 100 {
		l.Append(engi.Stdout, make([]byte, 10_000), nil)
	}
	if _, err := l.Read(0); !engi.Is(err, engi.Conflict) {
		t.Errorf("the first byte: %v", err)
	}
	r, err := l.Read(900_000)
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	held := int64(0)
	for _, b := range l.blocks {
		held += int64(len(b.data))
	}
	if held > 100_000+2*blockSize {
		t.Errorf("the log holds %d bytes to keep 100000", held)
	}
}

func TestLogLimit(t *testing.T) {
	l := NewLog(10, 10)
	l.Append(engi.Stdout, []byte("012345678"), nil)
	l.Append(engi.Stderr, []byte("x"), nil)
	select {
	case <-l.LimitReached():
		t.Error("over at the limit")
	default:
	}
	l.Append(engi.Stdout, []byte("y"), nil)
	<-l.LimitReached()
	if n, lost := l.Accepted(engi.Stdout); n != 9 || !lost {
		t.Errorf("stdout: %d, %v", n, lost)
	}
	if n, lost := l.Accepted(engi.Stderr); n != 1 || lost {
		t.Errorf("stderr: %d, %v", n, lost)
	}
}

func TestLogWaitsForReaders(t *testing.T) {
	l := NewLog(1, 0)
	r, err := l.Read(0)
	if err != nil {
		t.Fatal(err)
	}
	const total = 50 * blockSize
	go func() {
		for range 50 {
			l.Append(engi.Stdout, make([]byte, blockSize), nil)
		}
		l.Close()
	}()
	n := 0
	for {
		_, data, err := r.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if data == nil {
			break
		}
		n += len(data)
	}
	if n != total {
		t.Errorf("got %d bytes of %d", n, total)
	}
	r.Close()

	// A reader that leaves, or stop, unblocks the writer.
	l = NewLog(1, 0)
	r, _ = l.Read(0)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		l.Append(engi.Stdout, make([]byte, 10*blockSize), stop)
		close(done)
	}()
	close(stop)
	<-done
	r.Close()
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("12 (a b) c) S 1 12 12 0 -1 4194560 1 0 0 0 5 6 0 0 20 0 1 0"))
	f.Add([]byte("12 ()"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, ok := parseStat(12, b); ok && p.pid != 12 {
			t.Errorf("got %+v", p)
		}
	})
}

func TestSignals(t *testing.T) {
	for _, name := range []string{"TERM", "KILL", "INT", "HUP", "WINCH"} {
		sig, err := ParseSignal(name)
		if err != nil || SignalName(sig) != name {
			t.Errorf("%s: %v, %v", name, sig, err)
		}
	}
	for _, name := range []string{"", "SIGTERM", "9", "NONE", "term"} {
		if _, err := ParseSignal(name); !engi.Is(err, engi.Invalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
}
