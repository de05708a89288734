package kernel

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/child"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/warm"
)

//go:embed kernel.py
var programPython []byte

//go:embed chart.py
var chartPython []byte

//go:embed kernel.mjs
var programJavaScript []byte

//go:embed kernel.sh
var programBash string

//go:embed kernel.R
var programR []byte

//go:embed Kernel.java
var programJava []byte

// process is a running kernel. It executes for one goroutine at a time.
type process struct {
	language string
	uid, gid int
	child    *child.Child
	in       *os.File // write end of the pipe for commands
	out      *output
	events   chan event // events of the execution in progress; others are dropped
	env      map[string]string
	last     int64 // ID of the last execution
	sandbox  Sandbox

	mu         sync.Mutex
	listening  bool          // a goroutine reads events
	unlistened chan struct{} // closed when no goroutine reads events any more
}

func (p *process) dead() bool {
	select {
	case <-p.child.Done():
		return true
	default:
		return false
	}
}

// interpreters lists the programs that can run a language's kernel, best first.
var interpreters = map[string][]string{
	"python": {"python3", "python"}, "javascript": {"deno", "node"}, "typescript": {"deno", "node"}, "bash": {"bash"},
	"r": {"Rscript"}, "java": {"java"},
}

// interpreter finds the program for a language.
func (k *Kernels) interpreter(l string) (string, error) {
	for _, name := range interpreters[l] {
		if path, err := k.sandbox.LookPath(name); err == nil {
			return path, nil
		}
	}
	template := "code-interpreter-v1"
	if l == "r" || l == "java" {
		template = "code-interpreter-r-java"
	}
	return "", engi.Errorf(engi.Invalid, "there is no kernel for %s, because this template has no %s: use the template %s or a template based on it", l, strings.Join(interpreters[l], " and no "), template)
}

// start starts a kernel and returns once it accepts code.
func (k *Kernels) start(ctx context.Context, s *codeContext, a User) (_ *process, err error) {
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		return nil, engi.Errorf(engi.Unavailable, "the guest is closing")
	}
	k.work.Add(1) // so that Close also waits for the goroutines started below
	k.mu.Unlock()
	defer k.work.Done()
	path, err := k.interpreter(s.language)
	if err != nil {
		return nil, err
	}
	dir := k.sandbox.Private()
	in, out, err := writeFiles(dir, s.language, a)
	if in != nil {
		defer os.RemoveAll(dir) // the kernel has read the files by now, or never will
	}
	if err != nil {
		return nil, err
	}
	p := &process{language: s.language, uid: a.UID, gid: a.GID, in: in, events: make(chan event), env: a.Env, sandbox: k.sandbox}
	prog, err := k.program(s, a, path, dir)
	var printed [2]*os.File
	if err == nil {
		p.child, printed, err = k.sandbox.Start(prog)
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
	k.live[p], k.printing[p.out] = true, true
	closed := k.closed
	k.mu.Unlock()
	k.work.Go(func() {
		var second sync.WaitGroup
		second.Go(func() { p.out.pump(1) })
		p.out.pump(0)
		second.Wait()
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.printing, p.out)
	})
	k.work.Go(func() { p.read(out) })
	k.work.Go(func() {
		<-p.child.Done()
		p.in.Close() // fails pending writes
		out.SetReadDeadline(time.Now().Add(drainTimeout))
		k.mu.Lock()
		delete(k.live, p)
		k.mu.Unlock()
	})
	if closed {
		k.sandbox.Kill(p.child)
		p.out.close()
	}
	if err := p.ready(ctx); err != nil {
		k.sandbox.Kill(p.child)
		<-p.child.Done()
		return nil, err
	}
	return p, nil
}

// program returns the program of a context's kernel, whose files are in dir.
func (k *Kernels) program(s *codeContext, a User, interpreter, dir string) (Program, error) {
	p := Program{Env: a.Env, Dir: k.sandbox.Resolve(s.dir, a.Home)}
	switch {
	case s.language == "python":
		p.Args = []string{interpreter, dir + "/kernel.py"}
	case s.language == "bash":
		p.Args = []string{interpreter, "--norc", "--noprofile", "--noediting", "-i", "-s"}
		p.Env = maps.Clone(a.Env)
		p.Env["ENGI_KERNEL"] = dir
		stdin, err := os.Open(dir + "/in") // does not block: the pipe is already open for reading and writing
		if err != nil {
			return p, engi.Errorf(engi.Internal, "open pipe: %v", err)
		}
		p.Stdin = stdin
	case s.language == "r":
		p.Args = []string{interpreter, dir + "/kernel.R", dir}
		if a.Env["LC_ALL"]+a.Env["LC_CTYPE"]+a.Env["LANG"] == "" {
			p.Env = maps.Clone(a.Env)
			p.Env["LC_CTYPE"] = "C.UTF-8" // otherwise, R replaces characters that are not ASCII
		}
	case s.language == "java":
		// A short start matters more than the speed of long computations.
		p.Args = []string{interpreter, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dfile.encoding=UTF-8", "-Dsun.stdout.encoding=UTF-8", "-Dsun.stderr.encoding=UTF-8",
			"-Dstdout.encoding=UTF-8", "-Dstderr.encoding=UTF-8", dir + "/Kernel.java", dir}
	case filepath.Base(interpreter) == "deno":
		p.Args = []string{interpreter, "run", "--quiet", "--allow-all", "--no-config", "--no-lock", dir + "/kernel.mjs", s.language}
	default:
		p.Args = []string{interpreter, "--no-warnings", dir + "/kernel.mjs", s.language}
	}
	return p, nil
}

