package httpio

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// An error arrives while the body is still being sent, and the connection can be
// used again.
func TestRespondEarly(t *testing.T) {
	before := discardTime
	discardTime = time.Hour
	defer func() { discardTime = before }()
	leave, left := context.WithCancel(t.Context())
	defer left()
	srv := httptest.NewServer(RespondEarly(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/refused":
			if _, err := io.CopyN(io.Discard, r.Body, 1000); err != nil {
				t.Error(err)
			}
			http.Error(w, "no", http.StatusInsufficientStorage)
		case "/abandoned": // by a reader that outlives the response, as transports do
			go io.Copy(io.Discard, r.Body)
			http.Error(w, "no", http.StatusInsufficientStorage)
		case "/stranger":
			http.Error(w, "who?", http.StatusUnauthorized)
		case "/unread":
			http.Error(w, "no", http.StatusNotFound)
		}
	}), leave))
	defer srv.Close()
	const size = 8 << 20
	part := strings.Repeat("x", 1<<20)
	for _, path := range []string{"/refused", "/abandoned", "/unread"} {
		conn, err := net.Dial("tcp", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(time.Minute))
		in := bufio.NewReader(conn)
		hear := func() *http.Response {
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Errorf("%s: %v", path, err)
			}
			return resp
		}
		fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", path, size, part)
		if resp := hear(); resp.StatusCode < 400 {
			t.Errorf("%s: %s", path, resp.Status)
		}
		for range size/len(part) - 1 {
			if _, err := io.WriteString(conn, part); err != nil {
				t.Errorf("%s: the rest cannot be sent: %v", path, err)
			}
		}
		fmt.Fprint(conn, "GET /fine HTTP/1.1\r\nHost: x\r\n\r\n")
		if resp := hear(); resp.StatusCode != 200 {
			t.Errorf("%s: what follows gets %s", path, resp.Status)
		}
	}

	// Clients without a key are not waited for as long.
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Minute))
	fmt.Fprintf(conn, "PUT /stranger HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", 1<<40)
	sent := 0
	for n := 0; err == nil; sent += n {
		n, err = io.WriteString(conn, part)
	}
	if sent < anonymousBytes || sent > 4*anonymousBytes {
		t.Errorf("a stranger could send %d bytes: %v", sent, err)
	}

	// A server that shuts down does not wait.
	conn, err = net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "PUT /unread HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\nx", size)
	in := bufio.NewReader(conn)
	if resp, err := http.ReadResponse(in, nil); err != nil || resp.StatusCode != 404 {
		t.Fatalf("%v, %v", resp, err)
	} else {
		io.Copy(io.Discard, resp.Body)
	}
	left()
	conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := in.ReadByte(); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("the server still listens: %v", err)
	}
}

// TestStalledBodies sends requests whose bodies never come, to handlers that do
// not read them. Their connections must not stay.
func TestStalledBodies(t *testing.T) {
	before := leftoverTime
	leftoverTime = 100 * time.Millisecond
	defer func() { leftoverTime = before }()
	srv := httptest.NewServer(RespondEarly(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/error" {
			http.Error(w, "no", http.StatusMethodNotAllowed)
		}
	}), t.Context()))
	defer srv.Close()
	for _, head := range []string{"Content-Length: 10", "Content-Length: 262144", "Transfer-Encoding: chunked"} {
		for _, path := range []string{"/healthz", "/error"} {
			if path == "/error" && head != "Content-Length: 10" && head != "Content-Length: 262144" {
				continue // a long body that was refused is waited for, with a deadline
			}
			for _, sent := range []string{"", "1"} {
				conn, err := net.Dial("tcp", srv.Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				conn.SetDeadline(time.Now().Add(time.Minute))
				fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n%s", path, head, sent)
				began := time.Now()
				if _, err := io.Copy(io.Discard, conn); err != nil {
					t.Errorf("%s, %s, %q sent: the connection stays: %v after %v", path, head, sent, err, time.Since(began))
				}
			}
		}
	}
	// The next request on a connection has all the time that it needs.
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Minute))
	in := bufio.NewReader(conn)
	for range 2 {
		fmt.Fprintf(conn, "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi")
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		time.Sleep(3 * leftoverTime)
	}
}
