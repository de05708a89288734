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
	conn.SetDeadline(time.Now().Add(discardTime / 2))
	if _, err := in.ReadByte(); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("the server still listens: %v", err)
	}
}
