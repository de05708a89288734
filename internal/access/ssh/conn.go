package ssh

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	xssh "golang.org/x/crypto/ssh"

	"github.com/engi-dev/engi/internal/clock"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/place"
)

// A conn is an authenticated connection, which keeps its sandbox awake.
type conn struct {
	s      *Server
	ssh    *xssh.ServerConn
	viewer engi.Viewer
	key    engi.SSHKeyID // SSH key of the connection; empty if an API key opened it
	ctx    context.Context
	end    context.CancelCauseFunc // safe to call with Server.mu held
	log    *slog.Logger
	guest  func() (engi.Guest, error) // wakes the sandbox on the first call
	active sync.WaitGroup             // open channels

	mu       sync.Mutex // guards the fields below
	target   place.Found
	since    int64 // seq of the last event before the guest was entered; -1 until then
	release  func()
	channels int
}

// found is the result of an authentication, stored in [xssh.Permissions].
type found struct {
	key    engi.SSHKey
	target place.Found
}

type foundKey struct{}

func foundIn(p *xssh.Permissions) found {
	f, _ := p.ExtraData[foundKey{}].(found)
	return f
}

func permit(f found) *xssh.Permissions {
	return &xssh.Permissions{ExtraData: map[any]any{foundKey{}: f}}
}

// refusal returns an authentication error that the user sees.
func refusal(err error) error {
	return &xssh.BannerError{Err: err, Message: describe(err)}
}

// describe returns an error with its remedy for a user at a terminal.
func describe(err error) string {
	clean := func(s string) string { // the text may contain text of others
		return strings.Map(func(r rune) rune {
			if r < ' ' || r >= 0x7f && r < 0xa0 {
				return -1
			}
			return r
		}, s)
	}
	if engi.Is(err, engi.Internal) {
		return "engi: the server failed; its log says why\r\n"
	}
	return fmt.Sprintf("engi: %s\r\n  %s\r\n", clean(err.Error()), clean(engi.RemedyOf(err)))
}

// config returns the configuration of one handshake. who is nil if the client
// must authenticate with a key.
func (s *Server) config(ctx context.Context, who *Caller) *xssh.ServerConfig {
	safe := xssh.SupportedAlgorithms()
	c := &xssh.ServerConfig{ServerVersion: "SSH-2.0-engi", MaxAuthTries: maxAuthTries}
	c.KeyExchanges, c.Ciphers, c.MACs = safe.KeyExchanges, safe.Ciphers, safe.MACs
	c.AddHostKey(s.hostKey)
	if who != nil {
		c.NoClientAuth = true
		c.NoClientAuthCallback = func(m xssh.ConnMetadata) (*xssh.Permissions, error) {
			name := who.Target
			if name == "" {
				name = m.User()
			}
			t, err := s.o.Places.Named(ctx, who.Viewer, false, name)
			if err != nil {
				return nil, refusal(err)
			}
			return permit(found{target: t}), nil
		}
		return c
	}
	// A client may offer a key that it does not have. It learns only whether the key is
	// known here.
	c.PublicKeyCallback = func(_ xssh.ConnMetadata, pub xssh.PublicKey) (*xssh.Permissions, error) {
		k, err := s.keyOf(ctx, pub)
		return permit(found{key: k}), err
	}
	c.VerifiedPublicKeyCallback = func(m xssh.ConnMetadata, _ xssh.PublicKey, p *xssh.Permissions, _ string) (*xssh.Permissions, error) {
		f := foundIn(p)
		if err := s.admitted(ctx, f.key.Owner); err != nil {
			return nil, refusal(err)
		}
		t, err := s.o.Places.Named(ctx, f.key.Owner.Viewer(), true, m.User())
		if err != nil {
			return nil, refusal(err)
		}
		return permit(found{f.key, t}), nil
	}
	return c
}

