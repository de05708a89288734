package guestd

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/guestd/child"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// atoi parses a number from the kernel. It returns 0 for other text.
func atoi(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}

// keepaliveInterval is the interval of Alive frames, by which a host tells a silent program from a dead guest.
const keepaliveInterval = 15 * time.Second

// coalesceDelay is the time for which output is held back to send more at once.
const coalesceDelay = 4 * time.Millisecond

// maxBuffered is the approximate maximum size of output sent at once, in bytes.
const maxBuffered = 256 << 10

// A followed is a process or run to stream to the host.
type followed struct {
	*proc
	warm   bool
	linger time.Duration      // time for which output is held back
	done   <-chan struct{}    // closed when finish can be called
	finish func() wire.Finish // returns the end
}

// follow streams a process: a Started frame, the output from offset from on, and an
// Exited frame.
func (s *Server) follow(ctx context.Context, w http.ResponseWriter, f followed, from int64) error {
	out, err := f.log.Read(from)
	if err != nil {
		return err
	}
	defer out.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	rc := http.NewResponseController(w)
	buf, err := wire.AppendJSON(nil, wire.Started, wire.Start{ID: f.id, PID: f.child.PID, From: out.At(), Warm: f.warm})
	if err != nil {
		return err
	}
	idle := time.NewTicker(keepaliveInterval)
	defer idle.Stop()
	// Each write wakes the host, which costs as much as a small program, so
	// output within a moment is sent together.
	flush := time.NewTimer(f.linger)
	defer flush.Stop()
	now := f.linger <= 0
	for {
		ready := out.Ready()
		before := len(buf)
		var end bool
		buf, end = appendOutput(buf, out)
		if before == 0 && len(buf) > 0 && f.linger > 0 {
			flush.Reset(f.linger)
		}
		if end {
			if err := out.Err(); err != nil {
				w.Write(wire.AppendFrame(buf, wire.Failure, wire.EncodeError(err))) // fails if the host has disconnected
				return nil
			}
			select {
			case <-f.done:
				if buf, err = wire.AppendJSON(buf, wire.Exited, f.finish()); err != nil {
					buf = wire.AppendFrame(buf, wire.Failure, wire.EncodeError(err))
				}
				w.Write(buf) // fails if the host has disconnected
				return nil
			default:
			}
			ready = f.done
		}
		if (now || len(buf) >= maxBuffered) && len(buf) > 0 {
			if _, err := w.Write(buf); err != nil {
				return nil
			}
			if err := rc.Flush(); err != nil {
				return nil
			}
			buf, now = buf[:0], f.linger <= 0
			continue
		}
		if len(buf) > before {
			continue // ready is out of date
		}
		select {
		case <-ready:
		case <-flush.C:
			now = true
		case <-idle.C:
			buf, now = wire.AppendFrame(buf, wire.Alive, nil), true
		case <-ctx.Done():
			return nil
		case <-s.poweredOff:
			return nil
		}
	}
}

// appendOutput appends the output so far to buf, up to about maxBuffered bytes; end
// reports whether the output has ended.
func appendOutput(buf []byte, out *child.LogReader) (_ []byte, end bool) {
	for len(buf) < maxBuffered {
		stream, data, end := out.TryNext()
		if len(data) == 0 {
			return buf, end
		}
		buf = wire.AppendData(buf, wire.StreamKind(stream), data)
	}
	return buf, false
}

func (s *Server) start(w http.ResponseWriter, r *http.Request) error {
	var c wire.Command
	if err := readJSON(r, &c); err != nil {
		return err
	}
	p, err := s.spawnOnce(c)
	if err != nil {
		return err
	}
	return s.followProc(r.Context(), w, p, 0)
}

// spawnOnce calls spawn, in the working directory by default. If a process with the ID that the host has
// chosen exists, the host has repeated its request, and spawnOnce returns that process.
func (s *Server) spawnOnce(c wire.Command) (*proc, error) {
	if cfg := s.settings(); c.Dir == "" && (c.User == "" || c.User == cfg.User) && cfg.configured {
		c.Dir = s.inside(cfg.WorkDir)
	}
	if c.ID == "" {
		return s.spawn(c)
	}
	if err := wire.CheckID(c.ID); err != nil {
		return nil, err
	}
	s.chosenMu.Lock()
	defer s.chosenMu.Unlock()
	s.mu.Lock()
	p := s.procs.byID[c.ID]
	s.mu.Unlock()
	if p != nil {
		return p, nil
	}
	return s.spawn(c)
}

func (s *Server) followProc(ctx context.Context, w http.ResponseWriter, p *proc, from int64) error {
	linger := coalesceDelay
	if p.tty {
		linger = 0 // a person may be typing
	}
	return s.follow(ctx, w, followed{proc: p, linger: linger, done: p.ended, finish: func() wire.Finish {
		return wire.Finish{Exit: p.exit, Duration: p.endedAt.Sub(p.started)}
	}}, from)
}

// process returns a handler that calls f with the process named in the request.
func (s *Server) process(f func(w http.ResponseWriter, r *http.Request, p *proc) error) handlerFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		p, err := s.find(r.PathValue("id"))
		if err != nil {
			return err
		}
		return f(w, r, p)
	}
}

func (s *Server) attach(w http.ResponseWriter, r *http.Request, p *proc) error {
	from, err := offset(r)
	if err != nil {
		return err
	}
	return s.followProc(r.Context(), w, p, from)
}

