package guest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// terminalOf starts a command in a terminal.
func (s suite) terminalOf(t *testing.T, keep int64, line string) engi.TerminalProcess {
	t.Helper()
	if !s.o.Terminal {
		t.Skip("this guest has no terminals")
	}
	p, err := s.c.Start(t.Context(), engi.Command{Args: []string{"sh", "-c", line}, Output: keep, Terminal: &engi.TerminalSize{Cols: 80, Rows: 24}})
	ok(t, err)
	p.(interface{ Release() }).Release()
	t.Cleanup(func() { p.Signal(context.Background(), "KILL") }) // the process may have ended
	return p.(engi.TerminalProcess)
}

// repeated sends pieces of input of two writers, some twice and some in part.
func (s suite) repeated(t *testing.T) {
	p := s.terminalOf(t, 0, "stty raw -echo; echo ready; dd bs=1 count=16 2>/dev/null | cat")
	for c, err := range p.Output(t.Context(), 0) {
		ok(t, err)
		if strings.Contains(string(c.Data), "ready") {
			break
		}
	}
	write := func(writer string, at int64, text string, want int64) {
		t.Helper()
		if next, err := p.InputAt(t.Context(), writer, at, []byte(text)); err != nil || next != want {
			t.Errorf("%s %d %q: %d, %v; want %d", writer, at, text, next, err, want)
		}
	}
	write("ann", 0, "", 0)
	write("ann", 0, "abcd", 4)
	write("ann", 0, "abcd", 4)
	write("ann", 2, "cdef", 6)
	write("bob", 0, "BB", 2)
	write("ann", 99, "", 6)
	_, err := p.InputAt(t.Context(), "ann", 7, []byte("x"))
	wantKind(t, err, engi.Conflict)
	_, err = p.InputAt(t.Context(), "not a name", 0, []byte("x"))
	wantKind(t, err, engi.Invalid)
	write("ann", 6, "gh", 8)
	write("bob", 0, "BBCCDDEE", 8)
	seen, _ := text(t, t.Context(), p, 0)
	if !strings.Contains(seen, "abcdefBBghCCDDEE") {
		t.Errorf("it read %q", seen)
	}
}

// history prints more than is kept, with the alternate screen on.
func (s suite) history(t *testing.T) {
	p := s.terminalOf(t, 64<<10, `printf '\033[?1049h\033[?25;2004h\033[?25l'; head -c 200000 /dev/zero | tr '\0' x; sleep 0.05; printf end; read x; printf '\033[?1049l'; exit 3`)
	var h engi.TerminalHistory
	soon(t, func() (err error) {
		if h, err = p.History(t.Context()); err == nil && h.End < 200_000 {
			err = fmt.Errorf("only %d bytes", h.End)
		}
		return err
	})
	if got := fmt.Sprint(h.Modes); got != "[1049 2004]" || h.Start == 0 || h.End-h.Start < 64<<10 || h.Exit != nil {
		t.Errorf("modes %s, %d to %d, %v", got, h.Start, h.End, h.Exit)
	}
	ok(t, p.Resize(t.Context(), engi.TerminalSize{Cols: 100, Rows: 30}))
	_, err := p.InputAt(t.Context(), "ann", 0, []byte("\n"))
	ok(t, err)
	_, err = p.Wait(t.Context())
	ok(t, err)
	h, err = p.History(t.Context())
	ok(t, err)
	last := h.Sizes[len(h.Sizes)-1]
	if h.Exit == nil || h.Exit.Code != 3 || h.Sizes[0].Size.Cols != 80 || last.Size.Cols != 100 || last.Offset == 0 {
		t.Errorf("%v, sizes %v", h.Exit, h.Sizes)
	}
	if n := len(h.Marks); n < 2 || h.Marks[0].Offset > h.Start || h.Marks[n-1].Offset >= h.End || h.Marks[n-1].Time.Before(h.Marks[0].Time) {
		t.Errorf("marks %v of %d to %d", h.Marks, h.Start, h.End)
	}
	q, err := s.c.Start(t.Context(), engi.Command{Args: []string{"true"}})
	ok(t, err)
	_, err = q.(engi.TerminalProcess).History(t.Context())
	wantKind(t, err, engi.Conflict)
}

// overtaken attaches two readers to a terminal, of which one does not read. More is
// kept than fits into the buffers of a connection: until they are full, the reader that
// does not read may be ahead of the other.
func (s suite) overtaken(t *testing.T) {
	p := s.terminalOf(t, 4<<20, "sleep 0.2; head -c 32000000 /dev/zero | tr '\\0' x; echo; echo end")
	stalled, reading := make(chan error, 1), make(chan struct{})
	go func() {
		for _, err := range p.Output(t.Context(), 0) {
			if err != nil {
				stalled <- err
				return
			}
			<-reading
		}
		stalled <- nil
	}()
	n := 0
	for c, err := range p.Output(t.Context(), 0) {
		ok(t, err)
		n += len(c.Data)
	}
	if n < 32_000_000 {
		t.Errorf("who reads got %d bytes", n)
	}
	close(reading)
	wantKind(t, <-stalled, engi.Conflict)
}

// undone runs a program that does what the readline library may do before a prompt: it sets the size
// that it read before the size was changed. A program that is slower than the guest's last
// look says so, and the test tries again.
func (s suite) undone(t *testing.T) {
	p := s.terminalOf(t, 0, `
while :; do
	before=$(stty size); echo "ready "
	while [ "$(stty size)" = "$before" ]; do :; done
	stty rows ${before% *} cols ${before#* }
	for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
		[ "$(stty size)" = "$before" ] || { echo "now $(stty size) "; exit; }
		sleep 0.1
	done
	echo "lost "
done`)
	seen, cols := "", uint16(100)
	for c, err := range p.Output(t.Context(), 0) {
		ok(t, err)
		seen += string(c.Data)
		if _, rest, found := strings.Cut(seen, "ready "); found {
			seen, cols = rest, cols+1
			if cols > 110 {
				t.Fatal("the old size stays")
			}
			ok(t, p.Resize(t.Context(), engi.TerminalSize{Cols: cols, Rows: 30}))
		}
	}
	if want := fmt.Sprintf("now 30 %d ", cols); !strings.Contains(seen, want) {
		t.Errorf("the program says %q, not %q", seen, want)
	}
}

// soon tries f until it succeeds.
func soon(t *testing.T, f func() error) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
