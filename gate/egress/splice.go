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

const pieceSize = 128 << 10

// pieces are lent while bytes move: a silent connection has none.
var pieces = sync.Pool{New: func() any { return new([pieceSize]byte) }}

// splice copies both ways until both have ended, either breaks, nothing moves
// for too long, or ctx ends. It closes the sandbox's end, not out.
func (r *sandbox) splice(ctx context.Context, c *conn, in *inside, out net.Conn, early []byte) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() {
		out.SetDeadline(time.Unix(1, 0))
		in.ep.Abort()
	})
	idle := r.watch(c, r.g.o.Idle, func() { cancel(errIdle) })
	var up error
	var pump sync.WaitGroup
	pump.Go(func() {
		if up = r.pumpUp(ctx, c, in, out, early); up != nil {
			cancel(up)
		}
	})
	down := r.pumpDown(ctx, c, in, out, nil)
	if down != nil {
		cancel(down)
	}
	pump.Wait()
	idle()
	stop()
	if up != nil || down != nil {
		if t, ok := out.(*net.TCPConn); ok {
			t.SetLinger(0) // what broke here breaks there
		}
		in.abort()
		return
	}
	in.finish(ctx)
}

var errIdle = errors.New("nothing moved for too long")

// watch calls end when nothing has moved on a connection for too long, until
// the function it returns is called.
func (r *sandbox) watch(c *conn, idle time.Duration, end func()) (stop func()) {
	c.last.Store(time.Now().UnixNano())
	var mu sync.Mutex
	var timer *time.Timer
	over := false
	check := func() {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return
		}
		left := idle - time.Since(time.Unix(0, c.last.Load()))
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
		over = true
		timer.Stop()
	}
}

// finish closes the sandbox's end after both ways have ended, and waits until
// the sandbox has what was sent, so that it counts as long as it costs.
func (in *inside) finish(ctx context.Context) {
	until := time.Now().Add(30 * time.Second)
	for wait := time.Millisecond; ; wait = min(2*wait, time.Second) {
		switch tcp.EndpointState(in.ep.State()) {
		case tcp.StateFinWait1, tcp.StateClosing, tcp.StateLastAck:
		default:
			in.done = true
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

// pumpUp copies from the sandbox, after what was read of it before. It ends
// without an error when the sandbox has sent everything.
func (r *sandbox) pumpUp(ctx context.Context, c *conn, in *inside, out net.Conn, early []byte) error {
	if len(early) > 0 {
		if err := r.moved(ctx, c, len(early), true); err != nil {
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
		piece := pieces.Get().(*[pieceSize]byte)
		w := tcpip.SliceWriter(piece[:])
		res, terr := in.ep.Read(&w, tcpip.ReadOptions{})
		if terr != nil {
			pieces.Put(piece)
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
		err := r.moved(ctx, c, res.Count, true)
		if err == nil {
			_, err = out.Write(piece[:res.Count])
		}
		pieces.Put(piece)
		if err != nil {
			return err
		}
	}
}

// pumpDown copies to the sandbox. It ends without an error when the other side
// has sent everything. Hush, if it is not nil, is asked at each deadline that
// passes, and ends the pump without ending this way.
func (r *sandbox) pumpDown(ctx context.Context, c *conn, in *inside, out net.Conn, hush func() bool) error {
	next := reader(out)
	for {
		piece, n, err := next()
		if n > 0 || err == nil {
			moved := r.moved(ctx, c, n, false)
			if moved == nil {
				_, moved = in.Write(piece[:n])
			}
			pieces.Put(piece)
			if moved != nil {
				return moved
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			return in.CloseWrite()
		case hush != nil && hush():
			return nil
		default:
			return err
		}
	}
}

// reader returns a function that reads the next piece of a connection, or
// datagram; it must be put back unless there is an error and n is 0. From a socket it takes a piece only when there is
// something to read.
func reader(c net.Conn) func() (piece *[pieceSize]byte, n int, err error) {
	if t, ok := c.(syscall.Conn); ok {
		if raw, err := t.SyscallConn(); err == nil {
			_, stream := c.(*net.TCPConn)
			return func() (*[pieceSize]byte, int, error) { return readRaw(raw, stream) }
		}
	}
	return func() (*[pieceSize]byte, int, error) {
		piece := pieces.Get().(*[pieceSize]byte)
		n, err := c.Read(piece[:])
		if n <= 0 && err != nil {
			pieces.Put(piece)
		}
		return piece, n, err
	}
}

func readRaw(raw syscall.RawConn, stream bool) (piece *[pieceSize]byte, n int, err error) {
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		piece = pieces.Get().(*[pieceSize]byte)
		for {
			n, failed = unix.Read(int(fd), piece[:])
			if failed != unix.EINTR {
				break
			}
		}
		if failed != nil || n == 0 && stream {
			pieces.Put(piece)
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
	return piece, n, nil
}

// A counted connection is a sandbox's end whose bytes count, and wait for
// their bandwidth.
type counted struct {
	net.Conn
	room *sandbox
	conn *conn
	ctx  context.Context
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		if err := c.room.moved(c.ctx, c.conn, n, true); err != nil {
			return 0, err
		}
	}
	return n, err
}

func (c *counted) Write(b []byte) (int, error) {
	if err := c.room.moved(c.ctx, c.conn, len(b), false); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// CloseWrite ends one way.
func (c *counted) CloseWrite() error { return closeWrite(c.Conn) }
