package engi

import (
	"context"
	"net/netip"
	"time"
)

// Network says what a sandbox may reach.
type Network string

const (
	NetworkNone       Network = "none"       // loopback only; the default
	NetworkIsolated   Network = "isolated"   // sandboxes of its group and nothing else
	NetworkRestricted Network = "restricted" // its group and what Allow names
	NetworkOpen       Network = "open"       // its group and every public address that Deny does not name
)

// Networks returns every mode, the narrowest first.
func Networks() []Network {
	return []Network{NetworkNone, NetworkIsolated, NetworkRestricted, NetworkOpen}
}

// A NetworkPolicy says what a sandbox may reach. The zero value is the node's
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
	Grants  []Grant      // secrets, and where they may go
	Headers []HeaderRule // set in outgoing requests
	// Requests judge every HTTP request to their hosts, the first that matches
	// decides, and what matches none is refused. Those that allow or ask make
	// their hosts reachable as grants do.
	Requests []RequestRule
	Proxy    *UpstreamProxy // for everything that leaves; nil for none
	Group    string         // sandboxes of one owner and group reach each other; empty for none
	Name     string         // in its group: NAME.GROUP.internal; empty means the sandbox's label
	Limits   NetworkLimits  // zero fields mean the node's
	Detail   map[string]any // what an API dialect keeps of its own form of the policy, as JSON values
}

// A Grant has the wall put a secret into requests to some hosts. The value never
// enters the sandbox.
type Grant struct {
	Secret string   // ID or name of a secret of the owner's or from the node's environment
	Hosts  []string // names and *.SUFFIX; they are reachable over TLS although Allow does not name them
	As     GrantUse // empty means placeholder if Env is set, else bearer
	Name   string   // of the header or the query parameter; the user for basic
	Format string   // of the header's value, with {} for the secret; empty means {}
	Env    string   // environment variable in the sandbox that holds a placeholder; empty for none
	Strip  bool     // mask the value in responses that echo it
	// Requests that the secret goes with, at the hosts of the grant; their Host
	// is empty. Others go without it if Requests of the policy allow them, else
	// they are refused. None means every request.
	Requests []RequestRule
}

// A RequestRule judges HTTP requests by method, path and body. It matches if all
// of its parts do.
type RequestRule struct {
	Host    string   // written as in grants: name or *.SUFFIX, with http:// for plain HTTP
	Methods []string // in upper case, WEBSOCKET for the opening of one; empty means every method but WEBSOCKET
	// Path is a pattern for the path without the query: * is any text within a
	// segment, and /** at the end everything below. Empty means /**.
	Path string
	// Body has conditions for a JSON body, all of which must hold:
	// "mcp_servers absent", `model in ["a", "b-*"]`. docs/network-rules.md has
	// the syntax. A body that cannot be judged by them is refused.
	Body    []string
	MaxBody int64         // bytes of a body that is judged or asked about; 0 means 1 MiB
	Action  RequestAction // empty means allow
	Reason  string        // told to the program when the rule refuses, and to whoever is asked
}

// A RequestAction is what becomes of a request.
type RequestAction string

const (
	RequestAllow RequestAction = "allow"
	RequestDeny  RequestAction = "deny"
	RequestAsk   RequestAction = "ask" // it waits for the decision of an [Approver]
)

// A GrantUse is how a secret is applied.
type GrantUse string

const (
	GrantHeader      GrantUse = "header"      // header Name
	GrantBearer      GrantUse = "bearer"      // Authorization: Bearer
	GrantBasic       GrantUse = "basic"       // Authorization: Basic, user Name
	GrantQuery       GrantUse = "query"       // query parameter Name
	GrantPlaceholder GrantUse = "placeholder" // wherever the placeholder is in headers or query
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
	Connections    int   // open at once
	NewConnections int   // per second
	Lookups        int   // DNS queries per second
	Total          int64 // bytes both ways, after which nothing passes
}

// A NetworkRecord is one decision of the wall.
type NetworkRecord struct {
	Seq      int64 // per sandbox, from 1; readers continue after the last one they saw
	Time     time.Time
	Sandbox  SandboxID
	Owner    Owner
	Kind     NetworkRecordKind
	Allowed  bool
	Protocol string         // tcp, udp, icmp; empty for lookup
	Host     string         // the name looked up or claimed; empty if there is none
	Address  netip.AddrPort // port 0 for lookup and icmp
	Rule     string         // that decided, as written; empty if none did
	Reason   string         // for people
	Up, Down int64          // bytes; for close only
}

// A NetworkEventKind says what was decided on.
type NetworkRecordKind string

const (
	NetworkLookup  NetworkRecordKind = "lookup"  // a DNS query
	NetworkConnect NetworkRecordKind = "connect" // a connection or the first datagram of an exchange
	NetworkClaim   NetworkRecordKind = "claim"   // the host that a TLS or HTTP client named
	NetworkRequest NetworkRecordKind = "request" // an intercepted HTTP request
	NetworkLimit   NetworkRecordKind = "limit"   // a limit was reached
	NetworkClose   NetworkRecordKind = "close"   // the end of what a connect event allowed
)

// NetworkLog has the latest decisions of the wall for each sandbox. Owners see
// what they see in [Sandboxes]. It is safe for concurrent use.
type NetworkLog interface {
	// Events returns up to limit events after seq, oldest first; limit 0
	// means 1000. With wait it blocks until there is one or ctx ends, which
	// is no error then.
	Events(ctx context.Context, owner Owner, id SandboxID, seq int64, limit int, wait bool) ([]NetworkRecord, error)
}

// NetworkSetup is what a sandbox needs for its network to work.
type NetworkSetup struct {
	Resolver  netip.Addr        // for /etc/resolv.conf; invalid without network
	Search    string            // search domain; empty for none
	Authority []byte            // PEM certificate to trust; nil if nothing is intercepted
	Env       map[string]string // placeholders, and variables that make programs trust Authority
}
