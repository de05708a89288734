// Package egress is the network boundary of sandboxes: a network in
// user space that carries only traffic that their policies allow. A sandbox
// is alone on its link. At the other end, a TCP/IP stack in this process
// terminates every connection, asks the policy, dials the destination from the
// host and copies bytes. So each DNS query, connection and datagram becomes a call of
// a Go function, and no packet of a sandbox ever reaches a network.
//
// Policies name hosts: a connection is allowed by the name that the gateway's DNS
// resolved to its address for this sandbox, and the client must then claim that
// name itself, in TLS or in plain HTTP. Traffic from sandboxes is treated as hostile, and all
// state kept on their behalf is bounded.
//
// Package egress does not create network namespaces (see package link), make
// decisions (see package policy) or terminate TLS (see package intercept).
package egress

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/engi-dev/engi/internal/engi"
)

// Links provides links to sandboxes. It is safe for concurrent use. Package link
// implements it.
type Links interface {
	// Take gives a sandbox a link of its own. The association survives the
	// death of this process.
	Take(ctx context.Context, id engi.SandboxID) (Link, error)
	// Find returns the link of a sandbox, or reports NotFound.
	Find(ctx context.Context, id engi.SandboxID) (Link, error)
	// Retain removes the links of all sandboxes except these.
	Retain(ctx context.Context, ids []engi.SandboxID) error
	// Close stops preparing links. The links of sandboxes stay.
	Close() error
}

// A Link is the network link of one sandbox. The sandbox has the addresses
// [Sandbox4] and [Sandbox6] on it.
type Link interface {
	// Netns returns the path of the network namespace with the sandbox's end.
	Netns() string
	// Endpoint opens the host's end. The endpoint reads frames from its attachment to a
	// stack until it is closed. Afterwards the end may be opened again.
	Endpoint() (stack.LinkEndpoint, error)
	// Close removes the link for good.
	Close() error
}

// Addresses used on every link.
var (
	Sandbox4 = netip.MustParseAddr("10.88.0.2")
	Sandbox6 = netip.MustParseAddr("fd00:e1::2")
	Gateway4 = netip.MustParseAddr("10.88.0.1") // gateway and DNS resolver
	Gateway6 = netip.MustParseAddr("fd00:e1::1")
	// Peers contains the addresses under which sandboxes of a group see each other.
	Peers = netip.MustParsePrefix("100.64.0.0/10")
)

// A Store keeps the latest events of each sandbox. It is safe for concurrent use.
type Store interface {
	// Append adds events in order. It sets the Seq of each event to the next number of
	// its sandbox, and drops the oldest events beyond its bounds.
	Append(ctx context.Context, events []engi.NetworkRecord) error
	// Events returns up to limit events of a sandbox after seq, oldest first.
	Events(ctx context.Context, viewer engi.Viewer, id engi.SandboxID, seq int64, limit int) ([]engi.NetworkRecord, error)
}

// Packages serves package registries to sandboxes. It is safe for concurrent use.
// Package internal/network/mirror implements it.
type Packages interface {
	// Hosts returns the registries' names by ecosystem.
	Hosts() map[string][]string
	// Serve answers a request of an owner's sandbox to one of the hosts.
	Serve(owner engi.Owner, w http.ResponseWriter, r *http.Request)
}

// Options configures a Gateway. Links and Store are required; every other field has
// a useful zero value.
type Options struct {
	Links Links
	Store Store

	Mode     engi.Network            // mode of policies without one; empty means none
	Private  []netip.Prefix          // networks that policies may open although they are not public
	Hosts    map[string][]netip.Addr // fixed addresses of names; they override the resolver's
	Resolver []netip.AddrPort        // upstream DNS servers; empty means the servers in the host's resolv.conf
	Limits   engi.NetworkLimits      // limits of policies without own limits; zero fields mean the defaults

	// Reveal returns the value of an owner's secret by ID or name. Nil means
	// that there are no secrets: policies with grants are refused.
	Reveal func(ctx context.Context, viewer engi.Viewer, idOrName string) (string, error)
	// Use is the same as in [intercept.Options]; nil means that no secret is pinned.
	Use func(ctx context.Context, viewer engi.Viewer, idOrName string) (value string, hosts []string, strip bool, err error)
	// Approver decides on requests for which a rule asks. Nil means that there is no approver:
	// policies that ask are refused.
	Approver engi.Approver
	// Key is the key from which the authorities of intercepted connections and placeholders
	// are derived: 32 bytes that survive restarts. Nil means a random key.
	Key []byte
	// Roots holds the authorities trusted by intercepted requests and by Transport. Nil means
	// the system's.
	Roots *x509.CertPool

	// Packages serves package registries. Nil means that policies have no
	// rules for packages. The same holds without Reveal.
	Packages Packages

	DialTimeout     time.Duration // timeout of a connection attempt; 0 means 15 s
	IdleTimeout     time.Duration // time without traffic after which a connection is closed; 0 means 15 minutes
	DatagramTimeout time.Duration // time without traffic after which an exchange of datagrams ends; 0 means 60 s
	ClaimTimeout    time.Duration // time in which a client must name its host; 0 means 10 s

	Metrics prometheus.Registerer // nil registers none
	Log     *slog.Logger          // nil discards
}