func offset(r *http.Request) (int64, error) { return number(r, "from") }

func number(r *http.Request, name string) (int64, error) {
	v := r.URL.Query().Get(name)
	if v == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		return 0, engi.Errorf(engi.Invalid, "offset %.40q is not a number", v)
	}
	return n, nil
}

func (s *Server) list(w http.ResponseWriter, r *http.Request) error {
	s.mu.Lock()
	all := make([]wire.Process, 0, len(s.procs.byID))
	for _, p := range s.procs.byID {
		all = append(all, wire.Process{ID: p.id, PID: p.child.PID, Tag: p.tag, Args: p.args, Dir: p.dir, Started: p.started, Ended: !p.live()})
	}
	s.mu.Unlock()
	return wire.WriteJSON(w, all)
}

// maxInput bounds one input request, in bytes.
const maxInput = 1 << 20

func (s *Server) input(w http.ResponseWriter, r *http.Request, p *proc) error {
	data, err := io.ReadAll(io.LimitReader(r.Body, maxInput+1))
	if err != nil {
		return engi.Errorf(engi.Unavailable, "read input: %v", err)
	}
	if len(data) > maxInput {
		return engi.Errorf(engi.Invalid, "the input is larger than %d bytes", maxInput)
	}
	writer, at := r.URL.Query().Get("writer"), int64(0)
	if writer == "" {
		if err := p.write(r.Context(), data); err != nil {
			return err
		}
		return noContent(w)
	}
	if err := wire.CheckID(writer); err != nil {
		return err
	}
	if at, err = number(r, "at"); err != nil {
		return err
	}
	next, err := p.writeAt(r.Context(), writer, at, data)
	if err != nil {
		return err
	}
	return wire.WriteJSON(w, wire.Taken{Next: next})
}

func (s *Server) history(w http.ResponseWriter, r *http.Request, p *proc) error {
	if !p.tty {
		return engi.Errorf(engi.Conflict, "process %d has no terminal", p.child.PID)
	}
	h := p.log.History()
	if !p.live() {
		h.Exit = &p.exit
	}
	return wire.WriteJSON(w, h)
}

func (s *Server) closeInput(w http.ResponseWriter, r *http.Request, p *proc) error {
	if err := p.sendEOF(r.Context()); err != nil {
		return err
	}
	return noContent(w)
}

// sendEOF ends the program's standard input. A terminal stays open: it gets the
// end-of-file character.
func (p *proc) sendEOF(ctx context.Context) error {
	if p.tty {
		return p.write(ctx, []byte{4})
	}
	p.closeInput()
	return nil
}

func (s *Server) signal(w http.ResponseWriter, r *http.Request, p *proc) error {
	sig, err := child.ParseSignal(r.URL.Query().Get("name"))
	if err != nil {
		return err
	}
	if err := s.table.Signal(p.child, sig); err != nil {
		return err
	}
	return noContent(w)
}

func (s *Server) resize(w http.ResponseWriter, r *http.Request, p *proc) error {
	var size wire.Size
	if err := readJSON(r, &size); err != nil {
		return err
	}
	if err := p.resize(size); err != nil {
		return err
	}
	return noContent(w)
}

// looks are the times, after a change of a terminal's size and after each look at it, of another look.
var looks = []time.Duration{20 * time.Millisecond, 80 * time.Millisecond, 400 * time.Millisecond, 1500 * time.Millisecond}

func (p *proc) resize(size wire.Size) error {
	p.inputMu.Lock()
	defer p.inputMu.Unlock()
	if !p.tty {
		return engi.Errorf(engi.Conflict, "process %d has no terminal", p.child.PID)
	}
	if p.input == nil {
		return engi.Errorf(engi.NotFound, "process %d has ended", p.child.PID)
	}
	var before unix.Winsize
	want := unix.Winsize{Row: size.Rows, Col: size.Cols}
	if err := p.control(func(fd int) error {
		now, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
		if err != nil {
			return err
		}
		before = *now
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &want)
	}); err != nil {
		return engi.Errorf(engi.Internal, "resize terminal of %d: %v", p.child.PID, err)
	}
	if before != want {
		p.settle(before, want, looks)
	}
	p.log.Resized(size)
	return nil
}

// settle looks at the terminal's size a few times, and sets it again if it is the one before. Programs
// that use the readline library, such as shells, read the size of their terminal before each prompt
// and set what they have read, which undoes a change in between. The caller holds inputMu.
func (p *proc) settle(before, want unix.Winsize, looks []time.Duration) {
	if p.settling != nil {
		p.settling.Stop()
	}
	if len(looks) == 0 {
		return
	}
	var own *time.Timer
	own = time.AfterFunc(looks[0], func() {
		p.inputMu.Lock()
		defer p.inputMu.Unlock()
		if p.settling != own || p.input == nil {
			return // the size has been changed again, or the terminal is closed
		}
		p.control(func(fd int) error { // fails if the program has ended
			now, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
			if err != nil || *now != before {
				return err
			}
			return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &want)
		})
		p.settle(before, want, looks[1:])
	})
	p.settling = own
}

// control calls f with the descriptor of the terminal. The caller holds inputMu.
func (p *proc) control(f func(fd int) error) error {
	c, err := p.input.SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	err = c.Control(func(fd uintptr) { ferr = f(int(fd)) })
	return cmp.Or(err, ferr)
}
