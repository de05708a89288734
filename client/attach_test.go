package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/server/rest"
	"github.com/engi-dev/engi/test/apitest"
)

// A cutter passes connections on to a server until it cuts them all.
type cutter struct {
	net.Listener
	to string

	mu    sync.Mutex
	conns map[net.Conn]bool
}

func newCutter(t *testing.T, to string) *cutter {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{Listener: l, to: to, conns: map[net.Conn]bool{}}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			c.mu.Lock()
			c.conns[in], c.conns[out] = true, true
			c.mu.Unlock()
			for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
				work.Go(func() {
					io.Copy(way[0], way[1]) // until it is cut
					way[0].Close()
				})
			}
		}
	})
	t.Cleanup(func() { l.Close(); c.cut(); work.Wait() })
	return c
}

func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.conns {
		conn.Close()
	}
	clear(c.conns)
}

// TestTerminalOverBrokenConnections types while connections break.
func TestTerminalOverBrokenConnections(t *testing.T) {
	w := apitest.New(nil)
	srv := httptest.NewUnstartedServer(w.Handler)
	srv.Config = rest.NewServer(w.Handler, nil)
	srv.Start()
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close(); w.Close() })
	wire := newCutter(t, srv.Listener.Addr().String())
	c := client.New("http://"+wire.Addr().String(), w.User, client.WithRetries(50))
	b, err := c.CreateSandbox(t.Context(), v1.SandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	x, err := c.CreateTerminal(t.Context(), b.ID, v1.TerminalRequest{Args: []string{"/bin/sh", "-c", "stty raw -echo; echo ready; exec cat"}})
	if err != nil {
		t.Fatal(err)
	}
	a, err := c.AttachTerminal(t.Context(), b.ID, x.ID, client.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	const lines = 200
	want := ""
	for i := range lines {
		want += fmt.Sprintf("<%d>", i)
	}
	ready, complete, flushed := make(chan struct{}), make(chan struct{}), errors.New("all was taken")
	reading, stop := context.WithCancelCause(t.Context())
	var typing sync.WaitGroup
	typing.Go(func() {
		<-ready
		for i := range lines {
			if _, err := fmt.Fprintf(a, "<%d>", i); err != nil {
				t.Error(err)
			}
			if i%50 == 20 {
				wire.cut()
			}
			time.Sleep(time.Millisecond)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		defer cancel()
		if err := a.Flush(ctx); err != nil {
			t.Error(err)
		}
		select {
		case <-complete:
		case <-ctx.Done():
		}
		stop(flushed)
	})
	defer typing.Wait()
	ctx, cancel := context.WithTimeout(reading, 90*time.Second)
	defer cancel()
	got := ""
	for data, err := range a.Output(ctx) {
		if err != nil && context.Cause(reading) == flushed {
			break
		}
		if err != nil {
			t.Fatalf("%v; %d bytes of %d", err, len(got), len(want))
		}
		got += string(data)
		if rest, ok := strings.CutPrefix(got, "ready\n"); ok {
			if rest == "" {
				close(ready)
			}
			if len(rest) >= len(want) && len(rest)-len(data) < len(want) {
				close(complete)
			}
		}
	}
	if got := strings.TrimPrefix(got, "ready\n"); got != want {
		t.Errorf("it echoed %q, want %q", got, want)
	}
}

func TestTerminalRefusals(t *testing.T) {
	w, srv := apitest.Serve(t, nil)
	c := client.New(srv.URL, w.User, client.WithRetries(3))
	b, err := c.CreateSandbox(t.Context(), v1.SandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	x, err := c.CreateTerminal(t.Context(), b.ID, v1.TerminalRequest{Args: []string{"/bin/sh", "-c", "echo hi; read x"}})
	if err != nil {
		t.Fatal(err)
	}
	if all, err := c.Terminals(t.Context(), b.ID); err != nil || len(all) != 1 || all[0].ID != x.ID {
		t.Errorf("%+v, %v", all, err)
	}
	a, err := c.AttachTerminal(t.Context(), b.ID, x.ID, client.AttachOptions{Offset: 1 << 40})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for _, err := range a.Output(t.Context()) {
		if !client.IsKind(err, v1.Invalid) {
			t.Errorf("an offset beyond the end: %v", err)
		}
	}
	if _, err := c.AttachTerminal(t.Context(), b.ID, "trm_"+x.ID[5:]+"a", client.AttachOptions{}); !client.IsKind(err, v1.NotFound) {
		t.Errorf("a terminal that never was: %v", err)
	}
	if err := c.EndTerminal(t.Context(), b.ID, x.ID); err != nil {
		t.Error(err)
	}
}
