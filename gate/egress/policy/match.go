package policy

import (
	"net/netip"

	"github.com/engi-dev/engi"
)

// A Policy is a compiled policy. It is immutable and safe for concurrent use.
// Names given to its methods may be in any case and end in a dot; those that
// are not valid are refused.
type Policy struct {
	source  engi.NetworkPolicy
	mode    engi.Network
	ground  ground
	allow   *table
	deny    *table
	grants  *hostIndex
	headers *hostIndex
	proxy   *Proxy
	denies  bool // some name is denied, so what names a host must show it
}

// Mode returns the mode in force; never empty.
func (p *Policy) Mode() engi.Network { return p.mode }

// Source returns the policy this was compiled from, with Mode filled in. It is
// shared: do not change what it points to.
func (p *Policy) Source() engi.NetworkPolicy { return p.source }

// Proxy returns the upstream proxy, or nil.
func (p *Policy) Proxy() *Proxy { return p.proxy }

// Static returns the operator's fixed addresses of a name; ok is false if it
// has none. It does not say that the name is allowed.
func (p *Policy) Static(name string) (addrs []netip.Addr, ok bool) {
	name, problem := canonical(name)
	if problem != "" {
		return nil, false
	}
	addrs, ok = p.ground.static[name]
	return addrs, ok
}

// maxLookup bounds names that are not named exactly: what is longer is more
// likely data than a name.
const maxLookup = 160

// Lookup judges a DNS question for a name. Names of the sandbox's own group
// (NAME.GROUP.internal) are the gateway's to answer before it asks.
func (p *Policy) Lookup(name string) Verdict {
	if p.closed() {
		return p.refuseMode()
	}
	name, problem := canonical(name)
	if problem != "" {
		return Verdict{Reason: "the name " + problem}
	}
	if r := p.allow.names(name, false); r != nil {
		if len(name) > maxLookup && r.host == "" {
			return Verdict{Rule: r.text, Reason: "the name is too long for a rule that does not name it in full"}
		}
		return allowed(r)
	}
	if g, ok := p.grants.opens(name, 0); ok {
		return Verdict{Allowed: true, Rule: g, Reason: "allowed by a grant"}
	}
	var open *rule
	if p.mode != engi.NetworkOpen {
		if open = p.allow.of(p.allow.all, false); open == nil {
			return Verdict{Reason: "no rule names it"}
		}
	}
	if r := p.deny.names(name, true); r != nil {
		return refused(r, "the name is denied")
	}
	if r := p.deny.of(p.deny.all, true); r != nil {
		return refused(r, "everything is denied that is not allowed")
	}
	switch _, static := p.ground.static[name]; {
	case static:
	case isSpecial(name):
		return Verdict{Reason: "the name is not one of the public internet; only a rule that names it opens it"}
	case isResolverName(name):
		return Verdict{Reason: "another resolver; only a rule that names it opens it"}
	case len(name) > maxLookup:
		return Verdict{Reason: "the name is too long for one that no rule names"}
	}
	if open != nil {
		return allowed(open)
	}
	return Verdict{Allowed: true, Reason: "mode open"}
}

// Answer judges one address in the DNS answer for a name that Lookup allowed.
// An address it refuses must be left out of the answer: that is what makes
// rebinding to private addresses fail, and shows it in the log.
func (p *Policy) Answer(name string, a netip.Addr) Verdict {
	if p.closed() {
		return p.refuseMode()
	}
	name, problem := canonical(name)
	if problem != "" {
		return Verdict{Reason: "the name " + problem}
	}
	a = plain(a)
	if !a.IsValid() {
		return Verdict{Reason: "no address"}
	}
	c, isClosed := p.ground.class(a)
	switch {
	case !isClosed:
		return Verdict{Allowed: true, Reason: "a public address"}
	case p.ground.isStatic(name, a):
		return Verdict{Allowed: true, Reason: "fixed by the operator"}
	}
	if r := p.allow.holds(a); r != nil && p.ground.isOpened(a, c) {
		return allowed(r)
	}
	return Verdict{Reason: "the name leads to " + c.name}
}

