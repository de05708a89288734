package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"iter"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest/wire"
)

// process is a program in the guest: one that Start made, or a run.
type process struct {
	c    *Client
	path string // "process/ID" or "run/ID"
	id   string
	pid  int
	most int64 // bytes of output there can be; 0 means any number
	warm bool

	mu    sync.Mutex
	first *stream // the answer that started it, until somebody reads it
	fin   *wire.Finish
	check func(*wire.Finish) error
}

// stream is an answer about a process, read up to an offset.
type stream struct {
	body   io.ReadCloser
	in     *wire.Reader
	at     int64
	cancel context.CancelFunc
}

func (s *stream) close() {
	s.cancel()
	s.body.Close()
}

// open sends a request whose answer is a stream. The stream outlives ctx,
// which only bounds its beginning.
func (c *Client) open(ctx context.Context, method, path string, body io.Reader) (_ *stream, start wire.Start, err error) {
	long, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	defer func() {
		if !stop() && err == nil {
			err = engi.Errorf(engi.Expired, "%s: %v", path, context.Cause(ctx))
		}
		if err != nil {
			cancel()
		}
	}()
	resp, err := c.do(long, method, path, body)
	if err != nil {
		return nil, start, unExpire(ctx, path, err)
	}
	s := &stream{body: resp.Body, in: wire.NewReader(resp.Body), cancel: cancel}
	if err := s.in.JSON(wire.Started, &start); err != nil {
		s.close()
		return nil, start, unExpire(ctx, path, err)
	}
	if start.From < 0 || start.PID < 0 {
		s.close()
		return nil, start, engi.Errorf(engi.Unavailable, "%s: the guest's answer makes no sense", path)
	}
	s.at = start.From
	return s, start, nil
}

// unExpire tells the end of our own context from the end of the caller's.
func unExpire(ctx context.Context, path string, err error) error {
	if engi.KindOf(err) == engi.Expired && ctx.Err() != nil {
		return engi.Errorf(engi.Expired, "%s: %v", path, context.Cause(ctx))
	}
	return err
}

// Start runs a command; it goes on after ctx ends.
func (c *Client) Start(ctx context.Context, cmd engi.Command) (engi.Process, error) {
	in := wire.Command{ID: cmd.ID, Args: cmd.Args, Env: cmd.Env, Dir: cmd.Dir, User: cmd.User, Tag: cmd.Tag,
		Input: cmd.Stdin == engi.StdinPipe, Timeout: cmd.Timeout, Output: cmd.Output}
	if t := cmd.Terminal; t != nil {
		in.Cols, in.Rows = max(1, t.Cols), max(1, t.Rows)
	}
	b, err := json.Marshal(in)
	if err != nil {
		return nil, engi.Errorf(engi.Invalid, "start: %v", err)
	}
	s, start, err := c.open(ctx, "POST", "process", bytes.NewReader(b))
	if err != nil {
		return nil, engi.Errorf(engi.KindOf(err), "start %.80q: %w", cmd.Args, err)
	}
	return c.newProcess("process/", start, s)
}

func (c *Client) newProcess(prefix string, start wire.Start, s *stream) (*process, error) {
	if err := wire.CheckID(start.ID); err != nil {
		s.close()
		return nil, engi.Errorf(engi.Unavailable, "the guest's answer makes no sense: %w", err)
	}
	return &process{c: c, path: prefix + start.ID, id: start.ID, pid: start.PID, warm: start.Warm, first: s, check: checkExit}, nil
}

// Attach finds a process by ID or tag; NotFound if there is none.
func (c *Client) Attach(ctx context.Context, idOrTag string) (engi.Process, error) {
	s, start, err := c.open(ctx, "GET", "process/"+url.PathEscape(idOrTag)+query("from", "-1"), nil)
	if err != nil {
		return nil, engi.Errorf(engi.KindOf(err), "attach %.80q: %w", idOrTag, err)
	}
	// Whoever attaches to send a signal never reads, and an open stream that
	// nobody reads would hold the process back.
	s.close()
	p, err := c.newProcess("process/", start, s)
	if err != nil {
		return nil, err
	}
	p.first = nil
	return p, nil
}

// Processes lists what Start started and still remembers.
func (c *Client) Processes(ctx context.Context) ([]engi.ProcessInfo, error) {
	var all []wire.Process
	if err := c.call(ctx, "GET", "process", nil, &all); err != nil {
		return nil, err
	}
	infos := make([]engi.ProcessInfo, len(all))
	for i, p := range all {
		infos[i] = engi.ProcessInfo{ID: text(p.ID), PID: p.PID, Tag: text(p.Tag), Args: p.Args, Dir: text(p.Dir), Started: p.Started, Ended: p.Ended}
	}
	return infos, nil
}

func (p *process) ID() string { return p.id }
func (p *process) PID() int   { return p.pid }

// take returns the first stream if nobody has read from it and it begins at
// from; negative takes it wherever it begins.
func (p *process) take(from int64) *stream {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.first
	if s == nil || from >= 0 && s.at != from {
		return nil
	}
	p.first = nil
	return s
}

// Release lets go of the stream that started the process, for callers that
// are not going to read its output: else it would wait for them.
func (p *process) Release() {
	if s := p.take(-1); s != nil {
		s.close()
	}
}

