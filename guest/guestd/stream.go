package guestd

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest/guestd/child"
	"github.com/engi-dev/engi/guest/wire"
)

func itoa(n int) string { return strconv.Itoa(n) }

// atoi is for numbers of the kernel: what is none is 0.
func atoi(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}

// alive is how often an idle stream says so, which lets a host tell a quiet
// program from a dead guest.
const alive = 15 * time.Second

// gathering is how long output may wait for more.
const gathering = 4 * time.Millisecond

// follow streams a process: started, output from an offset on, and what last
// returns once the process has ended.
func (s *Server) follow(w http.ResponseWriter, ctx context.Context, p *proc, from int64, warm bool, linger time.Duration, ended <-chan struct{}, last func() (wire.Kind, any)) error {
	out, err := p.log.Read(from)
	if err != nil {
		return err
	}
	defer out.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	rc := http.NewResponseController(w)
	buf, err := wire.AppendJSON(nil, wire.Started, wire.Start{ID: p.id, PID: p.child.PID, From: out.At(), Warm: warm})
	if err != nil {
		return err
	}
	idle := time.NewTicker(alive)
	defer idle.Stop()
	// Each write wakes the host, which costs as much as a small program. So
	// what comes within a moment goes out together.
	var gather *time.Timer
	var flush <-chan time.Time
	if linger > 0 {
		gather = time.NewTimer(linger)
		defer gather.Stop()
		flush = gather.C
	}
	now := linger <= 0
	for {
		ready := out.Ready()
		stream, data, done := out.TryNext()
		if len(data) > 0 && len(buf) == 0 && gather != nil {
			gather.Reset(linger)
		}
		got := len(data) > 0
		for len(data) > 0 {
			buf = wire.AppendData(buf, wire.StreamKind(stream), data)
			if len(buf) >= 256<<10 {
				now = true
				break
			}
			stream, data, done = out.TryNext()
		}
		if done {
			select {
			case <-ended:
				kind, v := last()
				if buf, err = wire.AppendJSON(buf, kind, v); err != nil {
					buf = wire.AppendFrame(buf, wire.Failure, wire.EncodeError(err))
				}
				w.Write(buf) // a host that left hears nothing
				return nil
			default:
			}
			ready = ended
		}
		if now && len(buf) > 0 {
			if _, err := w.Write(buf); err != nil {
				return nil
			}
			if err := rc.Flush(); err != nil {
				return nil
			}
			buf, now = buf[:0], linger <= 0
			continue
		}
		if got {
			continue // ready is from before
		}
		select {
		case <-ready:
		case <-flush:
			now = true
		case <-idle.C:
			buf, now = wire.AppendFrame(buf, wire.Alive, nil), true
		case <-ctx.Done():
			return nil
		case <-s.off:
			return nil
		}
	}
}

func (s *Server) start(w http.ResponseWriter, r *http.Request) error {
	var c wire.Command
	if err := receive(r, &c); err != nil {
		return err
	}
	p, err := s.spawnOnce(c)
	if err != nil {
		return err
	}
	return s.followProc(w, r.Context(), p, 0)
}

// spawnOnce is spawn, unless there is a process with the ID that the host has
// chosen: then the host asks again, and gets that one.
func (s *Server) spawnOnce(c wire.Command) (*proc, error) {
	if c.ID == "" {
		return s.spawn(c)
	}
	if err := wire.CheckID(c.ID); err != nil {
		return nil, err
	}
	s.chosen.Lock()
	defer s.chosen.Unlock()
	s.mu.Lock()
	p := s.procs.byID[c.ID]
	s.mu.Unlock()
	if p != nil {
		return p, nil
	}
	return s.spawn(c)
}

func (s *Server) followProc(w http.ResponseWriter, ctx context.Context, p *proc, from int64) error {
	linger := gathering
	if p.tty {
		linger = 0 // somebody types and looks
	}
	return s.follow(w, ctx, p, from, false, linger, p.ended, func() (wire.Kind, any) {
		return wire.Exited, wire.Finish{Exit: p.exit, Duration: p.endedAt.Sub(p.started)}
	})
}

func (s *Server) attach(w http.ResponseWriter, r *http.Request) error {
	p, err := s.find(r.PathValue("id"))
	if err != nil {
		return err
	}
	from, err := offset(r)
	if err != nil {
		return err
	}
	return s.followProc(w, r.Context(), p, from)
}

func offset(r *http.Request) (int64, error) {
	v := r.URL.Query().Get("from")
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
	return reply(w, all)
}

// maxInput bounds one piece of input.
const maxInput = 1 << 20

func (s *Server) input(w http.ResponseWriter, r *http.Request) error {
	p, err := s.find(r.PathValue("id"))
	if err != nil {
		return err
	}
	data, err := io.ReadAll(io.LimitReader(r.Body, maxInput+1))
	if err != nil {
		return engi.Errorf(engi.Unavailable, "read input: %v", err)
	}
	if len(data) > maxInput {
		return engi.Errorf(engi.Invalid, "a piece of input is over %d bytes", maxInput)
	}
	if err := p.write(r.Context(), data); err != nil {
		return err
	}
	return empty(w)
}

func (s *Server) closeInput(w http.ResponseWriter, r *http.Request) error {
	p, err := s.find(r.PathValue("id"))
	if err != nil {
		return err
	}
	if err := p.endInput(r.Context()); err != nil {
		return err
	}
	return empty(w)
}

// endInput ends the program's standard input. A terminal stays open: it gets
// the character that means end of file.
func (p *proc) endInput(ctx context.Context) error {
	if p.tty {
		return p.write(ctx, []byte{4})
	}
	p.closeInput()
	return nil
}

func (s *Server) signal(w http.ResponseWriter, r *http.Request) error {
	p, err := s.find(r.PathValue("id"))
	if err != nil {
		return err
	}
	sig, err := child.ParseSignal(r.URL.Query().Get("name"))
	if err != nil {
		return err
	}
	if err := s.table.Signal(p.child, sig); err != nil {
		return err
	}
	return empty(w)
}

func (s *Server) resize(w http.ResponseWriter, r *http.Request) error {
	p, err := s.find(r.PathValue("id"))
	if err != nil {
		return err
	}
	var size wire.Size
	if err := receive(r, &size); err != nil {
		return err
	}
	if err := p.resize(size); err != nil {
		return err
	}
	return empty(w)
}

func (p *proc) resize(size wire.Size) error {
	p.inputMu.Lock()
	defer p.inputMu.Unlock()
	if !p.tty {
		return engi.Errorf(engi.Conflict, "process %d has no terminal", p.child.PID)
	}
	if p.input == nil {
		return engi.Errorf(engi.NotFound, "process %d has ended", p.child.PID)
	}
	c, err := p.input.SyscallConn()
	if err != nil {
		return engi.Errorf(engi.NotFound, "process %d has ended", p.child.PID)
	}
	var ierr error
	if err := c.Control(func(fd uintptr) {
		ierr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
	}); err != nil || ierr != nil {
		return engi.Errorf(engi.Internal, "resize terminal of %d: %v %v", p.child.PID, err, ierr)
	}
	return nil
}
