package engi_test

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

func TestSplice(t *testing.T) {
	begin := func(ctx context.Context) (left, right net.Conn, done chan struct{}) {
		left, a := net.Pipe()
		right, b := net.Pipe()
		done = make(chan struct{})
		go func() {
			engi.Splice(ctx, a, b)
			close(done)
		}()
		return left, right, done
	}
	pass := func(t *testing.T, from, to net.Conn) {
		t.Helper()
		go from.Write([]byte("hello"))
		b := make([]byte, 5)
		if _, err := io.ReadFull(to, b); err != nil || string(b) != "hello" {
			t.Errorf("%q, %v", b, err)
		}
	}
	gone := func(t *testing.T, c net.Conn) {
		t.Helper()
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("it is open")
		}
	}
	t.Run("one side ends", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			left, right, done := begin(t.Context())
			pass(t, left, right)
			pass(t, right, left)
			began := time.Now()
			left.Close()
			gone(t, right)
			<-done
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	})
	t.Run("the context ends", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			left, right, done := begin(ctx)
			pass(t, left, right)
			cancel()
			gone(t, left)
			gone(t, right)
			<-done
		})
	})
}
