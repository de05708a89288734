package ssh

import (
	"cmp"
	"context"
	"errors"
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

const (
	handshakeTime = 20 * time.Second // maximum time until a client is authenticated
	wakeTime      = 2 * time.Minute  // maximum time until a sandbox is awake
	farewellTime  = time.Second      // time to send clients the reason for the disconnect
	keepalive     = 30 * time.Second // interval of keepalive requests
	maxAuthTries  = 12               // maximum number of keys that a client's agent may offer

	maxStarting     = 64 // maximum connections in all that are not authenticated yet
	maxStartingEach = 10 // maximum such connections from one address
	maxOwner        = 64 // maximum connections of one owner
	maxChannels     = 64 // maximum channels of one connection
	// Clients may send up to 2 MiB in each channel before it is read.
	maxOwnerChannels = 256
)

// Settings holds the operator's settings.
type Settings struct {
	Listen      string `toml:"listen" env:"LISTEN" help:"address and port of the SSH server, like 127.0.0.1:2222; empty means that SSH comes over HTTP only, as 'engi ssh' has it"`
	Connections int    `toml:"connections" env:"CONNECTIONS" help:"SSH connections at once"`

	RemoteForwarding bool `toml:"remote_forwarding" env:"REMOTE_FORWARDING" help:"let clients listen in their sandboxes (ssh -R), which gives programs there a way past the egress gateway to what the client leads to"`
}

// DefaultSettings returns settings that serve SSH over HTTP only.
func DefaultSettings() Settings { return Settings{Connections: 256} }

// Validate reports Invalid for unusable settings.
func (s Settings) Validate() error {
	if _, port, err := net.SplitHostPort(s.Listen); s.Listen != "" && (err != nil || port == "") {
		return engi.Errorf(engi.Invalid, "ssh.listen %q is not an address and a port", s.Listen).WithRemedy("write it like 127.0.0.1:2222, or 0.0.0.0:2222 for others")
	}
	if s.Connections < 1 {
		return engi.Errorf(engi.Invalid, "ssh.connections is %d", s.Connections).WithRemedy("allow at least one; no key in 'engi ssh-key list' means that nobody has any")
	}
	return nil
}

// Options configures a Server. Sessions and Lifecycle may be nil.
type Options struct {
	Settings
	Store     Store
	Callers   engi.Keys // API keys, which determine the rights of owners
	Places    place.Resolver
	Lifecycle engi.Lifecycle
	Events    engi.Events
	HostKey   string // file of the host key, which is created if it is missing
	Log       *slog.Logger

	Handshake time.Duration // maximum time until a client is authenticated; 0 means 20 seconds
}

// A Server gives owners access to their sessions, workspaces and sandboxes. It is safe for
// concurrent use.
type Server struct {
	*Keys
	o        Options
	hostKey  xssh.Signer
	listener net.Listener // nil if the server does not listen
	work     sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	closed   bool
	starting int
	each     map[netip.Addr]int // number of connections being authenticated, by address
	conns    map[*conn]bool
	channels map[engi.Viewer]int
}

// Open returns a server, which listens if the settings say so. The caller must call Run or
// Close. It reports Conflict if the address is in use.
func Open(o Options) (*Server, error) {
	o.Handshake = cmp.Or(o.Handshake, handshakeTime)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	hostKey, err := openHostKey(o.HostKey)
	if err != nil {
		return nil, err
	}
	s := &Server{Keys: NewKeys(o.Store), o: o, hostKey: hostKey, each: map[netip.Addr]int{}, conns: map[*conn]bool{}, channels: map[engi.Viewer]int{}}
	if o.Listen == "" {
		return s, nil
	}
	if s.listener, err = net.Listen("tcp", o.Listen); err != nil {
		return nil, engi.Errorf(engi.Conflict, "ssh.listen: %v", err).WithRemedy("choose another address or port with ssh.listen, or leave it empty to serve SSH over HTTP only")
	}
	return s, nil
}

// HostKey returns the public host key: its type and base64, as in known_hosts, and
// its fingerprint.
func (s *Server) HostKey() (line, fingerprint string) {
	pub := s.hostKey.PublicKey()
	return strings.TrimSpace(string(xssh.MarshalAuthorizedKey(pub))), xssh.FingerprintSHA256(pub)
}

// Addr returns the server's address; empty if it does not listen.
func (s *Server) Addr() string {
	if s.listener == nil {
		return ""
	}
	return s.listener.Addr().String()
}

// Close ends all connections, and waits for them.
func (s *Server) Close() {
	if s.listener != nil {
		s.listener.Close() // it may be closed already
	}
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		c.end(engi.Errorf(engi.Unavailable, "the server stops").WithRemedy("connect again in a moment"))
	}
	s.mu.Unlock()
	s.work.Wait()
}

