package listen

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
)

// TestServe accepts connections, hands them over by their tokens, and ends with its
// input.
func TestServe(t *testing.T) {
	in, end := io.Pipe()
	announced, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Serve(in, out, "0") }()
	lines := bufio.NewScanner(announced)
	next := func() (a, b string) {
		t.Helper()
		if !lines.Scan() {
			t.Fatal(lines.Err())
		}
		a, b, _ = strings.Cut(lines.Text(), " ")
		return a, b
	}
	port, host := next()
	dial := func(port string) *net.TCPConn {
		t.Helper()
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c.(*net.TCPConn)
	}
	// All connections wait, and are collected in another order.
	var programs []*net.TCPConn
	var tokens []string
	for range 3 {
		c := dial(port)
		token, origin := next()
		if _, from, _ := net.SplitHostPort(c.LocalAddr().String()); from != origin || len(token) != 32 {
			t.Errorf("%q from %s, want %s", token, origin, from)
		}
		programs, tokens = append(programs, c), append(tokens, token)
	}
	for _, bad := range []string{strings.Repeat("0", 32), strings.ToUpper(tokens[0]) + "x"} {
		c := dial(host)
		if _, err := io.WriteString(c, bad); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(c); len(got) != 0 {
			t.Errorf("%q: %q %v", bad, got, err)
		}
	}
	data := bytes.Repeat([]byte("engi"), 1<<18)
	for _, i := range []int{2, 0, 1} {
		c := dial(host)
		go func() {
			fmt.Fprintf(c, "%s%d", tokens[i], i)
			c.Write(data)
			c.CloseWrite()
		}()
		if got, err := io.ReadAll(programs[i]); err != nil || string(got) != fmt.Sprint(i)+string(data) {
			t.Errorf("%d: %d bytes, %v", i, len(got), err)
		}
		// The other direction is still open.
		fmt.Fprintf(programs[i], "answer %d", i)
		programs[i].CloseWrite()
		if got, err := io.ReadAll(c); err != nil || string(got) != fmt.Sprintf("answer %d", i) {
			t.Errorf("%d: %q %v", i, got, err)
		}
		again := dial(host)
		io.WriteString(again, tokens[i])
		if got, _ := io.ReadAll(again); len(got) != 0 {
			t.Errorf("a token is good twice: %q", got)
		}
	}
	if err := Serve(strings.NewReader(""), io.Discard, port); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a port that is taken: %v", err)
	}
	end.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", "127.0.0.1:"+port); err == nil {
		t.Error("it listens on")
	}
}

// TestTooMany opens connections that the host does not collect.
func TestTooMany(t *testing.T) {
	in, end := io.Pipe()
	announced, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Serve(in, out, "0") }()
	lines := bufio.NewScanner(announced)
	lines.Scan()
	port, _, _ := strings.Cut(lines.Text(), " ")
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	for range maxWaiting {
		dial()
		lines.Scan()
	}
	if got, err := io.ReadAll(dial()); len(got) != 0 {
		t.Errorf("%q %v", got, err)
	}
	end.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
