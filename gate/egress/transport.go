package egress

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/gate/egress/policy"
)

// Transport returns a transport for requests on an owner's behalf, which reach
// what the policy lets a sandbox reach: each connection is judged by name and
// address. Decisions are logged without a sandbox. Grants are not applied. It
// reports what Check does.
func (g *Gateway) Transport(owner engi.Owner, p engi.NetworkPolicy) (http.RoundTripper, error) {
	compiled, err := policy.Compile(p, g.node())
	if err != nil {
		return nil, err
	}
	log := g.journal.NewLog()
	return &http.Transport{
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
				e.Address = netip.AddrPort{} // through a proxy
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
	}, nil
}
