package ssh

import (
	"context"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	xssh "golang.org/x/crypto/ssh"

	"github.com/engi-dev/engi/internal/engi"
)

const (
	maxEnv      = 128      // maximum variables of one session
	maxEnvBytes = 64 << 10 // maximum bytes of their names and values
	maxCommand  = 128 << 10
	keepOutput  = 256 << 10 // maximum bytes of output in transit
	maxInput    = 256 << 10 // maximum bytes passed on at once
	hangupTime  = 10 * time.Second
)

// A session is a channel for one program.
type session struct {
	c       *conn
	ch      xssh.Channel
	leave   context.CancelFunc // ends ctx and its children
	ctx     context.Context    // ends when the client closes the channel
	running sync.WaitGroup     // counts the goroutine of the program

	env      map[string]string
	envBytes int
	started  bool
	answered chan struct{} // closed when the client has been told that its program starts

	mu   sync.Mutex
	size *engi.TerminalSize // the size that the client wants, nil without a terminal; guarded by mu
	proc engi.Process       // nil before the program runs; guarded by mu

	sizing sync.Mutex // held while a size is sent, so that the last one is in force at the end
}

// session serves a channel for a program.
func (c *conn) session(n xssh.NewChannel) {
	ch, requests, err := n.Accept()
	if err != nil {
		return // the connection has ended
	}
	defer ch.Close()
	s := &session{c: c, ch: ch, env: map[string]string{}, answered: make(chan struct{})}
	s.ctx, s.leave = context.WithCancel(c.ctx)
	defer s.running.Wait()
	defer s.leave()
	for {
		select {
		case r, ok := <-requests:
			if !ok {
				return
			}
			before := s.started
			r.Reply(s.request(r.Type, r.Payload), nil) // fails if the channel is closed
			if s.started && !before {
				close(s.answered)
			}
		case <-c.ctx.Done():
			return
		}
	}
}

// request serves a request of a session, and reports its success.
func (s *session) request(kind string, payload []byte) bool {
	switch kind {
	case "env":
		name, value, ok := parseEnv(payload)
		if !ok || s.started || len(s.env) >= maxEnv || s.envBytes+len(name)+len(value) > maxEnvBytes {
			return false
		}
		s.env[name] = value
		s.envBytes += len(name) + len(value)
		return true
	case "pty-req":
		term, size, ok := parseTerminal(payload)
		if !ok || s.started {
			return false
		}
		s.env["TERM"] = term
		s.mu.Lock()
		s.size = &size
		s.mu.Unlock()
		return true
	case "window-change":
		size, ok := parseSize(payload)
		if ok {
			s.resize(size)
		}
		return ok
	case "signal":
		var m struct{ Name string }
		if xssh.Unmarshal(payload, &m) != nil || !slices.Contains(signals, m.Name) {
			return false
		}
		return s.signal(m.Name)
	case "shell":
		// Run the template's shell, whose path the guest puts into the environment.
		return s.start(engi.Command{Args: []string{"/bin/sh", "-c", `exec "${SHELL:-/bin/sh}"`}})
	case "exec":
		var m struct{ Command string }
		if xssh.Unmarshal(payload, &m) != nil || len(m.Command) > maxCommand || strings.ContainsRune(m.Command, 0) {
			return false
		}
		return s.start(engi.Command{Args: []string{"/bin/sh", "-c", `exec "${SHELL:-/bin/sh}" -c "$1"`, "sh", m.Command}})
	case "subsystem":
		var m struct{ Name string }
		if xssh.Unmarshal(payload, &m) != nil || m.Name != "sftp" {
			return false
		}
		s.mu.Lock()
		s.size = nil
		s.mu.Unlock()
		if linkFirst.Match(s.c.ssh.ClientVersion()) {
			s.env[engi.SFTPLinkFirst] = "1"
		}
		return s.start(engi.Command{Builtin: engi.BuiltinSFTP})
	}
	return false // such as requests for agents and X11
}

// linkFirst matches clients that send the arguments for a symbolic link in the order of OpenSSH
// to OpenSSH only.
var linkFirst = regexp.MustCompile(`^SSH-2\.0-(ssh2js|AsyncSSH|libssh_|WinSCP)`)

