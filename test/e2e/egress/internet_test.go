package egress

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// The test process runs in a separate network namespace: its "host" has one
// link, and behind this link is a simulated Internet in which every address
// answers. All traffic to it is recorded.
var (
	hostAddr4 = netip.MustParseAddr("198.18.0.1")
	hostAddr6 = netip.MustParseAddr("fd57::1")
	netAddr4  = netip.MustParseAddr("198.18.0.2")
	netAddr6  = netip.MustParseAddr("fd57::2")
	resolver  = netip.MustParseAddrPort("9.9.9.53:53")
)

// An internet is a network namespace in which every address is local, and
// servers on some ports of all of them. It records the data that the servers receive.
type internet struct {
	root *authority
	jobs chan func()

	mu    sync.Mutex
	heard []heard                             // guarded by mu
	zone  map[string]func(n int) []netip.Addr // guarded by mu
	asked map[string]int                      // number of lookups by name; guarded by mu
	alias map[string]string                   // guarded by mu
	text  map[string]int                      // bytes of TXT records, by name; guarded by mu
	sites map[string]http.Handler             // handlers by host; guarded by mu
}

// A heard is data that left a sandbox.
type heard struct {
	how  string // tcp, request, udp, lookup
	at   netip.AddrPort
	data string
}

func (h heard) String() string { return fmt.Sprintf("%s at %s: %.100q", h.how, h.at, h.data) }

// newInternet creates an internet, and joins it to the namespace of this process, which must be one of
// the test's own.
func newInternet() (*internet, error) {
	root, err := newAuthority()
	if err != nil {
		return nil, err
	}
	w := &internet{root: root, jobs: make(chan func()), zone: map[string]func(int) []netip.Addr{}, asked: map[string]int{},
		alias: map[string]string{}, text: map[string]int{}, sites: map[string]http.Handler{}}
	ready := make(chan error)
	go w.live(ready)
	if err := <-ready; err != nil {
		return nil, err
	}
	if err := joinHost(); err != nil {
		return nil, err
	}
	return w, w.in(w.serve)
}

// live runs on a thread in the internet's namespace, until the process ends.
func (w *internet) live(ready chan<- error) {
	runtime.LockOSThread()
	ready <- func() error {
		host, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		defer host.Close()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "world"}, PeerName: "out", PeerNamespace: netlink.NsFd(int(host.Fd()))}
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("make a link: %w", err)
		}
		if err := up("lo"); err != nil {
			return err
		}
		if err := address("world", netAddr4, netAddr6); err != nil {
			return err
		}
		// Every address belongs to this namespace, except those on the link.
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		anywhere := func(dst string) *netlink.Route {
			_, n, _ := net.ParseCIDR(dst)
			return &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: n, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST}
		}
		world, err := netlink.LinkByName("world")
		if err != nil {
			return err
		}
		host4 := &netlink.Route{LinkIndex: world.Attrs().Index, Dst: &net.IPNet{IP: hostAddr4.AsSlice(), Mask: net.CIDRMask(32, 32)},
			Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_LINK}
		host6 := &netlink.Route{LinkIndex: world.Attrs().Index, Dst: &net.IPNet{IP: hostAddr6.AsSlice(), Mask: net.CIDRMask(128, 128)},
			Table: unix.RT_TABLE_LOCAL}
		for _, r := range []*netlink.Route{host4, host6, anywhere("0.0.0.0/0"), anywhere("::/0")} {
			if err := netlink.RouteAdd(r); err != nil {
				return fmt.Errorf("route %s: %w", r, err)
			}
		}
		return nil
	}()
	for f := range w.jobs {
		f()
	}
}

// joinHost connects the process's own namespace.
func joinHost() error {
	if err := up("lo"); err != nil {
		return err
	}
	if err := address("out", hostAddr4, hostAddr6); err != nil {
		return err
	}
	out, err := netlink.LinkByName("out")
	if err != nil {
		return err
	}
	for dst, gw := range map[string]netip.Addr{"0.0.0.0/0": netAddr4, "::/0": netAddr6} {
		_, n, _ := net.ParseCIDR(dst)
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: out.Attrs().Index, Dst: n, Gw: gw.AsSlice()}); err != nil {
			return fmt.Errorf("route %s: %w", dst, err)
		}
	}
	return nil
}

func up(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	return netlink.LinkSetUp(l)
}

func address(name string, a4, a6 netip.Addr) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	for a, bits := range map[netip.Addr]int{a4: 24, a6: 64} {
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}}
		if a.Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(l, addr); err != nil {
			return fmt.Errorf("address %s: %w", a, err)
		}
	}
	return netlink.LinkSetUp(l)
}

// in runs f in the internet's namespace.
func (w *internet) in(f func() error) error {
	done := make(chan error)
	w.jobs <- func() { done <- f() }
	return <-done
}

// listen returns a listener on a TCP port of every address.
func (w *internet) listen(port int) (l net.Listener, err error) {
	err = w.in(func() error {
		l, err = net.Listen("tcp", fmt.Sprintf(":%d", port))
		return err
	})
	return l, err
}

