// Package intercept puts secrets into HTTP requests of sandboxes on their way
// out, and takes them out of the answers, so that no value is ever inside. It
// ends the TLS of the sandbox with a certificate of an authority that this
// sandbox alone trusts, judges each request by itself, changes what grants and
// header rules say, and sends it on over verified TLS of its own. HTTP/1.1 and
// HTTP/2 both ways, streams, trailers and upgrades pass.
//
// TLS is opened only to hosts of grants and header rules. A host is written
// [http://|https://]NAME|*.SUFFIX[:PORT]; without a port it means TLS on every
// port. Over plain HTTP no secret is ever sent but to a host that is written
// with http://, on port 80 if it names none, and only if the policy lets the
// sandbox connect there anyway: a grant by itself opens TLS alone.
//
// The authority's key is made from [Options.Key] and the sandbox's ID. It is
// nowhere but in memory, and the same after a restart of this process, so that
// programs that are running go on trusting it. Placeholders are made in the
// same way: nobody without the key can guess them, and they stay the same for
// as long as the sandbox lives.
//
// Placeholders are replaced in the values of headers, inside of Basic
// credentials, and in the query; never in bodies, because much that is sent in
// a body can be read back later. Whoever may write at a granted host where it
// may also read, and a host that helps, can always get at a value: a grant
// trusts its hosts.
//
// Package intercept does not decide who may connect where, and opens no
// connections: see packages policy and egress.
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

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/gate/egress/policy"
)

// Options are what an Interceptor works with. Reveal and Dial are needed; the
// zero value of everything else is useful.
type Options struct {
	// Key is what authorities and placeholders are made from, 32 bytes that
	// survive restarts. Nil: a random one.
	Key []byte
	// Reveal returns the value of an owner's secret, by ID or name. It is
	// asked at each request.
	Reveal func(ctx context.Context, owner engi.Owner, idOrName string) (string, error)
	// Dial connects to a host that is granted, as the sandbox's policy lets
	// it. TLS is added here.
	Dial func(ctx context.Context, id engi.SandboxID, host string, port uint16) (net.Conn, error)
	// Events gets one event per request, without Seq. It must not block. Nil
	// discards.
	Events func(engi.NetworkEvent)
	// Roots are trusted upstream. Nil: those of the system.
	Roots *x509.CertPool

	Handshake time.Duration // of TLS, both sides; 0 means 10 s
	Header    time.Duration // for the header of a request to arrive, and between requests; 0 means 1 minute
	Answer    time.Duration // from a request to the header of its answer; 0 means 15 minutes
	Idle      time.Duration // without a byte either way in a request or upgraded connection; 0 means 15 minutes

	Log *slog.Logger // nil discards
}

// A Target is what the claim on a connection was, and where it was going.
type Target struct {
	Sandbox engi.SandboxID
	Host    string         // that the client claimed and the policy allowed: lower case, no dot at the end
	Port    uint16         // it connected to
	TLS     bool           // it begins with a ClientHello, else with a request
	Address netip.AddrPort // it connected to, for events
}

// An Interceptor holds the authorities and rules of a node's sandboxes. It is
// safe for concurrent use.
type Interceptor struct {
	o      Options
	key    []byte
	server *http.Server

	mu   sync.Mutex
	open map[engi.SandboxID]*sandbox // guarded by mu
}

// A sandbox is what a policy made of one sandbox. It is immutable but for its
// authority's cache: another policy makes another one, with the same authority.
type sandbox struct {
	id       engi.SandboxID
	owner    engi.Owner
	rules    []rule
	ca       *authority // nil if no TLS is intercepted
	upstream *upstream
}

// New returns an Interceptor that knows no sandbox.
func New(o Options) (*Interceptor, error) {
	if o.Reveal == nil || o.Dial == nil {
		return nil, engi.Errorf(engi.Invalid, "an interceptor needs secrets and a way out")
	}
	if o.Key == nil {
		o.Key = make([]byte, 32)
		rand.Read(o.Key) // never fails
	}
	if len(o.Key) < 32 {
		return nil, engi.Errorf(engi.Invalid, "the key of an interceptor has %d bytes, 32 are needed", len(o.Key))
	}
	if o.Events == nil {
		o.Events = func(engi.NetworkEvent) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	for d, usual := range map[*time.Duration]time.Duration{
		&o.Handshake: 10 * time.Second, &o.Header: time.Minute, &o.Answer: 15 * time.Minute, &o.Idle: 15 * time.Minute,
	} {
		if *d <= 0 {
			*d = usual
		}
	}
	i := &Interceptor{o: o, key: slices.Clone(o.Key), open: map[engi.SandboxID]*sandbox{}}
	i.o.Key = nil
	i.server = i.newServer()
	return i, nil
}

// Open puts the grants and header rules of a policy in force, instead of
// those before, also for connections that there are. It returns what the
// sandbox needs inside: Authority, which is nil if nothing is intercepted, and
// Env. Authority belongs into the files [AuthorityPath] and [BundlePath]. It
// reports Invalid as [Check] does.
func (i *Interceptor) Open(id engi.SandboxID, owner engi.Owner, p *policy.Policy) (_ engi.NetworkSetup, err error) {
	defer engi.Annotate(&err, "intercept for %s", id)
	rules, err := rulesOf(p)
	if err != nil {
		return engi.NetworkSetup{}, err
	}
	w := engi.NetworkSetup{Env: map[string]string{}}
	for n := range rules {
		if g := rules[n].grant; g.Env != "" {
			rules[n].holder = i.placeholder(id, g)
			w.Env[g.Env] = rules[n].holder
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	was := i.open[id]
	s := &sandbox{id: id, owner: owner, rules: rules}
	if was != nil && was.owner == owner {
		s.ca, s.upstream = was.ca, was.upstream
	} else {
		was.end()
		s.upstream = i.newUpstream(id)
	}
	if slices.ContainsFunc(rules, func(r rule) bool { return r.host.TLS }) {
		if s.ca == nil || time.Until(s.ca.cert.NotAfter) < authorityLeft {
			if s.ca, err = i.newAuthority(id); err != nil {
				return engi.NetworkSetup{}, err
			}
		}
		w.Authority = slices.Clone(s.ca.pem)
		maps.Copy(w.Env, trustEnv)
	}
	i.open[id] = s
	return w, nil
}

// Shut forgets a sandbox: its requests are refused from now on.
func (i *Interceptor) Shut(id engi.SandboxID) {
	i.mu.Lock()
	was := i.open[id]
	delete(i.open, id)
	i.mu.Unlock()
	was.end()
}

// Intercepts reports whether there are rules for a connection of a sandbox to
// a host that it has claimed. TLS without belongs to the two ends alone.
func (i *Interceptor) Intercepts(id engi.SandboxID, host string, port uint16, tls bool) bool {
	return len(i.find(id).at(host, port, tls)) > 0
}

// Close ends all connections and waits for nobody: each Serve returns soon.
func (i *Interceptor) Close() error {
	err := i.server.Close()
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, s := range i.open {
		s.end()
	}
	clear(i.open)
	if err != nil {
		return engi.Errorf(engi.Internal, "close interceptor: %v", err)
	}
	return nil
}

func (i *Interceptor) find(id engi.SandboxID) *sandbox {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.open[id]
}

// at returns the rules that hold for a host; s may be nil.
func (s *sandbox) at(host string, port uint16, tls bool) []rule {
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

// end lets connections go that nobody uses; s may be nil.
func (s *sandbox) end() {
	if s != nil {
		s.upstream.close()
	}
}
