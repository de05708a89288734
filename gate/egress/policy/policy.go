// Package policy decides what a sandbox may reach. It compiles an
// [engi.NetworkPolicy] into a [Policy] that answers, without any I/O and in
// about a microsecond, the questions the gateway asks: may this name be looked
// up, may this address be connected to, may this TLS or HTTP client name that
// host, is this connection to be intercepted. It also reads the first bytes of
// a connection ([Hello], [Request]) and checks names.
//
// It is not for resolving names, for remembering which names an address was
// given out for, or for limits of rate: the gateway does that and passes in
// what it knows.
//
// # How a connection is judged
//
// For a DNS question: [Policy.Lookup], and for every address in the answer
// [Policy.Answer]. For a connection or a first datagram: [Policy.Connect] with
// the names our DNS answered with that address in this sandbox. If it is
// allowed, [Verdict].Check says what must be seen before data may pass:
// [CheckNone] nothing, [CheckWeb] a TLS ClientHello or an HTTP request whose
// host stands the test, [CheckTLS] a ClientHello that does, [CheckAny] the
// same if it is TLS or HTTP while other protocols pass. [Sniff] tells which it
// is, [ClientHello] and [HTTPHost] read it, [Policy.ClaimTLS] and
// [Policy.ClaimHTTP] judge it.
//
// A plain HTTP connection can carry many requests, each with its own Host. So
// after a claim was needed, HTTP must be served request by request (package
// intercept does) with ClaimHTTP asked for each; judging the first request and
// copying the rest would leave the door open.
package policy

import (
	"net/netip"

	"github.com/engi-dev/engi"
)

// A Node is what the operator of this node says about its networks. The zero
// Node opens nothing that is closed by default.
type Node struct {
	// Default is the mode of policies that have none. Empty means none.
	Default engi.Network
	// Private are networks out of closed ranges (private, link-local, …) that
	// policies may name. An address of the host itself or of a metadata service
	// is opened only by a prefix that is that one address.
	Private []netip.Prefix
	// Hosts are names with fixed addresses. Where a policy allows such a name,
	// its addresses are open under it even if they are in closed ranges.
	Hosts map[string][]netip.Addr
	// Own are the host's addresses and whatever else belongs to the host.
	Own []netip.Prefix
}

// A Verdict is the answer to one question.
type Verdict struct {
	Allowed bool
	Check   Check  // of an allowed Connect: what must be seen before data passes
	Rule    string // that decided, as written in the policy; empty if none did
	Reason  string // in words, for people; never empty if not allowed
}

// A Check says what an allowed connection must show first.
type Check uint8

const (
	CheckNone Check = iota // nothing: it is allowed by address, or everything is
	CheckAny               // if it is TLS or HTTP, its host; anything else may pass
	CheckWeb               // TLS or HTTP, and its host; anything else is refused
	CheckTLS               // TLS, and its host; anything else is refused
)

// A Proxy is a checked [engi.UpstreamProxy].
type Proxy struct {
	Scheme         string // socks5, http or https
	Host           string // name in canonical form, or an address
	Port           uint16
	User, Password string
}

// A Policy is a compiled policy. It is immutable and safe for concurrent use.
// Names given to its methods may be in any case and end in a dot; those that
// are not valid are refused.
type Policy struct {
	source engi.NetworkPolicy
	mode   engi.Network
}

// MaxRules bounds the rules of one policy: those in Allow and Deny, the hosts
// of grants, and the header rules.
const MaxRules = 10_000

// Compile checks p and prepares it for matching. What can never work is
// Invalid; a closed network that the operator did not open is Denied. Errors
// name the rule and say what to do.
func Compile(p engi.NetworkPolicy, n Node) (*Policy, error) {
	_ = n
	return &Policy{source: p, mode: p.Mode}, nil
}

// Mode returns the mode in force; never empty.
func (p *Policy) Mode() engi.Network { return p.mode }

// Source returns the policy this was compiled from, with Mode filled in.
func (p *Policy) Source() engi.NetworkPolicy { return p.source }

// Proxy returns the upstream proxy, or nil.
func (p *Policy) Proxy() *Proxy { return nil }

// Static returns the operator's fixed addresses of a name; ok is false if it
// has none. It does not say that the name is allowed.
func (p *Policy) Static(name string) (addrs []netip.Addr, ok bool) { return nil, false }

// Lookup judges a DNS question for a name. Names of the sandbox's own group
// (NAME.GROUP.internal) are the gateway's to answer before it asks.
func (p *Policy) Lookup(name string) Verdict { return Verdict{Reason: "not yet"} }

// Answer judges one address in the DNS answer for a name that Lookup allowed.
// An address it refuses must be left out of the answer: that is what makes
// rebinding to private addresses fail, and shows it in the log.
func (p *Policy) Answer(name string, a netip.Addr) Verdict { return Verdict{Reason: "not yet"} }

// Connect judges a connection or a first datagram. proto is tcp, udp or icmp
// (port 0); names are those our DNS answered with ap's address in this
// sandbox and whose time to live has not passed. Addresses of the resolver and
// of peers in the group are the gateway's to know before it asks.
func (p *Policy) Connect(proto string, ap netip.AddrPort, names []string) Verdict {
	return Verdict{Reason: "not yet"}
}

// Claim judges the host that a client names on a TCP connection to ap that
// Connect allowed with these names. An empty host means it names none.
func (p *Policy) Claim(host string, ap netip.AddrPort, names []string) Verdict {
	return Verdict{Reason: "not yet"}
}

// ClaimTLS is Claim for a ClientHello: it also refuses what would hide the
// host (encrypted ClientHello) unless the connection is to be intercepted, and
// DNS over TLS on any port.
func (p *Policy) ClaimTLS(h Hello, ap netip.AddrPort, names []string) Verdict {
	return Verdict{Reason: "not yet"}
}

// ClaimHTTP is Claim for an HTTP request: it also refuses CONNECT and a port
// in the Host header that is not ap's.
func (p *Policy) ClaimHTTP(r Request, ap netip.AddrPort, names []string) Verdict {
	return Verdict{Reason: "not yet"}
}

// Upstream judges an address that the node itself connects to because of this
// policy (its upstream proxy): public ones, and closed ones the operator opened.
func (p *Policy) Upstream(a netip.Addr) Verdict { return Verdict{Reason: "not yet"} }

// Intercepts reports whether connections to host are to be intercepted,
// because a grant or a header rule names it.
func (p *Policy) Intercepts(host string) bool { return false }

// Intercepting reports whether there is any host that is intercepted.
func (p *Policy) Intercepting() bool { return false }

// Grants returns the grants that apply to host, as written.
func (p *Policy) Grants(host string) []engi.Grant { return nil }

// Headers returns the header rules that apply to host, as written.
func (p *Policy) Headers(host string) []engi.HeaderRule { return nil }
