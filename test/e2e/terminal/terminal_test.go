// Package terminal tests terminals of real sandboxes: that no output is lost or
// doubled when the server is killed or the sandbox hibernates, that slow readers cost
// no memory, and that screens are the same as in xterm.js.
package terminal

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/test/env"
)

// A place is a sandbox of a server, with a client that does not give up.
type place struct {
	*env.Server
	patient *client.Client
	id      string
}

func newPlace(t *testing.T, template string) *place {
	t.Helper()
	s := env.Serve(t, env.ServerOptions{})
	c := client.New(s.URL, s.Key, client.WithRetries(200))
	b, err := c.CreateSandbox(t.Context(), v1.SandboxRequest{Template: template, VCPUs: 1})
	if err != nil {
		t.Fatal(err)
	}
	return &place{s, c, b.ID}
}

func (p *place) terminal(t *testing.T, args ...string) string {
	t.Helper()
	x, err := p.patient.CreateTerminal(t.Context(), p.id, v1.TerminalRequest{Args: args, Env: map[string]string{"TERM": "xterm-256color", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}})
	if err != nil {
		t.Fatal(err)
	}
	return x.ID
}

func (p *place) attach(t *testing.T, id string, o client.AttachOptions) *client.Attachment {
	t.Helper()
	a, err := p.patient.AttachTerminal(t.Context(), p.id, id, o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestTerminalsSurvive kills the server while 20 terminals type, then hibernates
// their sandbox.
func TestTerminalsSurvive(t *testing.T) {
	p := newPlace(t, "base")
	const terminals, tokens = 20, 150
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	want := ""
	for i := range tokens {
		want += fmt.Sprintf("<%d>", i)
	}
	var half, work sync.WaitGroup // half waits for terminals that have typed half
	half.Add(terminals)
	ids := make([]string, terminals)
	for n := range ids {
		ids[n] = p.terminal(t, "/bin/sh", "-c", "stty raw -echo; echo ready; exec cat")
		a := p.attach(t, ids[n], client.AttachOptions{})
		ready := make(chan struct{})
		work.Go(func() {
			select {
			case <-ready:
			case <-ctx.Done():
			}
			for i := range tokens {
				if i == tokens/2 {
					half.Done()
				}
				if _, err := fmt.Fprintf(a, "<%d>", i); err != nil {
					t.Error(err)
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
		work.Go(func() {
			defer a.Close()
			got := ""
			for data, err := range a.Output(ctx) {
				if err != nil {
					t.Errorf("terminal %d: %v, after %d bytes of %d", n, err, len(got), len(want))
					break
				}
				before := strings.HasPrefix(got, "ready\n")
				got += string(data)
				if !before && strings.HasPrefix(got, "ready\n") {
					close(ready)
				}
				if len(got) >= len("ready\n"+want) {
					break
				}
			}
			if got != "ready\n"+want {
				t.Errorf("terminal %d echoed %q", n, got)
			}
		})
	}
	half.Wait()
	p.Kill()
	p.Start()
	work.Wait()

	// The sandbox hibernates with its terminals, and attaching wakes it.
	a := p.attach(t, ids[0], client.AttachOptions{Offset: client.FromScreen})
	defer a.Close()
	for _, err := range a.Output(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	at := a.Offset()
	if _, err := p.patient.HibernateSandbox(ctx, p.id, false); err != nil {
		t.Fatal(err)
	}
	if _, err := p.patient.ResumeSandbox(ctx, p.id, v1.ResumeRequest{}); err != nil {
		t.Fatal(err)
	}
	b := p.attach(t, ids[0], client.AttachOptions{Offset: at})
	defer b.Close()
	if _, err := io.WriteString(b, "awake"); err != nil {
		t.Fatal(err)
	}
	got := ""
	for data, err := range b.Output(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if got += string(data); len(got) >= len("awake") {
			break
		}
	}
	if got != "awake" {
		t.Errorf("after waking it echoed %q", got)
	}
}

// wakeups returns the number of times that threads of the server waited during a time.
func (p *place) wakeups(t *testing.T, during time.Duration) (n int64) {
	t.Helper()
	count := func() (n int64) {
		all, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", p.PID()))
		if err != nil || len(all) == 0 {
			t.Fatalf("the server has no threads: %v", err)
		}
		for _, name := range all {
			status, err := os.ReadFile(name)
			if err != nil {
				continue // the thread has ended
			}
			_, rest, _ := strings.Cut(string(status), "\nvoluntary_ctxt_switches:")
			line, _, _ := strings.Cut(rest, "\n")
			of, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			n += of
		}
		return n
	}
	before := count()
	time.Sleep(during)
	return count() - before
}

// TestDetachedTerminalsSleep leaves idle terminals: the server does
// not wake for them.
func TestDetachedTerminalsSleep(t *testing.T) {
	env.Slow(t)
	p := newPlace(t, "base")
	const terminals, during = 90, 5 * time.Second
	p.terminal(t, "/bin/sh", "-c", "exec sleep 600") // the sandbox works from now on
	time.Sleep(during)
	alone := p.wakeups(t, during)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range terminals {
		a := p.attach(t, p.terminal(t, "/bin/sh", "-c", "echo ready; exec sleep 600"), client.AttachOptions{})
		for _, err := range a.Output(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			break
		}
		a.Close()
	}
	time.Sleep(during)
	n := p.wakeups(t, during)
	t.Logf("%d wakeups in %s with %d terminals, %d with one", n, during, terminals, alone)
	if n > alone+2*terminals { // one wakeup per second and terminal would be 450 more
		t.Errorf("%d wakeups in %s with %d terminals, %d with one", n, during, terminals, alone)
	}
}

// TestSlowReader runs a program that prints 100 MB to a slow reader.
func TestSlowReader(t *testing.T) {
	env.Slow(t)
	p := newPlace(t, "base")
	const size = 100_000_000
	id := p.terminal(t, "/bin/sh", "-c", fmt.Sprintf("stty raw -echo; echo ready; read x; head -c %d /dev/zero | tr '\\0' x; sleep 60", size))
	a := p.attach(t, id, client.AttachOptions{})
	defer a.Close()
	var before, most int64
	n, next := 0, 0
	for data, err := range a.Output(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if before == 0 { // earlier input is echoed
			before = memory(t, p.PID())
			if _, err := io.WriteString(a, "\n"); err != nil {
				t.Fatal(err)
			}
		}
		if n += len(data); n >= next && n < size/2 { // the reader is slow at first
			next += size / 20
			time.Sleep(100 * time.Millisecond)
			most = max(most, memory(t, p.PID()))
		}
		if n >= size+len("ready\n") {
			break
		}
	}
	if n != size+len("ready\n") {
		t.Errorf("it got %d bytes", n)
	}
	if grown := most - before; grown > 64<<20 {
		t.Errorf("the server has grown by %d MiB", grown>>20)
	}
}

var resident = regexp.MustCompile(`VmRSS:\s+(\d+) kB`)

// memory returns the memory of a process, in bytes.
func memory(t *testing.T, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(string(resident.FindSubmatch(status)[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}

// programs lists programs that people use in terminals, with the pressed keys.
var programs = map[string]struct {
	args []string
	keys []string
}{
	"vim": {[]string{"/usr/bin/vim", "-u", "NONE", "-N", "-n", "-i", "NONE", "--cmd", "set nomodeline shortmess=aoOtTIcF laststatus=0 ttimeout ttimeoutlen=10"},
		[]string{"ihello wörld 日本 ✓\r", "second line\x1b", ":split\r", ":set number\r", "yyP5p", "gg", ":vsplit\r"}},
	"tmux": {[]string{"/usr/bin/tmux", "-L", "engi-test", "-f", "/dev/null", "start-server", ";", "set", "-g", "status", "off", ";", "set", "-g", "default-command", "env PS1='> ' ENV= /bin/sh", ";", "new"},
		[]string{"seq 1 50\r", "\x02%", "\x02\"", "\x02o", "echo in $((6*7))\r"}},
	"less": {[]string{"/usr/bin/less", "/etc/services"}, []string{"  ", "G", "g", "/tcp\r", "n"}},
	"colours": {[]string{"/bin/sh", "-c", `for i in 0 1 2 3 4 5 6 7; do for j in 0 1 2 3 4 5 6 7 8; do printf '\033[3%d;4%dm%d%d\033[0m ' $i $j $i $j; done; echo; done
printf '\033[1mbold\033[0m \033[4:3mcurly\033[0m \033[38;2;10;200;30mtrue\033[0m\n\033(0lqqk\nx  x\nmqqj\033(B\nwide 日本語 e\314\201\n'
printf '\033[5;10H\033[2@ins\033[3P\033[2X\033[3;20r\033[20;1H\n\n\033[5L\033[2M\033[r\033[24;79Habcdef'; read x`}, []string{" "}},
}

// TestHtop compares the screen of htop in a sandbox with the screen of xterm.js for the same
// bytes, because htop never shows the same screen twice. Its viewer leaves after each key.
func TestHtop(t *testing.T) {
	env.Slow(t)
	if _, err := exec.LookPath("htop"); err != nil {
		env.Need(t, "htop")
	}
	p, dir := newPlace(t, "host"), headless(t)
	id := p.terminal(t, "/usr/bin/htop", "-d", "10")
	var out []byte
	read := func(keys string, enough func(at int64) bool) {
		t.Helper()
		a := p.attach(t, id, client.AttachOptions{Offset: int64(len(out))})
		defer a.Close()
		if _, err := io.WriteString(a, keys); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for data, err := range a.Output(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			if out = append(out, data...); enough(a.Offset()) {
				return
			}
		}
		t.Fatalf("it has ended: %q", out)
	}
	for _, keys := range []string{"", "t", "\x1b[B\x1b[B", "I", "H"} {
		before := int64(len(out))
		read(keys, func(at int64) bool { return at >= before+200 })
		s, err := p.patient.TerminalScreen(t.Context(), p.id, id)
		if err != nil {
			t.Fatal(err)
		}
		if s.Offset > int64(len(out)) {
			read("", func(at int64) bool { return at >= s.Offset })
		}
		if want := referee(t, dir, out[:s.Offset]); s.Text != want || !strings.Contains(want, "CPU") {
			t.Errorf("after %q, the screen is\n%s\nwant\n%s", keys, s.Text, want)
		}
	}
}

// headless installs xterm.js without a browser.
func headless(t *testing.T) (dir string) {
	t.Helper()
	for _, name := range []string{"node", "npm"} {
		if _, err := exec.LookPath(name); err != nil {
			env.Need(t, name)
		}
	}
	dir = t.TempDir()
	if out, err := exec.Command("npm", "install", "--prefix", dir, "--no-audit", "--no-fund", "--silent", "@xterm/headless@6.0.0").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

// referee returns the screen that xterm.js shows for out.
func referee(t *testing.T, dir string, out []byte) string {
	t.Helper()
	file := filepath.Join(dir, "out")
	if err := os.WriteFile(file, out, 0o600); err != nil {
		t.Fatal(err)
	}
	script, err := filepath.Abs("testdata/screen.js")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("node", script, file, "80", "24")
	cmd.Env = append(os.Environ(), "NODE_PATH="+filepath.Join(dir, "node_modules"))
	screen, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(screen)
}

// TestScreens compares the screens of programs in sandboxes with the screens of xterm.js for
// the same programs here, with a detach in the middle.
func TestScreens(t *testing.T) {
	env.Slow(t)
	for _, name := range []string{"vim", "tmux", "less"} {
		if _, err := exec.LookPath(name); err != nil {
			env.Need(t, name)
		}
	}
	s := env.Serve(t, env.ServerOptions{})
	p := &place{s, client.New(s.URL, s.Key), ""}
	dir := headless(t)
	for name, x := range programs {
		t.Run(name, func(t *testing.T) {
			b, err := p.patient.CreateSandbox(t.Context(), v1.SandboxRequest{Template: "host", VCPUs: 1})
			if err != nil {
				t.Fatal(err)
			}
			p := &place{p.Server, p.patient, b.ID}
			// Both get the same keys, each when the result of the previous one is on the screen.
			local := startLocal(t, dir, x.args)
			id := p.terminal(t, x.args...)
			var at int64
			for i, keys := range append([]string{""}, x.keys...) {
				local.types(t, keys)
				a := p.attach(t, id, client.AttachOptions{Offset: at})
				if _, err := io.WriteString(a, keys); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				flushed := make(chan error, 1)
				go func() {
					err := a.Flush(ctx)
					time.Sleep(200 * time.Millisecond) // wait for some of the answer, or all of it
					cancel()
					flushed <- err
				}()
				for _, err := range a.Output(ctx) {
					if err != nil && ctx.Err() == nil {
						t.Fatal(err)
					}
				}
				if err := <-flushed; err != nil {
					t.Fatal(err)
				}
				at = a.Offset()
				a.Close() // the program continues without a viewer
				want := local.settled(t)
				got := ""
				for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
					screen, err := p.patient.TerminalScreen(t.Context(), p.id, id)
					if err != nil {
						t.Fatal(err)
					}
					if got = screen.Text; got == want {
						break
					}
					if time.Now().After(end) {
						t.Fatalf("after keys %d, %q, the screen is\n%s\nwant\n%s", i, keys, got, want)
					}
				}
			}
		})
	}
}

// A localTerminal is a program in a terminal of this machine.
type localTerminal struct {
	dir string
	pty *os.File
	mu  sync.Mutex
	out []byte
}

func startLocal(t *testing.T, dir string, args []string) *localTerminal {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "TERM=xterm-256color", "LANG=C.UTF-8", "LC_ALL=C.UTF-8", "HOME=" + dir, "SHELL=/bin/sh"}
	cmd.Dir = dir
	f, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: 80, Rows: 24})
	if err != nil {
		t.Fatal(err)
	}
	l := &localTerminal{dir: dir, pty: f}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, err := f.Read(buf)
			l.mu.Lock()
			l.out = append(l.out, buf[:n]...)
			l.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		if filepath.Base(args[0]) == "tmux" {
			_ = exec.Command(args[0], "-L", "engi-test", "kill-server").Run() // the server may have ended
		}
		cmd.Process.Kill()
		cmd.Wait()
		f.Close()
		<-done
	})
	return l
}

func (l *localTerminal) types(t *testing.T, keys string) {
	t.Helper()
	if _, err := l.pty.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}

// settled returns the screen of xterm.js once the program has been quiet for a while.
func (l *localTerminal) settled(t *testing.T) string {
	t.Helper()
	last := -1
	for {
		time.Sleep(300 * time.Millisecond)
		l.mu.Lock()
		out := l.out
		l.mu.Unlock()
		if len(out) != last {
			last = len(out)
			continue
		}
		return referee(t, l.dir, out)
	}
}
