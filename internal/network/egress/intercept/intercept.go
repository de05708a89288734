// Package intercept puts secrets into HTTP requests that leave sandboxes, and
// removes them from responses, so that values never enter a sandbox. It
// terminates the sandbox's TLS with a certificate of an authority that only this
// sandbox trusts, judges each request, applies grants and header rules, and forwards
// it over its own TLS connection. HTTP/1.1 and HTTP/2 on both sides, streams, trailers
// and upgrades are supported.
//
// Where the policy has request rules, a request leaves only if they allow it. The rules
// judge exactly the request that leaves: bodies that they inspect are held until they are
// complete, because a server may act on a part of a body, and trailers are dropped.
//
// Only TLS to the hosts of grants, header rules and request rules is intercepted. Over plain
// HTTP, secrets are sent only to hosts written with http:// in the policy, and only
// if the policy lets the sandbox connect there anyway: grants make hosts
// reachable only over TLS.
//
// The authority's key is derived from [Options.Key] and the sandbox's ID. It is
// kept in memory only, and is the same after a restart of this process, so that
// running programs continue to trust it. Placeholders are derived in the same
// way: they cannot be guessed without the key, and stay the same as long as the
// sandbox exists.
//
// Placeholders are replaced in values of headers, in Basic credentials and in the
// query, but never in bodies, because much of the data sent in bodies can be read
// back later. A sandbox that can both write to and read from a granted host, or
// controls a cooperating host, can always obtain a value: a grant trusts its hosts.
//
// Package intercept does not decide which connections are allowed and does not dial: see
// packages policy and egress.
package intercept

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/policy"
)

// Options configures an Interceptor. Reveal and Dial are required; every other field
// has a useful zero value.
type Options struct {
	// Key is the key from which authorities and placeholders are derived: 32 bytes that
	// survive restarts. Nil means a random key.
	Key []byte
	// Reveal returns the value of an owner's secret by ID or name. It is
	// called for each request.
	Reveal func(ctx context.Context, viewer engi.Viewer, idOrName string) (string, error)
	// Use, if set, replaces Reveal where secrets may be pinned. It
	// returns the only hosts that a pinned secret may be sent to, and
	// whether the secret is masked in bodies even if the grant does not require it.
	Use func(ctx context.Context, viewer engi.Viewer, idOrName string) (value string, hosts []string, strip bool, err error)
	// Dial connects to a host, without TLS, if the sandbox's policy allows it.
	Dial func(ctx context.Context, id engi.SandboxID, host string, port uint16) (net.Conn, error)
	// Approver decides on requests for which a rule asks. Nil refuses such requests.
	Approver engi.Approver
	// Events is called with one event per request, without Seq. It must not
	// block. Nil discards.
	Events func(engi.NetworkRecord)
	// Roots holds the authorities trusted for connections to hosts. Nil means the system's.
	Roots *x509.CertPool

	HandshakeTimeout time.Duration // timeout of TLS handshakes on both sides; 0 means 10 s
	HeaderTimeout    time.Duration // maximum time to receive the header of a request, and between requests; 0 means 1 minute
	ResponseTimeout  time.Duration // maximum time from a request to the header of its response; 0 means 15 minutes
	IdleTimeout      time.Duration // maximum time without a byte in either direction in a request or upgraded connection; 0 means 15 minutes

	Log *slog.Logger // nil discards
}

// A Target is the destination of a connection and the host that its client claimed.
type Target struct {
	Sandbox engi.SandboxID
	Host    string         // canonical host, claimed by the client and allowed by the policy
	Port    uint16         // port that the client connected to
	TLS     bool           // the connection begins with a ClientHello, otherwise with a request
	Address netip.AddrPort // address that the client connected to, for events
	Handler http.Handler   // serves the requests in place of the host; nil means the host
}

// An Interceptor holds the authorities and rules of a node's sandboxes. It is safe
// for concurrent use.
type Interceptor struct {
	o      Options
	key    []byte
	server *http.Server

	mu        sync.Mutex
	sandboxes map[engi.SandboxID]*sandbox // guarded by mu
	held      heldBytes
}

// A sandbox holds the rules of one sandbox. It is immutable. A change of the policy creates
// a new sandbox that shares authority and upstream.
type sandbox struct {
	id        engi.SandboxID
	owner     engi.Owner
	policy    *policy.Policy
	rules     []rule
	authority *authority // nil if no TLS is intercepted
	upstream  *upstream
}

