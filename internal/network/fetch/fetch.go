// Package fetch provides the HTTP clients with which this process fetches URLs that
// users name: documents, pages, the API calls of scripts. A URL from a user is
// hostile: its name may resolve to this host or to its network, at once or
// only at the second lookup, and a redirect may lead anywhere. So
// every rule applies to each request on the way, not only to the first URL,
// and addresses are judged at the time of the connection.
//
// [New] connects from the host itself and reaches only public addresses, as
// defined by package policy. [Through] connects like a sandbox, under an owner's
// policy and with entries in the network log. Neither follows the proxy variables of the
// environment: a proxy would resolve names without a check of the result.
//
// It does not serve addresses from the operator's own configuration, such as
// model providers and registries.
package fetch

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/policy"
)

// Redirects is the maximum number of redirects that clients follow.
const Redirects = 5

// Options limits the URLs that may be fetched. The zero value allows every public address.
type Options struct {
	// Hosts lists the only hosts that requests may go to: NAME or *.SUFFIX, with :PORT
	// for ports other than 80 and 443. Empty means any host and port.
	Hosts []string
	// Private lists networks that are not public but may be connected to.
	Private []netip.Prefix
	// Trusted lists hosts, as HOST:PORT or in the form of URLs, whose addresses the operator
	// trusts: the addresses may be private, and requests use the environment's proxy.
	// A redirect that leaves them is judged like any other request.
	Trusted []string

	Timeout time.Duration // maximum time of one request with its response; 0 means 1 minute
	MaxBody int64         // bytes; maximum size of a decompressed response body; 0 means 32 MiB
	Remedy  string        // remedy of Denied errors; empty adds none

	Resolver *net.Resolver  // resolver of names; nil means the system's
	Roots    *x509.CertPool // trusted authorities; nil means the system's
}

// New returns a client that fetches from this host. It reports Denied for
// requests and addresses that are not allowed and Exhausted for bodies that are
// too long. The caller closes the client's idle connections when done.
func New(o Options) *http.Client {
	t := &transport{o: o, public: &http.Transport{
		DialContext: (&net.Dialer{Timeout: 5 * time.Second, Resolver: o.Resolver, ControlContext: o.control}).DialContext,
		// Proxy is not set; see the package comment.
		TLSClientConfig: &tls.Config{RootCAs: o.Roots}, ForceAttemptHTTP2: true, TLSHandshakeTimeout: 5 * time.Second, MaxResponseHeaderBytes: 64 << 10,
		MaxIdleConns: 64, MaxIdleConnsPerHost: 4, MaxConnsPerHost: 16, IdleConnTimeout: 30 * time.Second,
	}}
	if len(o.Trusted) > 0 {
		trusted := http.DefaultTransport.(*http.Transport).Clone()
		trusted.TLSClientConfig = &tls.Config{RootCAs: o.Roots}
		t.trusted = trusted
	}
	return client(t)
}

// An Egress carries requests on an owner's behalf in the same way as a sandbox with the given
// policy; see package egress.
type Egress interface {
	Check(p engi.NetworkPolicy) error
	Transport(owner engi.Owner, p engi.NetworkPolicy) (http.RoundTripper, error)
}

// Through returns a client that fetches for an owner only from destinations that p
// allows. Only Timeout, MaxBody and Remedy of o apply. It returns an error for an invalid
// p. The caller closes the client's idle connections when done.
func Through(w Egress, owner engi.Owner, p engi.NetworkPolicy, o Options) (*http.Client, error) {
	next, err := w.Transport(owner, p)
	if err != nil {
		return nil, err
	}
	return client(&transport{o: Options{Timeout: o.Timeout, MaxBody: o.MaxBody, Remedy: o.Remedy}, public: next}), nil
}

// ForOwners returns a function that calls [Through] for any owner. It returns an error
// for an invalid p at once. A client whose transport is refused later
// returns the refusal for each request.
func ForOwners(w Egress, p engi.NetworkPolicy, o Options) (func(engi.Owner) *http.Client, error) {
	if err := w.Check(p); err != nil {
		return nil, err
	}
	return func(owner engi.Owner) *http.Client {
		c, err := Through(w, owner, p, o)
		if err != nil {
			return &http.Client{Transport: broken{err}}
		}
		return c
	}, nil
}

// broken is a transport that fails every request with err.
type broken struct{ err error }

func (b broken) RoundTrip(*http.Request) (*http.Response, error) { return nil, b.err }

func client(t *transport) *http.Client {
	t.o.Timeout = cmp.Or(t.o.Timeout, time.Minute)
	t.o.MaxBody = cmp.Or(t.o.MaxBody, 32<<20)
	return &http.Client{Transport: t, CheckRedirect: func(_ *http.Request, via []*http.Request) error {
		if len(via) > Redirects {
			return engi.Errorf(engi.Denied, "more than %d redirects", Redirects)
		}
		return nil
	}}
}

// A transport judges every request, including redirects, before the next
// transport sends it.
type transport struct {
	o       Options
	public  http.RoundTripper
	trusted http.RoundTripper // transport for trusted hosts; nil if there are none
}

