package guesthttp

import (
	"context"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
)

// names maps streams of output to types of events.
var names = map[engi.Stream]string{engi.Stdout: v1.EventStdout, engi.Stderr: v1.EventStderr, engi.Terminal: v1.EventTerminal}

// Follow responds with the events of a process from an offset on. A disconnecting
// client does not affect the process.
func (h *Handler) Follow(form httpio.Format, p engi.Process, about v1.Process, from int64) error {
	joiner := httpio.NewJoiner(max(0, from))
	send := func(out *httpio.EventWriter, e v1.ProcessUpdate) error {
		return out.Send(e.Type, strconv.FormatInt(e.Offset, 10), e)
	}
	output := func(out *httpio.EventWriter) func(httpio.Chunk) error {
		return func(c httpio.Chunk) error {
			return send(out, v1.ProcessUpdate{Type: c.Stream, Offset: c.Offset, Data: c.Text, DataBase64: c.Bytes})
		}
	}
	s := httpio.Stream[engi.Chunk]{
		W: h.W, Format: form, Heartbeat: h.Heartbeat, Describe: h.tell,
		First: func(out *httpio.EventWriter) error {
			return send(out, v1.ProcessUpdate{Type: v1.EventStarted, Offset: max(0, from), Process: &about})
		},
		Each: func(out *httpio.EventWriter, c engi.Chunk) (bool, error) {
			return false, joiner.Split(names[c.Stream], c.Offset, c.Data, output(out))
		},
		End: func(out *httpio.EventWriter) error {
			for _, c := range joiner.Flush() {
				if err := output(out)(c); err != nil {
					return err
				}
			}
			last := v1.ProcessUpdate{Type: v1.EventExit, Offset: joiner.Resume()}
			if exit, err := p.Wait(h.Ctx); err == nil {
				last.Exit = ExitOf(exit)
			} else if problem, ok := h.tell(err); ok {
				last.Type, last.Error = v1.EventError, &problem
			} else {
				return nil
			}
			return send(out, last)
		},
		Marker: func(kind string, problem *v1.Problem) any {
			return v1.ProcessUpdate{Type: kind, Offset: joiner.Resume(), Error: problem}
		},
	}
	if from > 0 {
		s.Grace = startGrace // the output at that offset may be lost
	}
	ctx, cancel := context.WithCancel(h.Ctx)
	return s.Serve(ctx, cancel, p.Output(ctx, from))
}

// ExitOf converts the exit of a process.
func ExitOf(x engi.Exit) *v1.Exit {
	return &v1.Exit{ExitCode: x.Code, Signal: x.Signal, Cause: string(x.Cause), Remedy: x.Cause.Remedy()}
}

// maxCollected is the maximum number of bytes of each stream in a result.
const maxCollected = 1 << 20

// Collect waits for a process and returns its output.
func Collect(ctx context.Context, p engi.Process, about v1.Process) (v1.ProcessResult, error) {
	res := v1.ProcessResult{Process: about}
	var out, err head
	for c, cerr := range p.Output(ctx, 0) {
		if cerr != nil {
			return res, cerr
		}
		if c.Stream == engi.Stderr {
			err.add(c.Data)
		} else {
			out.add(c.Data)
		}
	}
	exit, werr := p.Wait(ctx)
	if werr != nil {
		return res, werr
	}
	res.Process.Running = false
	res.Exit = *ExitOf(exit)
	res.Stdout, res.StdoutBase64, res.StdoutTruncated = out.text()
	res.Stderr, res.StderrBase64, res.StderrTruncated = err.text()
	return res, nil
}

// A head is the beginning of a stream.
type head struct {
	data []byte
	more bool
}

func (o *head) add(b []byte) {
	n := min(len(b), maxCollected-len(o.data))
	o.data = append(o.data, b[:n]...)
	o.more = o.more || n < len(b)
}

func (o *head) text() (string, []byte, bool) {
	b := o.data
	if o.more { // the limit may have split a character
		b = b[:clip.Whole(b)]
	}
	if utf8.Valid(b) {
		return string(b), nil, o.more
	}
	return strings.ToValidUTF8(string(b), "\uFFFD"), b, o.more
}

// Input copies a body of any size to the input of a process as it arrives.
func (h *Handler) Input(p engi.Process) error {
	body := httpio.NewBody(h.W, h.R)
	defer body.Stop()
	buf := make([]byte, 64<<10)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			if err := p.Input(h.Ctx, buf[:n]); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return h.receiveFailed(err)
		}
	}
}
