package kernel

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest/guestd/child"
)

//go:embed kernel.py
var programPython []byte

//go:embed chart.py
var chartPython []byte

//go:embed kernel.mjs
var programJavaScript []byte

//go:embed kernel.sh
var programBash string

// process is a kernel. One goroutine at a time executes in it.
type process struct {
	language string
	uid, gid int
	child    *child.Child
	in       *os.File // write end of the commands
	out      *output
	events   chan event // of the execution in progress; others are dropped
	env      map[string]string
	last     int64 // number of the last execution
	box      Sandbox

	mu       sync.Mutex
	wanted   bool          // somebody reads events
	unwanted chan struct{} // closed when nobody does any more
}

func (p *process) dead() bool {
	select {
	case <-p.child.Done():
		return true
	default:
		return false
	}
}

// interpreters are the programs that can be a language's kernel, best first.
var interpreters = map[string][]string{
	"python": {"python3", "python"}, "javascript": {"deno", "node"}, "typescript": {"deno", "node"}, "bash": {"bash"},
}

// interpreter finds the program for a language.
func (k *Kernels) interpreter(l string) (string, error) {
	for _, name := range interpreters[l] {
		if path, err := k.box.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", engi.Errorf(engi.Invalid, "there is no kernel for %s: this template has no %s", l, strings.Join(interpreters[l], " and no ")).
		WithRemedy("use the template code-interpreter-v1 or one made from it")
}

// start starts a kernel and returns once it takes code.
func (k *Kernels) start(ctx context.Context, s *session, a Account) (_ *process, err error) {
	path, err := k.interpreter(s.language)
	if err != nil {
		return nil, err
	}
	dir := k.box.Private()
	in, out, err := furnish(dir, s.language, a)
	if in != nil {
		defer os.RemoveAll(dir) // the kernel has read it, or never will
	}
	if err != nil {
		return nil, err
	}
	p := &process{language: s.language, uid: a.UID, gid: a.GID, in: in, events: make(chan event), env: a.Env, box: k.box}
	prog := Program{Env: a.Env, Dir: k.box.Resolve(s.dir, a.Home)}
	switch s.language {
	case "python":
		prog.Args = []string{path, dir + "/kernel.py"}
	case "bash":
		prog.Args = []string{path, "--norc", "--noprofile", "--noediting", "-i", "-s"}
		prog.Env = maps.Clone(a.Env)
		prog.Env["ENGI_KERNEL"] = dir
		if prog.Stdin, err = os.Open(dir + "/in"); err != nil { // does not wait: in is open for both directions
			err = engi.Errorf(engi.Internal, "open pipe: %v", err)
		}
	default:
		prog.Args = []string{path, "--no-warnings", dir + "/kernel.mjs", s.language}
		if filepath.Base(path) == "deno" {
			prog.Args = []string{path, "run", "--quiet", "--allow-all", "--no-config", "--no-lock", dir + "/kernel.mjs", s.language}
		}
	}
	var printed [2]*os.File
	if err == nil {
		p.child, printed, err = k.box.Start(prog)
	}
	if prog.Stdin != nil {
		prog.Stdin.Close()
	}
	if err != nil {
		in.Close()
		out.Close()
		return nil, err
	}
	p.out = newOutput(printed)
	k.mu.Lock()
	k.alive[p] = true
	late := k.closed
	k.mu.Unlock()
	k.work.Go(func() { p.out.pump(0) })
	k.work.Go(func() { p.out.pump(1) })
	k.work.Go(func() { p.read(out) })
	k.work.Go(func() {
		<-p.child.Done()
		p.in.Close() // whoever writes a command learns of it
		out.SetReadDeadline(time.Now().Add(lastWords))
		k.mu.Lock()
		delete(k.alive, p)
		k.mu.Unlock()
	})
	if late {
		k.box.Kill(p.child)
		p.out.close()
	}
	if err := p.ready(ctx); err != nil {
		k.box.Kill(p.child)
		<-p.child.Done()
		return nil, err
	}
	return p, nil
}

// lastWords is how long after a kernel's end its events are still looked for.
const lastWords = 20 * time.Millisecond

// furnish fills a private directory with what a kernel reads. The files are
// the guest's ends of the pipes.
func furnish(dir, language string, a Account) (in, out *os.File, err error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o711); err != nil {
		return nil, nil, engi.Errorf(engi.Internal, "furnish kernel: %v", err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, nil, engi.Errorf(engi.Internal, "furnish kernel: %v", err)
	}
	fail := func(err error) (*os.File, *os.File, error) {
		os.RemoveAll(dir)
		if in != nil {
			in.Close()
		}
		if _, ours := err.(*engi.Error); !ours {
			err = engi.Errorf(engi.Internal, "furnish kernel: %v", err)
		}
		return nil, nil, err
	}
	files := map[string][]byte{}
	switch language {
	case "python":
		files["kernel.py"], files["chart.py"] = programPython, chartPython
		if err := os.Mkdir(dir+"/tmp", 0o700); err != nil {
			return fail(err)
		}
		if a.UID >= 0 {
			if err := os.Chown(dir+"/tmp", a.UID, a.GID); err != nil {
				return fail(err)
			}
		}
	case "javascript", "typescript":
		files["kernel.mjs"] = programJavaScript
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return fail(err)
		}
	}
	if in, err = pipe(dir+"/in", a); err != nil {
		return fail(err)
	}
	if out, err = pipe(dir+"/out", a); err != nil {
		return fail(err)
	}
	return in, out, nil
}

