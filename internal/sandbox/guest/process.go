package guest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// process is a program in the guest: a process started by Start, or a run.
type process struct {
	c         *Client
	path      string // path in the protocol: "process/ID" or "run/ID"
	id        string
	pid       int
	maxOutput int64 // maximum size of the output in bytes; 0 means unlimited
	warm      bool

	mu    sync.Mutex
	first *stream // answer to the request that started the process; nil once it is read
	fin   *wire.Finish
	check func(*wire.Finish) error
}

// stream is the answer to a request about a process.
type stream struct {
	body   io.ReadCloser
	in     *wire.Reader
	at     int64 // offset of the next byte of output
	cancel context.CancelFunc
}

func (s *stream) close() {
	s.cancel()
	s.body.Close()
}

// open sends a request whose answer is a stream. ctx bounds only the wait for
// its first frame; the stream outlives it.
func (c *Client) open(ctx context.Context, method, path string, body io.Reader) (_ *stream, start wire.Start, err error) {
	streamCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	defer func() {
		if !stop() && err == nil {
			err = engi.Errorf(engi.Expired, "%s: %v", path, context.Cause(ctx))
		}
		if err != nil {
			cancel()
		}
	}()
	resp, err := c.do(streamCtx, method, path, body)
	if err != nil {
		return nil, start, callerExpired(ctx, path, err)
	}
	s := &stream{body: resp.Body, in: wire.NewReader(resp.Body), cancel: cancel}
	if err := s.in.JSON(wire.Started, &start); err != nil {
		s.close()
		return nil, start, callerExpired(ctx, path, err)
	}
	if start.From < 0 || start.PID < 0 {
		s.close()
		return nil, start, engi.Errorf(engi.Unavailable, "%s: the guest's answer is out of range", path)
	}
	s.at = start.From
	return s, start, nil
}

// callerExpired replaces the error of a request's own context by the error of the
// caller's context, if the latter has ended.
func callerExpired(ctx context.Context, path string, err error) error {
	if engi.Is(err, engi.Expired) && ctx.Err() != nil {
		return engi.Errorf(engi.Expired, "%s: %v", path, context.Cause(ctx))
	}
	return err
}

// Start starts a command, which continues after ctx ends.
func (c *Client) Start(ctx context.Context, cmd engi.Command) (engi.Process, error) {
	in := wire.Command{ID: cmd.ID, Args: cmd.Args, Env: cmd.Env, Dir: cmd.Dir, User: cmd.User, Tag: cmd.Tag,
		Input: cmd.Stdin == engi.StdinPipe, Timeout: cmd.Timeout, Output: cmd.Output, Builtin: cmd.Builtin}
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
		return nil, engi.Errorf(engi.Unavailable, "the guest's answer is invalid: %w", err)
	}
	return &process{c: c, path: prefix + start.ID, id: start.ID, pid: start.PID, warm: start.Warm, first: s, check: checkExit}, nil
}

// Attach finds a process by ID or tag. It reports NotFound if there is none.
func (c *Client) Attach(ctx context.Context, idOrTag string) (engi.Process, error) {
	s, start, err := c.open(ctx, "GET", "process/"+url.PathEscape(idOrTag)+query("from", "-1"), nil)
	if err != nil {
		return nil, engi.Errorf(engi.KindOf(err), "attach %.80q: %w", idOrTag, err)
	}
	// A caller that attaches to send a signal may never read, and an open
	// unread stream would block the process.
	s.close()
	p, err := c.newProcess("process/", start, s)
	if err != nil {
		return nil, err
	}
	p.first = nil
	return p, nil
}

// Processes lists the processes started by Start that the guest still knows.
func (c *Client) Processes(ctx context.Context) ([]engi.ProcessInfo, error) {
	var all []wire.Process
	if err := c.call(ctx, "GET", "process", nil, &all); err != nil {
		return nil, err
	}
	infos := make([]engi.ProcessInfo, len(all))
	for i, p := range all {
		infos[i] = engi.ProcessInfo{ID: sanitize(p.ID), PID: p.PID, Tag: sanitize(p.Tag), Args: p.Args, Dir: sanitize(p.Dir), Started: p.Started, Ended: p.Ended}
	}
	return infos, nil
}

func (p *process) ID() string { return p.id }
func (p *process) PID() int   { return p.pid }

// take returns the first stream if it was not taken before and begins at from.
// A negative from takes the stream wherever it begins.
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

// Release closes the stream that started the process. Callers that will not
// read the output must call it; otherwise the process blocks on the stream.
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

// Output implements engi.Process. When the connection breaks, it continues over
// a new one at the same offset.
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

// read follows the process from an offset until it has ended or yield returns
// false. s may be nil; read closes it.
func (p *process) read(ctx context.Context, s *stream, from int64, yield func(engi.Chunk) bool) error {
	err := p.follow(ctx, s, from, yield)
	cause := p.c.end.Load()
	if !engi.Is(err, engi.Unavailable) || cause == nil || (*cause)() != engi.CauseMemory {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fin = &wire.Finish{Exit: engi.Exit{Code: -1, Signal: "KILL", Cause: engi.CauseMemory}}
	return nil
}

func (p *process) follow(ctx context.Context, s *stream, from int64, yield func(engi.Chunk) bool) error {
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
		if try >= maxReconnects {
			return err
		}
		s = nil
		if clock.Sleep(ctx, reconnectDelay) != nil {
			return engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
		}
	}
}

