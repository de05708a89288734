package ssh

import (
	"net"
	"net/netip"
	"strings"

	xssh "golang.org/x/crypto/ssh"

	"github.com/engi-dev/engi/internal/engi"
)

// A destination is the destination that a direct-tcpip channel requests.
type destination struct {
	Host       string
	Port       uint32
	Origin     string
	OriginPort uint32
}

// parseDestination returns the port on the sandbox's loopback for a
// channel.
func parseDestination(b []byte) (port int, err error) {
	var d destination
	if err := xssh.Unmarshal(b, &d); err != nil {
		return 0, engi.Errorf(engi.Invalid, "the request is malformed")
	}
	if d.Port == 0 || d.Port > 65535 {
		return 0, engi.Errorf(engi.Invalid, "%d is not a port", d.Port)
	}
	host := strings.TrimSuffix(strings.ToLower(d.Host), ".")
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	if host != "localhost" && host != "" && host != "*" && (err != nil || !addr.Unmap().IsLoopback() && !addr.IsUnspecified()) {
		return 0, engi.Errorf(engi.Denied, "forwarding leads to localhost in the sandbox only, not to %.80q", d.Host)
	}
	return int(d.Port), nil
}

// forward connects a channel to a port in the sandbox.
func (c *conn) forward(n xssh.NewChannel) {
	port, err := parseDestination(n.ExtraData())
	if err != nil {
		n.Reject(xssh.Prohibited, err.Error()) // fails if the connection has ended
		return
	}
	var to net.Conn
	g, err := c.guest()
	if err == nil {
		to, err = g.Dial(c.ctx, port)
	}
	if err != nil {
		n.Reject(xssh.ConnectionFailed, strings.TrimSpace(describe(err)))
		return
	}
	defer to.Close()
	ch, requests, err := n.Accept()
	if err != nil {
		return
	}
	go answerAll(requests) // ends with the channel
	c.splice(ch, to)
}
