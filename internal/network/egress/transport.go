package egress

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/policy"
)

// Transport returns a transport for requests on an owner's behalf. They reach the
// same destinations as a sandbox with this policy: each connection is judged by name and
// address. Decisions are logged without a sandbox. Grants are not applied, and
// requests to hosts with request rules are refused. Transport reports the same errors as Check.
func (g *Gateway) Transport(owner engi.Owner, p engi.NetworkPolicy) (http.RoundTripper, error) {
	compiled, err := policy.Compile(p, g.node())
	if err != nil {
		return nil, err
	}
	log := g.journal.NewLog()
	return &transport{policy: compiled, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			host, text, err := net.SplitHostPort(address)
			if err != nil {
				return nil, engi.Errorf(engi.Invalid, "fetch from %.100q: %v", address, err)
			}
			port, err := strconv.ParseUint(text, 10, 16)
			if err != nil {
				return nil, engi.Errorf(engi.Invalid, "fetch from %.100q: %v", address, err)
			}
			c, err := g.dialName(ctx, compiled, host, uint16(port))
			e := engi.NetworkRecord{Time: time.Now(), Owner: owner, Kind: engi.NetworkConnect, Allowed: err == nil, Protocol: "tcp", Host: printable(host)}
			if err != nil {
				e.Reason = err.Error()
			} else if e.Address, err = netip.ParseAddrPort(c.RemoteAddr().String()); err != nil {
				e.Address = netip.AddrPort{} // the address is unknown behind a proxy
			}
			g.metrics.decided(e)
			log.Add(e)
			if !e.Allowed {
				return nil, err
			}
			return c, nil
		},
		TLSClientConfig:       &tls.Config{RootCAs: g.o.Roots, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2:     true,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: time.Minute,
		IdleConnTimeout:       time.Minute,
		MaxIdleConns:          32,
	}}, nil
}

// A transport refuses requests that only an interceptor could judge.
type transport struct {
	*http.Transport
	policy *policy.Policy
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	for _, host := range []string{r.URL.Hostname(), (&url.URL{Host: r.Host}).Hostname()} {
		if t.policy.Judges(host) {
			if r.Body != nil {
				r.Body.Close()
			}
			return nil, engi.Errorf(engi.Denied, "request rules apply to %s, but only requests from sandboxes can be checked", printable(host)).
				WithRemedy("send the request from a program in a sandbox")
		}
	}
	return t.Transport.RoundTrip(r)
}
