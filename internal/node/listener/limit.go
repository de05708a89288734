package listener

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
)

// A limiter limits the number of open connections, in all and from one address, because a client
// with all descriptors would take them from the node's own work. At the limit,
// it closes the connection that has been without a request for longest, so that idle
// clients do not block others. The listeners of a node share it, and it is safe for
// concurrent use.
type limiter struct {
	most, each int // maximum connections in all, and from one address; 0 means no limit
	closing    sync.WaitGroup

	mu    sync.Mutex
	all   int
	perIP map[netip.Addr]int
	idle  list.List // *counted values that serve no request, longest idle first
}

// limit returns ln with the limits of l.
func (l *limiter) limit(ln net.Listener) net.Listener { return limited{ln, l} }

// enter counts a connection. It returns false at the limit.
func (l *limiter) enter(c *counted) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	// All connections of this machine, including those of proxies, have the same address.
	if l.each > 0 && !c.from.IsLoopback() && l.perIP[c.from] >= l.each {
		return false
	}
	if l.most > 0 && l.all >= l.most {
		first := l.idle.Front()
		if first == nil {
			return false
		}
		old := first.Value.(*counted)
		l.leaveLocked(old)
		l.closing.Go(func() { old.conn.Close() }) // Close waits for the reader
	}
	l.all++
	l.perIP[c.from]++
	c.place = l.idle.PushBack(c)
	return true
}

func (l *limiter) leaveLocked(c *counted) {
	if c.left {
		return
	}
	c.left = true
	if c.place != nil {
		l.idle.Remove(c.place)
	}
	l.all--
	if l.perIP[c.from]--; l.perIP[c.from] == 0 {
		delete(l.perIP, c.from)
	}
}

// A counted holds the limiter's data of a connection. Its fields below conn are
// guarded by mu of the limiter.
type counted struct {
	l    *limiter
	from netip.Addr
	conn net.Conn

	requests int           // number of requests being served
	place    *list.Element // element in idle; nil while requests are served
	left     bool
}

func (c *counted) leave() {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.l.leaveLocked(c)
}

// serve adds n to the number of requests: 1 at the start of a request, -1 at its end.
func (c *counted) serve(n int) {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.requests += n
	switch {
	case c.left:
	case c.requests == 0:
		c.place = c.l.idle.PushBack(c)
	case c.place != nil:
		c.l.idle.Remove(c.place)
		c.place = nil
	}
}

type connKey struct{}

// watch makes s report which connections serve requests.
func watch(s *http.Server) {
	h := s.Handler
	s.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		if t, ok := conn.(*tls.Conn); ok {
			conn = t.NetConn()
		}
		switch c := conn.(type) {
		case *countedTCP:
			return context.WithValue(ctx, connKey{}, c.counted)
		case *countedConn:
			return context.WithValue(ctx, connKey{}, c.counted)
		}
		return ctx
	}
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connKey{}).(*counted); ok {
			c.serve(1)
			defer c.serve(-1)
		}
		h.ServeHTTP(w, r)
	})
}

type limited struct {
	net.Listener
	l *limiter
}

// Accept implements net.Listener.
func (ln limited) Accept() (net.Conn, error) {
	for {
		conn, err := ln.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &counted{l: ln.l, conn: conn}
		if at, err := netip.ParseAddrPort(conn.RemoteAddr().String()); err == nil {
			c.from = place(at.Addr())
		}
		if !ln.l.enter(c) {
			conn.Close()
			continue
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			return &countedTCP{tcp, c}, nil // its ReadFrom sends files without copying them
		}
		return &countedConn{conn, c}, nil
	}
}

// place returns the address by which connections are counted. A network of 64 bits belongs to one
// host, which can use any of its addresses.
func place(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if p, err := a.Prefix(64); err == nil && a.Is6() && !a.IsLoopback() {
		return p.Addr()
	}
	return a
}

// A countedTCP is a countedConn with the methods of TCP.
type countedTCP struct {
	*net.TCPConn
	counted *counted
}

// Close implements net.Conn.
func (c *countedTCP) Close() error {
	defer c.counted.leave()
	return c.TCPConn.Close()
}

// A countedConn leaves its limiter when it is closed.
type countedConn struct {
	net.Conn
	counted *counted
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	defer c.counted.leave()
	return c.Conn.Close()
}