// RoundTrip implements [http.RoundTripper].
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := t.o.check(r.URL); err != nil {
		return nil, t.denied(err)
	}
	next := t.public
	if t.o.trusts(r.URL) {
		next = t.trusted
	} else if from := r.Response; from != nil && from.Request.URL.Scheme == "https" && r.URL.Scheme == "http" {
		return nil, t.denied(engi.Errorf(engi.Denied, "%.100s redirects from https to http", from.Request.URL.Host))
	}
	ctx, cancel := context.WithTimeout(r.Context(), t.o.Timeout)
	resp, err := next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		cancel()
		return nil, t.denied(err)
	}
	resp.Body = &body{ReadCloser: resp.Body, host: r.URL.Host, left: t.o.MaxBody, most: t.o.MaxBody, cancel: cancel}
	return resp, nil
}

// CloseIdleConnections serves [http.Client.CloseIdleConnections].
func (t *transport) CloseIdleConnections() {
	for _, next := range []http.RoundTripper{t.public, t.trusted} {
		if c, ok := next.(interface{ CloseIdleConnections() }); ok {
			c.CloseIdleConnections()
		}
	}
}

// denied adds the remedy to an error of kind Denied.
func (t *transport) denied(err error) error {
	if t.o.Remedy != "" && engi.Is(err, engi.Denied) {
		return engi.Errorf(engi.Denied, "%w", err).WithRemedy("%s", t.o.Remedy)
	}
	return err
}

// check reports Denied for URLs that must not be requested.
func (o Options) check(u *url.URL) error {
	switch {
	case u.Scheme != "https" && u.Scheme != "http" || u.Host == "":
		return engi.Errorf(engi.Denied, "scheme %.20q is not allowed", u.Scheme)
	case u.User != nil:
		return engi.Errorf(engi.Denied, "a URL must not carry a user")
	case len(o.Hosts) > 0 && !slices.ContainsFunc(o.Hosts, func(h string) bool { return covers(h, u) }):
		return engi.Errorf(engi.Denied, "host %.100q is not among the allowed hosts", u.Host)
	}
	return nil
}

// CheckTrusted reports Invalid unless every host has the form HOST:PORT.
func CheckTrusted(hosts []string) error {
	for _, h := range hosts {
		host, port, err := net.SplitHostPort(h)
		if n, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || n == 0 || host == "" {
			return engi.Errorf(engi.Invalid, "%.80q is not a host and a port", h).WithRemedy("write it like registry.internal:5000")
		}
	}
	return nil
}

// trusts reports whether the host of u is among Trusted.
func (o Options) trusts(u *url.URL) bool {
	port := cmp.Or(u.Port(), map[string]string{"https": "443", "http": "80"}[u.Scheme])
	return slices.Contains(o.Trusted, u.Host) || slices.Contains(o.Trusted, net.JoinHostPort(u.Hostname(), port))
}

// covers reports whether an entry of Hosts covers the host of u.
func covers(entry string, u *url.URL) bool {
	host, port := strings.ToLower(strings.TrimSuffix(u.Hostname(), ".")), u.Port()
	name, only, ported := strings.ToLower(entry), "", false
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, ']') {
		name, only, ported = name[:i], name[i+1:], true
	}
	name = strings.Trim(name, "[]")
	usual := port == "" || u.Scheme == "https" && port == "443" || u.Scheme == "http" && port == "80"
	if ported && only != port || !ported && !usual {
		return false
	}
	suffix, wild := strings.CutPrefix(name, "*")
	return name == host || wild && strings.HasPrefix(suffix, ".") && strings.HasSuffix(host, suffix)
}

// control reports Denied for addresses that must not be connected to. It is called with
// the resolved address just before each connection.
func (o Options) control(_ context.Context, _, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return engi.Errorf(engi.Internal, "address %q: %v", address, err)
	}
	a := to.Addr().Unmap().WithZone("")
	if slices.ContainsFunc(o.Private, func(p netip.Prefix) bool { return p.Contains(a) }) {
		return nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return engi.Errorf(engi.Internal, "the addresses of this host: %v", err)
	}
	own, near := policy.HostNetworks(addrs)
	if why := (policy.Node{Own: own, Near: near}).NotPublic(a); why != "" {
		return engi.Errorf(engi.Denied, "the host resolves to %s, which is %s", a, why)
	}
	return nil
}

// A body ends with an error when it is too long, and frees its request's
// context when it is closed.
type body struct {
	io.ReadCloser
	host       string
	left, most int64
	cancel     context.CancelFunc
}

func (b *body) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	// Read one byte more than is left, to tell a body that is too long from a body that
	// just fits.
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left+1)])
	if int64(n) > b.left {
		n = int(b.left)
		err = engi.Errorf(engi.Exhausted, "the response of %.100s is longer than %d bytes", b.host, b.most)
	}
	b.left -= int64(n)
	return n, err
}

func (b *body) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

// ParseNetworks parses addresses and networks such as 10.1.0.0/16. It reports
// Invalid for other texts.
func ParseNetworks(texts []string) ([]netip.Prefix, error) {
	all := make([]netip.Prefix, 0, len(texts))
	for _, s := range texts {
		n, err := netip.ParsePrefix(s)
		if a, aerr := netip.ParseAddr(s); err != nil && aerr == nil {
			n, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil || !n.IsValid() {
			return nil, engi.Errorf(engi.Invalid, "%.80q is neither an address nor a network", s)
		}
		all = append(all, n)
	}
	return all, nil
}
