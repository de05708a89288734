// Package ssh gives owners access to their sessions and sandboxes over SSH: it stores
// their public keys and serves the protocol, whose sessions are ordinary programs in the
// sandbox. It does not depend on HTTP; package rest passes it the
// connections that arrive over HTTP.
//
// Everything before authentication is limited: the connections in all and from one
// address, their rate, and their duration.
package ssh

import (
	"context"
	"crypto/rsa"
	"strings"
	"time"

	xssh "golang.org/x/crypto/ssh"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

// A Store stores public keys. It is safe for concurrent use.
//
//  1. Put stores a new key and appends an event; Conflict if its ID or its
//     fingerprint exists, Exhausted if its owner already has most keys.
//  2. Find returns the key with the given fingerprint, or NotFound.
//  3. Get, List and Remove find the keys that viewer sees;
//     else NotFound. List is oldest first. Remove appends an event.
//  4. Used stores the time of a key's last use; a missing key is no error.
type Store interface {
	Put(ctx context.Context, k engi.SSHKey, most int) error
	Find(ctx context.Context, fingerprint string) (engi.SSHKey, error)
	Get(ctx context.Context, viewer engi.Viewer, id engi.SSHKeyID) (engi.SSHKey, error)
	List(ctx context.Context, viewer engi.Viewer, p engi.Paging) ([]engi.SSHKey, error)
	Used(ctx context.Context, id engi.SSHKeyID, at time.Time) error
	Remove(ctx context.Context, viewer engi.Viewer, id engi.SSHKeyID) error
}

const (
	maxKeys      = 100      // maximum number of keys of one owner
	maxKeyText   = 16 << 10 // maximum bytes of a line of authorized_keys
	maxKeyName   = 100      // maximum bytes of a name
	minRSA       = 2048     // minimum size in bits
	maxRSA       = 8192     // maximum size in bits; the verification of a larger signature takes long
	usedInterval = time.Minute
)

// Keys implements [engi.SSHKeys] on a store. It is safe for concurrent use.
type Keys struct{ store Store }

var _ engi.SSHKeys = (*Keys)(nil)

// NewKeys returns the keys in store.
func NewKeys(store Store) *Keys { return &Keys{store} }

// ParsePublicKey parses a line of authorized_keys, and returns the key and the
// line's comment. It reports Invalid for other text, and for keys that are too
// weak.
func ParsePublicKey(text string) (_ xssh.PublicKey, comment string, err error) {
	text = strings.TrimSpace(text)
	const remedy = "send the content of a file like ~/.ssh/id_ed25519.pub; 'ssh-keygen -t ed25519' makes one"
	switch {
	case text == "":
		return nil, "", engi.Errorf(engi.Invalid, "the public key is empty").WithRemedy(remedy)
	case len(text) > maxKeyText:
		return nil, "", engi.Errorf(engi.Invalid, "the public key is longer than %d bytes", maxKeyText).WithRemedy(remedy)
	case strings.Contains(text, "PRIVATE KEY"):
		return nil, "", engi.Errorf(engi.Invalid, "this is a private key, which must stay with its owner").
			WithRemedy("send the file that ends in .pub, and make a new pair of keys: this private key has left your machine")
	case strings.ContainsAny(text, "\r\n"):
		return nil, "", engi.Errorf(engi.Invalid, "there are several lines").WithRemedy("add one key at a time")
	}
	pub, comment, options, _, err := xssh.ParseAuthorizedKey([]byte(text))
	if err != nil {
		return nil, "", engi.Errorf(engi.Invalid, "the text is not a public key: %v", err).WithRemedy(remedy)
	}
	if len(options) > 0 {
		return nil, "", engi.Errorf(engi.Invalid, "options like %.40q are not supported", options[0]).WithRemedy("leave out the options before the type of the key")
	}
	return pub, comment, checkKey(pub)
}

func checkKey(pub xssh.PublicKey) error {
	const remedy = "make one with 'ssh-keygen -t ed25519'"
	switch pub.Type() {
	case xssh.KeyAlgoED25519, xssh.KeyAlgoSKED25519, xssh.KeyAlgoECDSA256, xssh.KeyAlgoECDSA384, xssh.KeyAlgoECDSA521, xssh.KeyAlgoSKECDSA256:
		return nil
	case xssh.KeyAlgoRSA:
		if c, ok := pub.(xssh.CryptoPublicKey); ok {
			if k, ok := c.CryptoPublicKey().(*rsa.PublicKey); ok && k.N.BitLen() >= minRSA && k.N.BitLen() <= maxRSA {
				return nil
			}
		}
		return engi.Errorf(engi.Invalid, "an RSA key needs %d to %d bits", minRSA, maxRSA).WithRemedy(remedy)
	}
	return engi.Errorf(engi.Invalid, "keys of type %.40q are not accepted", pub.Type()).WithRemedy(remedy)
}

// Create implements [engi.SSHKeys].
func (s *Keys) Create(ctx context.Context, k engi.SSHKey) (engi.SSHKey, error) {
	pub, comment, err := ParsePublicKey(k.PublicKey)
	if err != nil {
		return engi.SSHKey{}, err
	}
	if k.Name == "" {
		k.Name = clip.Bytes(strings.ToValidUTF8(comment, ""), maxKeyName)
	}
	if len(k.Name) > maxKeyName || strings.ContainsFunc(k.Name, func(c rune) bool { return c < ' ' || c == 0x7f || c == 0xfffd }) {
		return engi.SSHKey{}, engi.Errorf(engi.Invalid, "%.40q cannot be a key's name", k.Name).WithRemedy("use at most %d bytes of printable text", maxKeyName)
	}
	if k.ID == "" {
		k.ID = engi.NewSSHKeyID()
	}
	k.PublicKey = strings.TrimSpace(string(xssh.MarshalAuthorizedKey(pub)))
	k.Fingerprint = xssh.FingerprintSHA256(pub)
	k.Created, k.Used = time.Now().UTC().Truncate(time.Microsecond), time.Time{}
	return k, s.store.Put(ctx, k, maxKeys)
}

// Get implements [engi.SSHKeys].
func (s *Keys) Get(ctx context.Context, viewer engi.Viewer, id engi.SSHKeyID) (engi.SSHKey, error) {
	return s.store.Get(ctx, viewer, id)
}

// List implements [engi.SSHKeys].
func (s *Keys) List(ctx context.Context, viewer engi.Viewer, p engi.Paging) ([]engi.SSHKey, error) {
	return s.store.List(ctx, viewer, p)
}

// Remove implements [engi.SSHKeys].
func (s *Keys) Remove(ctx context.Context, viewer engi.Viewer, id engi.SSHKeyID) error {
	return s.store.Remove(ctx, viewer, id)
}

// keyOf returns the key of an authentication, or NotFound.
func (s *Keys) keyOf(ctx context.Context, pub xssh.PublicKey) (engi.SSHKey, error) {
	if err := checkKey(pub); err != nil {
		return engi.SSHKey{}, err
	}
	return s.store.Find(ctx, xssh.FingerprintSHA256(pub))
}

// use records the use of a key for authentication.
func (s *Keys) use(ctx context.Context, k engi.SSHKey) error {
	now := time.Now().UTC().Truncate(time.Microsecond)
	if now.Sub(k.Used) < usedInterval {
		return nil
	}
	return s.store.Used(ctx, k.ID, now)
}
