// Package policy decides which destinations a sandbox may reach. It compiles an
// [engi.NetworkPolicy] into a [Policy] that answers the gateway's questions
// without I/O, each in about a microsecond: may this name be looked up, may this
// address be connected to, may this TLS or HTTP client name that host, is this
// connection to be intercepted. It also parses the first bytes of connections
// ([Hello], [Request]) and checks names.
//
// It does not resolve names, record the names for which an address was given out, or
// enforce rate limits: the gateway does this work and passes in the results.
//
// # How a connection is judged
//
// For a DNS query: [Policy.Lookup], and [Policy.Answer] for every address in the
// answer. For a connection or a first datagram: [Policy.Connect] with the names
// that the gateway's DNS resolved to the address in this sandbox. If it is allowed,
// [Verdict].Check is the proof that must be seen before data may pass: none
// ([CheckNone]), a TLS ClientHello or an HTTP request with an allowed host
// ([CheckWeb]), only a ClientHello ([CheckTLS]), or either if it is TLS or HTTP,
// while other protocols pass ([CheckAny]). [Sniff] tells the protocol,
// [ClientHello] and [HTTPHost] parse, [Policy.ClaimTLS] and [Policy.ClaimHTTP]
// judge.
//
// A plain HTTP connection can carry many requests, each with its own Host. So
// where a claim is needed, HTTP must be served request by request, as package
// intercept does, with ClaimHTTP for each. Judging the first request only and
// copying the rest would let the other requests through.
package policy

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

// A Node describes the networks of a node. The zero Node opens nothing that is
// closed by default.
type Node struct {
	// Default is the mode of policies without a mode. Empty means none.
	Default engi.Network
	// Private lists networks in closed ranges (private, link-local, …) that the
	// operator permits policies to name. An address of the host itself or of a
	// metadata service is opened only by a prefix of that single address.
	Private []netip.Prefix
	// Hosts maps names to fixed addresses. Where a policy allows such a name,
	// its addresses may be connected to even if they are in closed ranges.
	Hosts map[string][]netip.Addr
	// Own lists the host's addresses and the networks that belong to the host.
	Own []netip.Prefix
	// Near lists the networks of the host's interfaces. Public addresses in them
	// belong to the host's neighbours, as with IPv6 in home networks, and are closed like
	// private ones.
	Near []netip.Prefix
	// Packages maps ecosystems to the hosts of their package registries, which the
	// rules packages and packages:ECOSYSTEM stand for. The node serves them
	// itself. Empty means that it serves none.
	Packages map[string][]string
}

// A Verdict is the answer to one question.
type Verdict struct {
	Allowed bool
	Check   Check  // proof required before data passes; only of an allowed Connect
	Rule    string // deciding rule, as written in the policy; empty if none decided
	Reason  string // reason, for people; never empty for a refusal
}

// A Check is the proof of the host that an allowed connection must show first.
type Check uint8

const (
	CheckNone Check = iota // nothing: the connection is allowed by its address, or everything is allowed
	CheckAny               // an allowed host if it is TLS or HTTP; other protocols pass
	CheckWeb               // TLS or HTTP with an allowed host; other protocols are refused
	CheckTLS               // TLS with an allowed host; other protocols are refused
)

// A Proxy is a validated [engi.UpstreamProxy].
type Proxy struct {
	Scheme         string // socks5, http or https
	Host           string // canonical name, or an address
	Port           uint16
	User, Password string
}

// MaxRules is the maximum number of rules of a policy: the rules in Allow and Deny, the hosts
// of grants and the header rules.
const MaxRules = engi.MaxRules

// Compile validates p and prepares it for matching. It reports Invalid for rules that
// can never apply, and Denied for closed networks that the operator did not
// open. Errors name the rule and have a remedy.
func Compile(p engi.NetworkPolicy, n Node) (*Policy, error) {
	c, err := compile(p, n)
	if err != nil {
		return nil, err
	}
	return c, nil
}

