package cert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/atomicfile"
	"github.com/engi-dev/engi/internal/engi"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour
	// certificateLife is the lifetime of certificates. Some systems refuse longer ones even from private authorities.
	certificateLife = 397 * 24 * time.Hour
)

// Files describes the files that [Make] writes, and the scope of the certificate.
type Files struct {
	Authority string    `json:"authority"` // path of the certificate that clients must trust
	Cert      string    `json:"cert"`      // path of the server's certificate
	Key       string    `json:"key"`       // path of the server's key
	Names     []string  `json:"names"`     // names for which the server's certificate is valid
	Expires   time.Time `json:"expires"`   // end of the server's certificate; the authority expires later
	Fresh     bool      `json:"fresh"`     // this call created the authority
}

// local is the domain of names of this machine for which certificates are valid. Names
// directly below localhost are impossible: clients accept no wildcard below a single label, and
// some refuse every certificate with such a wildcard.
const local = "sbx.localhost"

// Make writes a certificate to dir. It is valid for domains, all names one level below them, all names one
// level below sbx.localhost, and the loopback names of this machine. Domains of a
// single label get no names below them. The certificate is signed by the authority in
// dir, which Make creates if there is none. The authority is constrained to these
// domains, so that trust in it puts no other names at risk. Make reports
// Conflict if the authority cannot sign for a domain or expires soon. If anew is set, Make
// replaces the authority.
func Make(dir string, domains []string, anew bool) (_ Files, err error) {
	defer engi.Annotate(&err, "make certificates in %s", dir)
	for _, d := range domains {
		if !validDomain(d) {
			return Files{}, engi.Errorf(engi.Invalid, "%.80q is not a domain", d).WithRemedy("write it like sbx.example.com, without port and wildcard")
		}
	}
	if !slices.Contains(domains, "localhost") {
		domains = append(slices.Clone(domains), "localhost")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Files{}, engi.Errorf(engi.Denied, "%v", err)
	}
	m := Files{Authority: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	ca, caKey, err := readAuthority(m.Authority, filepath.Join(dir, "ca-key.pem"))
	switch {
	case anew || errors.Is(err, fs.ErrNotExist):
		if ca, caKey, err = makeAuthority(domains); err != nil {
			return Files{}, err
		}
		m.Fresh = true
		// Write the key first: if this process dies in between, the next call
		// finds no certificate and starts over.
		if err := writeKey(filepath.Join(dir, "ca-key.pem"), caKey); err != nil {
			return Files{}, err
		}
		if err := write(m.Authority, "CERTIFICATE", ca.Raw); err != nil {
			return Files{}, err
		}
	case err != nil:
		return Files{}, engi.Errorf(engi.Invalid, "%v", err).WithRemedy("move the files away, or create a new authority with --force, which clients must be told to trust")
	}
	for _, d := range domains {
		if !permits(ca, d) {
			return Files{}, engi.Errorf(engi.Conflict, "the authority in %s cannot sign for %s", dir, d).
				WithRemedy("create a new one with --force; clients must be told to trust it")
		}
	}
	if time.Until(ca.NotAfter) < certificateLife {
		return Files{}, engi.Errorf(engi.Conflict, "the authority in %s expires on %s", dir, ca.NotAfter.Format(time.DateOnly)).
			WithRemedy("create a new one with --force; clients must be told to trust it")
	}

	key, err := newKey()
	if err != nil {
		return Files{}, err
	}
	leaf := template("engi", certificateLife)
	if !slices.Contains(domains, local) {
		domains = append(slices.Clone(domains), local)
	}
	for _, d := range domains {
		leaf.DNSNames = append(leaf.DNSNames, d)
		if strings.Contains(d, ".") {
			leaf.DNSNames = append(leaf.DNSNames, "*."+d)
		}
	}
	leaf.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	leaf.KeyUsage = x509.KeyUsageDigitalSignature
	leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	raw, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	if err != nil {
		return Files{}, engi.Errorf(engi.Internal, "%v", err)
	}
	if err := writeKey(m.Key, key); err != nil {
		return Files{}, err
	}
	if err := write(m.Cert, "CERTIFICATE", raw, ca.Raw); err != nil {
		return Files{}, err
	}
	m.Names, m.Expires = leaf.DNSNames, leaf.NotAfter
	return m, nil
}

// permits reports whether ca may sign for d and the names below it.
func permits(ca *x509.Certificate, d string) bool {
	return slices.ContainsFunc(ca.PermittedDNSDomains, func(p string) bool { return d == p || strings.HasSuffix(d, "."+p) })
}

func validDomain(d string) bool {
	if d == "" || len(d) > 200 || d != strings.ToLower(d) || net.ParseIP(d) != nil {
		return false
	}
	for label := range strings.SplitSeq(d, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || label[0] == '-' {
			return false
		}
	}
	return true
}

func makeAuthority(domains []string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	t := template("engi private authority", authorityLife)
	t.IsCA, t.BasicConstraintsValid, t.MaxPathLenZero = true, true, true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	t.PermittedDNSDomainsCritical = true
	t.PermittedDNSDomains = domains
	_, four, _ := net.ParseCIDR("127.0.0.0/8")
	_, six, _ := net.ParseCIDR("::1/128")
	t.PermittedIPRanges = []*net.IPNet{four, six}
	raw, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, nil, engi.Errorf(engi.Internal, "%v", err)
	}
	ca, err := x509.ParseCertificate(raw)
	if err != nil {
		return nil, nil, engi.Errorf(engi.Internal, "%v", err)
	}
	return ca, key, nil
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "%v", err)
	}
	return key, nil
}

func template(name string, life time.Duration) *x509.Certificate {
	serial := make([]byte, 16)
	rand.Read(serial) // never fails
	serial[0] &= 0x7f // a positive number
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes(serial),
		Subject:      pkix.Name{CommonName: name, Organization: []string{"engi"}},
		NotBefore:    now.Add(-time.Hour), // clocks differ
		NotAfter:     now.Add(life),
	}
}

// readAuthority reads an authority. Its error is fs.ErrNotExist if a file is
// missing.
func readAuthority(certFile, keyFile string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	certPEM, err := os.ReadFile(certFile)
	if err != nil {
		return nil, nil, err
	}
	keyPEM, err := os.ReadFile(keyFile)
	if err != nil {
		return nil, nil, err
	}
	certBlock, _ := pem.Decode(certPEM)
	keyBlock, _ := pem.Decode(keyPEM)
	if certBlock == nil || keyBlock == nil {
		return nil, nil, engi.Errorf(engi.Invalid, "the authority's files are not in PEM form")
	}
	ca, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return nil, nil, err
	}
	parsed, err := x509.ParsePKCS8PrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, nil, err
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(ca.PublicKey) {
		return nil, nil, engi.Errorf(engi.Invalid, "the authority's certificate and key do not belong together")
	}
	return ca, key, nil
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	return write(path, "PRIVATE KEY", raw)
}

// write atomically writes PEM blocks to a file that only this user can read.
func write(path, kind string, blocks ...[]byte) error {
	var text []byte
	for _, b := range blocks {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b})...)
	}
	if err := atomicfile.Write(path, text, 0o600); err != nil {
		return engi.Errorf(engi.Denied, "%v", err)
	}
	return nil
}
