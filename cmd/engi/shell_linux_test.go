package main

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/test/apitest"
)

// A person sits at a terminal with engi in it.
type privileges struct {
	t      *testing.T
	keys   *os.File // what is typed, and what is shown
	end    chan int // engi's exit code
	mu     sync.Mutex
	screen bytes.Buffer
	said   bytes.Buffer // standard error
}

func (p *privileges) Write(b []byte) (int, error) { // engi's standard error
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.Write(b)
}

func sit(t *testing.T, args ...string) *privileges {
	t.Helper()
	keys, screen, err := pty.Open()
	if err != nil {
		if os.Getenv("ENGI_TEST_REQUIRE") == "1" {
			t.Fatalf("no terminals here: %v", err)
		}
		t.Skipf("no terminals here: %v", err)
	}
	p := &privileges{t: t, keys: keys, end: make(chan int, 1)}
	p.resize(40, 120)
	// Reading a terminal cannot be broken off: this and engi's own reading end
	// with the test's process.
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := keys.Read(buf)
			p.mu.Lock()
			p.screen.Write(buf[:n])
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	go func() { p.end <- engiMain(args, screen, screen, p) }()
	return p
}

func (p *privileges) resize(rows, cols uint16) {
	if err := pty.Setsize(p.keys, &pty.Winsize{Rows: rows, Cols: cols}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *privileges) types(s string) {
	p.t.Helper()
	if _, err := p.keys.WriteString(s); err != nil {
		p.t.Fatal(err)
	}
}

func (p *privileges) shown() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.screen.String()
}

// sees waits until something is on the screen.
func (p *privileges) sees(text string) {
	p.t.Helper()
	for deadline := time.Now().Add(time.Minute); !strings.Contains(p.shown(), text); time.Sleep(5 * time.Millisecond) {
		select {
		case code := <-p.end:
			// The last it said may still be on its way to the screen.
			p.end <- code
			for range 12000 {
				if strings.Contains(p.shown(), text) {
					return
				}
				time.Sleep(5 * time.Millisecond)
			}
			p.t.Fatalf("engi ended with %d instead of showing %q: %s%s", code, text, p.shown(), p.heard())
		default:
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%q never came; the screen has %q, and engi said %q", text, p.shown(), p.heard())
		}
	}
}

func (p *privileges) heard() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.String()
}

func (p *privileges) ends(want int) {
	p.t.Helper()
	select {
	case code := <-p.end:
		if code != want {
			p.t.Errorf("exit code %d, want %d: %s", code, want, p.heard())
		}
	case <-time.After(time.Minute):
		p.t.Fatalf("engi does not end; the screen has %q", p.shown())
	}
}

func TestShell(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	server := []string{"--url", srv.URL, "--key", w.User}
	c := client.New(srv.URL, w.User)
	id := regexp.MustCompile(`sbx_[a-z2-7]{26}`)

	// The terminal is the program's own: sizes, keys and the exit code.
	p := sit(t, append([]string{"shell", "-e", "LANG=C"}, server...)...)
	p.sees("workspace")
	p.types("stty size\n")
	p.sees("40 120")
	p.resize(50, 100)
	if err := syscall.Kill(os.Getpid(), syscall.SIGWINCH); err != nil { // the test does not lead the terminal's session
		t.Fatal(err)
	}
	for range 3000 {
		time.Sleep(20 * time.Millisecond)
		if p.types("stty size\n"); strings.Contains(p.shown(), "50 100") {
			break
		}
	}
	p.sees("50 100")
	// The program in the foreground says so itself: an interrupt that arrives before
	// the shell has handed the terminal over leaves a sleep that nothing interrupts.
	p.types("sh -c 'echo is$((1+1))asleep; exec sleep 60'\n")
	p.sees("is2asleep")
	p.types("\x03")  // an interrupt is for the program
	for range 3000 { // the shell may discard input while it handles the interrupt
		time.Sleep(20 * time.Millisecond)
		if p.types("echo so$((1+1))far\n"); strings.Contains(p.shown(), "so2far") {
			break
		}
	}
	p.sees("so2far")
	sandbox := id.FindString(p.heard())
	p.types("exit 7\n")
	p.ends(7)
	if b, err := c.Sandbox(t.Context(), sandbox); err != nil || b.State != "stopped" {
		t.Errorf("after the shell the sandbox is %s, %v", b.State, err)
	}

	// Whoever leaves finds everything as it was.
	p = sit(t, append([]string{"shell", "-e", "LANG=C"}, server...)...)
	p.sees("workspace")
	p.types("x=4$((1+1)); echo saw $x\n")
	p.sees("saw 42")
	p.types("\x1d")
	p.ends(0)
	sandbox = id.FindString(p.heard())
	if !strings.Contains(p.heard(), "engi sandbox shell "+sandbox) {
		t.Errorf("it does not say how to come back: %s", p.heard())
	}
	p = sit(t, append([]string{"sandbox", "shell", sandbox}, server...)...)
	p.sees("saw 42") // what was there before
	p.types("echo still $x\n")
	p.sees("still 42")
	p.types("exit\n")
	p.ends(0)
	if b, err := c.Sandbox(t.Context(), sandbox); err != nil || b.State != "running" {
		t.Errorf("the sandbox that was left is %s, %v", b.State, err)
	}

	// One program in a terminal.
	p = sit(t, append(append([]string{"sandbox", "exec", "-t"}, server...), sandbox, "--", "sh", "-c", "test -t 0 && echo a terminal; exit 4")...)
	p.sees("a terminal")
	p.ends(4)
}
