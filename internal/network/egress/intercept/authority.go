package intercept

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"math/big"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// Paths of files in the sandbox with the certificates that programs must trust.
const (
	// AuthorityPath is the path of the authority's certificate alone, where
	// update-ca-certificates also finds it.
	AuthorityPath = "/usr/local/share/ca-certificates/engi-egress.crt"
	// BundlePath is the path of the system's certificates, followed by the
	// authority's.
	BundlePath = "/etc/ssl/certs/ca-certificates.crt"
)

// trustEnv holds variables that make programs trust the authority even if they do not use the system's
// bundle by default. Package policy also lists the names, to exclude them as placeholders.
var trustEnv = map[string]string{
	"SSL_CERT_FILE":       BundlePath, // OpenSSL, Go, Rust, Ruby
	"CURL_CA_BUNDLE":      BundlePath,
	"REQUESTS_CA_BUNDLE":  BundlePath, // Python
	"PIP_CERT":            BundlePath,
	"GIT_SSL_CAINFO":      BundlePath,
	"CARGO_HTTP_CAINFO":   BundlePath,
	"AWS_CA_BUNDLE":       BundlePath,
	"NODE_EXTRA_CA_CERTS": AuthorityPath, // Node.js: in addition to its own certificates
	"DENO_CERT":           AuthorityPath,
}

const (
	authorityMonths = 14                   // lifetime from the beginning of a month
	authorityLeft   = 365 * 24 * time.Hour // minimum remaining lifetime when a policy is put in force
	leafLife        = 24 * time.Hour
	maxLeaves       = 1024 // maximum number of certificates cached for one sandbox
)

// An authority signs certificates for the hosts of one sandbox.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte

	mu     sync.Mutex
	leaves map[string]*tls.Certificate // by host; guarded by mu
}

// derive returns size bytes derived from the key.
func (i *Interceptor) derive(size int, purpose ...string) []byte {
	b, err := hkdf.Key(sha256.New, i.key, nil, "engi intercept: "+strings.Join(purpose, "\x00"), size)
	if err != nil {
		panic(err) // unreachable: sizes are in range
	}
	return b
}

// placeholder returns the text that programs see instead of a grant's secret. It needs no
// escaping anywhere.
func (i *Interceptor) placeholder(id engi.SandboxID, g engi.Grant) string {
	return "engi-secret-" + hex.EncodeToString(i.derive(16, "placeholder", string(id), g.Secret, g.Env))
}

// newAuthority returns the authority of a sandbox. It always has the same key and,
// within a month, the same certificate, so that the sandbox need not install it again.
func (i *Interceptor) newAuthority(id engi.SandboxID) (_ *authority, err error) {
	a := &authority{leaves: map[string]*tls.Certificate{}}
	for try := byte(0); ; try++ { // one derived value in four billion is not a valid key
		a.key, err = ecdsa.ParseRawPrivateKey(elliptic.P256(), i.derive(32, "authority", string(id), string([]byte{try})))
		if err == nil {
			break
		}
		if try == 8 {
			return nil, engi.Errorf(engi.Internal, "%v", err)
		}
	}
	now := time.Now().UTC()
	month := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	t := &x509.Certificate{
		SerialNumber:          new(big.Int).SetBytes(i.derive(15, "serial", string(id), month.String())),
		Subject:               pkix.Name{CommonName: "engi egress of " + string(id), Organization: []string{"engi"}},
		NotBefore:             month.AddDate(0, -1, 0), // clocks differ
		NotAfter:              month.AddDate(0, authorityMonths, 0),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	raw, err := x509.CreateCertificate(nil, t, t, &a.key.PublicKey, a.key) // deterministic without randomness
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "%v", err)
	}
	if a.cert, err = x509.ParseCertificate(raw); err != nil {
		return nil, engi.Errorf(engi.Internal, "%v", err)
	}
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
	return a, nil
}

// leaf returns a certificate for a host, cached or new.
func (a *authority) leaf(host string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.leaves[host]; c != nil && time.Until(c.Leaf.NotAfter) > leafLife/2 {
		return c, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "%v", err)
	}
	serial := make([]byte, 15)
	rand.Read(serial) // never fails
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes(serial),
		NotBefore:    now.Add(-time.Hour), // clocks differ
		NotAfter:     now.Add(leafLife),
		DNSNames:     []string{host},
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if len(host) <= 64 { // the limit for common names
		t.Subject = pkix.Name{CommonName: host}
	}
	raw, err := x509.CreateCertificate(rand.Reader, t, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "%v", err)
	}
	leaf, err := x509.ParseCertificate(raw)
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "%v", err)
	}
	if len(a.leaves) >= maxLeaves {
		clear(a.leaves)
	}
	c := &tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key, Leaf: leaf}
	a.leaves[host] = c
	return c, nil
}