// drain reads one stream and closes it. more is true if the stream broke and
// another attempt makes sense.
func (p *process) drain(ctx context.Context, s *stream, yield func(engi.Chunk) bool) (more bool, err error) {
	stop := context.AfterFunc(ctx, s.cancel)
	defer stop()
	defer s.close()
	for {
		kind, payload, err := s.in.Next()
		if err == io.EOF {
			err = engi.Errorf(engi.Unavailable, "the guest closed the stream")
		}
		if ctx.Err() != nil {
			return false, engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
		}
		if err != nil {
			return engi.Is(err, engi.Unavailable), err
		}
		switch kind {
		case wire.Stdout, wire.Stderr, wire.Terminal:
			name, _ := kind.Stream()
			at := s.at
			s.at += int64(len(payload))
			if p.maxOutput > 0 && s.at > p.maxOutput {
				return false, engi.Errorf(engi.Unavailable, "the guest sent more output than the limit")
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
				return false, engi.Errorf(engi.Unavailable, "the guest's answer is invalid: %w", err)
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

// end waits for the end of the process and returns its outcome.
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

func (p *process) post(ctx context.Context, name string, in any) error {
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
func (p *process) CloseInput(ctx context.Context) error { return p.post(ctx, "eof", nil) }

// Signal implements engi.Process.
func (p *process) Signal(ctx context.Context, name string) error {
	return p.post(ctx, "signal"+query("name", name), nil)
}

// Resize implements engi.Process.
func (p *process) Resize(ctx context.Context, size engi.TerminalSize) error {
	return p.post(ctx, "resize", wire.Size{Cols: size.Cols, Rows: size.Rows})
}

// InputAt implements engi.TerminalProcess.
func (p *process) InputAt(ctx context.Context, writer string, at int64, data []byte) (int64, error) {
	const piece = 256 << 10
	for {
		n := min(len(data), piece)
		path := "process/" + p.id + "/input" + query("writer", writer, "at", strconv.FormatInt(at, 10))
		resp, err := p.c.do(ctx, "POST", path, bytes.NewReader(data[:n]))
		if err != nil {
			return at, engi.Errorf(engi.KindOf(err), "input of %s: %w", p.id, err)
		}
		var taken wire.Taken
		err = json.NewDecoder(io.LimitReader(resp.Body, 1<<10)).Decode(&taken)
		resp.Body.Close()
		switch {
		case resp.StatusCode == http.StatusNoContent:
			return at, engi.Errorf(engi.Unsupported, "input of %s: the sandbox was started by an older version of engi", p.id).WithRemedy("start a new one")
		case err != nil || taken.Next < 0 || n > 0 && taken.Next < at+int64(n):
			return at, engi.Errorf(engi.Unavailable, "input of %s: the guest's answer cannot be used", p.id)
		}
		at, data = at+int64(n), data[n:]
		if len(data) == 0 {
			return taken.Next, nil
		}
	}
}

// History implements engi.TerminalProcess.
func (p *process) History(ctx context.Context) (h engi.TerminalHistory, err error) {
	defer engi.Annotate(&err, "history of %s", p.id)
	var in wire.History
	if err := p.c.call(ctx, "GET", "process/"+p.id+"/history", nil, &in); err != nil {
		return h, err
	}
	bad := in.Start < 0 || in.End < in.Start || in.End-in.Start > wire.MaxOutput+1<<20 || len(in.At) != len(in.Millis) ||
		len(in.At) > wire.MaxMarks || len(in.Sizes) == 0 || len(in.Sizes) > wire.MaxSizes || len(in.Modes) > wire.MaxModes
	if bad {
		return h, engi.Errorf(engi.Unavailable, "the guest's answer is out of range")
	}
	h = engi.TerminalHistory{Start: in.Start, End: in.End, Modes: in.Modes, Exit: in.Exit}
	for i, at := range in.At {
		h.Marks = append(h.Marks, engi.TerminalMark{Offset: at, Time: time.UnixMilli(in.Millis[i]).UTC()})
	}
	for _, s := range in.Sizes {
		h.Sizes = append(h.Sizes, engi.TerminalMark{Offset: s.At, Time: time.UnixMilli(s.Millis).UTC(), Size: engi.TerminalSize{Cols: max(1, s.Cols), Rows: max(1, s.Rows)}})
	}
	byOffset := func(a, b engi.TerminalMark) int { return cmp.Compare(a.Offset, b.Offset) }
	if !slices.IsSortedFunc(h.Marks, byOffset) || !slices.IsSortedFunc(h.Sizes, byOffset) {
		return engi.TerminalHistory{}, engi.Errorf(engi.Unavailable, "the guest's answer is out of order")
	}
	if h.Exit != nil {
		fin := wire.Finish{Exit: *h.Exit}
		if err := p.check(&fin); err != nil {
			return engi.TerminalHistory{}, engi.Errorf(engi.Unavailable, "the guest's answer is invalid: %w", err)
		}
	}
	return h, nil
}