// signals lists the signals of RFC 4254.
var signals = []string{"ABRT", "ALRM", "FPE", "HUP", "ILL", "INT", "KILL", "PIPE", "QUIT", "SEGV", "TERM", "USR1", "USR2"}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,255}$`)

// parseEnv parses a request for a variable.
func parseEnv(b []byte) (name, value string, ok bool) {
	var m struct{ Name, Value string }
	if xssh.Unmarshal(b, &m) != nil || !envName.MatchString(m.Name) || strings.ContainsRune(m.Value, 0) {
		return "", "", false
	}
	return m.Name, m.Value, true
}

var termName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$`)

// parseTerminal parses a request for a terminal. Modes are ignored.
func parseTerminal(b []byte) (term string, size engi.TerminalSize, ok bool) {
	var m struct {
		Term                      string
		Cols, Rows, Width, Height uint32
		Modes                     string
	}
	if xssh.Unmarshal(b, &m) != nil {
		return "", size, false
	}
	if !termName.MatchString(m.Term) {
		m.Term = "xterm-256color"
	}
	return m.Term, sizeOf(m.Cols, m.Rows), true
}

// parseSize parses a change of a terminal's size.
func parseSize(b []byte) (engi.TerminalSize, bool) {
	var m struct{ Cols, Rows, Width, Height uint32 }
	if xssh.Unmarshal(b, &m) != nil {
		return engi.TerminalSize{}, false
	}
	return sizeOf(m.Cols, m.Rows), true
}

func sizeOf(cols, rows uint32) engi.TerminalSize {
	const most = 10_000
	if cols == 0 || rows == 0 {
		cols, rows = 80, 24
	}
	return engi.TerminalSize{Cols: uint16(min(cols, most)), Rows: uint16(min(rows, most))}
}

// resize sets the size of the terminal, now or when the program starts.
func (s *session) resize(size engi.TerminalSize) {
	s.mu.Lock()
	if s.size != nil {
		s.size = &size
	}
	s.mu.Unlock()
	s.sendSize()
}

// sendSize gives the program's terminal the size that the client wanted last.
func (s *session) sendSize() {
	s.sizing.Lock()
	defer s.sizing.Unlock()
	s.mu.Lock()
	p, size := s.proc, s.size
	s.mu.Unlock()
	if p == nil || size == nil {
		return
	}
	if err := engi.Ignore(p.Resize(s.ctx, *size), engi.NotFound); err != nil && s.ctx.Err() == nil {
		s.c.log.Warn("resize a terminal", "process", p.ID(), "error", err)
	}
}

func (s *session) signal(name string) bool {
	s.mu.Lock()
	p := s.proc
	s.mu.Unlock()
	if p == nil {
		return false
	}
	g, err := s.c.guest()
	if err != nil {
		return false
	}
	return signalGroup(s.ctx, g, p, name) == nil
}

// signalGroup sends a signal to a program and its children, except those that
// have a process group of their own.
func signalGroup(ctx context.Context, g engi.Guest, p engi.Process, name string) error {
	kill := `kill -s ` + name + ` -- -"$1"` // name is one of signals
	if q, err := g.Start(ctx, engi.Command{Args: []string{"/bin/sh", "-c", kill, "sh", strconv.Itoa(p.PID())}, User: "root"}); err == nil {
		if x, err := q.Wait(ctx); err == nil && x.Code == 0 {
			return nil
		}
	}
	return p.Signal(ctx, name)
}

// start starts the session's program, in the background, because its sandbox may have to
// wake first.
func (s *session) start(cmd engi.Command) bool {
	if s.started {
		return false
	}
	s.started = true
	s.running.Go(func() {
		defer s.ch.Close()
		<-s.answered
		g, p, err := s.launch(cmd)
		if err != nil {
			s.fail(err)
			return
		}
		var feeding sync.WaitGroup
		feeding.Go(func() { s.feed(p) })
		if err = s.follow(p); err != nil {
			s.fail(err)
		}
		s.leave()
		s.ch.Close() // ends the readers of the channel
		feeding.Wait()
		if err != nil {
			s.hangUp(g, p)
		}
	})
	return true
}