// New returns an Interceptor without sandboxes. The caller closes it.
func New(o Options) (*Interceptor, error) {
	if o.Reveal == nil || o.Dial == nil {
		return nil, engi.Errorf(engi.Invalid, "an interceptor needs Reveal and Dial")
	}
	if o.Use == nil {
		o.Use = func(ctx context.Context, viewer engi.Viewer, idOrName string) (string, []string, bool, error) {
			value, err := o.Reveal(ctx, viewer, idOrName)
			return value, nil, false, err
		}
	}
	if o.Key == nil {
		o.Key = make([]byte, 32)
		rand.Read(o.Key) // never fails
	}
	if len(o.Key) < 32 {
		return nil, engi.Errorf(engi.Invalid, "the key of an interceptor has %d bytes instead of 32", len(o.Key))
	}
	if o.Events == nil {
		o.Events = func(engi.NetworkRecord) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	for d, usual := range map[*time.Duration]time.Duration{
		&o.HandshakeTimeout: 10 * time.Second, &o.HeaderTimeout: time.Minute, &o.ResponseTimeout: 15 * time.Minute, &o.IdleTimeout: 15 * time.Minute,
	} {
		if *d <= 0 {
			*d = usual
		}
	}
	i := &Interceptor{o: o, key: slices.Clone(o.Key), sandboxes: map[engi.SandboxID]*sandbox{}}
	i.o.Key = nil
	i.server = i.newServer()
	return i, nil
}

// Open puts the grants, header rules and request rules of a policy in force instead of the
// previous ones, including existing connections. Of the sandbox's setup, it
// returns Env and Authority, which is nil if nothing is intercepted. Authority
// belongs in the files [AuthorityPath] and [BundlePath].
func (i *Interceptor) Open(id engi.SandboxID, owner engi.Owner, p *policy.Policy) (_ engi.NetworkSetup, err error) {
	defer engi.Annotate(&err, "intercept for %s", id)
	rules, err := rulesOf(p)
	if err != nil {
		return engi.NetworkSetup{}, err
	}
	w := engi.NetworkSetup{Env: map[string]string{}}
	for n := range rules {
		if g := rules[n].grant; g.Env != "" {
			rules[n].placeholder = i.placeholder(id, g)
			w.Env[g.Env] = rules[n].placeholder
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	old := i.sandboxes[id]
	s := &sandbox{id: id, owner: owner, policy: p, rules: rules}
	if old != nil && old.owner == owner {
		s.authority, s.upstream = old.authority, old.upstream
	} else {
		old.closeIdle()
		s.upstream = i.newUpstream(id)
	}
	if p.HasRequests() || p.HasPackages() || slices.ContainsFunc(rules, func(r rule) bool { return r.host.TLS }) {
		if s.authority == nil || time.Until(s.authority.cert.NotAfter) < authorityLeft {
			if s.authority, err = i.newAuthority(id); err != nil {
				return engi.NetworkSetup{}, err
			}
		}
		w.Authority = slices.Clone(s.authority.pem)
		maps.Copy(w.Env, trustEnv)
	}
	i.sandboxes[id] = s
	return w, nil
}

// Shut removes a sandbox. Its later requests are refused.
func (i *Interceptor) Shut(id engi.SandboxID) {
	i.mu.Lock()
	old := i.sandboxes[id]
	delete(i.sandboxes, id)
	i.mu.Unlock()
	old.closeIdle()
}

// Intercepts reports whether there are rules for a connection of a sandbox to a
// host that its client claimed. Callers must not terminate TLS without rules.
func (i *Interceptor) Intercepts(id engi.SandboxID, host string, port uint16, tls bool) bool {
	s := i.sandbox(id)
	return s.judges(host) || len(s.rulesFor(host, port, tls)) > 0
}

// Close closes all connections. It does not wait for calls of Serve, which return
// soon.
func (i *Interceptor) Close() error {
	err := i.server.Close()
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, s := range i.sandboxes {
		s.closeIdle()
	}
	clear(i.sandboxes)
	if err != nil {
		return engi.Errorf(engi.Internal, "close interceptor: %v", err)
	}
	return nil
}

func (i *Interceptor) sandbox(id engi.SandboxID) *sandbox {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.sandboxes[id]
}

// judges reports whether request rules apply to requests to a host; s may be nil.
func (s *sandbox) judges(host string) bool { return s != nil && s.policy.Judges(host) }

// rulesFor returns the rules for a host; s may be nil.
func (s *sandbox) rulesFor(host string, port uint16, tls bool) []rule {
	if s == nil {
		return nil
	}
	var found []rule
	for _, r := range s.rules {
		if r.host.Covers(host, port, tls) {
			found = append(found, r)
		}
	}
	return found
}

// closeIdle closes idle connections to hosts; s may be nil.
func (s *sandbox) closeIdle() {
	if s != nil {
		s.upstream.closeIdle()
	}
}
