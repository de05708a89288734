package guest_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// promiseOptions describes the guest under test.
type promiseOptions struct {
	// Interpreters holds paths by language. Tests of other languages are skipped.
	Interpreters map[engi.Language]string
	// Limited is set if limits are enforced: Processes of Setup, and a disk of
	// at most 128 MiB.
	Limited bool
	// Terminal is set if the guest can open a terminal.
	Terminal bool
}

// promises tests a guest, which must be set up. It leaves files and ended processes
// behind.
func promises(t *testing.T, c *guest.Client, o promiseOptions) {
	s := suite{c, o}
	for _, p := range []struct {
		name string
		f    func(*testing.T)
	}{
		{"Hello/names version and capabilities", s.hello},
		{"Process/exit codes and signals", s.exits},
		{"Process/output of both streams", s.output},
		{"Process/input", s.input},
		{"Process/attach by tag from any offset", s.attach},
		{"Process/one ID is one process", s.chosen},
		{"Process/old output is Conflict", s.forgotten},
		{"Process/starts in the working directory", s.directory},
		{"Process/timeout", s.timeout},
		{"Process/missing things", s.missing},
		{"Process/background child does not hang it", s.background},
		{"Process/slow reader loses nothing", s.slow},
		{"Process/terminal", s.terminal},
		{"Process/repeated input reaches a terminal once", s.repeated},
		{"Process/history of a terminal", s.history},
		{"Process/who does not read a terminal is overtaken", s.overtaken},
		{"Process/a size that a program undoes is set again", s.undone},
		{"File/write read stat list move remove", s.files},
		{"File/write is all or nothing", s.atomic},
		{"File/large content survives", s.large},
		{"File/watch", s.watch},
		{"File/pack and unpack", s.pack},
		{"File/hostile archives", s.hostile},
		{"Run/plain", s.plain},
		{"Run/files arguments environment input", s.everything},
		{"Run/warm and cold are alike", s.alike},
		{"Run/javascript ends alike", s.nodeEnds},
		{"Run/python ends alike", s.pythonEnds},
		{"Run/a waiting interpreter that died is no harm", s.died},
		{"Run/exit code", s.runExit},
		{"Run/streams live", s.live},
		{"Run/timeout kills what was double-forked", s.runTimeout},
		{"Run/output limit", s.runOutput},
		{"Run/background child does not hang it", s.runBackground},
		{"Run/others in the sandbox live on", s.together},
		{"Run/reattach from any offset", s.reattach},
		{"Run/bad requests", s.badRuns},
		{"Run/artifacts", s.artifacts},
		{"Run/artifact limits", s.artifactLimits},
		{"Run/hostile artifacts", s.hostileArtifacts},
		{"Run/process limit", s.processes},
		{"Run/disk limit", s.disk},
		{"Run/go", s.golang},
		{"Usage/is plausible", s.usage},
		{"Port/stream both ways", s.port},
	} {
		t.Run(p.name, p.f)
	}
}

