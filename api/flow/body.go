package flow

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// BodyTime is how long a caller may take to send each MiB of a body.
const BodyTime = 60 * time.Second

// A Body reads what a caller sends, piece by piece: each MiB has its own
// deadline, and Stop ends it for good, whoever may still be reading. It
// remembers why it ended.
type Body struct {
	r    io.Reader
	rc   *http.ResponseController
	mu   sync.Mutex
	left int64 // of the piece whose deadline is set
	done bool
	err  error // of the caller's side; io.EOF if all was read
}

// NewBody returns the body of r. The caller stops it.
func NewBody(w http.ResponseWriter, r *http.Request) *Body {
	return &Body{r: r.Body, rc: http.NewResponseController(w)}
}

// Read implements io.Reader.
func (b *Body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done {
		return 0, http.ErrBodyReadAfterClose
	}
	if b.left <= 0 {
		_ = b.rc.SetReadDeadline(time.Now().Add(BodyTime)) // tests have writers without deadlines
		b.left = 1 << 20
	}
	n, err := b.r.Read(p)
	b.left -= int64(n)
	if err != nil {
		b.err = err
		// The server goes on to listen whether the caller hangs up.
		_ = b.rc.SetReadDeadline(time.Time{})
	}
	return n, err
}

// Stop ends reading and takes the deadline back. It waits for a read that is
// going on.
func (b *Body) Stop() {
	if !b.mu.TryLock() {
		_ = b.rc.SetReadDeadline(time.Unix(1, 0)) // wakes a read that waits
		b.mu.Lock()
	}
	defer b.mu.Unlock()
	b.done = true
	if b.err == nil {
		_ = b.rc.SetReadDeadline(time.Time{})
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

// Drain throws away the rest of a body that is refused, within reason: most
// clients listen only when they have sent everything. A client that asked
// before sending is told at once.
func Drain(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Expect") != "" || r.ProtoMajor > 1 {
		return
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.CopyN(io.Discard, r.Body, 128<<20); !errors.Is(err, io.EOF) {
		w.Header().Set("Connection", "close")
	}
	_ = rc.SetReadDeadline(time.Time{})
}
