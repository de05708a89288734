package engi

import (
	"context"
	"net/netip"
	"time"
)

// Network is the mode of a network policy.
type Network string

const (
	NetworkNone       Network = "none"       // loopback only; the default
	NetworkIsolated   Network = "isolated"   // sandboxes of the group only
	NetworkRestricted Network = "restricted" // the group and the targets in Allow
	NetworkOpen       Network = "open"       // the group and every public address except those in Deny
)

// Networks returns every mode, the narrowest first.
func Networks() []Network {
	return []Network{NetworkNone, NetworkIsolated, NetworkRestricted, NetworkOpen}
}

// A NetworkPolicy controls the network access of a sandbox. The zero value is the node's
// default.
//
// A rule is [PROTOCOL://]TARGET[:PORT[-PORT]]. PROTOCOL is tcp, udp or icmp;
// without it, the rule is for tcp and udp. TARGET is a host name, *.SUFFIX
// (every name below it), an address (IPv6 in brackets if a port follows), a
// network in CIDR notation, or * (everything public). Allow wins over Deny.
// Addresses of the host, of other sandboxes, private, link-local and metadata
// addresses are closed unless a rule names them by address or network and the
// node's operator opened them.
type NetworkPolicy struct {
	Mode    Network // empty means the node's default
	Allow   []string
	Deny    []string
	Grants  []Grant      // secrets that are added to requests to some hosts
	Headers []HeaderRule // set in outgoing requests
	// Requests are rules for every HTTP request to the hosts that they name: the first matching
	// rule decides, and a request that matches no rule is refused. Rules that allow or ask make
	// their hosts reachable, as grants do.
	Requests []RequestRule
	Proxy    *UpstreamProxy // proxy for all outgoing traffic; nil for none
	Group    string         // sandboxes of one owner and group reach each other; empty for none
	Name     string         // host name in the group, as NAME.GROUP.internal; empty means the sandbox's label
	Limits   NetworkLimits  // zero fields mean the node's
	Detail   map[string]any // the policy in the form of another API, stored for that API, as JSON values
}

// A Grant makes the gateway add a secret to requests to some hosts. The value never
// enters the sandbox.
type Grant struct {
	Secret string   // ID or name of a secret of the owner or of the node's environment
	Hosts  []string // names and *.SUFFIX; they are reachable over TLS even if Allow does not name them
	As     GrantUse // empty means placeholder if Env is set, else bearer
	Name   string   // name of the header or query parameter; for basic, the user
	Format string   // format of the header's value, in which {} is the secret; empty means {}
	Env    string   // environment variable in the sandbox that holds a placeholder; empty for none
	Strip  bool     // mask the value in responses that echo it
	// Requests are the requests that get the secret, at the hosts of the grant; their Host
	// is empty. Other requests go without it if Requests of the policy allow them, and
	// are refused if not. An empty list means every request.
	Requests []RequestRule
}

// A RequestRule decides on HTTP requests by method, path and body. It matches if all
// its parts match.
type RequestRule struct {
	Host    string   // written as in grants: name or *.SUFFIX, with http:// for plain HTTP
	Methods []string // methods in upper case; WEBSOCKET is the opening of a WebSocket; empty means every method except WEBSOCKET
	// Path is a pattern for the path without the query: * is any text within a
	// segment, and /** at the end everything below. Empty means /**.
	Path string
	// Body lists conditions on a JSON body, all of which must hold:
	// "mcp_servers absent", `model in ["a", "b-*"]`. docs/network-rules.md has
	// the syntax. A body that cannot be judged by them is refused.
	Body    []string
	MaxBody int64         // maximum bytes of a body that the rule examines; 0 means 1 MiB
	Action  RequestAction // empty means allow
	Reason  string        // reason, which the program sees on refusal and approvers see
}

// A RequestAction is the decision of a [RequestRule].
type RequestAction string