// Connect judges a connection or a first datagram. proto is tcp, udp or icmp
// (port 0); names are those our DNS answered with ap's address in this
// sandbox and whose time to live has not passed. Addresses of the resolver and
// of peers in the group are the gateway's to know before it asks.
func (p *Policy) Connect(proto string, ap netip.AddrPort, names []string) Verdict {
	if p.closed() {
		return p.refuseMode()
	}
	pr, a, port := protoNamed(proto), plain(ap.Addr()), ap.Port()
	switch {
	case pr == 0:
		return Verdict{Reason: "only tcp, udp and icmp leave the sandbox"}
	case !a.IsValid():
		return Verdict{Reason: "no address"}
	case port == 0 && pr != icmp:
		return Verdict{Reason: "no port"}
	}
	c, isClosed := p.ground.class(a)
	meets := p.intercepted(names)

	r := p.byAddr(a, c, isClosed, pr, port)
	if r != nil && !(r.all && p.hidesHost(pr, port, meets)) {
		v := allowed(r)
		if pr == tcp && meets {
			v.Check = CheckAny
		}
		return v
	}
	named := p.byNames(a, isClosed, pr, port, names)
	if p.mode == engi.NetworkOpen && !isClosed {
		if v := p.open(a, pr, port, names, meets); !named.Allowed || v.Allowed && v.Check < named.Check {
			return v
		}
	}
	switch {
	case named.Allowed:
		return named
	case isClosed:
		return p.refuseClosed(c)
	default:
		return p.refuseUnnamed(a, pr, port, names, r != nil)
	}
}

// open judges a connection to a public address in mode open.
func (p *Policy) open(a netip.Addr, pr proto, port uint16, names []string, meets bool) Verdict {
	if isResolver(a, pr, port) {
		return Verdict{Reason: reasonResolver}
	}
	if r := p.denied(a, pr, port); r != nil {
		return refused(r, "the address is denied")
	}
	if r := p.deniedNames(pr, port, names); r != nil {
		return refused(r, "the name is denied")
	}
	if p.hidesHost(pr, port, meets) {
		return Verdict{Reason: reasonQUIC}
	}
	v := Verdict{Allowed: true, Reason: "mode open"}
	if pr == tcp && (p.denies || meets) {
		v.Check = CheckAny
	}
	return v
}

const (
	reasonResolver = "another resolver; only a rule with its address and port opens it"
	reasonQUIC     = "QUIC hides the host it names; programs fall back to TCP"
)

// byAddr returns the rule that allows a connection whatever its name.
func (p *Policy) byAddr(a netip.Addr, c class, isClosed bool, pr proto, port uint16) *rule {
	r := p.allow.byAddr(a, pr, port)
	switch {
	case r != nil && r.net.Bits() > 0:
		if isClosed && !p.ground.isOpened(a, c) {
			return nil
		}
		return r
	case isClosed:
		return nil
	case r == nil:
		r = p.allow.any(pr, port)
	}
	// A rule for everything does not mean resolvers, unless it says their port.
	if r != nil && isResolver(a, pr, port) && (!r.ported || port == portHTTPS) {
		return nil
	}
	return r
}

// byNames judges by the names the address was given out for. The check is the
// weakest that one of them asks for: whichever the client means, it has to
// name it.
func (p *Policy) byNames(a netip.Addr, isClosed bool, pr proto, port uint16, names []string) Verdict {
	var best Verdict
	for _, n := range names {
		n, problem := canonical(n)
		if problem != "" || isClosed && !p.ground.isStatic(n, a) {
			continue
		}
		if r := p.allow.byName(n, pr, port); r != nil {
			v := allowed(r)
			switch {
			case pr != tcp:
				return v
			case r.ported && port != portHTTP && port != portHTTPS:
				v.Check = CheckAny
			default:
				v.Check = CheckWeb
			}
			if !best.Allowed || v.Check < best.Check {
				best = v
			}
		}
		if best.Allowed || pr != tcp || port == portDNS || port == portDoT {
			continue
		}
		if g, ok := p.grants.opens(n, port); ok {
			best = Verdict{Allowed: true, Check: CheckTLS, Rule: g, Reason: "allowed by a grant"}
		}
	}
	return best
}

