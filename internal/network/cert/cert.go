// Package cert provides a server's certificates: from files, which are reloaded
// when they change, and from a certificate authority through ACME. It also creates a
// private authority, for networks that no public authority serves.
//
// ACME is used with the TLS-ALPN challenge, which needs only the server
// itself. This challenge cannot give wildcard certificates, and every preview has its own host
// name, so previews need a wildcard certificate in a file.
package cert

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"

	"github.com/engi-dev/engi/internal/engi"
)

// Options configures the sources of certificates: files, ACME, or both.
type Options struct {
	Cert, Key string // paths of PEM files; both empty means no files
	ACME      ACME
	Log       *slog.Logger // nil discards
}

// ACME configures the names of ACME's certificates and the authority that issues them.
type ACME struct {
	Names     []string // names without wildcards; empty means that ACME is not used
	Email     string   // contact for the authority; may be empty
	Directory string   // address of the authority's directory; empty means Let's Encrypt
	Dir       string   // directory of the certificates and the account
	Port      int      // local port that receives the connections to port 443
}

// A Manager provides certificates to TLS listeners. It is safe for concurrent
// use.
type Manager struct {
	o     Options
	magic *certmagic.Config // nil without ACME
	cache *certmagic.Cache

	mu      sync.Mutex
	pair    *tls.Certificate // guarded by mu
	stamp   [2]time.Time     // modification times of the files from which pair was read; guarded by mu
	checked time.Time        // guarded by mu
}

// checkInterval is the minimum time between checks of the files for changes.
const checkInterval = 5 * time.Second

// Open returns a Manager. It reports Invalid for files and names that cannot
// be used. It does not contact the authority; Run does.
func Open(o Options) (*Manager, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	m := &Manager{o: o}
	if o.Cert != "" || o.Key != "" {
		if err := m.read(); err != nil {
			return nil, err
		}
	}
	if err := CheckNames(o.ACME.Names); err != nil {
		return nil, err
	}
	if len(o.ACME.Names) > 0 {
		m.openACME()
	}
	if m.pair == nil && m.magic == nil {
		return nil, engi.Errorf(engi.Invalid, "tls: there is neither a certificate nor a host name for which to get one").
			WithRemedy("set tls.cert and tls.key, or tls.acme_names")
	}
	return m, nil
}

// CheckNames reports Invalid for names that no authority certifies without a
// DNS challenge: wildcards and names that are not public.
func CheckNames(names []string) error {
	for _, n := range names {
		switch {
		case strings.Contains(n, "*"):
			return engi.Errorf(engi.Invalid, "acme: %.80q needs a DNS challenge, which engi cannot do", n).
				WithRemedy("get a wildcard certificate elsewhere and set tls.cert and tls.key; list only full names here")
		case net.ParseIP(n) != nil || !strings.Contains(n, ".") || strings.ContainsAny(n, " /:") || strings.HasSuffix(n, ".localhost") || strings.HasPrefix(n, "."):
			return engi.Errorf(engi.Invalid, "acme: %.80q is not a public host name", n).
				WithRemedy("list names like api.example.com; 'engi tls init' makes certificates for others")
		}
	}
	return nil
}

func (m *Manager) openACME() {
	a := m.o.ACME
	quiet := zap.NewNop() // OnEvent logs the relevant events
	m.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return m.magic, nil },
		Logger:           quiet,
	})
	m.magic = certmagic.New(m.cache, certmagic.Config{
		Storage: &certmagic.FileStorage{Path: a.Dir},
		Logger:  quiet,
		OnEvent: func(_ context.Context, event string, data map[string]any) error {
			switch event {
			case "cert_obtained":
				m.o.Log.Info("certificate obtained", "name", data["identifier"], "renewal", data["renewal"])
			case "cert_failed":
				m.o.Log.Error("no certificate", "name", data["identifier"], "error", data["error"])
			}
			return nil
		},
	})
	directory := a.Directory
	if directory == "" {
		directory = certmagic.LetsEncryptProductionCA
	}
	m.magic.Issuers = []certmagic.Issuer{certmagic.NewACMEIssuer(m.magic, certmagic.ACMEIssuer{
		CA: directory, Email: a.Email, Agreed: true, DisableHTTPChallenge: true, AltTLSALPNPort: a.Port, Logger: quiet,
	})}
}

// Config returns the configuration for a TLS listener, with HTTP/2.
func (m *Manager) Config() *tls.Config {
	c := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2", "http/1.1"},
		GetCertificate: m.certificate,
	}
	if m.magic != nil {
		c.NextProtos = append(c.NextProtos, "acme-tls/1")
	}
	return c
}

// certificate selects by the name that the client requests: the file's certificate if it is
// valid for the name, otherwise the authority's. If there is neither, the client receives
// the file's certificate anyway and can report its fault to the user.
func (m *Manager) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	pair := m.current()
	challenge := slices.Contains(hello.SupportedProtos, "acme-tls/1")
	if pair != nil && !challenge && (m.magic == nil || validFor(pair, hello.ServerName)) {
		return pair, nil
	}
	if m.magic != nil {
		got, err := m.magic.GetCertificate(hello)
		if err == nil || pair == nil {
			return got, err
		}
	}
	return pair, nil
}

func validFor(pair *tls.Certificate, name string) bool {
	return name != "" && pair.Leaf != nil && pair.Leaf.VerifyHostname(name) == nil
}

// current returns the certificate in the files, reloaded if they changed, or nil
// if there is none.
func (m *Manager) current() *tls.Certificate {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pair == nil || time.Since(m.checked) < checkInterval {
		return m.pair
	}
	m.checked = time.Now()
	if stamp, err := stampOf(m.o); err != nil || stamp != m.stamp {
		// On an error keep the old pair: certificate and key cannot be replaced at the same moment.
		if err := m.readLocked(); err != nil {
			m.o.Log.Warn("the certificate on disk cannot be used, the previous one stays in use", "error", err)
		}
	}
	return m.pair
}

func (m *Manager) read() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.readLocked()
}

func (m *Manager) readLocked() error {
	stamp, err := stampOf(m.o)
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(m.o.Cert, m.o.Key)
	if err != nil {
		return engi.Errorf(engi.Invalid, "tls: %v", err).WithRemedy("set tls.cert and tls.key to PEM files that belong together")
	}
	if time.Now().After(pair.Leaf.NotAfter) {
		m.o.Log.Warn("the certificate has expired", "file", m.o.Cert, "at", pair.Leaf.NotAfter)
	}
	m.pair, m.stamp, m.checked = &pair, stamp, time.Now()
	return nil
}

func stampOf(o Options) (stamp [2]time.Time, err error) {
	for i, name := range []string{o.Cert, o.Key} {
		info, err := os.Stat(name)
		if err != nil {
			return stamp, engi.Errorf(engi.Invalid, "tls: %v", err).WithRemedy("set tls.cert and tls.key to PEM files, or run 'engi tls init'")
		}
		stamp[i] = info.ModTime()
	}
	return stamp, nil
}

// Run obtains and renews certificates through ACME until ctx ends. Without ACME it
// only waits for the end of ctx.
func (m *Manager) Run(ctx context.Context, ready func()) error {
	ready()
	if m.magic == nil {
		<-ctx.Done()
		return nil
	}
	defer m.cache.Stop()
	if err := m.magic.ManageAsync(ctx, m.o.ACME.Names); err != nil {
		m.o.Log.Error("certificates by ACME", "error", err)
	}
	<-ctx.Done()
	return nil
}

// PortOf returns the port of an address, or 0 if it has none.
func PortOf(addr net.Addr) int {
	_, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return 0
	}
	return n
}