// name sets the addresses of a name.
func (w *internet) name(name string, addrs ...string) {
	var all []netip.Addr
	for _, a := range addrs {
		all = append(all, netip.MustParseAddr(a))
	}
	w.answer(name, func(int) []netip.Addr { return all })
}

// answer sets addresses of a name that change with each question.
func (w *internet) answer(name string, f func(n int) []netip.Addr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.zone[name] = f
}

// site serves a host by HTTP and HTTPS on every web port.
func (w *internet) site(host string, h http.Handler) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sites[host] = h
}

func (w *internet) hear(how string, at net.Addr, data string) {
	ap, _ := netip.ParseAddrPort(at.String())
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heard = append(w.heard, heard{how, netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), data})
}

// whoHeard returns the recorded data that contains a text, of the given kinds or of all.
func (w *internet) whoHeard(text string, hows ...string) []heard {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []heard
	for _, h := range w.heard {
		if strings.Contains(strings.ToLower(h.data), strings.ToLower(text)) && (len(hows) == 0 || slices.Contains(hows, h.how)) {
			all = append(all, h)
		}
	}
	return all
}

const reached = "REACHED"

// Ports of the internet's servers, on every address.
var (
	plainPorts  = []int{80, 8080, 3128}
	securePorts = []int{443, 8443}
	bannerPorts = []int{22, 25, 5432}
	udpPorts    = []int{123, 443, 5000}
)

// serve starts the servers, on the thread in the namespace.
func (w *internet) serve() error {
	web := &http.Server{Handler: w, ErrorLog: log.New(io.Discard, "", 0)}
	for _, port := range plainPorts {
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			return err
		}
		go web.Serve(&ear{l, w})
	}
	config := &tls.Config{GetCertificate: w.root.certificate, NextProtos: []string{"h2", "http/1.1", "dot"}}
	for _, port := range securePorts {
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			return err
		}
		secure := &http.Server{Handler: w, TLSConfig: config.Clone(), ErrorLog: log.New(io.Discard, "", 0)}
		go secure.ServeTLS(&ear{l, w}, "", "")
	}
	for _, port := range bannerPorts {
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err != nil {
			return err
		}
		go w.serveEach(l, func(c net.Conn) {
			fmt.Fprintf(c, "%s at=%s\r\n", reached, c.LocalAddr())
			io.Copy(c, c)
		})
	}
	l, err := net.Listen("tcp", ":853")
	if err != nil {
		return err
	}
	go w.serveEach(&ear{l, w}, func(c net.Conn) {
		t := tls.Server(c, config)
		fmt.Fprintf(t, "%s at=%s\r\n", reached, c.LocalAddr())
		io.Copy(io.Discard, io.LimitReader(t, 1<<20))
	})
	if l, err = net.Listen("tcp", ":53"); err != nil {
		return err
	}
	go w.serveEach(l, w.serveDNS)
	for _, port := range append([]int{53}, udpPorts...) {
		if err := w.serveUDP(port); err != nil {
			return err
		}
	}
	return nil
}

func (w *internet) serveEach(l net.Listener, f func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			c.SetDeadline(time.Now().Add(time.Minute))
			w.hear("accept", c.LocalAddr(), "")
			f(c)
		}()
	}
}

// ServeHTTP is the handler of all web servers.
func (w *internet) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	at := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	w.hear("request", at, r.Method+" "+r.Host+" "+r.URL.String())
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	w.mu.Lock()
	site := w.sites[strings.ToLower(host)]
	w.mu.Unlock()
	switch {
	case site != nil:
		site.ServeHTTP(rw, r)
	case r.URL.Query().Has("to"): // in hexadecimal, so that the text is no token before the redirect is followed
		to, err := hex.DecodeString(r.URL.Query().Get("to"))
		if err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
		http.Redirect(rw, r, string(to), http.StatusFound)
	default:
		fmt.Fprintf(rw, "%s host=%s at=%s\n", reached, r.Host, at)
	}
}

// An ear records the first bytes of each connection.
type ear struct {
	net.Listener
	w *internet
}

func (e *ear) Accept() (net.Conn, error) {
	c, err := e.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &heardConn{Conn: c, w: e.w}, nil
}

type heardConn struct {
	net.Conn
	w     *internet
	bytes int
}

func (c *heardConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && c.bytes < 8<<10 {
		c.bytes += n
		c.w.hear("tcp", c.LocalAddr(), string(b[:n]))
	}
	return n, err
}

// serveUDP answers datagrams on a port of every address, from the address they
// were sent to.
func (w *internet) serveUDP(port int) error {
	p4, err := net.ListenPacket("udp4", fmt.Sprintf(":%d", port))
	if err != nil {
		return err
	}
	c4 := ipv4.NewPacketConn(p4)
	if err := c4.SetControlMessage(ipv4.FlagDst, true); err != nil {
		return err
	}
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, cm, from, err := c4.ReadFrom(buf)
			if err != nil {
				return
			}
			if out := w.datagram(port, cm.Dst, buf[:n]); out != nil {
				c4.WriteTo(out, &ipv4.ControlMessage{Src: cm.Dst}, from)
			}
		}
	}()
	anySource := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		failed := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_FREEBIND, 1) })
		return errors.Join(failed, err)
	}}
	p6, err := anySource.ListenPacket(context.Background(), "udp6", fmt.Sprintf("[::]:%d", port))
	if err != nil {
		return err
	}
	c6 := ipv6.NewPacketConn(p6)
	if err := c6.SetControlMessage(ipv6.FlagDst, true); err != nil {
		return err
	}
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, cm, from, err := c6.ReadFrom(buf)
			if err != nil {
				return
			}
			if out := w.datagram(port, cm.Dst, buf[:n]); out != nil {
				c6.WriteTo(out, &ipv6.ControlMessage{Src: cm.Dst}, from)
			}
		}
	}()
	return nil
}

