package e2b

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Hosts of the simulated Internet that sandboxes see. Their addresses look public, but are
// in a separate network namespace, which has no connection to the
// real hosts.
const (
	oneAddress   = "93.184.216.1"
	twoAddress   = "93.184.216.2"
	proxyAddress = "93.184.216.3"
	outsideNet   = "93.184.216.0/24"
	engiAddress  = "198.18.77.4" // address of the machine on which engi runs
)

var outsideHosts = map[string]string{"one.test": oneAddress, "api.one.test": oneAddress, "two.test": twoAddress, "proxy.test": proxyAddress}

// secretValue is the value that the scenarios store as a secret; see /secret.
const secretValue = "canary-3f9c1d"

// A namespace is a network namespace of one thread.
type namespace struct {
	work chan func()
}

// newNamespace returns a namespace with the addresses above.
func newNamespace(t *testing.T) *namespace {
	t.Helper()
	ns := &namespace{work: make(chan func())}
	ready, done := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
		ready <- unix.Unshare(unix.CLONE_NEWNET)
		for f := range ns.work {
			f()
		}
	}()
	t.Cleanup(func() { close(ns.work); <-done })
	if err := <-ready; err != nil {
		t.Fatalf("make a network namespace: %v", err)
	}
	ns.do(func() {
		if err := bringUp(); err != nil {
			t.Errorf("set the namespace up: %v", err)
		}
	})
	return ns
}

// bringUp adds the addresses to this thread's namespace; the addresses of outsideNet are
// served here although they do not belong to the machine.
func bringUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	own, err := netlink.ParseAddr(engiAddress + "/32")
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(lo, own); err != nil {
		return err
	}
	_, all, err := net.ParseCIDR(outsideNet)
	if err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{
		LinkIndex: lo.Attrs().Index, Dst: all, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST,
	})
}

// do runs f in the namespace.
func (ns *namespace) do(f func()) {
	done := make(chan struct{})
	ns.work <- func() { defer close(done); f() }
	<-done
}

// start starts cmd in the namespace; a nil namespace means the current one.
func (ns *namespace) start(cmd *exec.Cmd) (err error) {
	if ns == nil {
		return cmd.Start()
	}
	ns.do(func() { err = cmd.Start() })
	return err
}

func (ns *namespace) listen(t *testing.T, address string) net.Listener {
	t.Helper()
	var l net.Listener
	var err error
	ns.do(func() { l, err = net.Listen("tcp", address) })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// outside serves the simulated hosts, with certificates of an authority whose file it
// returns.
func outside(t *testing.T, ns *namespace) (authority string) {
	t.Helper()
	dir := t.TempDir()
	initTLS(t, dir, "one.test", "two.test")
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello from", r.Host) })
	mux.HandleFunc("/team", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, r.Header.Get("X-Team")) })
	mux.HandleFunc("/secret", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, map[bool]string{true: "right", false: "wrong"}[r.Header.Get("Authorization") == "Bearer "+secretValue])
	})
	mux.HandleFunc("/from", func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprintln(w, host)
	})
	for _, a := range []string{oneAddress, twoAddress} {
		plain, secure := ns.listen(t, a+":80"), ns.listen(t, a+":443")
		for _, serve := range []func(*http.Server) error{
			func(s *http.Server) error { return s.Serve(plain) },
			func(s *http.Server) error { return s.ServeTLS(secure, "", "") },
		} {
			srv := &http.Server{
				Handler: mux, ReadHeaderTimeout: time.Minute, TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}},
				ErrorLog: log.New(io.Discard, "", 0), // discards errors of handshakes that scenarios let fail
			}
			var served sync.WaitGroup
			served.Go(func() { serve(srv) })
			t.Cleanup(func() { srv.Close(); served.Wait() })
		}
	}
	p := &socks{ns: ns, l: ns.listen(t, proxyAddress+":1080")}
	var served sync.WaitGroup
	served.Go(p.serve)
	t.Cleanup(func() { p.l.Close(); served.Wait() })

	// The server trusts the authority in addition to those of the machine, since it
	// checks the hosts whose requests it opens.
	bundle, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt")
	if err != nil {
		bundle = nil
	}
	own, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	authority = filepath.Join(dir, "bundle.pem")
	if err := os.WriteFile(authority, append(append(bundle, '\n'), own...), 0o644); err != nil {
		t.Fatal(err)
	}
	return authority
}

// socks is a SOCKS5 proxy for one user, with only the features that the test needs.
// Its requests come from proxyAddress.
type socks struct {
	ns *namespace
	l  net.Listener
}

func (p *socks) serve() {
	var work sync.WaitGroup
	defer work.Wait()
	for {
		c, err := p.l.Accept()
		if err != nil {
			return
		}
		work.Go(func() {
			defer c.Close()
			c.SetDeadline(time.Now().Add(time.Minute))
			if err := p.carry(c); err != nil {
				return
			}
		})
	}
}

func (p *socks) carry(c net.Conn) error {
	read := func(n int) ([]byte, error) { b := make([]byte, n); _, err := io.ReadFull(c, b); return b, err }
	counted := func() (string, error) {
		n, err := read(1)
		if err != nil {
			return "", err
		}
		b, err := read(int(n[0]))
		return string(b), err
	}
	if _, err := read(1); err != nil {
		return err
	}
	if _, err := counted(); err != nil { // skips the methods
		return err
	}
	c.Write([]byte{5, 2})
	if _, err := read(1); err != nil {
		return err
	}
	user, err := counted()
	if err != nil {
		return err
	}
	word, err := counted()
	if err != nil || user != "u" || word != "very-secret" {
		c.Write([]byte{1, 1})
		return fmt.Errorf("user %q", user)
	}
	c.Write([]byte{1, 0})
	head, err := read(4)
	if err != nil {
		return err
	}
	var host string
	switch head[3] {
	case 1:
		b, err := read(4)
		if err != nil {
			return err
		}
		host = net.IP(b).String()
	case 3:
		if host, err = counted(); err != nil {
			return err
		}
		host = outsideHosts[host]
	}
	port, err := read(2)
	if err != nil {
		return err
	}
	var out net.Conn
	p.ns.do(func() {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(proxyAddress)}, Timeout: 5 * time.Second}
		out, err = d.Dial("tcp", net.JoinHostPort(host, strconv.Itoa(int(binary.BigEndian.Uint16(port)))))
	})
	if err != nil {
		c.Write([]byte{5, 4, 0, 1, 0, 0, 0, 0, 0, 0})
		return err
	}
	defer out.Close()
	c.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0})
	var work sync.WaitGroup
	work.Go(func() { io.Copy(out, c); out.(*net.TCPConn).CloseWrite() })
	io.Copy(c, out)
	c.(*net.TCPConn).CloseWrite()
	work.Wait()
	return nil
}

// startOutside starts an engi in a namespace with the simulated Internet.
func startOutside(t *testing.T, vars ...string) *server {
	t.Helper()
	ns := newNamespace(t)
	authority := outside(t, ns)
	var hosts []string
	for name, a := range outsideHosts {
		hosts = append(hosts, name+"="+a)
	}
	return startIn(t, ns, append(vars, "ENGI_NETWORK_HOSTS="+strings.Join(hosts, ","), "SSL_CERT_FILE="+authority)...)
}

// output runs cmd in the server's namespace and returns its output.
func (s *server) output(ctx context.Context, cmd *exec.Cmd) ([]byte, error) {
	var out strings.Builder
	cmd.Stdout = &out
	if err := s.ns.start(cmd); err != nil {
		return nil, err
	}
	err := cmd.Wait()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return []byte(out.String()), err
}
