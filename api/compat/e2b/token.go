package e2b

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/engi-dev/engi"
)

// LoadSecret returns the secret in the file at path, which it creates, readable by
// this user only, if there is none.
func LoadSecret(path string) ([]byte, error) {
	for range 2 {
		b, err := os.ReadFile(path)
		if err == nil && len(b) == secretSize {
			return b, nil
		}
		if err == nil {
			return nil, engi.Errorf(engi.Invalid, "%s does not hold %d bytes", path, secretSize).
				WithRemedy("delete it: a new one is created, and clients must connect to their sandboxes again")
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, engi.Errorf(engi.Internal, "%v", err)
		}
		if err := makeSecret(path); err != nil {
			return nil, engi.Errorf(engi.Internal, "make %s: %v", path, err)
		}
	}
	return nil, engi.Errorf(engi.Internal, "%s vanishes", path)
}

const secretSize = 32

// makeSecret creates the file atomically, unless it exists.
func makeSecret(path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".secret-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	b := make([]byte, secretSize)
	rand.Read(b) // never fails
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// derive returns the token for a purpose and an object. Tokens are not stored,
// because the node can derive them again.
func (s *Server) derive(purpose, object string) string {
	m := hmac.New(sha256.New, s.Secret)
	m.Write([]byte(purpose + "\x00" + object))
	return hex.EncodeToString(m.Sum(nil))
}

// AccessToken returns the token for envd in a secure sandbox.
func (s *Server) AccessToken(id engi.SandboxID) string { return s.derive("envd", string(id)) }

// TrafficToken returns the token for the private ports of a sandbox and for the
// contexts of its code interpreter.
func (s *Server) TrafficToken(id engi.SandboxID) string { return s.derive("traffic", string(id)) }

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// plainKey decodes a key in the form that old clients require: "e2b_" and the key
// in hexadecimal.
func plainKey(secret string) string {
	if digits, ok := strings.CutPrefix(secret, "e2b_"); ok {
		if b, err := hex.DecodeString(digits); err == nil {
			return string(b)
		}
	}
	return secret
}

// A signature replaces the token in a URL for one file.
type signature struct{ path, operation, user, value, expires string }

// signatureOf returns the signature of a URL, or false.
func signatureOf(q url.Values, method string) (signature, bool) {
	// A plus sign that a client did not escape arrives as a space.
	g := signature{q.Get("path"), "read", q.Get("username"), strings.ReplaceAll(q.Get("signature"), " ", "+"), q.Get("signature_expiration")}
	if method != "GET" && method != "HEAD" {
		g.operation = "write"
	}
	return g, g.value != ""
}

// made reports whether g was made with token.
func (g signature) made(token string) bool {
	text := g.path + ":" + g.operation + ":" + g.user + ":" + token
	if g.expires != "" {
		text += ":" + g.expires
	}
	return same(g.value, signed(text))
}

func signed(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// check reports Anonymous unless g was made with token and has not expired.
func (g signature) check(token string, now time.Time) error {
	if !g.made(token) {
		return engi.Errorf(engi.Anonymous, "invalid signature")
	}
	if g.expires == "" {
		return nil
	}
	at, err := strconv.ParseInt(g.expires, 10, 64)
	if err != nil || now.Unix() >= at {
		return engi.Errorf(engi.Anonymous, "signature is already expired")
	}
	return nil
}
