package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/net/proxy"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/policy"
)

// keepAlive configures the detection of a lost other side on an idle connection.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: time.Minute, Interval: 15 * time.Second, Count: 4}

// A refusal is a decision against a connection, made after the policy
// had allowed it.
type refusal struct{ reason string }

func (r refusal) Error() string { return r.reason }

// dial connects to an address that a policy has allowed, and to no other address.
func (g *Gateway) dial(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, g.o.DialTimeout)
	defer cancel()
	began := time.Now()
	d := net.Dialer{KeepAliveConfig: keepAlive, ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
		if ap, err := netip.ParseAddrPort(address); err != nil || ap.Addr().Unmap() != to.Addr() || ap.Port() != to.Port() {
			return refusal{"the connection would have gone to " + address}
		}
		return nil
	}}
	c, err := d.DialContext(ctx, network, to.String())
	if err != nil {
		return nil, err
	}
	g.metrics.dial.Observe(time.Since(began).Seconds())
	if g.loopsBack(c, to) {
		c.Close()
		return nil, refusal{"the address is one of this host"}
	}
	return c, nil
}

// loopsBack reports whether a connection leads to this host itself, although the
// operator did not open that address. The kernel knows all addresses of the
// host, including addresses added after the policy was compiled.
func (g *Gateway) loopsBack(c net.Conn, to netip.AddrPort) bool {
	local, err := netip.ParseAddrPort(c.LocalAddr().String())
	if err != nil || local.Addr().Unmap().WithZone("") != to.Addr() {
		return false
	}
	for _, p := range g.o.Private {
		if p.Contains(to.Addr()) {
			return false
		}
	}
	for _, addrs := range g.o.Hosts {
		for _, a := range addrs {
			if a.Unmap() == to.Addr() {
				return false
			}
		}
	}
	return true
}

// connect connects to an address, through the policy's upstream proxy if it has
// one.
func (g *Gateway) connect(ctx context.Context, p *policy.Policy, to netip.AddrPort) (net.Conn, error) {
	if up := p.Proxy(); up != nil {
		return g.connectProxy(ctx, p, up, to)
	}
	return g.dial(ctx, "tcp", to)
}

// connectProxy connects through an upstream proxy, whose own address the policy
// must allow.
func (g *Gateway) connectProxy(ctx context.Context, p *policy.Policy, up *policy.Proxy, to netip.AddrPort) (c net.Conn, err error) {
	defer engi.Annotate(&err, "upstream proxy %s", up.Host)
	ctx, cancel := context.WithTimeout(ctx, g.o.DialTimeout)
	defer cancel()
	addrs, err := g.resolve(ctx, p, up.Host)
	if err != nil {
		return nil, err
	}
	var conn net.Conn
	last := error(refusal{"its name has no address"})
	for _, a := range addrs {
		if v := p.Upstream(a); !v.Allowed {
			last = refusal{v.Reason}
			continue
		}
		if conn, last = g.dial(ctx, "tcp", netip.AddrPortFrom(a, up.Port)); last == nil {
			break
		}
	}
	if last != nil {
		return nil, last
	}
	defer func() {
		if err != nil {
			conn.Close()
		}
	}()
	until, _ := ctx.Deadline()
	conn.SetDeadline(until)
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	switch up.Scheme {
	case "https":
		secure := tls.Client(conn, &tls.Config{ServerName: up.Host, RootCAs: g.o.Roots, MinVersion: tls.VersionTLS12})
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, engi.Errorf(engi.Unavailable, "TLS: %v", err)
		}
		c, err = connectHTTP(secure, up, to)
	case "http":
		c, err = connectHTTP(conn, up, to)
	default:
		c, err = connectSOCKS(ctx, conn, up, to)
	}
	if err != nil {
		return nil, err
	}
	conn.SetDeadline(time.Time{})
	return c, nil
}

func connectSOCKS(ctx context.Context, conn net.Conn, up *policy.Proxy, to netip.AddrPort) (net.Conn, error) {
	var auth *proxy.Auth
	if up.User != "" || up.Password != "" {
		auth = &proxy.Auth{User: up.User, Password: up.Password}
	}
	d, err := proxy.SOCKS5("tcp", conn.RemoteAddr().String(), auth, fixedDialer{conn})
	if err != nil {
		return nil, engi.Errorf(engi.Invalid, "SOCKS5: %v", err)
	}
	c, err := d.(proxy.ContextDialer).DialContext(ctx, "tcp", to.String())
	if err != nil {
		// The error's text may contain an address and a reason, but no credentials.
		return nil, engi.Errorf(engi.Unavailable, "SOCKS5: %v", err)
	}
	return c, nil
}

// A fixedDialer returns an existing connection.
type fixedDialer struct{ conn net.Conn }

func (g fixedDialer) Dial(string, string) (net.Conn, error) { return g.conn, nil }
func (g fixedDialer) DialContext(context.Context, string, string) (net.Conn, error) {
	return g.conn, nil
}

