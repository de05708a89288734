package session

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/test/env"
)

// authority signs certificates that this process, and so the egress gateway, trusts.
var authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// outside is the address of the API, which does not belong to this machine.
const outside = "93.184.216.34"

// TestMain runs the tests in a separate network namespace, next to another
// one that simulates the Internet, and creates the authority before any code has
// read the machine's trust store, which happens once.
func TestMain(m *testing.M) {
	const inner = "ENGI_TEST_SESSION_INNER"
	if os.Geteuid() == 0 && os.Getenv("ENGI_RUNSC") != "" && os.Getenv(inner) == "" {
		cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.Env = append(os.Environ(), inner+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
		// The signal is sent when the thread that started the process ends.
		runtime.LockOSThread()
		if err := cmd.Run(); err != nil {
			if cmd.ProcessState != nil && cmd.ProcessState.ExitCode() > 0 {
				os.Exit(cmd.ProcessState.ExitCode())
			}
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	dir, err := os.MkdirTemp("", "engi-ses-ca-")
	if err == nil {
		err = found(dir)
	}
	if err == nil && os.Getenv(inner) != "" {
		err = joinOutside()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// world runs functions in the namespace of the simulated Internet.
var world = make(chan func())

// joinOutside links this namespace with one that has the address outside.
func joinOutside() error {
	ready := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := func() error {
			here, err := os.Open("/proc/thread-self/ns/net")
			if err != nil {
				return err
			}
			defer here.Close()
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "world"}, PeerName: "out", PeerNamespace: netlink.NsFd(int(here.Fd()))}
			if err := netlink.LinkAdd(veth); err != nil {
				return err
			}
			return errors.Join(raise("lo", outside+"/32"), raise("world", "198.18.0.2/30"))
		}()
		ready <- err
		for f := range world {
			f()
		}
	}()
	if err := <-ready; err != nil {
		return fmt.Errorf("make the rest of the world: %w", err)
	}
	if err := errors.Join(raise("lo", ""), raise("out", "198.18.0.1/30")); err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP("198.18.0.2")})
}

// raise brings up a link of this thread's namespace, with an address.
func raise(name, address string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if address != "" {
		a, err := netlink.ParseAddr(address)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(l, a); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(l)
}

func found(dir string) (err error) {
	if authority.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &authority.key.PublicKey, authority.key)
	if err != nil {
		return err
	}
	if authority.cert, err = x509.ParseCertificate(der); err != nil {
		return err
	}
	file := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		return err
	}
	return os.Setenv("SSL_CERT_FILE", file)
}

// An api is a service on the Internet that requires a key.
type api struct {
	mu   sync.Mutex
	keys []string // Authorization of each request; guarded by mu
}

// serveAPI serves an API that requires a key.
func serveAPI(t *testing.T, names ...string) *api {
	t.Helper()
	a := &api{}
	serveSite(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		a.keys = append(a.keys, r.Header.Get("Authorization"))
		a.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		if r.Header.Get("Authorization") != "Bearer "+secretValue {
			w.WriteHeader(http.StatusUnauthorized)
		}
		fmt.Fprintf(w, `{"issues":[{"title":"first","by":%q}]}`, r.Host)
	}), names...)
	return a
}

// serveSite serves names over https at the address outside.
func serveSite(t *testing.T, site http.Handler, names ...string) {
	t.Helper()
	// Without these programs there is no simulated Internet, and no server in it.
	env.Machine(t, "ENGI_RUNSC", "ENGI_GUEST")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: names, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}, authority.cert, &key.PublicKey, authority.key)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(site)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	listened := make(chan error)
	world <- func() {
		l, err := net.Listen("tcp", outside+":443")
		if err == nil {
			srv.Listener.Close()
			srv.Listener = l
		}
		listened <- err
	}
	if err := <-listened; err != nil {
		t.Fatal(err)
	}
	srv.StartTLS()
	t.Cleanup(srv.Close)
}

func (a *api) seen() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string(nil), a.keys...)
}

// secretValue is the value that must never be in a sandbox.
const secretValue = "acme-4c1d9e77b2f04a55"