func (p *process) finish() *wire.Finish {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fin
}

// Output implements engi.Process. When the connection breaks it goes on over
// a new one, where it stopped.
func (p *process) Output(ctx context.Context, from int64) iter.Seq2[engi.Chunk, error] {
	return func(yield func(engi.Chunk, error) bool) {
		if from < 0 && from != engi.OldestOutput {
			yield(engi.Chunk{}, engi.Errorf(engi.Invalid, "output of %s: offset %d is negative", p.id, from))
			return
		}
		if err := p.read(ctx, p.take(from), from, func(c engi.Chunk) bool { return yield(c, nil) }); err != nil {
			yield(engi.Chunk{}, engi.Errorf(engi.KindOf(err), "output of %s: %w", p.id, err))
		}
	}
}

// read follows the process from an offset until it has ended or yield says
// no. s may be nil; read closes it.
func (p *process) read(ctx context.Context, s *stream, from int64, yield func(engi.Chunk) bool) error {
	for try := 0; ; try++ {
		if s == nil {
			var err error
			if s, _, err = p.c.open(ctx, "GET", p.path+query("from", strconv.FormatInt(from, 10)), nil); err != nil {
				return err
			}
			if from >= 0 && s.at != from {
				s.close()
				return engi.Errorf(engi.Unavailable, "the guest continues at %d instead of %d", s.at, from)
			}
		}
		before := s.at
		more, err := p.drain(ctx, s, yield)
		from = s.at
		if s.at > before {
			try = 0
		}
		if !more {
			return err
		}
		if try >= reconnects {
			return err
		}
		s = nil
		select {
		case <-time.After(reconnectGap):
		case <-ctx.Done():
			return engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
		}
	}
}

// drain reads one stream and closes it; more is true if it broke and another
// may do better.
func (p *process) drain(ctx context.Context, s *stream, yield func(engi.Chunk) bool) (more bool, err error) {
	stop := context.AfterFunc(ctx, s.cancel)
	defer stop()
	defer s.close()
	for {
		kind, payload, err := s.in.Next()
		if err == io.EOF {
			err = engi.Errorf(engi.Unavailable, "the guest broke off")
		}
		if ctx.Err() != nil {
			return false, engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
		}
		if err != nil {
			return engi.KindOf(err) == engi.Unavailable, err
		}
		switch kind {
		case wire.Stdout, wire.Stderr, wire.Terminal:
			name, _ := kind.Stream()
			at := s.at
			s.at += int64(len(payload))
			if p.most > 0 && s.at > p.most {
				return false, engi.Errorf(engi.Unavailable, "the guest sent more output than it may")
			}
			if !yield(engi.Chunk{Stream: name, Offset: at, Data: payload}) {
				return false, nil
			}
		case wire.Exited:
			var fin wire.Finish
			if err := wire.Decode(payload, &fin); err != nil {
				return false, engi.Errorf(engi.Unavailable, "%w", err)
			}
			if err := p.check(&fin); err != nil {
				return false, engi.Errorf(engi.Unavailable, "the guest's answer makes no sense: %w", err)
			}
			p.mu.Lock()
			p.fin = &fin
			p.mu.Unlock()
			return false, nil
		case wire.Failure:
			return false, wire.DecodeError(payload)
		case wire.Alive:
		default:
			return false, engi.Errorf(engi.Unavailable, "the guest sent frame %q among output", byte(kind))
		}
	}
}

// end returns how the process ended, once it has.
func (p *process) end(ctx context.Context) (wire.Finish, error) {
	for {
		if fin := p.finish(); fin != nil {
			return *fin, nil
		}
		if err := p.read(ctx, p.take(-1), -1, func(engi.Chunk) bool { return true }); err != nil {
			return wire.Finish{}, engi.Errorf(engi.KindOf(err), "wait for %s: %w", p.id, err)
		}
	}
}

// Wait implements engi.Process.
func (p *process) Wait(ctx context.Context) (engi.Exit, error) {
	fin, err := p.end(ctx)
	return fin.Exit, err
}

func (p *process) act(ctx context.Context, name string, in any) error {
	if err := p.c.call(ctx, "POST", "process/"+p.id+"/"+name, in, nil); err != nil {
		return engi.Errorf(engi.KindOf(err), "%s: %w", p.id, err)
	}
	return nil
}

// Input implements engi.Process.
func (p *process) Input(ctx context.Context, data []byte) error {
	const piece = 256 << 10
	for len(data) > 0 {
		n := min(len(data), piece)
		resp, err := p.c.do(ctx, "POST", "process/"+p.id+"/input", bytes.NewReader(data[:n]))
		if err != nil {
			return engi.Errorf(engi.KindOf(err), "input of %s: %w", p.id, err)
		}
		resp.Body.Close()
		data = data[n:]
	}
	return nil
}

// CloseInput implements engi.Process.
func (p *process) CloseInput(ctx context.Context) error { return p.act(ctx, "eof", nil) }

// Signal implements engi.Process.
func (p *process) Signal(ctx context.Context, name string) error {
	return p.act(ctx, "signal"+query("name", name), nil)
}

// Resize implements engi.Process.
func (p *process) Resize(ctx context.Context, size engi.TerminalSize) error {
	return p.act(ctx, "resize", wire.Size{Cols: size.Cols, Rows: size.Rows})
}
