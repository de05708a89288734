package policy

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// Claim judges the host that a client names on a TCP connection to ap, which
// Connect allowed with these names. An empty host means that the client names none.
func (p *Policy) Claim(host string, ap netip.AddrPort, names []string) Verdict {
	return p.claim(host, ap, names, true)
}

// ClaimTLS does the same as Claim for a ClientHello. It also refuses encrypted ClientHellos,
// which hide the host, unless the connection is intercepted, and DNS over TLS on
// any port.
func (p *Policy) ClaimTLS(h Hello, ap netip.AddrPort, names []string) Verdict {
	v := p.claim(h.ServerName, ap, names, true)
	if !v.Allowed || p.allowedByAddr(ap) && !p.anyJudged(names) {
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

// ClaimHTTP does the same as Claim for a plain HTTP request. It also refuses CONNECT, a port in
// the Host header that is not ap's, and hosts that only a grant allows.
func (p *Policy) ClaimHTTP(r Request, ap netip.AddrPort, names []string) Verdict {
	v := p.claim(r.Host, ap, names, false)
	if !v.Allowed || p.allowedByAddr(ap) && !p.anyJudged(names) {
		return v
	}
	if r.Method == "CONNECT" {
		return Verdict{Rule: v.Rule, Reason: "a tunnel through a proxy hides where it leads"}
	}
	if r.Port != 0 && r.Port != ap.Port() {
		return Verdict{Rule: v.Rule, Reason: "the port in the Host header is not that of the connection"}
	}
	return v
}

// allowedByAddr reports whether a rule allows the address itself, whatever host the
// client claims.
func (p *Policy) allowedByAddr(ap netip.AddrPort) bool {
	a := canonicalAddr(ap.Addr())
	c, closed := p.networks.closedRange(a)
	return p.byAddr(a, c, closed, tcp, ap.Port()) != nil
}

func (p *Policy) claim(host string, ap netip.AddrPort, names []string, tls bool) Verdict {
	if p.noNetwork() {
		return p.refuseMode()
	}
	a, port := canonicalAddr(ap.Addr()), ap.Port()
	if !a.IsValid() {
		return Verdict{Reason: "no address"}
	}
	c, closed := p.networks.closedRange(a)
	byAddr := p.byAddr(a, c, closed, tcp, port)
	var open Verdict
	if p.mode == engi.NetworkOpen && !closed {
		open = p.open(a, tcp, port, nil, false)
	}
	literal := isLiteral(host)
	judged := p.anyJudged(names)
	if host == "" || literal {
		switch {
		case judged:
			return Verdict{Reason: reasonJudged}
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
	if !bound && (judged || p.Intercepts(name)) {
		return Verdict{Reason: reasonUnbound}
	}
	rule := p.allow.byName(name, tcp, port)
	grant, granted := p.granting(name, port)
	granted = granted && port != portDNS && port != portDoT
	if bound && (!closed || p.networks.isStatic(name, a)) {
		switch {
		case rule != nil:
			return allowed(rule)
		case granted && tls:
			return grant
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
	case closed:
		return p.refuseClosed(c)
	case rule != nil:
		return refused(rule, reasonUnbound)
	case granted && bound:
		return Verdict{Rule: grant.Rule, Reason: "a grant allows TLS only"}
	case granted:
		return Verdict{Rule: grant.Rule, Reason: reasonUnbound}
	default:
		return Verdict{Reason: "the client names a host that no rule opens"}
	}
}

// isLiteral reports whether a host is an IP address.
func isLiteral(host string) bool {
	n := len(host)
	if n == 0 || !strings.Contains(host, ":") && (host[n-1] < '0' || host[n-1] > '9') {
		return false
	}
	_, err := netip.ParseAddr(host)
	return err == nil
}

const reasonJudged = "the client names no host, and request rules judge the one that the address was given out for"

const reasonUnbound = "the address was not given out for the name that the client claims"