// drainTimeout is the time for which events are read after a kernel's end.
const drainTimeout = 20 * time.Millisecond

// writeFiles creates a directory with the files of a kernel, and returns the
// guest's ends of its pipes.
func writeFiles(dir, language string, a User) (in, out *os.File, err error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o711); err != nil {
		return nil, nil, engi.Errorf(engi.Internal, "write the kernel's files: %v", err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, nil, engi.Errorf(engi.Internal, "write the kernel's files: %v", err)
	}
	fail := func(err error) (*os.File, *os.File, error) {
		os.RemoveAll(dir)
		if in != nil {
			in.Close()
		}
		if _, ours := err.(*engi.Error); !ours {
			err = engi.Errorf(engi.Internal, "write the kernel's files: %v", err)
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
	case "r":
		files["kernel.R"] = programR
	case "java":
		files["Kernel.java"] = programJava
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return fail(err)
		}
	}
	if in, err = warm.MakeFIFO(dir+"/in", a.UID, a.GID); err != nil {
		return fail(err)
	}
	if out, err = warm.MakeFIFO(dir+"/out", a.UID, a.GID); err != nil {
		return fail(err)
	}
	return in, out, nil
}

// ready waits for a kernel's first event.
func (p *process) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	events := p.listen()
	defer p.unlisten()
	if p.language == "bash" {
		if err := p.write([]byte(programBash)); err != nil {
			return err
		}
	}
	select {
	case e := <-events:
		if e.Event == "ready" {
			p.out.drain() // an interactive bash prints a warning and a prompt
			return nil
		}
		return engi.Errorf(engi.Unavailable, "the kernel began with event %.40q", e.Event)
	case <-p.child.Done():
		p.out.drain()
		said := p.out.text(0) + p.out.text(1)
		if len(said) > 4<<10 {
			said = said[len(said)-4<<10:]
		}
		return engi.Errorf(engi.Unavailable, "the kernel ended during its start: %s", strings.TrimSpace(strings.ToValidUTF8(said, "?")))
	case <-ctx.Done():
		return engi.Errorf(engi.Expired, "the kernel did not start: %v", context.Cause(ctx))
	}
}

func (p *process) write(command []byte) error {
	p.in.SetWriteDeadline(time.Now().Add(startTimeout)) // an idle kernel reads immediately
	if _, err := p.in.Write(command); err != nil {
		return engi.Errorf(engi.Unavailable, "write to the kernel: %v", err)
	}
	return nil
}

// listen begins to deliver events. The caller must call unlisten.
func (p *process) listen() <-chan event {
	p.out.listen()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listening, p.unlistened = true, make(chan struct{})
	return p.events
}

func (p *process) unlisten() {
	p.out.discard()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listening = false
	close(p.unlistened)
}

// read delivers events until the kernel has ended. A kernel that violates the
// protocol is killed.
func (p *process) read(out *os.File) {
	defer out.Close()
	in := bufio.NewReaderSize(out, 64<<10)
	for {
		e, err := readEvent(in)
		if err != nil {
			if engi.Is(err, engi.Invalid) {
				p.sandbox.Kill(p.child)
			}
			return
		}
		p.mu.Lock()
		wanted, unwanted := p.listening, p.unlistened
		p.mu.Unlock()
		if !wanted {
			continue // an event from a background task
		}
		select {
		case p.events <- e:
		case <-unwanted:
		}
	}
}

// command is the message that makes a kernel execute code: JSON for Python, JavaScript
// and TypeScript.
type command struct {
	ID    int64              `json:"id"`
	Code  string             `json:"code"`
	Count int                `json:"count"`
	Env   map[string]*string `json:"env,omitempty"` // permanent changes of the environment; nil unsets a variable
	Own   map[string]string  `json:"own,omitempty"` // environment of this execution only
}

