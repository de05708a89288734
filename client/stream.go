package client

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/engi-dev/engi/api/v1"
)

// ndjson returns the header that requests a stream.
func ndjson() http.Header { return http.Header{"Accept": {"application/x-ndjson"}} }

// A stream defines how the events of a response are read.
type stream[E any] struct {
	// read returns the type of an event, and its problem if the event is only
	// an error.
	read func(E) (kind string, problem *v1.Problem)
	// each receives the events except heartbeats, and returns whether to
	// continue.
	each func(E) (more bool)
	// remedy is the remedy after the stream breaks.
	remedy string
	// open means that the stream may end after any event.
	open bool
}

// events yields the events of a streamed response, up to the last one.
func events[E any](ctx context.Context, c *Client, q *call, remedy string, read func(E) (string, *v1.Problem), last func(E) bool) iter.Seq2[E, error] {
	return func(yield func(E, error) bool) {
		more, err := follow(ctx, c, c.do, q, stream[E]{read: read, remedy: remedy, each: func(e E) bool { return yield(e, nil) && !last(e) }})
		if more {
			if ctx.Err() != nil {
				err = c.unreachable(ctx, err)
			}
			var none E
			yield(none, err)
		}
	}
}

// follow reads one connection. It returns false when the caller has received
// everything, and else the reason of the connection's end.
func follow[E any](ctx context.Context, c *Client, send func(context.Context, *call) (*http.Response, error), q *call, s stream[E]) (more bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resp, err := send(ctx, q)
	if err != nil {
		return true, err
	}
	defer resp.Body.Close()
	return s.follow(c, resp.Body, cancel)
}

func (s stream[E]) follow(c *Client, body io.Reader, giveUp func()) (more bool, err error) {
	for e, err := range lines[E](body, giveUp) {
		if err != nil {
			return true, failure(v1.Unavailable, s.remedy, "the stream of %s broke: %v", c.url, err)
		}
		switch kind, problem := s.read(e); {
		case kind == v1.EventHeartbeat:
		case kind == v1.EventError:
			if problem == nil {
				problem = &v1.Problem{Kind: v1.Internal, Detail: "the stream ended with an error that says nothing"}
			}
			return true, &Error{*problem}
		case !s.each(e):
			return false, nil
		}
	}
	if s.open {
		return false, nil
	}
	return true, failure(v1.Unavailable, s.remedy, "the stream of %s ended too early", c.url)
}

// resumed yields a stream that is resumed when it breaks: next returns the
// request for the unseen rest, and the result of seen grows with the seen part.
func resumed[E any](ctx context.Context, c *Client, next func() *call, seen func() int64, s stream[E], each func(e *E) (wanted, last bool)) iter.Seq2[E, error] {
	return func(yield func(E, error) bool) {
		s.each = func(e E) bool {
			wanted, last := each(&e)
			return (!wanted || yield(e, nil)) && !last
		}
		err := c.resume(ctx, next, seen, func(q *call) (bool, error) { return follow(ctx, c, c.send, q, s) })
		if err != nil {
			var none E
			yield(none, err)
		}
	}
}

// resume follows a stream, and resumes it when it breaks: next returns
// the request for the unseen rest, and the result of seen grows with the seen part.
func (c *Client) resume(ctx context.Context, next func() *call, seen func() int64, follow func(*call) (more bool, err error)) error {
	for attempt := 0; ; attempt++ {
		before, q := seen(), next()
		more, err := follow(q)
		if !more {
			return nil
		}
		if seen() > before {
			attempt = 0
		}
		if attempt >= c.retries || !c.pause(ctx, q, attempt, err) {
			if ctx.Err() != nil {
				err = c.unreachable(ctx, err)
			}
			return err
		}
	}
}

// lines yields the JSON values of a stream, one per line. After too long a
// silence it calls giveUp, which must end r.
func lines[T any](r io.Reader, giveUp func()) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		timer := time.AfterFunc(silence, giveUp)
		defer timer.Stop()
		buf := bufio.NewReaderSize(r, 64<<10)
		for {
			var v T
			line, err := readLine(buf)
			if err == io.EOF && len(line) == 0 {
				return
			}
			if err == nil {
				if len(line) == 0 {
					continue
				}
				err = json.Unmarshal(line, &v)
			} else if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			if !yield(v, err) || err != nil {
				return
			}
			timer.Reset(silence)
		}
	}
}

// readLine returns the next line without its end. It limits the length of a
// line, since the whole line is held in memory.
func readLine(buf *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := buf.ReadSlice('\n')
		if err == nil && len(line) == 0 {
			return part[:len(part)-1], nil
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line[:len(line)-1], nil
		case err != bufio.ErrBufferFull:
			return line, err
		case len(line) > maxAnswer:
			return nil, fmt.Errorf("an event is larger than %s", v1.Bytes(maxAnswer))
		}
	}
}

// text returns data in the form of an event: as text, or else as bytes.
func text(data []byte) (string, []byte) {
	if utf8.Valid(data) {
		return string(data), nil
	}
	return "", data
}