// Run accepts connections until ctx ends, and ends connections that may not continue.
func (s *Server) Run(ctx context.Context, ready func()) error {
	defer s.Close()
	last, err := s.o.Events.Last(ctx)
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	running.Go(func() { s.watch(ctx, last) })
	if s.listener != nil {
		stop := context.AfterFunc(ctx, func() { s.listener.Close() })
		defer stop()
		running.Go(func() { cancel(s.accept(ctx)) })
		_, fingerprint := s.HostKey()
		s.o.Log.Info("SSH is served", "address", s.Addr(), "host_key", fingerprint)
	}
	ready()
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// accept serves the listener until it is closed.
func (s *Server) accept(ctx context.Context) error {
	for {
		nc, err := s.listener.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return engi.Errorf(engi.Internal, "accept SSH connections: %v", err)
		case err != nil: // such as too many open files
			s.o.Log.Warn("accept an SSH connection", "error", err)
			_ = clock.Sleep(ctx, 100*time.Millisecond)
			continue
		}
		from := network(nc.RemoteAddr())
		if !s.begin(from) {
			nc.Close()
			continue
		}
		go func() {
			defer s.work.Done()
			s.serve(context.WithoutCancel(ctx), nc, from, nil)
		}()
	}
}

// A Caller is the owner of a connection that was authenticated elsewhere.
type Caller struct {
	Viewer engi.Viewer // whose objects the caller sees
	Target string      // session, workspace or sandbox; empty means the name of the SSH user
	Actor  string      // ID of the actor; see [engi.WithActor]
}

// Serve serves one connection until it ends or ctx does, and closes it.
func (s *Server) Serve(ctx context.Context, nc net.Conn, who Caller) error {
	if !s.begin(netip.Addr{}) {
		nc.Close()
		return engi.Errorf(engi.Exhausted, "there are too many SSH connections").WithRemedy("try again in a moment")
	}
	defer s.work.Done()
	s.serve(ctx, nc, netip.Addr{}, &who)
	return nil
}

// network returns the address by which connections are counted. A network of 64 bits belongs to one host.
func network(a net.Addr) netip.Addr {
	at, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Addr{}
	}
	addr := at.Addr().Unmap().WithZone("")
	if addr.Is6() {
		if p, err := addr.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return addr
}

// begin counts a connection that is not authenticated yet. It returns false at
// the limit. All connections of this machine, including those of proxies, have the same
// address.
func (s *Server) begin(from netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.starting >= maxStarting || len(s.conns) >= s.o.Connections ||
		from.IsValid() && !from.IsLoopback() && s.each[from] >= maxStartingEach {
		return false
	}
	s.starting++
	s.each[from]++
	s.work.Add(1)
	return true
}

func (s *Server) begun(from netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.starting--
	if s.each[from]--; s.each[from] == 0 {
		delete(s.each, from)
	}
}

// add stores an authenticated connection.
func (s *Server) add(c *conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	owned := 0
	for x := range s.conns {
		if x.viewer == c.viewer {
			owned++
		}
	}
	switch {
	case s.closed:
		return engi.Errorf(engi.Unavailable, "the server stops").WithRemedy("connect again in a moment")
	case owned >= maxOwner, len(s.conns) >= s.o.Connections:
		return engi.Errorf(engi.Exhausted, "there are too many SSH connections: %d of yours, %d in all", owned, len(s.conns)).
			WithRemedy("close some; ssh can share one with ControlMaster")
	}
	s.conns[c] = true
	return nil
}

func (s *Server) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// openChannel counts a channel of a viewer. It returns false at the limit.
func (s *Server) openChannel(viewer engi.Viewer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.channels[viewer] >= maxOwnerChannels {
		return false
	}
	s.channels[viewer]++
	return true
}

func (s *Server) closeChannel(viewer engi.Viewer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.channels[viewer]--; s.channels[viewer] == 0 {
		delete(s.channels, viewer)
	}
}

// admitted reports Denied unless an owner has a valid API key that may use
// sandboxes.
func (s *Server) admitted(ctx context.Context, owner engi.Owner) error {
	all, err := s.o.Callers.List(ctx, owner.Viewer(), engi.Paging{})
	if err != nil {
		return err
	}
	now := time.Now()
	for _, k := range all {
		if k.Owner == owner && k.Revoked.IsZero() && (k.Expires.IsZero() || now.Before(k.Expires)) && k.May(engi.ScopeSandboxes, true) == nil {
			return nil
		}
	}
	return engi.Errorf(engi.Denied, "no API key of this owner may use sandboxes any more").WithRemedy("ask for a key with the scope sandboxes; a holder of the admin key can create it")
}

// watched lists the types of events after which connections may have to end.
var watched = []string{
	engi.EventSSHKeyDeleted, engi.EventKeyRevoked, engi.EventSessionTerminated, engi.EventSessionReleased,
	engi.EventSandboxPrefix + string(engi.Hibernating), engi.EventSandboxPrefix + string(engi.Stopping), engi.EventSandboxPrefix + string(engi.Stopped),
}

// watch follows the event log.
func (s *Server) watch(ctx context.Context, after int64) {
	for ctx.Err() == nil {
		for e, err := range s.o.Events.Follow(ctx, engi.Everyone, engi.EventFilter{After: after, Types: watched}) {
			if err != nil {
				if ctx.Err() == nil {
					s.o.Log.Error("follow events; trying again", "error", err)
				}
				break
			}
			after = e.Seq
			s.mu.Lock()
			for c := range s.conns {
				c.happened(e)
			}
			s.mu.Unlock()
		}
		_ = clock.Sleep(ctx, time.Second)
	}
}
