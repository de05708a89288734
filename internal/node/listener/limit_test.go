package listener

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"testing"
	"time"
)

// TestConnectionLimit opens more connections than there may be: the one that has
// been idle for longest is closed, and none that serves a request.
func TestConnectionLimit(t *testing.T) {
	l := &limiter{most: 3, perIP: map[netip.Addr]int{}}
	began, end := make(chan struct{}), make(chan struct{})
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			began <- struct{}{}
			<-end
		}
	}))
	s.Listener = l.limit(s.Listener)
	watch(s.Config)
	s.Start()
	defer s.Close()
	dial := func(send string) net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := conn.Write([]byte(send)); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	slow := "GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"
	dial(slow)
	<-began
	stalled := []net.Conn{dial("GE"), dial("GE")}
	for _, old := range stalled {
		dial(slow)
		<-began // it got in
		old.SetReadDeadline(time.Now().Add(time.Minute))
		if n, err := old.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the one that stalls stays: %d %v", n, err)
		}
	}
	// All serve requests now.
	refused := dial("")
	refused.SetReadDeadline(time.Now().Add(time.Minute))
	if n, err := refused.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("a connection too many is served: %d %v", n, err)
	}
	l.mu.Lock()
	if l.all != 3 || l.idle.Len() != 0 {
		t.Errorf("%d connections are counted, %d idle", l.all, l.idle.Len())
	}
	l.mu.Unlock()
	close(end)
}

func TestEachAddressHasItsShare(t *testing.T) {
	l := &limiter{most: 5, each: 2, perIP: map[netip.Addr]int{}}
	from := func(text string) *counted { return &counted{l: l, from: place(netip.MustParseAddr(text))} }
	first := from("192.0.2.1")
	for i, c := range []*counted{first, from("192.0.2.1"), from("192.0.2.1")} {
		if got := l.enter(c); got != (i < 2) {
			t.Errorf("connection %d of one address: %v", i, got)
		}
	}
	if !l.enter(from("192.0.2.2")) {
		t.Error("another address is refused")
	}
	first.leave()
	first.leave() // is counted once
	if !l.enter(from("192.0.2.1")) {
		t.Error("what was left is not free")
	}
	if l.all != 3 {
		t.Errorf("%d connections are counted", l.all)
	}
}

// TestPlaces: a host has one place, whichever of its addresses it uses, and this
// machine's is known.
func TestPlaces(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.1": "192.0.2.1", "::ffff:192.0.2.1": "192.0.2.1", "2001:db8::1": "2001:db8::", "2001:db8::ffff:1:2:3": "2001:db8::",
		"2001:db8:0:1::1": "2001:db8:0:1::", "fe80::1%eth0": "fe80::", "127.0.0.1": "127.0.0.1", "::1": "::1",
	} {
		if got := place(netip.MustParseAddr(text)); got.String() != want {
			t.Errorf("%s is of %s, want %s", text, got, want)
		}
	}
}
