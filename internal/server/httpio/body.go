package httpio

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

// BodyTimeout is the maximum time for a client to send each MiB of a body.
const BodyTimeout = 60 * time.Second

// A Body reads a request body with a deadline for each MiB. Stop ends the reading even
// while another goroutine reads.
type Body struct {
	r    io.Reader
	rc   *http.ResponseController
	wake bool // a blocked read can be interrupted without breaking the connection

	mu      sync.Mutex // guards the fields below
	left    int64      // bytes before the next deadline is set
	done    bool
	reading chan struct{} // closed when the current read returns; nil without one
	err     error         // error of reading; io.EOF after a complete read
}

// NewBody returns the body of r. The caller must call Stop.
func NewBody(w http.ResponseWriter, r *http.Request) *Body {
	return &Body{r: r.Body, rc: http.NewResponseController(w), wake: r.ProtoMajor > 1}
}

// TimedBody returns a copy of r that reads its body through a [Body], for handlers
// that set no deadlines. The caller must call stop.
func TimedBody(w http.ResponseWriter, r *http.Request) (timed *http.Request, stop func()) {
	if r.Body == nil || r.Body == http.NoBody {
		return r, func() {}
	}
	b := NewBody(w, r)
	timed = r.WithContext(r.Context()) // r belongs to the server
	timed.Body = struct {
		io.Reader
		io.Closer
	}{b, r.Body}
	return timed, b.Stop
}

// Read implements io.Reader. Only one goroutine may use it.
func (b *Body) Read(p []byte) (int, error) {
	ended := make(chan struct{})
	defer close(ended)
	b.mu.Lock()
	if b.done {
		b.mu.Unlock()
		return 0, http.ErrBodyReadAfterClose
	}
	if b.left <= 0 {
		_ = b.rc.SetReadDeadline(time.Now().Add(BodyTimeout)) // fails only for writers of tests
		b.left = 1 << 20
	}
	b.reading = ended
	b.mu.Unlock()

	n, err := b.r.Read(p)

	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading = nil
	b.left -= int64(n)
	if err != nil {
		b.err = err
		if !b.done && errors.Is(err, io.EOF) {
			// The server itself keeps reading to notice a disconnect.
			_ = b.rc.SetReadDeadline(time.Time{})
		}
	}
	return n, err
}

// Stop makes further reads fail and removes the deadline. In HTTP/1, a blocked
// read goes on until data arrives or [RespondEarly] gives up, since interrupting
// it would break the connection before the response is sent.
func (b *Body) Stop() {
	b.mu.Lock()
	b.done = true
	reading := b.reading
	if reading == nil && b.err == nil {
		_ = b.rc.SetReadDeadline(time.Time{})
	}
	b.mu.Unlock()
	if reading != nil && b.wake {
		_ = b.rc.SetReadDeadline(time.Unix(1, 0))
		<-reading
	}
}

// Err returns the error of reading, if any.
func (b *Body) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if errors.Is(b.err, io.EOF) {
		return nil
	}
	return b.err
}

// Complete reports whether the whole body was read.
func (b *Body) Complete() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return errors.Is(b.err, io.EOF)
}

// TooLarge returns the error for a body of more than most bytes.
func TooLarge(most int64) error {
	return engi.TooLarge("the body is larger than the %s this server accepts", v1.Bytes(most)).
		WithRemedy("put large data into the template, or fetch it in parts")
}

// BodyError returns the error for a body that cannot be read through [http.MaxBytesReader] because of err.
func BodyError(err error) error {
	if over, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return TooLarge(over.Limit)
	}
	if engi.Is(err, engi.Invalid) {
		return err
	}
	return engi.Errorf(engi.Unavailable, "read the body: %v", err)
}

// Drain discards the rest of a body, so that an
// HTTP/1 connection can be used again. It closes the connection if this takes
// too long.
func Drain(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor > 1 {
		return
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.CopyN(io.Discard, r.Body, 128<<20); !errors.Is(err, io.EOF) {
		w.Header().Set("Connection", "close")
	}
	_ = rc.SetReadDeadline(time.Time{})
}
