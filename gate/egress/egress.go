// Package egress is the wall around sandboxes: a network in user space that
// carries what their policies allow, and nothing else. A sandbox is alone on
// its link; at the other end a TCP/IP stack in this process ends every
// connection, asks the policy, dials the real one from the host and copies. So
// each DNS question, connection and datagram is a call of a Go function here,
// and no packet of a sandbox ever reaches a network.
//
// Names rule: a connection is allowed by the name that our DNS resolved to its
// address for this sandbox, and the client must then claim that name itself,
// in TLS or in plain HTTP. What sandboxes send is hostile; whatever is kept on
// their behalf is bounded.
//
// Package egress makes no network namespaces (see package link), decides
// nothing (see package policy) and opens no TLS (see package intercept).
package egress

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/engi-dev/engi"
)

// Links are links for sandboxes, prepared ahead. Package link has those of a
// node. They are safe for concurrent use.
type Links interface {
	// Take gives a sandbox a link of its own, and remembers that it has it,
	// also when this process dies.
	Take(ctx context.Context, id engi.SandboxID) (Link, error)
	// Find returns the link that a sandbox has; NotFound if it has none.
	Find(ctx context.Context, id engi.SandboxID) (Link, error)
	// Retain removes the links of all sandboxes except these.
	Retain(ctx context.Context, ids []engi.SandboxID) error
	// Close ends the preparation; links that sandboxes have stay.
	Close() error
}

// A Link is the link of one sandbox. Inside, the sandbox has the addresses
// [Inside4] and [Inside6].
type Link interface {
	// Netns is the path of the network namespace that has the sandbox's end.
	Netns() string
	// Endpoint opens our end. Frames are read from when it is attached to a
	// stack until it is closed; then it may be opened again.
	Endpoint() (stack.LinkEndpoint, error)
	// Close removes the link for good.
	Close() error
}

// Addresses on every link.
var (
	Inside4  = netip.MustParseAddr("10.88.0.2")
	Inside6  = netip.MustParseAddr("fd00:e1::2")
	Gateway4 = netip.MustParseAddr("10.88.0.1") // gateway and resolver
	Gateway6 = netip.MustParseAddr("fd00:e1::1")
	// Peers has the addresses under which sandboxes of a group see each other.
	Peers = netip.MustParsePrefix("100.64.0.0/10")
)

// A Store keeps the last events of each sandbox. It is safe for concurrent use.
type Store interface {
	// Append adds events, in order. It gives each the next Seq of its sandbox
	// in place, and forgets the oldest beyond its bound.
	Append(ctx context.Context, events []engi.NetworkEvent) error
	// Events returns up to limit events of a sandbox after seq, oldest first.
	Events(ctx context.Context, owner engi.Owner, id engi.SandboxID, seq int64, limit int) ([]engi.NetworkEvent, error)
}

// Options are what a Gateway serves. Links and Store are needed; the zero
// value of everything else is useful.
type Options struct {
	Slots Links
	Store Store

	Mode     engi.Network            // of policies that name none; empty means none
	Private  []netip.Prefix          // networks that policies may open although they are not public
	Hosts    map[string][]netip.Addr // names with addresses of the operator's; they go before the resolver's
	Resolver []netip.AddrPort        // upstream DNS; none means those of the host's resolv.conf
	Limits   engi.NetworkLimits      // of policies that set none; zero fields mean ours

	// Reveal returns the value of an owner's secret, by ID or name. Nil: there
	// are no secrets, and policies with grants are refused.
	Reveal func(ctx context.Context, owner engi.Owner, idOrName string) (string, error)
	// Key is what the certificates of intercepted hosts and placeholders are
	// made from, 32 bytes that survive restarts. Nil: a random one.
	Key []byte
	// Roots are trusted by intercepted requests and by Transport. Nil: those
	// of the system.
	Roots *x509.CertPool

	Dial  time.Duration // to reach a host outside; 0 means 15 s
	Idle  time.Duration // silence after which a connection ends; 0 means 15 minutes
	Flow  time.Duration // silence after which an exchange of datagrams ends; 0 means 60 s
	Claim time.Duration // until a client must have said which host it wants; 0 means 10 s

	Metrics prometheus.Registerer // nil: none
	Log     *slog.Logger          // nil discards
}
