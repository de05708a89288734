package listener

import (
	"net"
	"net/netip"
	"testing"
	"time"
)

func TestConnectionLimit(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &limiter{most: 3, each: 1, perIP: map[netip.Addr]int{}}
	limited := l.limit(ln)
	defer limited.Close()
	accepted := make(chan net.Conn, 10)
	go func() {
		for {
			conn, err := limited.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	dial := func() net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	var first net.Conn
	for range 3 {
		dial()
		first = <-accepted
	}
	refused := dial()
	refused.SetDeadline(time.Now().Add(10 * time.Second))
	if n, err := refused.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("a connection too many is served: %d %v", n, err)
	}
	first.Close()
	first.Close() // is counted once
	dial()
	<-accepted
	if l.all != 3 {
		t.Errorf("%d connections are counted", l.all)
	}
}

func TestEachAddressHasItsShare(t *testing.T) {
	l := &limiter{most: 5, each: 2, perIP: map[netip.Addr]int{}}
	ann, bob := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for i, want := range []bool{true, true, false} {
		if got := l.enter(ann); got != want {
			t.Errorf("connection %d of one address: %v", i, got)
		}
	}
	if !l.enter(bob) {
		t.Error("another address is refused")
	}
	l.leave(ann)
	if !l.enter(ann) {
		t.Error("what was left is not free")
	}
}
