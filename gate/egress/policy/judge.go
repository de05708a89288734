package policy

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/engi-dev/engi"
)

// Claim judges the host that a client names on a TCP connection to ap that
// Connect allowed with these names. An empty host means it names none.
func (p *Policy) Claim(host string, ap netip.AddrPort, names []string) Verdict {
	return p.claim(host, ap, names, true)
}

// ClaimTLS is Claim for a ClientHello: it also refuses what would hide the
// host (encrypted ClientHello) unless the connection is to be intercepted, and
// DNS over TLS on any port.
func (p *Policy) ClaimTLS(h Hello, ap netip.AddrPort, names []string) Verdict {
	v := p.claim(h.ServerName, ap, names, true)
	if !v.Allowed || p.free(ap) {
		return v
	}
	if h.ECH && !p.Intercepts(h.ServerName) {
		return Verdict{Rule: v.Rule, Reason: "an encrypted ClientHello hides the host it names; switch it off in the client"}
	}
	if slices.Contains(h.ALPN, "dot") || slices.Contains(h.ALPN, "doq") {
		return Verdict{Rule: v.Rule, Reason: reasonResolver}
	}
	return v
}

// ClaimHTTP is Claim for an HTTP request in the clear: it also refuses
// CONNECT, a port in the Host header that is not ap's, and hosts that only a
// grant opens.
func (p *Policy) ClaimHTTP(r Request, ap netip.AddrPort, names []string) Verdict {
	v := p.claim(r.Host, ap, names, false)
	if !v.Allowed || p.free(ap) {
		return v
	}
	if r.Method == "CONNECT" {
		return Verdict{Rule: v.Rule, Reason: "a tunnel through a proxy hides where it leads"}
	}
	if r.Port != 0 && r.Port != ap.Port() {
		return Verdict{Rule: v.Rule, Reason: "the port in the Host header is not the connection's"}
	}
	return v
}

// free reports whether a rule opens the address itself, so that what is said
// on a connection to it decides nothing.
func (p *Policy) free(ap netip.AddrPort) bool {
	a := plain(ap.Addr())
	c, isClosed := p.ground.class(a)
	return p.byAddr(a, c, isClosed, tcp, ap.Port()) != nil
}

func (p *Policy) claim(host string, ap netip.AddrPort, names []string, tls bool) Verdict {
	if p.closed() {
		return p.refuseMode()
	}
	a, port := plain(ap.Addr()), ap.Port()
	if !a.IsValid() {
		return Verdict{Reason: "no address"}
	}
	c, isClosed := p.ground.class(a)
	byAddr := p.byAddr(a, c, isClosed, tcp, port)
	var open Verdict
	if p.mode == engi.NetworkOpen && !isClosed {
		open = p.open(a, tcp, port, nil, false)
	}
	literal := isLiteral(host)
	if host == "" || literal {
		switch {
		case byAddr != nil:
			return allowed(byAddr)
		case open.Allowed:
			return Verdict{Allowed: true, Reason: "mode open"}
		case literal:
			return Verdict{Reason: "the client names an address, and no rule opens it"}
		default:
			return Verdict{Reason: "the client names no host, and the address alone is not allowed"}
		}
	}
	name, problem := canonical(host)
	if problem != "" {
		return Verdict{Reason: "the name " + problem}
	}
	bound := slices.ContainsFunc(names, func(n string) bool {
		n, problem := canonical(n)
		return problem == "" && n == name
	})
	if !bound && p.Intercepts(name) {
		return Verdict{Reason: reasonUnbound}
	}
	rule := p.allow.byName(name, tcp, port)
	grant, granted := p.grants.opens(name, port)
	granted = granted && port != portDNS && port != portDoT
	if bound && (!isClosed || p.ground.isStatic(name, a)) {
		switch {
		case rule != nil:
			return allowed(rule)
		case granted && tls:
			return Verdict{Allowed: true, Rule: grant, Reason: "allowed by a grant"}
		}
	}
	if byAddr != nil {
		return allowed(byAddr)
	}
	if open.Allowed {
		if r := p.deny.byName(name, tcp, port); r != nil && rule == nil {
			return refused(r, "the name is denied")
		}
		return Verdict{Allowed: true, Reason: "mode open"}
	}
	switch {
	case isClosed:
		return p.refuseClosed(c)
	case rule != nil:
		return refused(rule, reasonUnbound)
	case granted && bound:
		return Verdict{Rule: grant, Reason: "a grant opens TLS only"}
	case granted:
		return Verdict{Rule: grant, Reason: reasonUnbound}
	default:
		return Verdict{Reason: "the client names a host that no rule opens"}
	}
}

// isLiteral reports whether a host is an address.
func isLiteral(host string) bool {
	n := len(host)
	if n == 0 || !strings.Contains(host, ":") && (host[n-1] < '0' || host[n-1] > '9') {
		return false
	}
	_, err := netip.ParseAddr(host)
	return err == nil
}

const reasonUnbound = "the address was not given out for the name the client says"
