package egress

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const bufSize = 128 << 10

// bufPool holds buffers for bytes in transit; an idle connection holds no buffer.
var bufPool = sync.Pool{New: func() any { return new([bufSize]byte) }}

// splice sends early, then copies in both directions until both have ended,
// one fails, the connection is idle for too long, or ctx ends. It closes in,
// but not out.
func (s *sandbox) splice(ctx context.Context, c *conn, in *sandboxConn, out net.Conn, early []byte) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() {
		out.SetDeadline(time.Unix(1, 0))
		in.ep.Abort()
	})
	idle := s.watchIdle(c, s.g.o.IdleTimeout, func() { cancel(errIdle) })
	var up error
	var pump sync.WaitGroup
	pump.Go(func() {
		if up = s.copyUp(ctx, c, in, out, early); up != nil {
			cancel(up)
		}
	})
	down := s.copyDown(ctx, c, in, out, nil)
	if down != nil {
		cancel(down)
	}
	pump.Wait()
	idle()
	stop()
	if up != nil || down != nil {
		if t, ok := out.(*net.TCPConn); ok {
			t.SetLinger(0) // reset the other side, too, after a failure
		}
		in.abort()
		return
	}
	in.finish(ctx)
}

var errIdle = errors.New("the connection was idle for too long")

// watchIdle calls end when no bytes have moved on a connection for the time idle. The caller
// must call stop.
func (s *sandbox) watchIdle(c *conn, idle time.Duration, end func()) (stop func()) {
	c.lastMoved.Store(time.Now().UnixNano())
	var mu sync.Mutex
	var timer *time.Timer
	stopped := false
	check := func() {
		mu.Lock()
		defer mu.Unlock()
		if stopped {
			return
		}
		left := idle - time.Since(time.Unix(0, c.lastMoved.Load()))
		if left <= 0 {
			end()
			return
		}
		timer.Reset(left)
	}
	mu.Lock()
	timer = time.AfterFunc(idle, check)
	mu.Unlock()
	return func() {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
		timer.Stop()
	}
}

// finish closes the connection after both directions have ended. It waits until
// the sandbox has received all data, because the connection uses memory until
// then and must count towards the limits.
func (in *sandboxConn) finish(ctx context.Context) {
	until := time.Now().Add(30 * time.Second)
	for wait := time.Millisecond; ; wait = min(2*wait, time.Second) {
		switch tcp.EndpointState(in.ep.State()) {
		case tcp.StateFinWait1, tcp.StateClosing, tcp.StateLastAck:
		default:
			in.closed = true
			in.TCPConn.Close()
			return
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
		if ctx.Err() != nil || time.Now().After(until) {
			in.abort()
			return
		}
	}
}

// copyUp sends early and then copies from the sandbox to out. It returns nil when
// the sandbox has closed its side.
func (s *sandbox) copyUp(ctx context.Context, c *conn, in *sandboxConn, out net.Conn, early []byte) error {
	if len(early) > 0 {
		if err := s.account(ctx, c, len(early), true); err != nil {
			return err
		}
		if _, err := out.Write(early); err != nil {
			return err
		}
	}
	entry, ready := waiter.NewChannelEntry(waiter.ReadableEvents | waiter.EventHUp | waiter.EventErr)
	in.wq.EventRegister(&entry)
	defer in.wq.EventUnregister(&entry)
	for {
		buf := bufPool.Get().(*[bufSize]byte)
		w := tcpip.SliceWriter(buf[:])
		res, terr := in.ep.Read(&w, tcpip.ReadOptions{})
		if terr != nil {
			bufPool.Put(buf)
			switch terr.(type) {
			case *tcpip.ErrWouldBlock:
				select {
				case <-ready:
				case <-ctx.Done():
					return ctx.Err()
				}
				continue
			case *tcpip.ErrClosedForReceive:
				return closeWrite(out)
			}
			return errors.New(terr.String())
		}
		in.ep.ModerateRecvBuf(res.Count)
		err := s.account(ctx, c, res.Count, true)
		if err == nil {
			_, err = out.Write(buf[:res.Count])
		}
		bufPool.Put(buf)
		if err != nil {
			return err
		}
	}
}

// copyDown copies from out to the sandbox. It returns nil when the other side has
// closed its side. If pause is not nil, it is called when a read fails. If
// pause returns true, copyDown returns nil without closing the sandbox's side.
func (s *sandbox) copyDown(ctx context.Context, c *conn, in *sandboxConn, out net.Conn, pause func() bool) error {
	next := bufReader(out)
	for {
		buf, n, err := next()
		if n > 0 || err == nil {
			moved := s.account(ctx, c, n, false)
			if moved == nil {
				_, moved = in.Write(buf[:n])
			}
			bufPool.Put(buf)
			if moved != nil {
				return moved
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			return in.CloseWrite()
		case pause != nil && pause():
			return nil
		default:
			return err
		}
	}
}

// bufReader returns a function that reads from c, one datagram at a time if c is
// a UDP socket. The caller returns buf to bufPool, unless there is an error and
// n is 0. For sockets, it takes a buffer only when there is data to read.
func bufReader(c net.Conn) func() (buf *[bufSize]byte, n int, err error) {
	if t, ok := c.(syscall.Conn); ok {
		if raw, err := t.SyscallConn(); err == nil {
			_, stream := c.(*net.TCPConn)
			return func() (*[bufSize]byte, int, error) { return readRaw(raw, stream) }
		}
	}
	return func() (*[bufSize]byte, int, error) {
		buf := bufPool.Get().(*[bufSize]byte)
		n, err := c.Read(buf[:])
		if n <= 0 && err != nil {
			bufPool.Put(buf)
		}
		return buf, n, err
	}
}

func readRaw(raw syscall.RawConn, stream bool) (buf *[bufSize]byte, n int, err error) {
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		buf = bufPool.Get().(*[bufSize]byte)
		for {
			n, failed = unix.Read(int(fd), buf[:])
			if failed != unix.EINTR {
				break
			}
		}
		if failed != nil || n == 0 && stream {
			bufPool.Put(buf)
			n = 0
		}
		return failed != unix.EAGAIN
	})
	switch {
	case err != nil:
		return nil, 0, err
	case failed != nil:
		return nil, 0, failed
	case n == 0 && stream:
		return nil, 0, io.EOF
	}
	return buf, n, nil
}

// A meteredConn is a sandbox's end of a connection. Bytes read and written are
// counted and limited.
type meteredConn struct {
	net.Conn
	sandbox *sandbox
	conn    *conn
	ctx     context.Context
}

func (c *meteredConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		if err := c.sandbox.account(c.ctx, c.conn, n, true); err != nil {
			return 0, err
		}
	}
	return n, err
}

func (c *meteredConn) Write(b []byte) (int, error) {
	if err := c.sandbox.account(c.ctx, c.conn, len(b), false); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// CloseWrite closes the writing side.
func (c *meteredConn) CloseWrite() error { return closeWrite(c.Conn) }
