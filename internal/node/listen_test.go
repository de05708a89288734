package node

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"testing"
	"time"
)

// TestConnectionsLeaveDescriptors: clients have half of the descriptors that this
// process may have, and whoever stalls makes room.
func TestConnectionsLeaveDescriptors(t *testing.T) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	few := limit
	few.Cur = 512
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	c, o := fakeNode(t)
	n, err := Open(t.Context(), c, o)
	if err2 := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err2 != nil {
		t.Fatal(err2)
	}
	if err != nil {
		t.Fatal(err)
	}
	start(t, n)
	var stalled []net.Conn
	for range few.Cur/2 + 10 {
		conn, err := net.Dial("tcp", n.listener.URL()[len("http://"):])
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		stalled = append(stalled, conn)
	}
	resp, err := http.Get(n.listener.URL() + "/healthz") // all before it were accepted
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp, err)
	}
	resp.Body.Close()
	for i, conn := range stalled {
		conn.SetDeadline(time.Now().Add(time.Minute))
		if i > 10 { // a connection that was closed to make room may still answer a request until its end arrives
			if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); err != nil {
				t.Errorf("connection %d: %v", i, err)
			}
		}
		if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) || (err == nil) != (i > 10) {
			t.Errorf("connection %d of %d gets %v", i, len(stalled), err)
		}
	}
}