// serve serves a connection that begin has counted, and closes it.
func (s *Server) serve(ctx context.Context, nc net.Conn, from netip.Addr, who *Caller) {
	defer nc.Close()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	log := s.o.Log.With("from", nc.RemoteAddr().String())

	// Some connections do not support deadlines.
	timer := time.AfterFunc(s.o.Handshake, func() { nc.Close() })
	client, chans, requests, err := xssh.NewServerConn(nc, s.config(ctx, who))
	early := timer.Stop()
	s.begun(from)
	if err != nil || !early {
		log.Debug("SSH handshake", "error", err)
		return
	}
	stop()
	f := foundIn(client.Permissions)
	c := &conn{s: s, ssh: client, key: f.key.ID, viewer: f.key.Owner.Viewer(), target: f.target, since: -1, end: end, log: log.With("target", client.User())}
	actor := string(f.key.ID)
	if who != nil {
		c.viewer, actor = who.Viewer, who.Actor
	}
	c.ctx = engi.WithActor(ctx, actor)
	c.guest = sync.OnceValues(c.enter)
	c.run(chans, requests, f.key)
}

// run serves an authenticated connection until it ends.
func (c *conn) run(chans <-chan xssh.NewChannel, requests <-chan *xssh.Request, k engi.SSHKey) {
	defer c.ssh.Close()
	if err := c.s.add(c); err != nil {
		c.log.Info("SSH connection refused", "error", err)
		c.refuse(chans, requests, err)
		return
	}
	defer c.s.remove(c)
	defer func() { // the guest was entered by then, or never will be
		c.end(nil)
		c.active.Wait()
		if release := c.left(); release != nil {
			release()
		}
	}()
	// The target may have been deleted since it was found.
	if err := c.mayGoOn(); err != nil {
		c.refuse(chans, requests, err)
		return
	}
	if k.ID != "" {
		if err := c.s.Keys.use(c.ctx, k); err != nil {
			c.log.Error("record the use of an SSH key", "error", err)
		}
	}
	began := time.Now()
	c.log.Info("SSH connection", "key", engi.ActorOf(c.ctx))
	defer func() { c.log.Info("SSH connection ended", "after", time.Since(began), "cause", context.Cause(c.ctx)) }()

	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer c.end(nil)
	helpers.Go(func() { c.stayAlive() })
	c.active.Go(func() { c.serveRequests(requests) })
	c.active.Go(func() {
		if _, err := c.guest(); err != nil {
			c.log.Info("wake a sandbox for SSH", "error", err)
		}
	})
	// At the end, its channels receive the reason, if the client reads it.
	stop := context.AfterFunc(c.ctx, func() {
		done := make(chan struct{})
		go func() { c.active.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(farewellTime):
		}
		c.ssh.Close()
	})
	defer stop()
	for n := range chans {
		c.open(n)
	}
}

// answerAll refuses all requests.
func answerAll(requests <-chan *xssh.Request) {
	for r := range requests {
		r.Reply(false, nil) // fails if the connection has ended
	}
}

// refuse sends a client the reason for the disconnect.
func (c *conn) refuse(chans <-chan xssh.NewChannel, requests <-chan *xssh.Request, err error) {
	go answerAll(requests) // ends with the connection
	select {
	case n := <-chans:
		if n != nil {
			n.Reject(xssh.ResourceShortage, strings.TrimSpace(describe(err))) // fails if the client has left
		}
	case <-time.After(farewellTime):
	}
	c.end(err)
	c.ssh.Close()
	for n := range chans {
		n.Reject(xssh.ResourceShortage, "")
	}
}

// mayGoOn returns the reason why the connection must end; nil if it may continue.
func (c *conn) mayGoOn() error {
	if c.key == "" {
		return nil // the connection's context ends with the API key
	}
	if _, err := c.s.Keys.Get(c.ctx, c.viewer, c.key); err != nil {
		if engi.Is(err, engi.NotFound) {
			return errKeyDeleted
		}
		return err
	}
	return c.s.admitted(c.ctx, c.viewer.Owner())
}

var errKeyDeleted = engi.Errorf(engi.Denied, "this SSH key was deleted").WithRemedy("use another, or add it again with 'engi ssh-key add'")

