package node

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/rest"
	"github.com/engi-dev/engi/gate/cert"
)

// listen opens the node's one or two addresses; the first is the one that
// Endpoint names.
func (n *Node) listen(ctx context.Context) (err error) {
	c := n.config
	plain, err := n.listenOn(ctx, c.Listen, "--listen")
	if err != nil || !c.TLS.On() {
		return err
	}
	at, secure := 0, plain
	if c.TLS.Listen != "" {
		if secure, err = n.listenOn(ctx, c.TLS.Listen, "--set tls.listen="); err != nil {
			return err
		}
		at = 1
	}
	n.certs, err = cert.Open(cert.Options{
		Cert: c.TLS.Cert, Key: c.TLS.Key, Log: n.log.With("room", "tls"),
		ACME: cert.ACME{
			Names: c.TLS.ACMENames, Email: c.TLS.ACMEEmail, Directory: c.TLS.ACMEDirectory,
			Dir: filepath.Join(c.DataDir, "acme"), Port: cert.PortOf(secure.Addr()),
		},
	})
	if err != nil {
		return err
	}
	n.listeners[at] = tls.NewListener(secure, n.certs.Config())
	return nil
}

func (n *Node) listenOn(ctx context.Context, address, flag string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, engi.Errorf(engi.Conflict, "listen on %s: %v", address, strings.TrimPrefix(err.Error(), "listen tcp ")).
			WithRemedy("choose another address with %s, like 127.0.0.1:0 for any free port", flag)
	}
	n.listeners = append(n.listeners, l)
	n.closers.add(func() { l.Close() })
	return l, nil
}

// Endpoint says how to reach the node.
func (n *Node) Endpoint() Endpoint {
	scheme := "http"
	if n.config.TLS.On() && n.config.TLS.Listen == "" {
		scheme = "https"
	}
	addr := n.listeners[0].Addr().String()
	if host, port, err := net.SplitHostPort(addr); err == nil {
		if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
			addr = net.JoinHostPort("127.0.0.1", port)
		}
	}
	return Endpoint{
		URL: scheme + "://" + addr, PID: os.Getpid(), Version: n.version, Started: n.started,
		DataDir: n.config.DataDir, KeyFile: filepath.Join(n.config.DataDir, keyName),
	}
}

// serve answers requests until ctx ends, then lets those in hand end.
func (n *Node) serve(ctx context.Context, ready func()) error {
	s := rest.NewServer(n.handler, n.log.With("room", "http"))
	if err := writeEndpoint(n.config.DataDir, n.Endpoint()); err != nil {
		return err
	}
	defer os.Remove(filepath.Join(n.config.DataDir, endpointName))
	failed := make(chan error, len(n.listeners))
	for _, l := range n.listeners {
		go func() { failed <- s.Serve(l) }()
	}
	ready()
	waiting := len(n.listeners)
	var broken error
	select {
	case broken = <-failed:
		waiting--
	case <-ctx.Done():
	}
	n.leave()
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := s.Shutdown(patience); err != nil {
		n.log.Warn("requests were cut off", "err", err)
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