type suite struct {
	c *guest.Client
	o promiseOptions
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantKind(t *testing.T, err error, want engi.Kind) {
	t.Helper()
	if !engi.Is(err, want) {
		t.Errorf("got error %v of kind %v, want kind %v", err, engi.KindOf(err), want)
	}
}

// text returns the output of a process by stream.
func text(t *testing.T, ctx context.Context, p engi.Process, from int64) (out, errs string) {
	t.Helper()
	at := from
	for c, err := range p.Output(ctx, from) {
		ok(t, err)
		if c.Offset != at {
			t.Fatalf("chunk at %d, want %d", c.Offset, at)
		}
		at += int64(len(c.Data))
		if c.Stream == engi.Stderr {
			errs += string(c.Data)
		} else {
			out += string(c.Data)
		}
	}
	return out, errs
}

func (s suite) sh(t *testing.T, script string) (out string, exit engi.Exit) {
	t.Helper()
	p, err := s.c.Start(t.Context(), engi.Command{Args: []string{"/bin/sh", "-c", script}})
	ok(t, err)
	out, errs := text(t, t.Context(), p, 0)
	exit, err = p.Wait(t.Context())
	ok(t, err)
	return out + errs, exit
}

func (s suite) hello(t *testing.T) {
	h := s.c.Hello()
	if h.Version != wire.Version || h.Boot == "" || h.Kernel == "" || !slices.Contains(h.Capabilities, wire.CapRun) {
		t.Errorf("got %+v", h)
	}
}

func (s suite) exits(t *testing.T) {
	for script, want := range map[string]engi.Exit{
		"exit 0":        {Code: 0, Cause: engi.CauseExited},
		"exit 3":        {Code: 3, Cause: engi.CauseExited},
		"exit 255":      {Code: 255, Cause: engi.CauseExited},
		"kill -TERM $$": {Code: -1, Signal: "TERM", Cause: engi.CauseExited},
		"kill -SEGV $$": {Code: -1, Signal: "SEGV", Cause: engi.CauseExited},
	} {
		if _, got := s.sh(t, script); got != want {
			t.Errorf("%s: got %+v, want %+v", script, got, want)
		}
	}
}

func (s suite) output(t *testing.T) {
	p, err := s.c.Start(t.Context(), engi.Command{Args: []string{"sh", "-c", "printf 'a\\377\\0b'; printf c >&2"}, Env: map[string]string{"X": "1"}})
	ok(t, err)
	out, errs := text(t, t.Context(), p, 0)
	if out != "a\xff\x00b" || errs != "c" {
		t.Errorf("got %q and %q", out, errs)
	}
	if again, _ := text(t, t.Context(), p, 0); again != out {
		t.Errorf("the second reader got %q", again)
	}
}

func (s suite) input(t *testing.T) {
	p, err := s.c.Start(t.Context(), engi.Command{Args: []string{"cat"}, Stdin: engi.StdinPipe})
	ok(t, err)
	data := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	done := make(chan string)
	go func() {
		out, _ := text(t, t.Context(), p, 0)
		done <- out
	}()
	ok(t, p.Input(t.Context(), data))
	ok(t, p.CloseInput(t.Context()))
	if out := <-done; out != string(data) {
		t.Errorf("%d bytes came back of %d", len(out), len(data))
	}
	wantKind(t, p.Input(t.Context(), []byte("x")), engi.Conflict)
	null, err := s.c.Start(t.Context(), engi.Command{Args: []string{"cat"}})
	ok(t, err)
	if exit, err := null.Wait(t.Context()); err != nil || exit.Code != 0 {
		t.Errorf("cat without input: %+v, %v", exit, err)
	}
}

func (s suite) attach(t *testing.T) {
	p, err := s.c.Start(t.Context(), engi.Command{Args: []string{"sh", "-c", "echo one; read x; echo two $x"}, Stdin: engi.StdinPipe, Tag: "tagged"})
	ok(t, err)
	for c, err := range p.Output(t.Context(), 0) {
		ok(t, err)
		if string(c.Data) == "one\n" {
			break
		}
	}
	q, err := s.c.Attach(t.Context(), "tagged")
	ok(t, err)
	if q.ID() != p.ID() || q.PID() != p.PID() {
		t.Errorf("attached to %s, want %s", q.ID(), p.ID())
	}
	infos, err := s.c.Processes(t.Context())
	ok(t, err)
	if !slices.ContainsFunc(infos, func(i engi.ProcessInfo) bool { return i.ID == p.ID() && i.Tag == "tagged" && !i.Ended }) {
		t.Errorf("%s is not in %+v", p.ID(), infos)
	}
	ok(t, q.Input(t.Context(), []byte("x\n")))
	if exit, err := q.Wait(t.Context()); err != nil || exit.Code != 0 {
		t.Errorf("wait: %+v, %v", exit, err)
	}
	if out, _ := text(t, t.Context(), q, 2); out != "e\ntwo x\n" {
		t.Errorf("from 2: %q", out)
	}
	wantKind(t, p.Signal(t.Context(), "TERM"), engi.NotFound)
	_, err = s.c.Attach(t.Context(), "nobody")
	wantKind(t, err, engi.NotFound)
}

func (s suite) chosen(t *testing.T) {
	cmd := engi.Command{ID: id(), Args: []string{"sh", "-c", "echo $$"}}
	p, err := s.c.Start(t.Context(), cmd)
	ok(t, err)
	if p.ID() != cmd.ID {
		t.Errorf("started %s, want %s", p.ID(), cmd.ID)
	}
	first, _ := text(t, t.Context(), p, 0)
	again, err := s.c.Start(t.Context(), cmd)
	ok(t, err)
	if second, _ := text(t, t.Context(), again, 0); again.PID() != p.PID() || second != first {
		t.Errorf("process %d printed %q, the same again %d %q", p.PID(), first, again.PID(), second)
	}
	cmd.ID = "../x"
	_, err = s.c.Start(t.Context(), cmd)
	wantKind(t, err, engi.Invalid)
}

func (s suite) directory(t *testing.T) {
	p, err := s.c.Start(t.Context(), engi.Command{Args: []string{"sh", "-c", "pwd"}})
	ok(t, err)
	if out, _ := text(t, t.Context(), p, 0); !strings.HasSuffix(out, "/workspace\n") {
		t.Errorf("started in %q", out)
	}
}

func (s suite) forgotten(t *testing.T) {
	p, err := s.c.Start(t.Context(), engi.Command{Args: []string{"sh", "-c", "head -c 1000000 /dev/zero"}, Output: 100_000})
	ok(t, err)
	if _, err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, err := range p.Output(t.Context(), 0) {
		wantKind(t, err, engi.Conflict)
		break
	}
	if out, _ := text(t, t.Context(), p, 900_000); len(out) != 100_000 {
		t.Errorf("got %d bytes of the last 100000", len(out))
	}
}

func (s suite) timeout(t *testing.T) {
	p, err := s.c.Start(t.Context(), engi.Command{Args: []string{"sh", "-c", "sleep 1000 & wait"}, Timeout: 100 * time.Millisecond})
	ok(t, err)
	exit, err := p.Wait(t.Context())
	ok(t, err)
	if want := (engi.Exit{Code: -1, Signal: "KILL", Cause: engi.CauseTimeout}); exit != want {
		t.Errorf("got %+v, want %+v", exit, want)
	}
}

func (s suite) missing(t *testing.T) {
	for _, x := range []struct {
		cmd  engi.Command
		want engi.Kind
	}{
		{engi.Command{}, engi.Invalid},
		{engi.Command{Args: []string{"no-such-program"}}, engi.NotFound},
		{engi.Command{Args: []string{"/no/such/program"}}, engi.NotFound},
		{engi.Command{Args: []string{"/etc/passwd"}, Dir: "/"}, engi.Denied},
		{engi.Command{Args: []string{"true"}, Dir: "/no/such/dir"}, engi.Invalid},
		{engi.Command{Args: []string{"true"}, Env: map[string]string{"A=B": ""}}, engi.Invalid},
		{engi.Command{Args: []string{"true", "a\x00b"}}, engi.Invalid},
	} {
		_, err := s.c.Start(t.Context(), x.cmd)
		if x.cmd.Dir == "/" && engi.Is(err, engi.NotFound) {
			continue // this guest has no /etc/passwd
		}
		wantKind(t, err, x.want)
	}
}

func (s suite) background(t *testing.T) {
	begin := time.Now()
	out, exit := s.sh(t, "sleep 90 & echo started")
	if out != "started\n" || exit.Code != 0 || time.Since(begin) > 30*time.Second {
		t.Errorf("got %q, %+v after %v", out, exit, time.Since(begin))
	}
}

func (s suite) slow(t *testing.T) {
	p, err := s.c.Start(t.Context(), engi.Command{Args: []string{"sh", "-c", "head -c 20000000 /dev/zero"}, Output: 100_000})
	ok(t, err)
	n := 0
	for c, err := range p.Output(t.Context(), 0) {
		ok(t, err)
		if n == 0 {
			time.Sleep(50 * time.Millisecond)
		}
		n += len(c.Data)
	}
	if n != 20_000_000 {
		t.Errorf("got %d bytes of 20000000", n)
	}
}

func (s suite) terminal(t *testing.T) {
	if !s.o.Terminal {
		t.Skip("this guest has no terminals")
	}
	p, err := s.c.Start(t.Context(), engi.Command{Args: []string{"sh", "-c", "test -t 0 && stty size; read x; stty size; echo got $x"}, Terminal: &engi.TerminalSize{Cols: 100, Rows: 30}})
	ok(t, err)
	seen, asked := "", false
	for c, err := range p.Output(t.Context(), 0) {
		ok(t, err)
		if c.Stream != engi.Terminal {
			t.Errorf("stream %s", c.Stream)
		}
		if seen += string(c.Data); strings.Contains(seen, "30 100") && !asked {
			asked = true
			ok(t, p.Resize(t.Context(), engi.TerminalSize{Cols: 120, Rows: 50}))
			ok(t, p.Input(t.Context(), []byte("word\n")))
		}
	}
	if !strings.Contains(seen, "50 120") || !strings.Contains(seen, "got word") {
		t.Errorf("the terminal showed %q", seen)
	}
	q, err := s.c.Start(t.Context(), engi.Command{Args: []string{"true"}})
	ok(t, err)
	wantKind(t, q.Resize(t.Context(), engi.TerminalSize{Cols: 1, Rows: 1}), engi.Conflict)
}

func (s suite) usage(t *testing.T) {
	u, err := s.c.Usage(t.Context())
	ok(t, err)
	if u.Memory <= 0 || u.MemoryCache <= 0 || u.CPU <= 0 || u.DiskUsed < 0 || u.DiskTotal <= u.DiskUsed {
		t.Errorf("got %+v", u)
	}
}

// id returns a new ID for a run.
func id() string { return "t" + strings.ToLower(rand.Text()) }

func tarOf(t *testing.T, headers ...*tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		content := h.Uname
		h.Uname, h.Size = "", int64(len(content))
		ok(t, w.WriteHeader(h))
		_, err := io.WriteString(w, content)
		ok(t, err)
	}
	ok(t, w.Close())
	return b.Bytes()
}

func diff(t *testing.T, what string, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}
