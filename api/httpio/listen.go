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

// How much of a body is thrown away after it was refused: ten gigabytes over a
// fast line, and as much as comes over a slow one.
const (
	listenTime  = 30 * time.Second
	listenBytes = 16 << 30

	// For strangers we do less.
	strangerTime  = 5 * time.Second
	strangerBytes = 64 << 20

	shortBody = 256 << 10 // the server itself waits for what is left of these
	maxHeld   = 64 << 10  // of an answer, until its length is known
)

// Listen lets callers of h hear why a body was refused, over HTTP/1, while
// they are still sending it: the answer goes out at once, for those who look
// up, and then the rest is thrown away for a while, for those who only listen
// when they have sent everything. A connection that is closed instead takes
// the answer with it. A caller that asked before sending, and was not told to
// go on, is not waited for. If the end of the body comes, the connection can
// be used again. The end of leave ends all waiting.
func Listen(h http.Handler, leave context.Context) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor > 1 || r.Body == nil || r.Body == http.NoBody || r.ContentLength >= 0 && r.ContentLength <= shortBody {
			h.ServeHTTP(w, r)
			return
		}
		in := &intake{ReadCloser: r.Body, left: r.ContentLength}
		if r.Header.Get("Expect") == "" {
			in.begun.Store(true)
		}
		out := &listener{ResponseWriter: w, in: in}
		// Whoever looks at the request it gave us finds it as it was.
		asked := *r
		asked.Body = in
		h.ServeHTTP(out, &asked)
		out.end()
		switch {
		case !out.early:
		case out.status == http.StatusUnauthorized:
			in.waste(http.NewResponseController(w), leave, strangerTime, strangerBytes)
		default:
			in.waste(http.NewResponseController(w), leave, listenTime, listenBytes)
		}
	})
}

// A listener notices that an answer begins before the body has ended. It
// belongs to the goroutine of its request.
type listener struct {
	http.ResponseWriter
	in     *intake
	status int
	early  bool
	held   *bytes.Buffer // of an early answer that did not say its length
}

// WriteHeader implements http.ResponseWriter.
func (l *listener) WriteHeader(status int) {
	if status >= 200 && l.status == 0 {
		l.status = status
		if l.early = status >= 400 && !l.in.over.Load(); l.early {
			// Else the server reads before it answers. Of a caller that was
			// not told to go on, it reads nothing.
			_ = http.NewResponseController(l.ResponseWriter).EnableFullDuplex()
			if l.Header().Get("Content-Length") == "" {
				l.held = &bytes.Buffer{} // its end would go out with the end of the request
				return
			}
		}
	}
	if l.held == nil {
		l.ResponseWriter.WriteHeader(status)
	}
}

// Write implements http.ResponseWriter.
func (l *listener) Write(p []byte) (int, error) {
	if l.status == 0 {
		l.WriteHeader(http.StatusOK)
	}
	if l.held != nil {
		if l.held.Len()+len(p) <= maxHeld {
			return l.held.Write(p)
		}
		if err := l.release(); err != nil {
			return 0, err
		}
	}
	return l.ResponseWriter.Write(p)
}

// release lets go of what is held.
func (l *listener) release() error {
	if l.held == nil {
		return nil
	}
	b := l.held.Bytes()
	l.held = nil
	l.ResponseWriter.WriteHeader(l.status)
	_, err := l.ResponseWriter.Write(b)
	return err
}

// FlushError is what http.ResponseController flushes with.
func (l *listener) FlushError() error {
	if err := l.release(); err != nil {
		return err
	}
	return http.NewResponseController(l.ResponseWriter).Flush()
}

// end completes the answer, as far as it was held.
func (l *listener) end() {
	if l.held != nil {
		l.Header().Set("Content-Length", strconv.Itoa(l.held.Len()))
		_ = l.release() // the caller may have left
	}
}

// Unwrap lets http.ResponseController find deadlines, flushing and the
// connection.
func (l *listener) Unwrap() http.ResponseWriter { return l.ResponseWriter }

// An intake is a body that knows how far it was read. One goroutine reads at a
// time.
type intake struct {
	io.ReadCloser
	left  int64 // less than 0 if nobody knows
	begun atomic.Bool
	over  atomic.Bool
}

// Read implements io.Reader.
func (in *intake) Read(p []byte) (int, error) {
	in.begun.Store(true) // a caller that asked has been told to go on
	n, err := in.ReadCloser.Read(p)
	if in.left >= 0 {
		in.left -= int64(n)
	}
	if err == io.EOF || in.left == 0 {
		in.over.Store(true)
	}
	return n, err
}

// waste throws away what is left, within bounds.
func (in *intake) waste(rc *http.ResponseController, leave context.Context, patience time.Duration, most int64) {
	if rc.Flush() != nil || !in.begun.Load() {
		return
	}
	_ = rc.SetReadDeadline(time.Now().Add(patience)) // tests have writers without deadlines
	stop := context.AfterFunc(leave, func() { _ = rc.SetReadDeadline(time.Unix(1, 0)) })
	defer func() {
		if stop() {
			_ = rc.SetReadDeadline(time.Time{})
		}
	}()
	// A read that others left behind ends first: the server lets one in.
	_, _ = io.CopyN(io.Discard, in.ReadCloser, most)
}
