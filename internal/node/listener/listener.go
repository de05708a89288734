// Package listener listens on the one or two addresses of a node, with TLS if it
// is configured, and shuts down gracefully.
package listener

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/cert"
)

// drainTimeout is the maximum time for requests to complete at shutdown.
const drainTimeout = 10 * time.Second

// patience is the time for which a client may leave received data unacknowledged. Without it, a
// write without a deadline would wait for ever for a client that reads nothing.
const patience = 2 * time.Minute

// Options configures a [Listener].
type Options struct {
	Listen string       // address and port
	Secure string       // second address, for HTTPS, so that Listen serves plain HTTP; may be empty
	TLS    bool         // HTTPS is served
	Cert   cert.Options // certificates; Open sets ACME.Port

	Conns        int // maximum connections at the same time; at the limit, idle ones are closed; 0 means no limit
	ConnsPerHost int // maximum connections from one address other than this machine's; 0 means no limit
	Log          *slog.Logger

	patience time.Duration // for tests; 0 means the constant patience
}

// A Listener listens on the addresses of a node. It is safe for concurrent use.
type Listener struct {
	listeners []net.Listener // Options.Listen, then Options.Secure
	secure    net.Listener   // the listener with TLS; nil without TLS
	certs     *cert.Manager  // nil without TLS
	limiter   *limiter
	patience  time.Duration
	log       *slog.Logger
}

// Open opens the addresses; requests are answered once Serve runs. It reports Conflict for
// an address in use, and Invalid for unusable certificates. The caller
// must close the listener.
func Open(ctx context.Context, o Options) (_ *Listener, err error) {
	l := &Listener{limiter: &limiter{most: o.Conns, each: o.ConnsPerHost, perIP: map[netip.Addr]int{}}, patience: cmp.Or(o.patience, patience), log: o.Log}
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	if err := l.listen(ctx, o.Listen, "--listen"); err != nil || !o.TLS {
		return l, err
	}
	if o.Secure != "" {
		if err := l.listen(ctx, o.Secure, "--set tls.listen"); err != nil {
			return nil, err
		}
	}
	last := len(l.listeners) - 1
	o.Cert.ACME.Port = cert.PortOf(l.listeners[last].Addr())
	if l.certs, err = cert.Open(o.Cert); err != nil {
		return nil, err
	}
	l.listeners[last] = tls.NewListener(l.listeners[last], l.certs.Config())
	l.secure = l.listeners[last]
	return l, nil
}

func (l *Listener) listen(ctx context.Context, address, flag string) error {
	ln, err := (&net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if cerr := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(l.patience.Milliseconds()))
		}); cerr != nil {
			return cerr
		}
		return err
	}}).Listen(ctx, "tcp", address)
	if err != nil {
		return engi.Errorf(engi.Conflict, "listen on %s: %v", address, strings.TrimPrefix(err.Error(), "listen tcp ")).
			WithRemedy("choose another address with %s, like 127.0.0.1:0 for any free port", flag)
	}
	l.listeners = append(l.listeners, l.limiter.limit(ln))
	return nil
}

// Close stops listening.
func (l *Listener) Close() {
	for _, ln := range l.listeners {
		ln.Close()
	}
}

// URL returns the base URL of the node for clients on the same machine.
func (l *Listener) URL() string {
	scheme := "http"
	if l.listeners[0] == l.secure {
		scheme = "https"
	}
	addr := l.listeners[0].Addr().String()
	if host, port, err := net.SplitHostPort(addr); err == nil {
		if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
			addr = net.JoinHostPort("127.0.0.1", port)
		}
	}
	return scheme + "://" + addr
}

// Public returns the scheme and port for clients on other machines: HTTPS if it is
// served.
func (l *Listener) Public() (scheme, port string) {
	scheme, ln := "http", l.listeners[0]
	if l.secure != nil {
		scheme, ln = "https", l.secure
	}
	_, port, _ = net.SplitHostPort(ln.Addr().String()) // the address of a TCP listener is valid
	return scheme, port
}

// Certificates renews certificates until ctx ends.
func (l *Listener) Certificates(ctx context.Context, ready func()) error {
	if l.certs == nil {
		ready()
		<-ctx.Done()
		return nil
	}
	return l.certs.Run(ctx, ready)
}

// Serve serves requests with s until ctx ends. It then calls leave, which must end
// requests that would not end on their own, and waits for the others.
func (l *Listener) Serve(ctx context.Context, s *http.Server, leave, ready func()) error {
	watch(s)
	failed := make(chan error, len(l.listeners))
	for _, ln := range l.listeners {
		go func() { failed <- s.Serve(ln) }()
	}
	ready()
	waiting := len(l.listeners)
	var broken error
	select {
	case broken = <-failed:
		waiting--
	case <-ctx.Done():
	}
	leave()
	rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	if err := s.Shutdown(rest); err != nil {
		l.log.Warn("requests were cut off", "error", err)
		s.Close()
	}
	l.limiter.closing.Wait()
	for range waiting {
		if err := <-failed; broken == nil && !errors.Is(err, http.ErrServerClosed) {
			broken = err
		}
	}
	if broken != nil {
		return engi.Errorf(engi.Internal, "serve: %v", broken)
	}
	return nil
}
