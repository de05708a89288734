package ssh

import (
	"bytes"
	"context"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	xssh "golang.org/x/crypto/ssh"

	"github.com/engi-dev/engi/internal/engi"
)

const (
	maxListeners = 16 // maximum number of listeners of one connection
	listenTime   = 20 * time.Second
	maxLine      = 64 // maximum bytes that the guest's listener writes at once
	maxRefusing  = 8  // maximum number of connections of one listener that are being refused
)

// A listener accepts connections in the sandbox for the client (RFC 4254, section 7).
type listener struct {
	addr string // address in the client's request
	port int    // port that programs connect to
	from int    // port at which the host fetches the connections
	proc engi.Process

	refusing chan struct{} // holds a value for each connection that is being refused
}

// A remote is the address that a client asks to listen on.
type remote struct {
	Addr string
	Port uint32
}

// serveRequests answers requests about the connection: it serves those for remote forwarding
// if the operator allows it, and refuses all others.
func (c *conn) serveRequests(requests <-chan *xssh.Request) {
	all := map[remote]*listener{}
	defer func() {
		for _, l := range all {
			c.unlisten(l)
		}
	}()
	for {
		var r *xssh.Request
		select {
		case r = <-requests:
		case <-c.ctx.Done():
		}
		if r == nil {
			go answerAll(requests) // ends with the connection
			return
		}
		var at remote
		ok, reply := false, []byte(nil)
		switch {
		case !c.s.o.RemoteForwarding || xssh.Unmarshal(r.Payload, &at) != nil:
		case r.Type == "tcpip-forward" && all[at] == nil && len(all) < maxListeners:
			l, err := c.listen(at)
			if err != nil {
				c.log.Info("listen for an SSH client", "port", at.Port, "error", err)
				break
			}
			if ok = true; at.Port == 0 {
				at.Port = uint32(l.port)
				reply = xssh.Marshal(struct{ Port uint32 }{at.Port})
			}
			all[at] = l
		case r.Type == "cancel-tcpip-forward" && all[at] != nil:
			c.unlisten(all[at])
			delete(all, at)
			ok = true
		}
		r.Reply(ok, reply) // fails if the connection has ended
	}
}

// listen starts to listen on the sandbox's loopback, whatever address the client requests:
// only programs in the sandbox can connect.
func (c *conn) listen(at remote) (*listener, error) {
	if at.Port > 65535 {
		return nil, engi.Errorf(engi.Invalid, "%d is not a port", at.Port)
	}
	g, err := c.guest()
	if err != nil {
		return nil, err
	}
	p, err := g.Start(c.ctx, engi.Command{Builtin: engi.BuiltinListen, Args: []string{strconv.Itoa(int(at.Port))}, Stdin: engi.StdinPipe, Output: keepOutput})
	if err != nil {
		return nil, err
	}
	l := &listener{addr: at.Addr, proc: p, refusing: make(chan struct{}, maxRefusing)}
	ready := make(chan error, 1)
	c.active.Go(func() {
		err := l.follow(c, ready)
		select {
		case ready <- err: // the listener ended before it was ready
		default:
			c.log.Debug("a listener of an SSH client has ended", "port", l.port, "error", err)
		}
	})
	late := time.NewTimer(listenTime)
	defer late.Stop()
	select {
	case err = <-ready:
	case <-late.C:
		err = engi.Errorf(engi.Unavailable, "the sandbox does not listen")
	case <-c.ctx.Done():
		err = engi.Errorf(engi.Expired, "the client has left")
	}
	if err != nil {
		c.unlisten(l)
		return nil, err
	}
	return l, nil
}

// unlisten ends a listener and its connections.
func (c *conn) unlisten(l *listener) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), hangupTime)
	defer cancel()
	// If the sandbox is already hibernated, the listener ends when nobody fetches a connection.
	if err := engi.Ignore(l.proc.Signal(ctx, "KILL"), engi.NotFound, engi.Unavailable); err != nil {
		c.log.Warn("end a listener of an SSH client", "port", l.port, "error", err)
	}
}

// follow reads the output of the listener until it ends, and reports when it is ready.
func (l *listener) follow(c *conn, ready chan<- error) error {
	var line, said []byte
	listening := false
	for chunk, err := range l.proc.Output(c.ctx, 0) {
		if err != nil {
			return err
		}
		if chunk.Stream == engi.Stderr {
			said = append(said, chunk.Data[:min(len(chunk.Data), 200-len(said))]...)
			continue
		}
		for line = append(line, chunk.Data...); ; {
			text, rest, found := bytes.Cut(line, []byte("\n"))
			if len(text) > maxLine {
				return engi.Errorf(engi.Unavailable, "the sandbox's listener writes nonsense")
			}
			if !found {
				break
			}
			line = rest
			name, number, _ := strings.Cut(string(text), " ")
			port, err := parsePort(number)
			if err == nil && !listening {
				if l.port, err = parsePort(name); err == nil {
					l.from, listening = port, true
					ready <- nil
				}
			} else if err == nil {
				c.pass(l, name, port)
			}
			if err != nil {
				return err
			}
		}
	}
	return engi.Errorf(engi.Unavailable, "no program listens on the port any more: %.200q", said)
}

func parsePort(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, engi.Errorf(engi.Unavailable, "the sandbox's listener writes nonsense")
	}
	return int(n), nil
}

// pass forwards a connection to the client, in the background. The connection counts like a
// channel that the client has opened; beyond the limit, it is closed. The program that announces
// connections is not trusted, so pass waits while many are being closed.
func (c *conn) pass(l *listener, token string, origin int) {
	counted := c.count()
	if !counted {
		select {
		case l.refusing <- struct{}{}:
		case <-c.ctx.Done():
			return
		}
	}
	c.active.Go(func() {
		if counted {
			defer c.uncount()
		} else {
			defer func() { <-l.refusing }()
		}
		g, err := c.guest()
		if err != nil {
			return
		}
		ctx, cancel := context.WithTimeout(c.ctx, listenTime)
		defer cancel()
		to, err := g.Dial(ctx, l.from)
		if err != nil {
			return
		}
		defer to.Close()
		if _, err := io.WriteString(to, token); err != nil || !counted {
			return
		}
		ch, requests, err := c.ssh.OpenChannel("forwarded-tcpip", xssh.Marshal(destination{l.addr, uint32(l.port), "127.0.0.1", uint32(origin)}))
		if err != nil {
			return // the client refuses the connection
		}
		go answerAll(requests) // ends with the channel
		c.splice(ch, to)
	})
}

// splice copies between a channel and a connection until both have ended.
func (c *conn) splice(ch xssh.Channel, to net.Conn) {
	defer ch.Close()
	stopped := make(chan struct{})
	defer close(stopped)
	go func() {
		select {
		case <-c.ctx.Done():
			to.Close()
			ch.Close()
		case <-stopped:
		}
	}()
	var both sync.WaitGroup
	both.Go(func() {
		io.Copy(to, ch) // the other side sees the end, whatever its cause
		if half, ok := to.(interface{ CloseWrite() error }); ok {
			half.CloseWrite()
		} else {
			to.Close()
		}
	})
	both.Go(func() {
		io.Copy(ch, to)
		ch.CloseWrite()
	})
	both.Wait()
}
