package egress

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/intercept"
	"github.com/engi-dev/engi/internal/network/egress/policy"
)

// handlePackages serves a connection to the gateway itself, whose address the gateway's DNS
// gives out for package registries. It dials no destination.
func (s *sandbox) handlePackages(ctx context.Context, q *tcp.ForwarderRequest, c *conn) {
	in := s.accept(q, c)
	if in == nil {
		return
	}
	defer in.abort()
	stop := context.AfterFunc(ctx, in.ep.Abort)
	defer stop()
	in.SetReadDeadline(time.Now().Add(s.g.o.ClaimTimeout))
	first, err := s.readClaim(c, in)
	in.SetReadDeadline(time.Time{})
	if err != nil {
		return
	}
	e := engi.NetworkRecord{Kind: engi.NetworkClaim, Protocol: "tcp", Host: first.host, Address: c.address}
	if e.Rule, e.Allowed = c.rules.policy.Packages(first.host); !e.Allowed {
		e.Reason = "the gateway serves nothing but DNS and the registries of the policy's packages"
		s.logEvent(c.rules, e)
		return
	}
	host, err := policy.CheckName(first.host)
	if err != nil {
		return // unreachable: Packages knows only names
	}
	s.mu.Lock()
	c.host = host
	s.mu.Unlock()
	defer s.logClose(c, host)
	metered := &meteredConn{Conn: &prefixedConn{Conn: in, prefix: first.bytes}, sandbox: s, conn: c, ctx: ctx}
	err = s.g.interceptor.Serve(ctx, metered, intercept.Target{Sandbox: s.id, Host: host, Port: c.address.Port(), TLS: first.protocol == policy.TLS, Address: c.address,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.servePackage(c, e, w, r) })})
	if err != nil {
		s.g.log.Debug("a connection to a registry ended", "sandbox", s.id, "host", host, "error", err)
	}
}

// servePackage answers one request and logs it.
func (s *sandbox) servePackage(c *conn, e engi.NetworkRecord, w http.ResponseWriter, r *http.Request) {
	answer := &statusWriter{ResponseWriter: w, status: http.StatusOK}
	defer func() {
		e.Kind, e.Reason = engi.NetworkRequest, fmt.Sprintf("%.10s %.200s: %d", printable(r.Method), printable(r.URL.EscapedPath()), answer.status)
		if why := w.Header().Get("X-Engi-Error"); why != "" {
			e.Allowed, e.Reason = false, e.Reason+", "+why
		}
		s.logEvent(c.rules, e)
	}()
	s.g.o.Packages.Serve(c.rules.owner, answer, r)
}

type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