// encode returns the message for a command, and records its environment.
func (p *process) encode(c command, env map[string]string) ([]byte, error) {
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
	switch p.language {
	case "bash":
		return bashMessage(c), nil
	case "r":
		return rMessage(c), nil
	case "java":
		return javaMessage(c), nil
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(c); err != nil {
		return nil, engi.Errorf(engi.Internal, "encode command: %v", err)
	}
	return b.Bytes(), nil
}

// bashMessage returns a command as a script. The script evaluates the code in a command
// of its own, so that an interrupt ends only this command.
func bashMessage(c command) []byte {
	var b bytes.Buffer
	b.WriteString("{\n")
	for k, v := range c.Env {
		if !warm.IsIdentifier(k) {
			continue // the name is not valid in a shell
		}
		if v == nil {
			b.WriteString("unset -v " + k + "\n")
		} else {
			b.WriteString("export " + k + "=" + warm.Quote(*v) + "\n")
		}
	}
	for k, v := range c.Own {
		if warm.IsIdentifier(k) {
			b.WriteString("__engi_set " + k + " " + warm.Quote(v) + "\n")
		}
	}
	b.WriteString(":\n} 2>/dev/null\neval " + warm.Quote(strings.ReplaceAll(c.Code, "\x00", "")) + " </dev/null {__engi_events}>&-\n")
	b.WriteString("{ __engi_end " + strconv.FormatInt(c.ID, 10) + " $?; } 2>/dev/null\n")
	return b.Bytes()
}

// rMessage returns a command as a call in R.
func rMessage(c command) []byte {
	set, unset, own := []string{}, []string{}, []string{}
	for k, v := range c.Env {
		if v == nil {
			unset = append(unset, rString(k))
		} else {
			set = append(set, rString(k)+"="+rString(*v))
		}
	}
	for k, v := range c.Own {
		own = append(own, rString(k)+"="+rString(v))
	}
	return fmt.Appendf(nil, "run(%d,%s,c(%s),c(%s),c(%s))\n", c.ID, rString(c.Code), strings.Join(set, ","), strings.Join(unset, ","), strings.Join(own, ","))
}

// rString writes s as a string literal of R, in ASCII. R has no strings with NUL.
func rString(s string) string {
	b := []byte{'"'}
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r >= ' ' && r < 0x7f:
			b = append(b, byte(r))
		case r != 0:
			b = fmt.Appendf(b, "\\U%08x", r)
		}
	}
	return string(append(b, '"'))
}

// javaMessage returns a command as words in base64; see Kernel.java.
func javaMessage(c command) []byte {
	word := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	b := fmt.Appendf(nil, "%d %s", c.ID, word(c.Code))
	for k, v := range c.Env {
		if v == nil {
			b = append(b, " -"+word(k)...)
		} else {
			b = append(b, " +"+word(k)+":"+word(*v)...)
		}
	}
	for k, v := range c.Own {
		b = append(b, " ="+word(k)+":"+word(v)...)
	}
	return append(b, '\n')
}

// interrupt makes the kernel stop executing, or kills it after interruptTimeout.
// Processes that the code has started continue.
func (p *process) interrupt(events <-chan event, id int64) {
	p.sandbox.Signal(p.child, syscall.SIGINT, p.language == "bash")
	patience := time.NewTimer(interruptTimeout)
	defer patience.Stop()
	for {
		select {
		case e := <-events:
			if e.Event == "end" && e.ID == id {
				return
			}
		case <-p.out.ready:
			p.out.take(true)
		case <-p.child.Done():
			return
		case <-patience.C:
			p.sandbox.Signal(p.child, syscall.SIGKILL, false)
			<-p.child.Done()
			return
		}
	}
}

// awaitExit waits for the end of a kernel that has announced its exit.
func (p *process) awaitExit() {
	patience := time.NewTimer(interruptTimeout)
	defer patience.Stop()
	select {
	case <-p.child.Done():
	case <-patience.C:
		p.sandbox.Signal(p.child, syscall.SIGKILL, false)
		<-p.child.Done()
	}
}

// event is a message from a kernel.
type event struct {
	Event     string                     `json:"event"` // ready, result, error or end
	ID        int64                      `json:"id"`
	Main      bool                       `json:"main"`
	Data      map[string]json.RawMessage `json:"data"` // by MIME type
	Name      string                     `json:"name"`
	Value     string                     `json:"value"`
	Traceback string                     `json:"traceback"`
	Status    int                        `json:"status"` // exit status; only of bash
	Over      bool                       `json:"over"`   // the kernel exits after this
}

// maxEvent bounds an event, in bytes. Kernels leave out larger results.
const maxEvent = 16 << 20

// readEvent reads one event. It reports Invalid for a malformed one and
// Unavailable at the end.
func readEvent(in *bufio.Reader) (event, error) {
	var line []byte
	for {
		piece, err := in.ReadSlice('\n')
		if len(line)+len(piece) > maxEvent {
			return event{}, engi.Errorf(engi.Invalid, "an event is larger than %d bytes", maxEvent)
		}
		switch {
		case err == nil && line == nil:
			return parseEvent(piece)
		case err == nil:
			return parseEvent(append(line, piece...))
		case err == bufio.ErrBufferFull:
			line = append(line, piece...)
		default:
			return event{}, engi.Errorf(engi.Unavailable, "read events: %v", err)
		}
	}
}

// parseEvent reports Invalid for a malformed event.
func parseEvent(line []byte) (e event, err error) {
	if err := json.Unmarshal(line, &e); err != nil {
		return event{}, engi.Errorf(engi.Invalid, "an event is not valid: %v", err)
	}
	switch e.Event {
	case "ready", "result", "error", "end":
		return e, nil
	}
	return event{}, engi.Errorf(engi.Invalid, "the event type %.40q does not exist", e.Event)
}
