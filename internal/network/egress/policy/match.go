package policy

import (
	"net/netip"

	"github.com/engi-dev/engi/internal/engi"
)

// A Policy is a compiled policy. It is immutable and safe for concurrent use.
// Names passed to its methods may be in any case and may end in a dot; invalid names
// are refused.
type Policy struct {
	source   engi.NetworkPolicy
	mode     engi.Network
	networks hostNetworks
	allow    *table
	deny     *table
	grants   *hostIndex
	headers  *hostIndex
	requests requestRules
	proxy    *Proxy
	denies   bool              // some names are denied, so clients must show the name they use
	packages map[string]string // rules by the hosts of registries that the node serves itself
}

// Mode returns the mode, which is never empty.
func (p *Policy) Mode() engi.Network { return p.mode }

// Source returns the policy that p was compiled from, with Mode filled in. It is
// shared; do not modify its contents.
func (p *Policy) Source() engi.NetworkPolicy { return p.source }

// Proxy returns the upstream proxy, or nil.
func (p *Policy) Proxy() *Proxy { return p.proxy }

// Static returns the operator's fixed addresses for a name. ok is false if there
// are none. It does not mean that the name is allowed.
func (p *Policy) Static(name string) (addrs []netip.Addr, ok bool) {
	name, problem := canonical(name)
	if problem != "" {
		return nil, false
	}
	addrs, ok = p.networks.static[name]
	return addrs, ok
}

// maxLookup bounds the length of names that no rule names in full: longer names are
// more likely to carry data.
const maxLookup = 160