// pipe makes a named pipe and opens it for both directions, so that neither
// side waits for the other.
func pipe(name string, a Account) (*os.File, error) {
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		return nil, engi.Errorf(engi.Internal, "make pipe: %v", err)
	}
	f, err := os.OpenFile(name, os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "open pipe: %v", err)
	}
	if a.UID >= 0 {
		if err := f.Chown(a.UID, a.GID); err != nil {
			f.Close()
			return nil, engi.Errorf(engi.Internal, "give away pipe: %v", err)
		}
	}
	return f, nil
}

// ready waits for a kernel's first event.
func (p *process) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startup)
	defer cancel()
	events := p.listen()
	defer p.unlisten()
	if p.language == "bash" {
		if err := p.tell([]byte(programBash)); err != nil {
			return err
		}
	}
	select {
	case e := <-events:
		if e.Event == "ready" {
			p.out.drain() // an interactive bash complains and prompts
			return nil
		}
		return engi.Errorf(engi.Unavailable, "it began with event %.40q", e.Event)
	case <-p.child.Done():
		p.out.drain()
		said := p.out.text(0) + p.out.text(1)
		if len(said) > 4<<10 {
			said = said[len(said)-4<<10:]
		}
		return engi.Errorf(engi.Unavailable, "it ended instead: %s", strings.TrimSpace(strings.ToValidUTF8(said, "?")))
	case <-ctx.Done():
		return engi.Errorf(engi.Expired, "it did not start: %v", context.Cause(ctx))
	}
}

func (p *process) tell(command []byte) error {
	p.in.SetWriteDeadline(time.Now().Add(startup)) // an idle kernel reads at once
	if _, err := p.in.Write(command); err != nil {
		return engi.Errorf(engi.Unavailable, "tell the kernel: %v", err)
	}
	return nil
}

// listen says that somebody wants the events from now on; it must unlisten.
func (p *process) listen() <-chan event {
	p.out.listen()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wanted, p.unwanted = true, make(chan struct{})
	return p.events
}

func (p *process) unlisten() {
	p.out.drop()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wanted = false
	close(p.unwanted)
}

// read hands events to whoever listens until the kernel is dead. A kernel that
// does not keep to the protocol is killed.
func (p *process) read(out *os.File) {
	defer out.Close()
	in := bufio.NewReaderSize(out, 64<<10)
	for {
		e, err := readEvent(in)
		if err != nil {
			if engi.KindOf(err) == engi.Invalid {
				p.box.Kill(p.child)
			}
			return
		}
		p.mu.Lock()
		wanted, unwanted := p.wanted, p.unwanted
		p.mu.Unlock()
		if !wanted {
			continue // of something in the background
		}
		select {
		case p.events <- e:
		case <-unwanted:
		}
	}
}

// command is an execution as kernels are told, except bash.
type command struct {
	ID    int64              `json:"id"`
	Code  string             `json:"code"`
	Count int                `json:"count"`
	Env   map[string]*string `json:"env,omitempty"` // changes that stay; nil unsets
	Own   map[string]string  `json:"own,omitempty"` // of this execution
}