const (
	RequestAllow RequestAction = "allow"
	RequestDeny  RequestAction = "deny"
	RequestAsk   RequestAction = "ask" // the request waits for the decision of an [Approver]
	// RequestAskExact is like RequestAsk, but no decision applies to later requests with another query or body.
	RequestAskExact RequestAction = "ask_exact"
)

// Asks reports whether requests wait for a decision.
func (a RequestAction) Asks() bool { return a == RequestAsk || a == RequestAskExact }

// A GrantUse says how a secret is added to a request.
type GrantUse string

const (
	GrantHeader      GrantUse = "header"      // header Name
	GrantBearer      GrantUse = "bearer"      // Authorization: Bearer
	GrantBasic       GrantUse = "basic"       // Authorization: Basic, user Name
	GrantQuery       GrantUse = "query"       // query parameter Name
	GrantPlaceholder GrantUse = "placeholder" // every place in headers and query that has the placeholder
)

// A HeaderRule sets headers in requests to a host. Values may name secrets of
// the owner as ${secrets.NAME}.
type HeaderRule struct {
	Host    string // name or *.SUFFIX
	Headers map[string]string
}

// An UpstreamProxy is a SOCKS5 or HTTP proxy of the owner's.
type UpstreamProxy struct {
	Address  string // socks5://host:port, http://host:port or https://host:port; host:port means socks5
	User     string
	Password string // never shown
}

// NetworkLimits bound the traffic of one sandbox. Zero fields mean the node's
// defaults; negative ones, no limit.
type NetworkLimits struct {
	Up, Down       int64 // bytes per second out of and into the sandbox
	Connections    int   // maximum number of open connections
	NewConnections int   // maximum number of new connections per second
	Lookups        int   // DNS queries per second
	Total          int64 // total bytes in both directions, after which the sandbox has no network
}

// A NetworkRecord is one decision of the gateway.
type NetworkRecord struct {
	Seq      int64 // number of the record in its sandbox, from 1; readers resume after the last one they received
	Time     time.Time
	Sandbox  SandboxID
	Owner    Owner
	Kind     NetworkRecordKind
	Allowed  bool
	Protocol string         // tcp, udp or icmp; empty for a lookup
	Host     string         // host name that the program looked up or sent; empty if there is none
	Address  netip.AddrPort // address; the port is 0 for a lookup and for icmp
	Rule     string         // rule that decided, as written; empty if no rule did
	Reason   string         // for people
	Up, Down int64          // bytes sent and received; for close only
}

// A NetworkRecordKind is the kind of a [NetworkRecord].
type NetworkRecordKind string

const (
	NetworkLookup  NetworkRecordKind = "lookup"  // a DNS query
	NetworkConnect NetworkRecordKind = "connect" // a connection or the first datagram of an exchange
	NetworkClaim   NetworkRecordKind = "claim"   // the host that a TLS or HTTP client named
	NetworkRequest NetworkRecordKind = "request" // an intercepted HTTP request
	NetworkLimit   NetworkRecordKind = "limit"   // a limit was reached
	NetworkClose   NetworkRecordKind = "close"   // the end of what a connect event allowed
)

// NetworkLog reads the latest decisions of the gateway for each sandbox. Methods find
// the same objects as those of [Sandboxes]. It is safe for concurrent use.
type NetworkLog interface {
	// Events returns up to limit records after seq, oldest first; limit 0
	// means 1000. With wait, it blocks until there is a record or ctx ends, which
	// is no error then.
	Events(ctx context.Context, viewer Viewer, id SandboxID, seq int64, limit int, wait bool) ([]NetworkRecord, error)
}

// NetworkSetup is the network configuration inside a sandbox.
type NetworkSetup struct {
	Resolver  netip.Addr        // address for /etc/resolv.conf; invalid without network
	Search    string            // search domain; empty for none
	Authority []byte            // PEM certificate to trust; nil if nothing is intercepted
	Env       map[string]string // placeholders, and variables that make programs trust Authority
}
