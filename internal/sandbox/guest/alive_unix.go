//go:build unix

package guest

import (
	"net"
	"syscall"
)

// alive reports whether the guest still has its end of a connection. A connection that
// waited in the backlog may date from before the guest was saved or restarted.
// The guest never sends first, so a connection with nothing to read is alive.
func alive(conn net.Conn) bool {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return true
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return true
	}
	dead := false
	if err := rc.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		dead = n == 0 && err == nil || err == syscall.ECONNRESET || err == syscall.EPIPE
	}); err != nil {
		return true
	}
	return !dead
}
