package httpio

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// BodyTimeout is how long a caller may take to send each MiB of a body.
const BodyTimeout = 60 * time.Second

// A Body reads what a caller sends, piece by piece: each MiB has its own
// deadline, and Stop ends it for good, whoever may still be reading. It
// remembers why it ended.
type Body struct {
	r    io.Reader
	rc   *http.ResponseController
	wake bool // a read that waits can be woken without harm to the connection

	mu      sync.Mutex // guards what follows
	left    int64      // of the piece whose deadline is set
	done    bool
	reading chan struct{} // closed when the read that is going on has ended; nil for none
	err     error         // of the caller's side; io.EOF if all was read
}

// NewBody returns the body of r. The caller stops it.
func NewBody(w http.ResponseWriter, r *http.Request) *Body {
	return &Body{r: r.Body, rc: http.NewResponseController(w), wake: r.ProtoMajor > 1}
}

// Read implements io.Reader. It is for one goroutine.
func (b *Body) Read(p []byte) (int, error) {
	ended := make(chan struct{})
	defer close(ended)
	b.mu.Lock()
	if b.done {
		b.mu.Unlock()
		return 0, http.ErrBodyReadAfterClose
	}
	if b.left <= 0 {
		_ = b.rc.SetReadDeadline(time.Now().Add(BodyTimeout)) // tests have writers without deadlines
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
		if !b.done {
			// The server goes on to listen whether the caller hangs up.
			_ = b.rc.SetReadDeadline(time.Time{})
		}
	}
	return n, err
}

// Stop ends reading and takes the deadline back. In HTTP/1, a read that is
// going on ends when more arrives, or when a [Listener] loses its patience:
// who wakes it breaks the connection, and with it the answer.
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

// Err returns what went wrong on the caller's side; nil if nothing did.
func (b *Body) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if errors.Is(b.err, io.EOF) {
		return nil
	}
	return b.err
}

// Whole reports whether everything was read.
func (b *Body) Whole() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return errors.Is(b.err, io.EOF)
}

// Drain throws away what follows what was needed of a body, within reason.
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
