package listener

import (
	"net"
	"net/netip"
	"sync"
)

// A limiter closes connections beyond a number of all, or of one address, at
// once: whoever takes all descriptors would take them from the node's own work.
// It is shared by the listeners of a node, and safe for concurrent use.
type limiter struct {
	most, each int // 0 means no limit

	mu    sync.Mutex
	all   int
	perIP map[netip.Addr]int
}

// limit returns ln with the limits of l.
func (l *limiter) limit(ln net.Listener) net.Listener { return limited{ln, l} }

// enter counts a connection, or reports false if there are too many.
func (l *limiter) enter(from netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Everything on this machine, proxies among it, has the same address.
	if l.most > 0 && l.all >= l.most || l.each > 0 && !from.IsLoopback() && l.perIP[from] >= l.each {
		return false
	}
	l.all++
	l.perIP[from]++
	return true
}

func (l *limiter) leave(from netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.perIP[from]--; l.perIP[from] == 0 {
		delete(l.perIP, from)
	}
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
		var from netip.Addr
		if at, err := netip.ParseAddrPort(conn.RemoteAddr().String()); err == nil {
			from = at.Addr().Unmap().WithZone("")
		}
		if !ln.l.enter(from) {
			conn.Close()
			continue
		}
		leave := sync.OnceFunc(func() { ln.l.leave(from) })
		if tcp, ok := conn.(*net.TCPConn); ok {
			return &countedTCP{tcp, leave}, nil // its ReadFrom sends files without copying them
		}
		return &countedConn{conn, leave}, nil
	}
}

// A countedTCP is a countedConn with the methods of TCP.
type countedTCP struct {
	*net.TCPConn
	leave func()
}

// Close implements net.Conn.
func (c *countedTCP) Close() error {
	defer c.leave()
	return c.TCPConn.Close()
}

// A countedConn leaves its limiter when it is closed.
type countedConn struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
