// Package cert finds the certificates that a server shows: those in files,
// read again when they change, and those that a certificate authority hands
// out by ACME. It also makes a private authority for networks that no public
// one knows.
//
// ACME is used with the challenge that needs nothing but the server itself.
// Public authorities give no wildcard names that way, and every preview has a
// host name of its own: previews need a wildcard certificate in a file.
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

	"github.com/engi-dev/engi"
)

// Options say where certificates come from: files, ACME, or both.
type Options struct {
	Cert, Key string // PEM files
	ACME      ACME
	Log       *slog.Logger // nil discards
}

// ACME says which names to get certificates for, and from whom.
type ACME struct {
	Names     []string // none means that ACME is not used; no wildcards
	Email     string   // whom the authority writes to; may be empty
	Directory string   // address of the authority's directory; empty means Let's Encrypt
	Dir       string   // where certificates and the account are kept
	Port      int      // that is served, to which the authority's 443 leads
}

// A Manager shows certificates. It is safe for concurrent use.
type Manager struct {
	o     Options
	magic *certmagic.Config // nil without ACME
	cache *certmagic.Cache

	mu      sync.Mutex
	pair    *tls.Certificate // guarded by mu
	stamp   [2]time.Time     // of the files pair was read from; guarded by mu
	checked time.Time        // guarded by mu
}

// fresh is how long files are not looked at again.
const fresh = 5 * time.Second

// Open returns a Manager. It reports Invalid for files and names that cannot
// be used. Only Run asks the authority for anything.
func Open(o Options) (*Manager, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	k := &Manager{o: o}
	if o.Cert != "" || o.Key != "" {
		if err := k.read(); err != nil {
			return nil, err
		}
	}
	if err := CheckNames(o.ACME.Names); err != nil {
		return nil, err
	}
	if len(o.ACME.Names) > 0 {
		k.openACME()
	}
	if k.pair == nil && k.magic == nil {
		return nil, engi.Errorf(engi.Invalid, "tls: there is neither a certificate nor a name to get one for").
			WithRemedy("set tls.cert and tls.key, or tls.acme_names")
	}
	return k, nil
}

// CheckNames reports Invalid for names that no authority would give by ACME
// without access to the name server.
func CheckNames(names []string) error {
	for _, n := range names {
		switch {
		case strings.Contains(n, "*"):
			return engi.Errorf(engi.Invalid, "acme: %.80q needs a change in the name server, which engi cannot make", n).
				WithRemedy("get a wildcard certificate elsewhere and set tls.cert and tls.key; list only full names here")
		case net.ParseIP(n) != nil || !strings.Contains(n, ".") || strings.ContainsAny(n, " /:") || strings.HasSuffix(n, ".localhost") || strings.HasPrefix(n, "."):
			return engi.Errorf(engi.Invalid, "acme: %.80q is not a public host name", n).
				WithRemedy("list names like api.example.com; 'engi tls init' makes certificates for others")
		}
	}
	return nil
}

func (k *Manager) openACME() {
	a := k.o.ACME
	quiet := zap.NewNop() // events say what matters
	k.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return k.magic, nil },
		Logger:           quiet,
	})
	k.magic = certmagic.New(k.cache, certmagic.Config{
		Storage: &certmagic.FileStorage{Path: a.Dir},
		Logger:  quiet,
		OnEvent: func(_ context.Context, event string, data map[string]any) error {
			switch event {
			case "cert_obtained":
				k.o.Log.Info("certificate obtained", "name", data["identifier"], "renewal", data["renewal"])
			case "cert_failed":
				k.o.Log.Error("no certificate", "name", data["identifier"], "err", data["error"])
			}
			return nil
		},
	})
	directory := a.Directory
	if directory == "" {
		directory = certmagic.LetsEncryptProductionCA
	}
	k.magic.Issuers = []certmagic.Issuer{certmagic.NewACMEIssuer(k.magic, certmagic.ACMEIssuer{
		CA: directory, Email: a.Email, Agreed: true, DisableHTTPChallenge: true, AltTLSALPNPort: a.Port, Logger: quiet,
	})}
}

// Config returns what a TLS listener needs. HTTP/2 is offered.
func (k *Manager) Config() *tls.Config {
	c := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2", "http/1.1"},
		GetCertificate: k.certificate,
	}
	if k.magic != nil {
		c.NextProtos = append(c.NextProtos, "acme-tls/1")
	}
	return c
}

// certificate chooses by the name the caller wants: a file's if it fits, then
// an authority's, else the file's after all, so that the caller can say what
// is wrong with it.
func (k *Manager) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	pair := k.current()
	challenge := slices.Contains(hello.SupportedProtos, "acme-tls/1")
	if pair != nil && !challenge && (k.magic == nil || fits(pair, hello.ServerName)) {
		return pair, nil
	}
	if k.magic != nil {
		got, err := k.magic.GetCertificate(hello)
		if err == nil || pair == nil {
			return got, err
		}
	}
	return pair, nil
}

func fits(pair *tls.Certificate, name string) bool {
	return name != "" && pair.Leaf != nil && pair.Leaf.VerifyHostname(name) == nil
}

// current returns the certificate of the files, as they are now.
func (k *Manager) current() *tls.Certificate {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pair == nil || time.Since(k.checked) < fresh {
		return k.pair
	}
	k.checked = time.Now()
	if stamp, err := stampOf(k.o); err != nil || stamp != k.stamp {
		// Whoever replaces two files is between them sometimes.
		if err := k.readLocked(); err != nil {
			k.o.Log.Warn("the certificate on disk cannot be used: the former one is shown", "err", err)
		}
	}
	return k.pair
}

func (k *Manager) read() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.readLocked()
}

func (k *Manager) readLocked() error {
	stamp, err := stampOf(k.o)
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(k.o.Cert, k.o.Key)
	if err != nil {
		return engi.Errorf(engi.Invalid, "tls: %v", err).WithRemedy("give PEM files that belong together in tls.cert and tls.key")
	}
	if time.Now().After(pair.Leaf.NotAfter) {
		k.o.Log.Warn("the certificate has expired", "file", k.o.Cert, "at", pair.Leaf.NotAfter)
	}
	k.pair, k.stamp, k.checked = &pair, stamp, time.Now()
	return nil
}

func stampOf(o Options) (stamp [2]time.Time, err error) {
	for i, name := range []string{o.Cert, o.Key} {
		info, err := os.Stat(name)
		if err != nil {
			return stamp, engi.Errorf(engi.Invalid, "tls: %v", err).WithRemedy("give PEM files in tls.cert and tls.key, or run 'engi tls init'")
		}
		stamp[i] = info.ModTime()
	}
	return stamp, nil
}

// Run keeps the certificates of an authority valid until ctx ends. A Manager
// without ACME has nothing to do.
func (k *Manager) Run(ctx context.Context, ready func()) error {
	ready()
	if k.magic == nil {
		<-ctx.Done()
		return nil
	}
	defer k.cache.Stop()
	if err := k.magic.ManageAsync(ctx, k.o.ACME.Names); err != nil {
		k.o.Log.Error("certificates by ACME", "err", err)
	}
	<-ctx.Done()
	return nil
}

// PortOf returns the port of an address; 0 if it has none.
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
