// Package listener is a node's doors: the one or two addresses it listens on,
// with TLS where that was chosen, and the loop that answers requests until the
// node leaves. It knows nothing of what is answered.
package listener

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/gate/cert"
)

// patience is how long requests in hand may take to end.
const patience = 10 * time.Second

// Options say where to listen.
type Options struct {
	Listen string       // address and port
	Secure string       // the same for https beside http on the other; empty means one address
	TLS    bool         // whether https is served
	Cert   cert.Options // with which certificates; Port is filled in
	Log    *slog.Logger
}

// A Front listens. It is safe for concurrent use.
type Listener struct {
	listeners []net.Listener // the one that was asked for first is the first
	secure    net.Listener   // one of them; nil without TLS
	keeper    *cert.Manager  // nil without TLS
	log       *slog.Logger
}

// Open listens; nothing is answered before Serve. It reports Conflict for an
// address that is taken, Invalid for certificates that cannot be used. The
// caller closes it.
func Open(ctx context.Context, o Options) (_ *Listener, err error) {
	f := &Listener{log: o.Log}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if err := f.listen(ctx, o.Listen, "--listen"); err != nil || !o.TLS {
		return f, err
	}
	if o.Secure != "" {
		if err := f.listen(ctx, o.Secure, "--set tls.listen"); err != nil {
			return nil, err
		}
	}
	last := len(f.listeners) - 1
	o.Cert.ACME.Port = cert.PortOf(f.listeners[last].Addr())
	if f.keeper, err = cert.Open(o.Cert); err != nil {
		return nil, err
	}
	f.listeners[last] = tls.NewListener(f.listeners[last], f.keeper.Config())
	f.secure = f.listeners[last]
	return f, nil
}

func (f *Listener) listen(ctx context.Context, address, flag string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return engi.Errorf(engi.Conflict, "listen on %s: %v", address, strings.TrimPrefix(err.Error(), "listen tcp ")).
			WithRemedy("choose another address with %s, like 127.0.0.1:0 for any free port", flag)
	}
	f.listeners = append(f.listeners, l)
	return nil
}

// Close stops listening.
func (f *Listener) Close() {
	for _, l := range f.listeners {
		l.Close()
	}
}

// URL is how to reach the node from its own machine.
func (f *Listener) URL() string {
	scheme := "http"
	if f.listeners[0] == f.secure {
		scheme = "https"
	}
	addr := f.listeners[0].Addr().String()
	if host, port, err := net.SplitHostPort(addr); err == nil {
		if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
			addr = net.JoinHostPort("127.0.0.1", port)
		}
	}
	return scheme + "://" + addr
}

// Outside is the scheme and the port of what others reach: https if it is
// served.
func (f *Listener) Outside() (scheme, port string) {
	scheme, l := "http", f.listeners[0]
	if f.secure != nil {
		scheme, l = "https", f.secure
	}
	_, port, _ = net.SplitHostPort(l.Addr().String()) // of a TCP listener
	return scheme, port
}

// Certificates keeps certificates valid until ctx ends.
func (f *Listener) Certificates(ctx context.Context, ready func()) error {
	if f.keeper == nil {
		ready()
		<-ctx.Done()
		return nil
	}
	return f.keeper.Run(ctx, ready)
}

// Serve answers requests with s until ctx ends, calls leave, which ends what
// would not end by itself, and then lets those in hand end.
func (f *Listener) Serve(ctx context.Context, s *http.Server, leave, ready func()) error {
	failed := make(chan error, len(f.listeners))
	for _, l := range f.listeners {
		go func() { failed <- s.Serve(l) }()
	}
	ready()
	waiting := len(f.listeners)
	var broken error
	select {
	case broken = <-failed:
		waiting--
	case <-ctx.Done():
	}
	leave()
	rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if err := s.Shutdown(rest); err != nil {
		f.log.Warn("requests were cut off", "err", err)
		s.Close()
	}
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