func compile(p engi.NetworkPolicy, n Node) (*Policy, *engi.Error) {
	if p.Mode == "" {
		p.Mode = n.Default
	}
	if p.Mode == "" {
		p.Mode = engi.NetworkNone
	}
	c := &Policy{source: p, mode: p.Mode}
	if err := c.checkSize(); err != nil {
		return nil, err
	}
	if err := c.checkMode(); err != nil {
		return nil, err
	}
	if err := c.networks.load(n); err != nil {
		return nil, err
	}
	allow, err := parseRules("allow", p.Allow)
	if err != nil {
		return nil, err
	}
	if allow, err = c.addPackages(allow, n.Packages); err != nil {
		return nil, err
	}
	deny, err := parseRules("deny", p.Deny)
	if err != nil {
		return nil, err
	}
	for _, r := range deny {
		if r.packages != "" {
			return nil, engi.Errorf(engi.Invalid, "network rule %q of deny: packages can be allowed only", clip.Text(r.text, maxShown)).WithRemedy("name the hosts of registries instead")
		}
	}
	for i := range allow {
		if err := c.networks.checkAllowed(&allow[i]); err != nil {
			return nil, err
		}
	}
	c.allow, c.deny = newTable(allow, true), newTable(deny, false)
	if err := c.contradiction(); err != nil {
		return nil, err
	}
	c.denies = len(c.deny.hosts) > 0 || len(c.deny.suffixes) > 0
	if err := c.addGrants(p.Grants); err != nil {
		return nil, err
	}
	if err := c.addHeaders(p.Headers); err != nil {
		return nil, err
	}
	if err := c.addRequests(); err != nil {
		return nil, err
	}
	maps.DeleteFunc(c.packages, func(host, _ string) bool { return c.Intercepts(host) })
	if p.Proxy != nil {
		if c.proxy, err = parseProxy(p.Proxy); err != nil {
			return nil, err
		}
		if a, e := netip.ParseAddr(c.proxy.Host); e == nil {
			if v := c.Upstream(a); !v.Allowed {
				return nil, engi.Errorf(engi.Denied, "upstream proxy %s: %s", a, v.Reason).
					WithRemedy("choose a public proxy, or have the operator add %s to private in [network] of the node's configuration", a)
			}
		}
	}
	return c, nil
}

func (p *Policy) checkSize() *engi.Error {
	n := len(p.source.Allow) + len(p.source.Deny) + len(p.source.Headers)
	hosts := len(p.source.Headers)
	for _, g := range p.source.Grants {
		n += max(1, len(g.Hosts))
		hosts += len(g.Hosts)
	}
	if hosts > maxGrantHosts {
		return engi.Errorf(engi.Invalid, "grants and header rules have %d hosts", hosts).WithRemedy("use at most %d, and *.SUFFIX instead of names", maxGrantHosts)
	}
	if n > MaxRules {
		return engi.Errorf(engi.Invalid, "a network policy of %d rules has more than %d", n, MaxRules).
			WithRemedy("use networks instead of addresses, and *.SUFFIX instead of names")
	}
	return nil
}

func (p *Policy) checkMode() *engi.Error {
	s := p.source
	if !slices.Contains(engi.Networks(), p.mode) {
		return engi.Errorf(engi.Invalid, "the network mode %q does not exist", clip.Text(string(p.mode), maxShown)).
			WithRemedy("the modes are none, isolated, restricted and open")
	}
	if p.noNetwork() {
		for _, part := range []struct {
			set  bool
			what string
		}{{len(s.Allow) > 0, "rules in allow"}, {len(s.Grants) > 0, "grants"}, {len(s.Headers) > 0, "header rules"}, {len(s.Requests) > 0, "request rules"}, {s.Proxy != nil, "an upstream proxy"}} {
			if part.set {
				return engi.Errorf(engi.Invalid, "network mode %s does not allow %s", p.mode, part.what).
					WithRemedy("choose mode restricted, or leave them out")
			}
		}
	}
	if p.mode == engi.NetworkNone && s.Group != "" {
		return engi.Errorf(engi.Invalid, "network mode none does not allow the group %q", clip.Text(s.Group, maxShown)).
			WithRemedy("choose mode isolated, or leave the group out")
	}
	for _, l := range []struct{ what, text string }{{"group", s.Group}, {"name", s.Name}} {
		if l.text != "" && !isLabel(l.text) {
			return engi.Errorf(engi.Invalid, "network %s %q cannot be part of a host name", l.what, clip.Text(l.text, maxShown)).
				WithRemedy("use lower-case letters, digits and dashes, 63 at most, none of the dashes first or last")
		}
	}
	return nil
}

func isLabel(s string) bool {
	return len(s) <= maxLabel && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == "" && s[0] != '-' && s[len(s)-1] != '-'
}

