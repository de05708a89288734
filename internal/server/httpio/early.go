package httpio

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

// Limits on the part of a body that is discarded after a refusal.
const (
	discardBytes = 16 << 30

	// The limits for clients without a valid key.
	anonymousTime  = 5 * time.Second
	anonymousBytes = 64 << 20

	maxBuffered = 64 << 10 // maximum bytes of an early response of unknown length
)

const shortBody = 256 << 10 // bytes; the rest of a body up to this size is discarded before the response

// discardTime is the time for which a server reads the rest of a body that no handler reads;
// tests change it.
var discardTime = 30 * time.Second

// leftoverTime is the time for which a server reads the rest of a short body; tests change it.
var leftoverTime = 5 * time.Second

// RespondEarly lets HTTP/1 clients of h receive an error while they are still
// sending a large body. net/http would close the connection, and the response
// could be lost. Instead the response is sent at once, and the rest of the
// body is discarded for a while, for clients that read only after they have sent
// everything. If the body's end arrives, the connection can be used again. The server does
// not wait for clients that sent "Expect: 100-continue" and were not told to
// continue. All waiting ends with ctx.
//
// net/http discards the unread rest of a body before it sends a response,
// and before the next request, without a deadline. RespondEarly sets a short deadline,
// because a client that never sends the rest would keep its connection for ever.
func RespondEarly(h http.Handler, ctx context.Context) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor > 1 || r.Body == nil || r.Body == http.NoBody {
			h.ServeHTTP(w, r)
			return
		}
		// net/http replaces the deadline before it waits for the next request.
		defer func() { _ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(leftoverTime)) }()
		in := &countedBody{ReadCloser: r.Body}
		in.left.Store(r.ContentLength)
		if r.Header.Get("Expect") == "" {
			in.begun.Store(true)
		}
		out := &earlyWriter{ResponseWriter: w, in: in, short: r.ContentLength >= 0 && r.ContentLength <= shortBody}
		counted := *r // r belongs to the server
		counted.Body = in
		h.ServeHTTP(out, &counted)
		out.end()
		switch rc := http.NewResponseController(w); {
		case !out.early || rc.Flush() != nil:
		case out.status == http.StatusUnauthorized:
			in.discard(ctx, rc, anonymousTime, anonymousBytes)
		default:
			in.discard(ctx, rc, discardTime, discardBytes)
		}
	})
}

// An earlyWriter notices an error response that starts before the body was read.
// Only the goroutine of its request may use it.
type earlyWriter struct {
	http.ResponseWriter
	in     *countedBody
	short  bool // the body is at most shortBody bytes long
	duplex bool // the handler reads while it responds
	status int
	early  bool
	buffer *bytes.Buffer // holds an early response without Content-Length; nil otherwise
}

// WriteHeader implements http.ResponseWriter.
func (w *earlyWriter) WriteHeader(status int) {
	if status >= 200 && w.status == 0 {
		w.status = status
		if w.early = status >= 400 && !w.short && !w.in.over.Load(); w.early {
			// Otherwise net/http reads the body before it responds.
			_ = http.NewResponseController(w.ResponseWriter).EnableFullDuplex()
			if w.Header().Get("Content-Length") == "" {
				w.buffer = &bytes.Buffer{} // a chunked response would end only after the request's body
				return
			}
		} else if !w.duplex && !w.in.over.Load() {
			w.in.finish(http.NewResponseController(w.ResponseWriter))
		}
	}
	if w.buffer == nil {
		w.ResponseWriter.WriteHeader(status)
	}
}

// Write implements http.ResponseWriter.
func (w *earlyWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if w.buffer != nil {
		if w.buffer.Len()+len(p) <= maxBuffered {
			return w.buffer.Write(p)
		}
		if err := w.release(); err != nil {
			return 0, err
		}
	}
	return w.ResponseWriter.Write(p)
}

// release writes the buffer, and stops buffering.
func (w *earlyWriter) release() error {
	if w.buffer == nil {
		return nil
	}
	b := w.buffer.Bytes()
	w.buffer = nil
	w.ResponseWriter.WriteHeader(w.status)
	_, err := w.ResponseWriter.Write(b)
	return err
}

// FlushError implements flushing for http.ResponseController.
func (w *earlyWriter) FlushError() error {
	if err := w.release(); err != nil {
		return err
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// end completes a buffered response, whose length is now known.
func (w *earlyWriter) end() {
	if w.buffer != nil {
		w.Header().Set("Content-Length", strconv.Itoa(w.buffer.Len()))
		_ = w.release() // the client may have disconnected
	}
}

// EnableFullDuplex implements the method of http.ResponseController.
func (w *earlyWriter) EnableFullDuplex() error {
	w.duplex = true
	return http.NewResponseController(w.ResponseWriter).EnableFullDuplex()
}

// Unwrap gives http.ResponseController access to the connection.
func (w *earlyWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// A countedBody counts the bytes that were read of it. net/http serializes
// reads.
type countedBody struct {
	io.ReadCloser
	left  atomic.Int64 // bytes left to read; negative if unknown
	begun atomic.Bool
	over  atomic.Bool
}

// Read implements io.Reader.
func (in *countedBody) Read(p []byte) (int, error) {
	in.begun.Store(true) // a read sends 100 Continue
	n, err := in.ReadCloser.Read(p)
	known := in.left.Load() >= 0
	if err == io.EOF || known && in.left.Add(-int64(n)) <= 0 {
		in.over.Store(true)
	}
	return n, err
}

// finish does the same as net/http before a response, but with a deadline: it
// discards the rest of a short body, so that the connection can be used again.
func (in *countedBody) finish(rc *http.ResponseController) {
	if !in.begun.Load() {
		return
	}
	_ = rc.SetReadDeadline(time.Now().Add(leftoverTime)) // fails only for writers of tests
	_ = in.Close()                                       // discards the rest; the server does not wait for bytes that arrive later
	_ = rc.SetReadDeadline(time.Time{})
}

// discard reads the rest of the body, up to a time limit and a number of bytes.
func (in *countedBody) discard(ctx context.Context, rc *http.ResponseController, timeout time.Duration, most int64) {
	if !in.begun.Load() {
		return
	}
	_ = rc.SetReadDeadline(time.Now().Add(timeout)) // fails only for writers of tests
	stop := context.AfterFunc(ctx, func() { _ = rc.SetReadDeadline(time.Unix(1, 0)) })
	defer func() {
		if stop() {
			_ = rc.SetReadDeadline(time.Time{})
		}
	}()
	// The copy waits for a read that the handler abandoned.
	_, _ = io.CopyN(io.Discard, in.ReadCloser, most)
}
