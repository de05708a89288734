package listener

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

func open(t *testing.T, o Options) *Listener {
	t.Helper()
	o.Log = slog.New(slog.DiscardHandler)
	l, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

func TestRequestsInHandEnd(t *testing.T) {
	l := open(t, Options{Listen: "127.0.0.1:0"})
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan struct{})
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cancel() // the node is told to end
		<-left   // what waits is woken
		io.WriteString(w, "whole")
	})}
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- l.Serve(ctx, s, func() { close(left) }, func() { close(ready) }) }()
	<-ready
	if scheme, port := l.Public(); l.URL() != scheme+"://127.0.0.1:"+port {
		t.Errorf("%s, public %s %s", l.URL(), scheme, port)
	}
	res, err := http.Get(l.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); err != nil || string(b) != "whole" {
		t.Errorf("%q, %v", b, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestListenersThatFail(t *testing.T) {
	l := open(t, Options{Listen: "127.0.0.1:0"})
	_, err := Open(t.Context(), Options{Listen: strings.TrimPrefix(l.URL(), "http://")})
	if !engi.Is(err, engi.Conflict) || !strings.Contains(engi.RemedyOf(err), "--listen") {
		t.Errorf("a taken address: %v", err)
	}
	if _, err := Open(t.Context(), Options{Listen: "127.0.0.1:0", Secure: "127.0.0.1:0", TLS: true}); !engi.Is(err, engi.Invalid) {
		t.Errorf("no certificate: %v", err)
	}
	left := false
	l.Close()
	if err := l.Serve(t.Context(), new(http.Server), func() { left = true }, func() {}); !engi.Is(err, engi.Internal) || !left {
		t.Errorf("a listener that is gone: %v, left %t", err, left)
	}
}

// TestStalledReaders sends requests and reads no answer. The server must not wait
// for ever until there is room for more of them.
func TestStalledReaders(t *testing.T) {
	l := open(t, Options{Listen: "127.0.0.1:0", patience: 300 * time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	closed := make(chan struct{}, 10)
	s := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, strings.Repeat("x", 1<<20)) }),
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateClosed {
				closed <- struct{}{}
			}
		},
	}
	ended := make(chan error, 1)
	go func() { ended <- l.Serve(ctx, s, func() {}, func() {}) }()
	conn, err := net.Dial("tcp", strings.TrimPrefix(l.URL(), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, strings.Repeat("GET / HTTP/1.1\r\nHost: x\r\n\r\n", 100)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Error("the server still waits for a client that does not read")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestListenersShareTheLimit: a node has so many connections on all its addresses.
func TestListenersShareTheLimit(t *testing.T) {
	l := open(t, Options{Listen: "127.0.0.1:0", Conns: 1})
	if err := l.listen(t.Context(), "127.0.0.1:0", ""); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") })}
	ended := make(chan error, 1)
	go func() { ended <- l.Serve(ctx, s, func() {}, func() {}) }()
	idle, err := net.Dial("tcp", l.listeners[0].Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	idle.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(idle, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(idle)
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, res.Body)
	res.Body.Close()
	if res, err = http.Get("http://" + l.listeners[1].Addr().String()); err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if _, err := in.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the idle one stays: %v", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