func (w *internet) datagram(port int, to net.IP, b []byte) []byte {
	at := &net.UDPAddr{IP: to, Port: port}
	if port == 53 {
		return w.lookup(at, b, true)
	}
	w.hear("udp", at, string(b))
	return fmt.Appendf(nil, "%s at=%s", reached, at)
}

func (w *internet) serveDNS(c net.Conn) {
	for {
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		msg := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(c, msg); err != nil {
			return
		}
		out := w.lookup(c.LocalAddr(), msg, false)
		if out == nil {
			return
		}
		c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(out))), out...))
	}
}

// lookup answers for all DNS servers.
func (w *internet) lookup(at net.Addr, msg []byte, datagram bool) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(msg)
	if err != nil {
		w.hear("lookup", at, string(msg))
		return nil
	}
	q, err := p.Question()
	if err != nil {
		return nil
	}
	name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	w.hear("lookup", at, name+" "+q.Type.String()+" "+string(msg[12+len(q.Name.String()):]))
	w.mu.Lock()
	alias, zone, text := w.alias[name], w.zone[name], w.text[name]
	if zone == nil && alias == "" {
		for i := range name { // a wildcard of the zone
			if name[i] == '.' && zone == nil {
				zone = w.zone["*"+name[i:]]
			}
		}
	}
	var addrs []netip.Addr
	owner := q.Name
	if alias != "" {
		zone = w.zone[alias]
	}
	if zone != nil {
		n := w.asked[name+q.Type.String()]
		w.asked[name+q.Type.String()] = n + 1
		addrs = zone(n)
	}
	w.mu.Unlock()
	code := dnsmessage.RCodeSuccess
	if zone == nil && text == 0 {
		code = dnsmessage.RCodeNameError
	}
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: h.ID, Response: true, RecursionAvailable: true, RCode: code,
		Truncated: datagram && text > 400})
	b.EnableCompression()
	b.StartQuestions()
	b.Question(q)
	b.StartAnswers()
	if alias != "" {
		to := dnsmessage.MustNewName(alias + ".")
		b.CNAMEResource(dnsmessage.ResourceHeader{Name: owner, Class: dnsmessage.ClassINET}, dnsmessage.CNAMEResource{CNAME: to})
		owner = to
	}
	for _, a := range addrs {
		head := dnsmessage.ResourceHeader{Name: owner, Class: dnsmessage.ClassINET} // with a time to live of 0 seconds
		switch {
		case q.Type == dnsmessage.TypeA && a.Is4():
			b.AResource(head, dnsmessage.AResource{A: a.As4()})
		case q.Type == dnsmessage.TypeAAAA && a.Is6():
			b.AAAAResource(head, dnsmessage.AAAAResource{AAAA: a.As16()})
		}
	}
	if q.Type == dnsmessage.TypeTXT && !(datagram && text > 400) {
		for left := text; left > 0; left -= 200 {
			b.TXTResource(dnsmessage.ResourceHeader{Name: owner, Class: dnsmessage.ClassINET}, dnsmessage.TXTResource{TXT: []string{strings.Repeat("x", 200)}})
		}
	}
	out, err := b.Finish()
	if err != nil {
		return nil
	}
	return out
}

// An authority creates certificates for all hosts that clients request.
type authority struct {
	PEM  []byte
	cert *x509.Certificate
	key  *ecdsa.PrivateKey

	mu    sync.Mutex
	certs map[string]*tls.Certificate // guarded by mu
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of the test's internet"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{PEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), cert: cert, key: key, certs: map[string]*tls.Certificate{}}, nil
}

func (a *authority) certificate(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
	name := h.ServerName
	if name == "" {
		name = "nobody.test"
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.certs[name]; c != nil {
		return c, nil
	}
	t := &x509.Certificate{SerialNumber: big.NewInt(int64(len(a.certs) + 2)), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(12 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, &a.key.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	c := &tls.Certificate{Certificate: [][]byte{der, a.cert.Raw}, PrivateKey: a.key}
	a.certs[name] = c
	return c, nil
}

// bundle writes the certificates that this machine trusts and the internet's
// own into a file.
func (a *authority) bundle(path string) error {
	all := bytes.Clone(a.PEM)
	if b, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt"); err == nil {
		all = append(all, b...)
	}
	return os.WriteFile(path, all, 0o644)
}

// dialResolver reaches the internet's DNS server.
func dialResolver(ctx context.Context, network, _ string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, network, resolver.String())
}