// denied returns the deny rule for an address.
func (p *Policy) denied(a netip.Addr, pr proto, port uint16) *rule {
	if r := p.deny.byAddr(a, pr, port); r != nil {
		return r
	}
	return p.deny.any(pr, port)
}

// deniedNames returns a deny rule if every name is denied.
func (p *Policy) deniedNames(pr proto, port uint16, names []string) (last *rule) {
	if !p.denies {
		return nil
	}
	for _, n := range names {
		n, problem := canonical(n)
		if problem != "" {
			continue
		}
		if last = p.deny.byName(n, pr, port); last == nil {
			return nil
		}
	}
	return last
}

// hidesHost reports whether a datagram could be QUIC to a host that must show
// its name: one that is denied, or one that is to be intercepted.
func (p *Policy) hidesHost(pr proto, port uint16, meets bool) bool {
	return pr == udp && (port == portHTTPS || port == portHTTP) && (p.denies && p.mode == engi.NetworkOpen || meets)
}

// intercepted reports whether one of names is intercepted.
func (p *Policy) intercepted(names []string) bool {
	if p.grants.empty() && p.headers.empty() {
		return false
	}
	for _, n := range names {
		if p.Intercepts(n) {
			return true
		}
	}
	return false
}

// closed reports whether nothing at all is reachable from here.
func (p *Policy) closed() bool {
	return p.mode == engi.NetworkNone || p.mode == engi.NetworkIsolated
}

func (p *Policy) refuseMode() Verdict {
	if p.mode == engi.NetworkIsolated {
		return Verdict{Reason: "mode isolated: only peers of its group"}
	}
	return Verdict{Reason: "mode none: no network"}
}

func (p *Policy) refuseClosed(c class) Verdict {
	return Verdict{Reason: closedReasons[c.name]}
}

// closedReasons are made once, so that a flood of refused packets costs no
// memory.
var closedReasons = func() map[string]string {
	m := map[string]string{}
	for _, c := range append(closed, class{name: ownName}, class{name: metadataName}, class{name: nearName}) {
		m[c.name] = "it is " + c.name + "; such are closed unless the operator opens it and a rule names it by address"
	}
	return m
}()

// refuseUnnamed says what is missing in mode restricted.
func (p *Policy) refuseUnnamed(a netip.Addr, pr proto, port uint16, names []string, quic bool) Verdict {
	if quic {
		return Verdict{Reason: reasonQUIC}
	}
	for _, n := range names {
		n, problem := canonical(n)
		if problem != "" {
			continue
		}
		switch r := p.allow.names(n, false); {
		case r == nil:
		case pr == icmp:
			return Verdict{Rule: r.text, Reason: "the rule does not mean icmp; one with icmp:// would"}
		case pr == udp && p.allow.byName(n, tcp, port) != nil:
			return Verdict{Rule: r.text, Reason: "by name, udp needs a rule that says udp://; programs that tried QUIC fall back to TCP"}
		case port == portDNS || port == portDoT:
			return Verdict{Rule: r.text, Reason: "another resolver; only a rule with its port opens it"}
		default:
			return Verdict{Rule: r.text, Reason: "the rule is for other ports or another protocol"}
		}
	}
	switch {
	case isResolver(a, pr, port) && port != portHTTPS:
		return Verdict{Reason: reasonResolver}
	case len(names) == 0:
		return Verdict{Reason: "no rule names the address, and no allowed name led to it"}
	default:
		return Verdict{Reason: "no rule names it"}
	}
}

// Upstream judges an address that the node itself connects to because of this
// policy (its upstream proxy): public ones, and closed ones the operator opened.
func (p *Policy) Upstream(a netip.Addr) Verdict {
	a = plain(a)
	if !a.IsValid() {
		return Verdict{Reason: "no address"}
	}
	c, isClosed := p.ground.class(a)
	switch {
	case !isClosed:
		return Verdict{Allowed: true, Reason: "a public address"}
	case p.ground.isOpened(a, c):
		return Verdict{Allowed: true, Reason: "opened by the operator"}
	}
	return p.refuseClosed(c)
}

func allowed(r *rule) Verdict {
	return Verdict{Allowed: true, Rule: r.text, Reason: "allowed by a rule"}
}

func refused(r *rule, reason string) Verdict {
	return Verdict{Rule: r.text, Reason: reason}
}