// fail sends the client the reason why its program did not run or the session ends.
func (s *session) fail(err error) {
	if cause := context.Cause(s.c.ctx); s.c.ctx.Err() != nil && cause != context.Canceled {
		err = cause
	}
	if engi.Is(err, engi.Internal) {
		s.c.log.Error("run a program of an SSH session", "error", err)
	}
	io.WriteString(s.ch.Stderr(), describe(err)) // fails if the client has left, as do the calls below
	s.exit(engi.Exit{Code: 255})
}

// launch starts a program.
func (s *session) launch(cmd engi.Command) (engi.Guest, engi.Process, error) {
	g, err := s.c.guest()
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	size := s.size
	s.mu.Unlock()
	cmd.Env, cmd.Stdin, cmd.Terminal, cmd.Output = s.env, engi.StdinPipe, size, keepOutput
	p, err := g.Start(s.ctx, cmd)
	if err != nil {
		if cmd.Builtin != "" && engi.Is(err, engi.Invalid) {
			err = engi.Errorf(engi.Unsupported, "the sandbox was started by an earlier version of engi, which has no %s", cmd.Builtin).WithRemedy("create another")
		}
		return nil, nil, err
	}
	s.mu.Lock()
	s.proc = p
	changed := size != nil && *s.size != *size
	s.mu.Unlock()
	if changed {
		s.sendSize()
	}
	return g, p, nil
}

// follow passes output on until the program ends, and sends its exit.
func (s *session) follow(p engi.Process) error {
	for c, err := range p.Output(s.ctx, 0) {
		if err == nil {
			err = s.write(c)
		}
		if err != nil {
			return err
		}
	}
	x, err := p.Wait(s.ctx)
	if err != nil {
		return err
	}
	if x.Cause != engi.CauseExited && x.Cause != "" {
		io.WriteString(s.ch.Stderr(), "engi: "+string(x.Cause)+": "+x.Cause.Remedy()+"\r\n")
	}
	s.ch.CloseWrite()
	s.exit(x)
	return nil
}

// write passes output on. It waits for the client, and the program waits for it.
func (s *session) write(c engi.Chunk) error {
	to := io.Writer(s.ch)
	if c.Stream == engi.Stderr {
		to = s.ch.Stderr()
	}
	if _, err := to.Write(c.Data); err != nil {
		return engi.Errorf(engi.Expired, "the client has left")
	}
	return nil
}

// feed passes input on until the input or the program ends.
func (s *session) feed(p engi.Process) {
	parts := make(chan []byte, 8)
	go func() { // the goroutine ends with the channel, which start closes
		defer close(parts)
		buf := make([]byte, 32<<10)
		for {
			n, err := s.ch.Read(buf)
			if n > 0 {
				select {
				case parts <- slices.Clone(buf[:n]):
				case <-s.ctx.Done():
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	for part := range parts {
		// Each call costs a round trip: send all input that has arrived in the meantime.
	more:
		for len(part) < maxInput {
			select {
			case next, ok := <-parts:
				if !ok {
					break more
				}
				part = append(part, next...)
			default:
				break more
			}
		}
		if err := p.Input(s.ctx, part); err != nil {
			// The program has ended, or has closed its input; discard further input of the client.
			for range parts {
			}
			return
		}
	}
	if s.ctx.Err() == nil {
		p.CloseInput(s.ctx) // fails if the program has ended
	}
}

// hangUp signals a program that its user has left, like the end of a terminal.
func (s *session) hangUp(g engi.Guest, p engi.Process) {
	if r, ok := p.(interface{ Release() }); ok {
		r.Release()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), hangupTime)
	defer cancel()
	p.CloseInput(ctx) // fails if the program has ended
	if err := engi.Ignore(signalGroup(ctx, g, p, "HUP"), engi.NotFound, engi.Unavailable); err != nil {
		s.c.log.Warn("hang up a program", "process", p.ID(), "error", err)
	}
}

// exit sends the exit of the program.
func (s *session) exit(x engi.Exit) {
	if x.Signal == "" {
		if x.Code < 0 {
			x.Code = 255
		}
		s.ch.SendRequest("exit-status", false, xssh.Marshal(struct{ Status uint32 }{uint32(x.Code)}))
		return
	}
	name := x.Signal
	if !slices.Contains(signals, name) {
		name += "@engi"
	}
	s.ch.SendRequest("exit-signal", false, xssh.Marshal(struct {
		Signal      string
		Core        bool
		Error, Lang string
	}{name, false, string(x.Cause), ""}))
}
