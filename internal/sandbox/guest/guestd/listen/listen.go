// Package listen accepts connections of programs in a sandbox for the host, which
// cannot listen there. It announces each connection over its output, and the host collects it
// over a second port, so every connection keeps its own flow control. It runs as a
// process of its own. It is not a boundary: programs of the same user may use its
// connections, as they may open connections themselves.
package listen

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

const (
	tokenBytes = 16
	maxWaiting = 64               // maximum number of connections that the host has not collected
	waitTime   = 30 * time.Second // time within which the host must collect a connection
)

// A taker holds the connections that wait for the host.
type taker struct {
	out  io.Writer
	lost func() // called if the host did not collect a connection in time: the host is gone

	mu      sync.Mutex // guards the fields below
	waiting map[string]net.Conn
}

// Serve listens on a port of the loopback interface, 0 for any, until in ends. It writes one
// line to out with this port and the port at which the host collects connections, and
// one line for each connection: a token, and the remote port of the connection. The host
// connects, writes the token, and then owns the connection. It must do so within 30
// seconds; otherwise the host is considered gone, and Serve returns.
func Serve(in io.Reader, out io.Writer, port string) error {
	l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		return err
	}
	defer l.Close()
	host, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer host.Close()
	if _, err := fmt.Fprintf(out, "%d %d\n", portOf(l.Addr()), portOf(host.Addr())); err != nil {
		return err
	}
	t := &taker{out: out, waiting: map[string]net.Conn{}}
	ended := make(chan error, 4)
	t.lost = func() {
		select {
		case ended <- errors.New("no client accepts connections"):
		default: // Serve is ending
		}
	}
	go func() { ended <- t.take(l) }()
	go func() { ended <- t.give(host) }()
	go func() { _, err := io.Copy(io.Discard, bufio.NewReader(in)); ended <- err }()
	return <-ended // the process then ends, and with it all connections
}

func portOf(a net.Addr) int { return a.(*net.TCPAddr).Port }

// take announces connections.
func (t *taker) take(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		var raw [tokenBytes]byte
		rand.Read(raw[:]) // never fails
		token := hex.EncodeToString(raw[:])
		t.mu.Lock()
		full := len(t.waiting) >= maxWaiting
		if !full {
			t.waiting[token] = c
		}
		t.mu.Unlock()
		if full {
			c.Close()
			continue
		}
		time.AfterFunc(waitTime, func() {
			if t.claim(token) != nil {
				t.lost()
			}
		})
		if _, err := fmt.Fprintf(t.out, "%s %d\n", token, portOf(c.RemoteAddr())); err != nil {
			return err
		}
	}
}

func (t *taker) claim(token string) net.Conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.waiting[token]
	delete(t.waiting, token)
	return c
}

// give hands connections to the host.
func (t *taker) give(l net.Listener) error {
	for {
		host, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer host.Close()
			var token [2 * tokenBytes]byte
			host.SetReadDeadline(time.Now().Add(waitTime))
			if _, err := io.ReadFull(host, token[:]); err != nil {
				return
			}
			host.SetReadDeadline(time.Time{})
			if c := t.claim(string(token[:])); c != nil {
				splice(c.(*net.TCPConn), host.(*net.TCPConn))
			}
		}()
	}
}

// splice copies both ways until both sides have ended, and closes them.
func splice(a, b *net.TCPConn) {
	defer a.Close()
	defer b.Close()
	var both sync.WaitGroup
	one := func(to, from *net.TCPConn) {
		if _, err := io.Copy(to, from); err != nil {
			to.Close() // the other side sees that the connection was cut
			return
		}
		to.CloseWrite() // fails if the connection is closed
	}
	both.Go(func() { one(a, b) })
	both.Go(func() { one(b, a) })
	both.Wait()
}
