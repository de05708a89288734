package guestd

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

// writeError sends an error as the answer, unless the answer has begun.
func writeError(w http.ResponseWriter, err error) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set(wire.ErrorHeader, "1")
	w.WriteHeader(wire.Status(engi.KindOf(err)))
	w.Write(wire.EncodeError(err)) // fails if the host has disconnected
}

func noContent(w http.ResponseWriter) error {
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// readJSON decodes a JSON body of at most wire.MaxJSON bytes.
func readJSON(r *http.Request, v any) error {
	b, err := io.ReadAll(io.LimitReader(r.Body, wire.MaxJSON+1))
	if err != nil {
		return engi.Errorf(engi.Unavailable, "read request: %v", err)
	}
	if len(b) > wire.MaxJSON {
		return engi.Errorf(engi.Invalid, "the message is larger than %d bytes", wire.MaxJSON)
	}
	return wire.Decode(b, v)
}

// singleListener is a listener that yields one connection. Accept then blocks
// until that connection is closed.
type singleListener struct {
	conn    *doneConn
	pending chan net.Conn
}

type doneConn struct {
	net.Conn
	in   *bufio.Reader // HTTP/2 reads nine bytes, then a few more, for each frame
	done chan struct{}
	once sync.Once
}

func (t *doneConn) Read(b []byte) (int, error) { return t.in.Read(b) }

func newSingleListener(conn net.Conn) *singleListener {
	t := &doneConn{Conn: conn, in: bufio.NewReaderSize(conn, 16<<10), done: make(chan struct{})}
	l := &singleListener{conn: t, pending: make(chan net.Conn, 1)}
	l.pending <- t
	return l
}

func (t *doneConn) Close() error {
	t.once.Do(func() { close(t.done) })
	return t.Conn.Close()
}

func (l *singleListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.pending:
		return c, nil
	default:
	}
	<-l.conn.done
	return nil, net.ErrClosed
}

func (l *singleListener) Close() error   { return nil }
func (l *singleListener) Addr() net.Addr { return l.conn.LocalAddr() }