// Lookup judges a DNS query for a name. The gateway answers names of the sandbox's
// own group (NAME.GROUP.internal) without calling Lookup.
func (p *Policy) Lookup(name string) Verdict {
	if p.noNetwork() {
		return p.refuseMode()
	}
	name, problem := canonical(name)
	if problem != "" {
		return Verdict{Reason: "the name " + problem}
	}
	if r := p.allow.ruleFor(name, false); r != nil {
		if len(name) > maxLookup && r.host == "" {
			return Verdict{Rule: r.text, Reason: "the name is too long for a rule that does not name it in full"}
		}
		return allowed(r)
	}
	if v, ok := p.granting(name, 0); ok {
		return v
	}
	var open *rule
	if p.mode != engi.NetworkOpen {
		if open = p.allow.first(p.allow.all, false); open == nil {
			return Verdict{Reason: "no rule names it"}
		}
	}
	if r := p.deny.ruleFor(name, true); r != nil {
		return refused(r, "the name is denied")
	}
	if r := p.deny.first(p.deny.all, true); r != nil {
		return refused(r, "everything is denied that is not allowed")
	}
	switch _, static := p.networks.static[name]; {
	case static:
	case isSpecial(name):
		return Verdict{Reason: "the name is not a public one; only a rule that names it opens it"}
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

// Answer judges one address in the DNS answer for a name that Lookup allowed. A
// refused address must be left out of the answer, so that rebinding to private
// addresses fails and is logged.
func (p *Policy) Answer(name string, a netip.Addr) Verdict {
	if p.noNetwork() {
		return p.refuseMode()
	}
	name, problem := canonical(name)
	if problem != "" {
		return Verdict{Reason: "the name " + problem}
	}
	a = canonicalAddr(a)
	if !a.IsValid() {
		return Verdict{Reason: "no address"}
	}
	c, closed := p.networks.closedRange(a)
	switch {
	case !closed:
		return Verdict{Allowed: true, Reason: "a public address"}
	case p.networks.isStatic(name, a):
		return Verdict{Allowed: true, Reason: "configured by the operator"}
	}
	if r := p.allow.forAddr(a); r != nil && p.networks.isOpened(a, c) {
		return allowed(r)
	}
	return Verdict{Reason: "the name leads to " + c.name}
}

// Connect judges a connection or a first datagram. proto is tcp, udp or icmp
// (port 0); names are the names that the gateway's DNS resolved to ap's address in this
// sandbox and that have not expired. The gateway handles addresses of the
// resolver and of peers in the group without calling Connect.
func (p *Policy) Connect(proto string, ap netip.AddrPort, names []string) Verdict {
	if p.noNetwork() {
		return p.refuseMode()
	}
	pr, a, port := protoNamed(proto), canonicalAddr(ap.Addr()), ap.Port()
	switch {
	case pr == 0:
		return Verdict{Reason: "only tcp, udp and icmp leave the sandbox"}
	case !a.IsValid():
		return Verdict{Reason: "no address"}
	case port == 0 && pr != icmp:
		return Verdict{Reason: "no port"}
	}
	if pr == udp && p.anyJudged(names) {
		return Verdict{Reason: "request rules judge the host, and udp carries no requests that can be judged; programs that tried QUIC fall back to TCP"}
	}
	c, closed := p.networks.closedRange(a)
	intercepted := p.anyIntercepted(names)

	r := p.byAddr(a, c, closed, pr, port)
	if r != nil && !(r.all && p.hidesHost(pr, port, intercepted)) {
		v := allowed(r)
		switch {
		case pr == tcp && p.anyJudged(names):
			v.Check = CheckWeb
		case pr == tcp && intercepted:
			v.Check = CheckAny
		}
		return v
	}
	named := p.byNames(a, closed, pr, port, names)
	if p.mode == engi.NetworkOpen && !closed {
		if v := p.open(a, pr, port, names, intercepted); !named.Allowed || v.Allowed && v.Check < named.Check {
			return v
		}
	}
	switch {
	case named.Allowed:
		return named
	case closed:
		return p.refuseClosed(c)
	default:
		return p.refuseUnnamed(a, pr, port, names, r != nil)
	}
}

// open judges a connection to a public address in mode open.
func (p *Policy) open(a netip.Addr, pr proto, port uint16, names []string, intercepted bool) Verdict {
	if isResolver(a, pr, port) {
		return Verdict{Reason: reasonResolver}
	}
	if r := p.denied(a, pr, port); r != nil {
		return refused(r, "the address is denied")
	}
	if r := p.deniedNames(pr, port, names); r != nil {
		return refused(r, "the name is denied")
	}
	if p.hidesHost(pr, port, intercepted) {
		return Verdict{Reason: reasonQUIC}
	}
	v := Verdict{Allowed: true, Reason: "mode open"}
	switch {
	case pr == tcp && p.anyJudged(names):
		v.Check = CheckWeb
	case pr == tcp && (p.denies || intercepted):
		v.Check = CheckAny
	}
	return v
}

const (
	reasonResolver = "another resolver; only a rule with its address and port opens it"
	reasonQUIC     = "QUIC hides the host it names; programs fall back to TCP"
)

// byAddr returns the rule that allows a connection by its address.
func (p *Policy) byAddr(a netip.Addr, c closedRange, closed bool, pr proto, port uint16) *rule {
	r := p.allow.byAddr(a, pr, port)
	switch {
	case r != nil && r.net.Bits() > 0:
		if closed && !p.networks.isOpened(a, c) {
			return nil
		}
		return r
	case closed:
		return nil
	case r == nil:
		r = p.allow.forAll(pr, port)
	}
	// A rule for everything does not include resolvers unless it has their port.
	if r != nil && isResolver(a, pr, port) && (!r.hasPorts || port == portHTTPS) {
		return nil
	}
	return r
}

// byNames judges by the names for which the address was given out. The check is
// the weakest check that any of them needs, since the client must claim one of them anyway.
func (p *Policy) byNames(a netip.Addr, closed bool, pr proto, port uint16, names []string) Verdict {
	var best Verdict
	for _, n := range names {
		n, problem := canonical(n)
		if problem != "" || closed && !p.networks.isStatic(n, a) {
			continue
		}
		if r := p.allow.byName(n, pr, port); r != nil {
			v := allowed(r)
			switch {
			case pr != tcp:
				return v
			case r.hasPorts && port != portHTTP && port != portHTTPS && !p.Judges(n):
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
		if v, ok := p.granting(n, port); ok {
			best = v
			best.Check = CheckTLS
		}
	}
	return best
}

// denied returns the deny rule for an address.
func (p *Policy) denied(a netip.Addr, pr proto, port uint16) *rule {
	if r := p.deny.byAddr(a, pr, port); r != nil {
		return r
	}
	return p.deny.forAll(pr, port)
}

// deniedNames returns a deny rule if all names are denied.
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

// hidesHost reports whether a datagram could be QUIC, which hides the host, while
// hosts matter because some are denied or intercepted.
func (p *Policy) hidesHost(pr proto, port uint16, intercepted bool) bool {
	return pr == udp && (port == portHTTPS || port == portHTTP) && (p.denies && p.mode == engi.NetworkOpen || intercepted)
}

// anyIntercepted reports whether one of names is intercepted.
func (p *Policy) anyIntercepted(names []string) bool {
	if p.grants.empty() && p.headers.empty() && p.requests.judged.empty() {
		return false
	}
	for _, n := range names {
		if p.Intercepts(n) {
			return true
		}
	}
	return false
}

// noNetwork reports whether the mode allows nothing beyond the group.
func (p *Policy) noNetwork() bool {
	return p.mode == engi.NetworkNone || p.mode == engi.NetworkIsolated
}

func (p *Policy) refuseMode() Verdict {
	if p.mode == engi.NetworkIsolated {
		return Verdict{Reason: "mode isolated: only sandboxes of its group"}
	}
	return Verdict{Reason: "mode none: no network"}
}

func (p *Policy) refuseClosed(c closedRange) Verdict {
	return Verdict{Reason: closedReasons[c.name]}
}

// closedReasons holds the reasons by range, so that a refusal costs no allocation.
var closedReasons = func() map[string]string {
	m := map[string]string{}
	for _, c := range append(closedRanges, closedRange{name: ownAddress}, closedRange{name: metadataAddress}, closedRange{name: nearAddress}) {
		m[c.name] = "it is " + c.name + ", which is closed unless the operator opens it and a rule names it by address"
	}
	return m
}()

// refuseUnnamed returns a refusal with the rule that is missing in mode restricted.
func (p *Policy) refuseUnnamed(a netip.Addr, pr proto, port uint16, names []string, quic bool) Verdict {
	if quic {
		return Verdict{Reason: reasonQUIC}
	}
	for _, n := range names {
		n, problem := canonical(n)
		if problem != "" {
			continue
		}
		switch r := p.allow.ruleFor(n, false); {
		case r == nil:
		case pr == icmp:
			return Verdict{Rule: r.text, Reason: "the rule does not include icmp; one with icmp:// would"}
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

// Upstream judges an address of the upstream proxy, to which the node connects on
// the policy's behalf: public addresses and addresses opened by the operator are allowed.
func (p *Policy) Upstream(a netip.Addr) Verdict {
	a = canonicalAddr(a)
	if !a.IsValid() {
		return Verdict{Reason: "no address"}
	}
	c, closed := p.networks.closedRange(a)
	switch {
	case !closed:
		return Verdict{Allowed: true, Reason: "a public address"}
	case p.networks.isOpened(a, c):
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