// message returns what to tell the kernel, and remembers the environment.
func (p *process) message(c command, env map[string]string) ([]byte, error) {
	c.Env = map[string]*string{}
	for k, v := range env {
		if old, ok := p.env[k]; !ok || old != v {
			c.Env[k] = &v
		}
	}
	for k := range p.env {
		if _, ok := env[k]; !ok {
			c.Env[k] = nil
		}
	}
	p.env = env
	if p.language == "bash" {
		return bashMessage(c), nil
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(c); err != nil {
		return nil, engi.Errorf(engi.Internal, "encode command: %v", err)
	}
	return b.Bytes(), nil
}

// bashMessage writes an execution as a script. The code is evaluated in a
// command of its own, so that an interrupt ends it and no more.
func bashMessage(c command) []byte {
	var b bytes.Buffer
	b.WriteString("{\n")
	for k, v := range c.Env {
		if !identifier(k) {
			continue // no variable of a shell
		}
		if v == nil {
			b.WriteString("unset -v " + k + "\n")
		} else {
			b.WriteString("export " + k + "=" + quote(*v) + "\n")
		}
	}
	for k, v := range c.Own {
		if identifier(k) {
			b.WriteString("__engi_set " + k + " " + quote(v) + "\n")
		}
	}
	b.WriteString(":\n} 2>/dev/null\neval " + quote(strings.ReplaceAll(c.Code, "\x00", "")) + " </dev/null {__engi_events}>&-\n")
	b.WriteString("{ __engi_end " + strconv.FormatInt(c.ID, 10) + " $?; } 2>/dev/null\n")
	return b.Bytes()
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func identifier(s string) bool {
	for i, c := range []byte(s) {
		if !(c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || i > 0 && '0' <= c && c <= '9') {
			return false
		}
	}
	return s != ""
}

// interrupt makes the kernel end what it does, within yields. One that does
// not is killed; what it started lives on.
func (p *process) interrupt(events <-chan event, id int64) {
	p.box.Signal(p.child, syscall.SIGINT, p.language == "bash")
	patience := time.NewTimer(yields)
	defer patience.Stop()
	for {
		select {
		case e := <-events:
			if e.Event == "end" && e.ID == id {
				return
			}
		case <-p.out.news:
			p.out.take(true)
		case <-p.child.Done():
			return
		case <-patience.C:
			p.box.Signal(p.child, syscall.SIGKILL, false)
			<-p.child.Done()
			return
		}
	}
}

// expire waits for a kernel that says it ends, as code has told it to.
func (p *process) expire() {
	patience := time.NewTimer(yields)
	defer patience.Stop()
	select {
	case <-p.child.Done():
	case <-patience.C:
		p.box.Signal(p.child, syscall.SIGKILL, false)
		<-p.child.Done()
	}
}

// an event is what a kernel says.
type event struct {
	Event     string                     `json:"event"` // ready, result, error, end
	ID        int64                      `json:"id"`
	Main      bool                       `json:"main"`
	Data      map[string]json.RawMessage `json:"data"` // by MIME type
	Name      string                     `json:"name"`
	Value     string                     `json:"value"`
	Traceback string                     `json:"traceback"`
	Status    int                        `json:"status"` // of bash
	Over      bool                       `json:"over"`   // the kernel ends after this
}

// maxEvent bounds a line of events; kernels leave larger results out.
const maxEvent = 16 << 20

// readEvent reads one line. It reports Invalid for what no kernel of ours
// says, Unavailable at the end.
func readEvent(in *bufio.Reader) (event, error) {
	var line []byte
	for {
		piece, err := in.ReadSlice('\n')
		if len(line)+len(piece) > maxEvent {
			return event{}, engi.Errorf(engi.Invalid, "an event is over %d bytes", maxEvent)
		}
		switch {
		case err == nil && line == nil:
			return parseEvent(piece)
		case err == nil:
			return parseEvent(append(line, piece...))
		case err == bufio.ErrBufferFull:
			line = append(line, piece...)
		case err == io.EOF || err != nil:
			return event{}, engi.Errorf(engi.Unavailable, "read events: %v", err)
		}
	}
}

// parseEvent reports Invalid for what no kernel of ours says.
func parseEvent(line []byte) (e event, err error) {
	if err := json.Unmarshal(line, &e); err != nil {
		return event{}, engi.Errorf(engi.Invalid, "an event makes no sense: %v", err)
	}
	switch e.Event {
	case "ready", "result", "error", "end":
		return e, nil
	}
	return event{}, engi.Errorf(engi.Invalid, "event %.40q is unknown", e.Event)
}