// stayAlive sends keepalive requests at intervals, and ends the connection of a
// client that does not answer or may not continue.
func (c *conn) stayAlive() {
	for range clock.Later(c.ctx, keepalive) {
		if err := c.mayGoOn(); err != nil && c.ctx.Err() == nil {
			c.end(err)
			return
		}
		silent := time.AfterFunc(2*keepalive, func() { c.ssh.Close() })
		_, _, err := c.ssh.SendRequest("keepalive@openssh.com", true, nil)
		silent.Stop()
		if err != nil {
			return // the connection has ended
		}
	}
}

// happened ends the connection if an event requires it. The caller holds Server.mu.
func (c *conn) happened(e engi.Event) {
	c.mu.Lock()
	t, entered := c.target, c.since >= 0 && e.Seq > c.since
	c.mu.Unlock()
	switch {
	case e.Type == engi.EventSSHKeyDeleted:
		if e.Subject == string(c.key) {
			c.end(errKeyDeleted)
		}
	case e.Type == engi.EventKeyRevoked:
		if e.Owner.Viewer() == c.viewer && c.key != "" {
			c.active.Go(func() { // not in this goroutine, because it reads the store
				if err := c.mayGoOn(); err != nil && c.ctx.Err() == nil {
					c.end(err)
				}
			})
		}
	case e.Type == engi.EventSessionTerminated:
		if e.Subject == string(t.Session) {
			c.end(engi.Errorf(engi.NotFound, "session %s has ended", t.Session).WithRemedy("create another with 'engi session create'"))
		}
	case entered && (e.Subject == string(t.Session) || e.Subject == string(t.Sandbox)):
		c.end(engi.Errorf(engi.Unavailable, "the sandbox sleeps or has ended (%s)", e.Type).WithRemedy("connect again: connecting wakes the sandbox if possible"))
	}
}

// enter wakes the sandbox, and keeps it awake until the connection ends.
func (c *conn) enter() (engi.Guest, error) {
	ctx, cancel := context.WithTimeout(c.ctx, wakeTime)
	defer cancel()
	c.mu.Lock()
	t := c.target
	c.mu.Unlock()
	if t.Session != "" {
		ctx = engi.WithClient(ctx, "ssh", engi.ActorOf(ctx))
	}
	g, release, err := c.s.o.Places.Enter(ctx, c.viewer, t.Place())
	if engi.Is(err, engi.Conflict) && t.Place().Sandbox != "" && c.s.o.Lifecycle != nil {
		// The sandbox is hibernated, and use alone does not wake it; a connection should.
		if _, err = c.s.o.Lifecycle.Resume(ctx, c.viewer, t.Sandbox, 0, false); err == nil {
			g, release, err = c.s.o.Places.Enter(ctx, c.viewer, t.Place())
		}
	}
	if err != nil {
		return nil, err
	}
	since, err := c.s.o.Events.Last(ctx)
	if err == nil {
		t, err = c.s.o.Places.Find(ctx, c.viewer, t.Place()) // it may have got its sandbox only now
	}
	if err != nil {
		release()
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.target, c.since, c.release = t, since, release
	return g, nil
}

// left returns the function that releases the guest; nil if the guest was not entered.
func (c *conn) left() func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.release
}

// open serves a new channel.
func (c *conn) open(n xssh.NewChannel) {
	if !c.count() {
		n.Reject(xssh.ResourceShortage, "too many channels are open") // fails if the connection has ended
		return
	}
	c.active.Go(func() {
		defer c.uncount()
		switch n.ChannelType() {
		case "session":
			c.session(n)
		case "direct-tcpip":
			c.forward(n)
		default:
			n.Reject(xssh.UnknownChannelType, "engi has sessions and direct-tcpip") // fails if the connection has ended
		}
	})
}

// count counts a channel. It returns false at the limit.
func (c *conn) count() bool {
	c.mu.Lock()
	full := c.channels >= maxChannels
	if !full {
		c.channels++
	}
	c.mu.Unlock()
	if full || c.s.openChannel(c.viewer) {
		return !full
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.channels--
	return false
}

func (c *conn) uncount() {
	c.s.closeChannel(c.viewer)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.channels--
}
