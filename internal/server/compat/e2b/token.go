package e2b

import (
	"context"
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
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/engi-dev/engi/internal/atomicfile"
	"github.com/engi-dev/engi/internal/engi"
)

// LoadSecret returns the secret in the file at path. If there is none, it creates the file,
// readable by this user only.
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

// makeSecret creates the file atomically, unless the file exists.
func makeSecret(path string) error {
	b := make([]byte, secretSize)
	rand.Read(b) // never fails
	return atomicfile.Create(path, b, 0o600)
}

// derive returns hexadecimal digits for a purpose and an object. They are not stored, because the
// node can derive them again.
func (s *Server) derive(purpose, object string) string {
	m := hmac.New(sha256.New, s.Secret)
	m.Write([]byte(purpose + "\x00" + object))
	return hex.EncodeToString(m.Sum(nil))
}

// Purposes of tokens.
const (
	toEnvd    = "envd"    // access to envd of a secure sandbox
	toPorts   = "traffic" // access to private ports and to the contexts of the code interpreter
	toVolume  = "volume"
	toArchive = "upload"
)

// token returns the token of a key for a purpose and an object. It becomes invalid when
// the key does.
func (s *Server) token(purpose, object, key string) string {
	return s.derive(purpose, object+"\x00"+key)
}

// holder returns the key that received a token for an object of owner. It reports
// Anonymous for an unknown token, and for one whose key was revoked or has expired.
func (s *Server) holder(ctx context.Context, purpose, object string, owner engi.Owner, token string) (string, error) {
	key, err := s.keyOf(ctx, purpose, object, owner, func(t string) bool { return same(token, t) })
	if err == nil && key == "" {
		err = engi.Errorf(engi.Anonymous, "invalid access token, or one whose key has been revoked or has expired").WithRemedy("connect again to get another one")
	}
	return key, err
}

// keyOf returns the valid key whose token made something, as with decides; empty if there is none.
// It takes a microsecond for each key of the owner.
func (s *Server) keyOf(ctx context.Context, purpose, object string, owner engi.Owner, with func(token string) bool) (string, error) {
	keys, err := s.Keys.Live(ctx, owner)
	if err != nil {
		return "", err
	}
	for _, k := range keys {
		if with(s.token(purpose, object, k.ID)) {
			return k.ID, nil
		}
	}
	return "", nil
}

func (s *Server) live(ctx context.Context, key string, owner engi.Owner) error {
	keys, err := s.Keys.Live(ctx, owner)
	if err == nil && !slices.ContainsFunc(keys, func(k engi.Key) bool { return k.ID == key }) {
		err = engi.Errorf(engi.Anonymous, "the key that created this token has been revoked or has expired").
			WithRemedy("connect with another key, which gets a token of its own")
	}
	return err
}

// lookAgain is the interval of checks of the keys of long requests. Tests change it.
var lookAgain = 5 * time.Second

// while returns a copy of ctx that ends with a key, unless the key is empty, and when the
// server shuts down.
func (s *Server) while(ctx context.Context, key string, owner engi.Owner) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	var looking sync.WaitGroup
	looking.Go(func() {
		look := time.NewTicker(lookAgain)
		defer look.Stop()
		for {
			select {
			case <-s.Leave:
				cancel(nil)
			case <-look.C:
				if key == "" {
					continue
				}
				if err := s.live(ctx, key, owner); engi.Is(err, engi.Anonymous) {
					cancel(err)
				}
			case <-ctx.Done():
				return
			}
		}
	})
	return ctx, func() { cancel(nil); looking.Wait() }
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// plainKey decodes a key in the form that old clients require: "e2b_" followed by the key
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
	// A plus sign that the client did not escape arrives as a space.
	g := signature{path: q.Get("path"), operation: "read", user: q.Get("username"), value: strings.ReplaceAll(q.Get("signature"), " ", "+"), expires: q.Get("signature_expiration")}
	if method != "GET" && method != "HEAD" {
		g.operation = "write"
	}
	return g, g.value != ""
}

// made reports whether token made the signature g.
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

// signer returns the key whose token for a sandbox made g, and reports Anonymous
// if there is no such valid key.
func (s *Server) signer(ctx context.Context, g signature, sandbox engi.Sandbox) (string, error) {
	key, err := s.keyOf(ctx, toEnvd, string(sandbox.ID), sandbox.Owner, g.made)
	if err == nil && key == "" {
		err = engi.Errorf(engi.Anonymous, "invalid signature")
	}
	return key, err
}

// current reports Anonymous if g has expired.
func (g signature) current(now time.Time) error {
	if g.expires == "" {
		return nil
	}
	at, err := strconv.ParseInt(g.expires, 10, 64)
	if err != nil || now.Unix() >= at {
		return engi.Errorf(engi.Anonymous, "signature is already expired")
	}
	return nil
}