func connectHTTP(conn net.Conn, up *policy.Proxy, to netip.AddrPort) (net.Conn, error) {
	q := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: to.String()}, Host: to.String(), Header: http.Header{}}
	q.Header.Set("User-Agent", "")
	if up.User != "" || up.Password != "" {
		q.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(up.User+":"+up.Password)))
	}
	if err := q.Write(conn); err != nil {
		return nil, engi.Errorf(engi.Unavailable, "CONNECT: %v", err)
	}
	from := bufio.NewReader(io.LimitReader(conn, 16<<10))
	resp, err := http.ReadResponse(from, q)
	if err != nil {
		return nil, engi.Errorf(engi.Unavailable, "CONNECT: %v", err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, engi.Errorf(engi.Unavailable, "CONNECT: the proxy answers %d", resp.StatusCode)
	}
	if n := from.Buffered(); n > 0 {
		early, _ := from.Peek(n)
		return &prefixedConn{Conn: conn, prefix: append([]byte(nil), early...)}, nil
	}
	return conn, nil
}

// A prefixedConn is a connection that first returns the bytes read from it before.
type prefixedConn struct {
	net.Conn
	prefix []byte
}

func (p *prefixedConn) Read(b []byte) (int, error) {
	if len(p.prefix) > 0 {
		n := copy(b, p.prefix)
		if p.prefix = p.prefix[n:]; len(p.prefix) == 0 {
			p.prefix = nil
		}
		return n, nil
	}
	return p.Conn.Read(b)
}

// CloseWrite closes the writing side.
func (p *prefixedConn) CloseWrite() error { return closeWrite(p.Conn) }

func closeWrite(c net.Conn) error {
	if w, ok := c.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return nil
}

// resolve resolves a name for the node itself. Fixed addresses take precedence;
// an IP address resolves to itself.
func (g *Gateway) resolve(ctx context.Context, p *policy.Policy, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return []netip.Addr{a.Unmap()}, nil
	}
	if addrs, ok := p.Static(host); ok {
		return addrs, nil
	}
	v4, err := g.resolver.Lookup(ctx, host, dnsmessage.TypeA)
	v6, err6 := g.resolver.Lookup(ctx, host, dnsmessage.TypeAAAA)
	if err != nil && err6 != nil {
		return nil, err
	}
	return append(v4.Addrs, v6.Addrs...), nil
}

// resolveAllowed resolves a name to the addresses that a policy lets a sandbox
// receive in DNS answers.
func (g *Gateway) resolveAllowed(ctx context.Context, p *policy.Policy, host string) ([]netip.Addr, error) {
	if v := p.Lookup(host); !v.Allowed {
		return nil, engi.Errorf(engi.Denied, "%s: %s", host, v.Reason)
	}
	all, err := g.resolve(ctx, p, host)
	if err != nil {
		return nil, err
	}
	reason := "it has no address"
	var addrs []netip.Addr
	for _, a := range all {
		if v := p.Answer(host, a); v.Allowed {
			addrs = append(addrs, a)
		} else {
			reason = v.Reason
		}
	}
	if len(addrs) == 0 {
		return nil, engi.Errorf(engi.Denied, "%s: %s", host, reason)
	}
	return addrs, nil
}

// dialName connects to a host by name or address if a policy allows it.
func (g *Gateway) dialName(ctx context.Context, p *policy.Policy, host string, port uint16) (net.Conn, error) {
	var names []string
	var addrs []netip.Addr
	if a, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		addrs = []netip.Addr{a.Unmap()}
	} else {
		name, err := policy.CheckName(host)
		if err != nil {
			return nil, err
		}
		if rule, ok := p.Packages(name); ok {
			return nil, engi.Errorf(engi.Denied, "%s: the rule %q is for programs in sandboxes", name, rule).WithRemedy("name the host in the policy")
		}
		if addrs, err = g.resolveAllowed(ctx, p, name); err != nil {
			return nil, err
		}
		names = []string{name}
	}
	var last error
	for _, a := range addrs {
		ap := netip.AddrPortFrom(a, port)
		v := p.Connect("tcp", ap, names)
		if !v.Allowed {
			last = engi.Errorf(engi.Denied, "%s: %s", net.JoinHostPort(host, strconv.Itoa(int(port))), v.Reason)
			continue
		}
		c, err := g.connect(ctx, p, ap)
		if err == nil {
			return c, nil
		}
		last = engi.Errorf(engi.Unavailable, "connect to %s: %v", net.JoinHostPort(host, strconv.Itoa(int(port))), err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, last
}

// dialHost connects on behalf of an intercepted request of a sandbox.
func (g *Gateway) dialHost(ctx context.Context, id engi.SandboxID, host string, port uint16) (net.Conn, error) {
	s, err := g.sandbox(id, nil)
	if err != nil {
		return nil, err
	}
	var set *rules
	if s != nil {
		set = s.rules.Load()
	}
	if set == nil {
		return nil, engi.Errorf(engi.Denied, "connect %s to %s: its network is shut", id, host)
	}
	return g.dialName(ctx, set.policy, host, port)
}

// shouldReset reports whether a failure to connect is passed on to the sandbox as
// a reset: the destination refused the connection, or is known to be unreachable. Otherwise the
// sandbox also sees a timeout.
func shouldReset(err error) bool {
	var no refusal
	return errors.As(err, &no) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENETUNREACH) ||
		errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EADDRNOTAVAIL) ||
		engi.Is(err, engi.Denied) || engi.Is(err, engi.Unavailable) || engi.Is(err, engi.Invalid)
}

func dialReason(err error) string {
	var no refusal
	if errors.As(err, &no) {
		return no.reason
	}
	var op *net.OpError
	if errors.As(err, &op) {
		return fmt.Sprintf("the destination did not answer: %v", op.Err)
	}
	return fmt.Sprintf("the destination did not answer: %v", err)
}
