package guestd

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"sync"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest/wire"
)

// fail answers with an error. After the first byte of an answer it can only
// break the stream.
func fail(w http.ResponseWriter, err error) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set(wire.ErrorHeader, "1")
	w.WriteHeader(wire.Status(engi.KindOf(err)))
	w.Write(wire.EncodeError(err)) // a host that left hears nothing
}

func reply(w http.ResponseWriter, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return engi.Errorf(engi.Internal, "encode answer: %v", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(b)
	return nil
}

func empty(w http.ResponseWriter) error {
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// receive reads a bounded JSON body.
func receive(r *http.Request, v any) error {
	b, err := io.ReadAll(io.LimitReader(r.Body, wire.MaxJSON+1))
	if err != nil {
		return engi.Errorf(engi.Unavailable, "read request: %v", err)
	}
	if len(b) > wire.MaxJSON {
		return engi.Errorf(engi.Invalid, "the message is over %d bytes", wire.MaxJSON)
	}
	return wire.Decode(b, v)
}

// single is a listener that yields one connection.
type single struct {
	conn *tracked
	once sync.Once
	give chan net.Conn
}

type tracked struct {
	net.Conn
	in   *bufio.Reader // HTTP/2 reads nine bytes, then a few more, for every frame
	done chan struct{}
	once sync.Once
}

func (t *tracked) Read(b []byte) (int, error) { return t.in.Read(b) }

func newSingle(conn net.Conn) *single {
	t := &tracked{Conn: conn, in: bufio.NewReaderSize(conn, 16<<10), done: make(chan struct{})}
	l := &single{conn: t, give: make(chan net.Conn, 1)}
	l.give <- t
	return l
}

func (t *tracked) Close() error {
	t.once.Do(func() { close(t.done) })
	return t.Conn.Close()
}

func (l *single) Accept() (net.Conn, error) {
	select {
	case c := <-l.give:
		return c, nil
	default:
	}
	<-l.conn.done
	return nil, net.ErrClosed
}

func (l *single) Close() error   { return nil }
func (l *single) Addr() net.Addr { return l.conn.LocalAddr() }