// load validates the operator's configuration and stores it.
func (g *hostNetworks) load(n Node) *engi.Error {
	for _, o := range n.Own {
		if !o.IsValid() {
			return engi.Errorf(engi.Internal, "an invalid network among the host's own")
		}
		g.own = append(g.own, canonicalNet(o))
	}
	for _, o := range n.Near {
		if !o.IsValid() {
			return engi.Errorf(engi.Internal, "an invalid network among those the host is on")
		}
		g.near = append(g.near, canonicalNet(o))
	}
	for _, o := range n.Private {
		if !o.IsValid() {
			return engi.Errorf(engi.Invalid, "an invalid network among those the operator opens").
				WithRemedy("write networks such as 10.1.0.0/16 into private in [network] of the node's configuration")
		}
		g.opened = append(g.opened, canonicalNet(o))
	}
	g.static = make(map[string][]netip.Addr, len(n.Hosts))
	for _, name := range slices.Sorted(maps.Keys(n.Hosts)) {
		c, err := CheckName(name)
		if err != nil {
			return engi.Errorf(engi.Invalid, "hosts of the node: %w", err).
				WithRemedy("correct hosts in [network] of the node's configuration")
		}
		for _, a := range n.Hosts[name] {
			if a = canonicalAddr(a); !a.IsValid() {
				return engi.Errorf(engi.Invalid, "hosts of the node: %s has an invalid address", c).
					WithRemedy("correct hosts in [network] of the node's configuration")
			}
			g.static[c] = append(g.static[c], a)
		}
	}
	return nil
}

func canonicalNet(n netip.Prefix) netip.Prefix {
	if n.Addr().Is4In6() && n.Bits() >= 96 {
		n = netip.PrefixFrom(n.Addr().Unmap(), n.Bits()-96)
	}
	return n.Masked()
}

func parseRules(list string, texts []string) ([]rule, *engi.Error) {
	rules := make([]rule, len(texts))
	for i, t := range texts {
		r, err := parseRule(t)
		if err != nil {
			return nil, engi.Errorf(err.Kind, "%s, number %d of %s", err.Text, i+1, list).WithRemedy("%s", err.Remedy)
		}
		rules[i] = r
	}
	return rules, nil
}

// checkAllowed refuses an allow rule for a closed network that the operator did
// not open. For a network that is only partly closed, the rule opens the public
// part.
func (g *hostNetworks) checkAllowed(r *rule) *engi.Error {
	if !r.net.IsValid() {
		return nil
	}
	c, closed := g.closedRangeOf(r.net)
	if !closed {
		return nil
	}
	if r.net.IsSingleIP() && g.isOpened(r.net.Addr(), c) {
		return nil
	}
	var parts []string
	for _, o := range g.opened {
		if !r.net.IsSingleIP() && o.Bits() <= r.net.Bits() && o.Contains(r.net.Addr()) {
			return nil
		}
		if o.Overlaps(r.net) && !r.net.IsSingleIP() {
			parts = append(parts, o.String())
		}
	}
	err := engi.Errorf(engi.Denied, "network rule %q: it is %s, and the operator of this node did not open it", r.text, c.name)
	if len(parts) > 0 {
		return err.WithRemedy("use only open ports: %s", strings.Join(parts[:min(len(parts), 10)], ", "))
	}
	return err.WithRemedy("leave the rule out, or have the operator add %s to private in [network] of the node's configuration", nameOf(r.net))
}

func nameOf(n netip.Prefix) string {
	if n.IsSingleIP() {
		return n.Addr().String()
	}
	return n.String()
}

// contradiction reports a deny rule that has no effect because an allow rule,
// which takes precedence, covers all of it.
func (p *Policy) contradiction() *engi.Error {
	for i := range p.deny.rules {
		d := &p.deny.rules[i]
		for a := range p.allow.coverers(d) {
			if !a.covers(d) || a.all && p.hasOnlyClosed(d) {
				continue
			}
			what := "covers it, and allow wins over deny"
			if a.covers(d) && d.covers(a) {
				what = "says the opposite"
			}
			return engi.Errorf(engi.Invalid, "network rule %q of deny has no effect: rule %q of allow %s", d.text, a.text, what).
				WithRemedy("remove one of the two, or allow less")
		}
	}
	return nil
}

// hasOnlyClosed reports whether a rule is for a closed network, which rules for
// everything do not include.
func (p *Policy) hasOnlyClosed(r *rule) bool {
	if !r.net.IsValid() {
		return false
	}
	_, closed := p.networks.closedRangeOf(r.net)
	return closed
}
