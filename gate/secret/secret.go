// Package secret keeps named values encrypted, so that neither a copy of the
// database nor a look into a log gives one away. Only the wall asks for values
// (Reveal), to put them into requests on their way out of a sandbox. Beside
// them there are the operator's, from the environment of the server, which are
// kept nowhere.
//
// Each value is sealed with AES-256-GCM under a key from a file, together with
// the secret's ID, owner and version: a row of the database that somebody
// moved to another owner or back in time does not open. Package secret does
// not guard against whoever can read the file as well.
package secret

import (
	"cmp"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/engi-dev/engi"
)

const (
	maxValue    = 64 << 10 // bytes
	maxSecrets  = 1000     // of one owner
	maxMetadata = 64       // pairs
	maxText     = 256      // bytes of each side of a pair
	idPrefix    = "sec_"
	keySize     = 32
	tries       = 8 // of an update among others
)

var nameForm = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

// Sealed is an encrypted value.
type Sealed struct {
	Key  string // fingerprint of the key that opens it
	Data []byte // nonce and ciphertext
}

// A Store is all the memory this room needs. It is safe for concurrent use.
// Package secrettest holds its promises as tests.
//
//  1. Put stores a new secret; Conflict if its ID, or its name for its owner,
//     is there already.
//  2. Find returns a secret by ID or name. Only owner's are found; the empty
//     owner finds all, but Conflict by a name that several owners use.
//  3. List returns the secrets of owner, or everybody's if owner is empty, by
//     name, then owner.
//  4. Replace stores metadata, version, time of update and value of the
//     secret with s.ID if its version is still was; else Conflict, and
//     NotFound if it is gone.
//  5. Remove deletes by ID; NotFound if it is not there.
//  6. Keys returns the fingerprints of all sealed values, each once.
type Store interface {
	Put(ctx context.Context, s engi.Secret, v Sealed) error
	Find(ctx context.Context, owner engi.Owner, idOrName string) (engi.Secret, Sealed, error)
	List(ctx context.Context, owner engi.Owner) ([]engi.Secret, error)
	Replace(ctx context.Context, s engi.Secret, v Sealed, was int) error
	Remove(ctx context.Context, id engi.SecretID) error
	Keys(ctx context.Context) ([]string, error)
}

// Options say where the key is, and what there is beside the store's secrets.
type Options struct {
	// Path is the key file. It is made if there is none yet.
	Path string
	// Key, if it is not empty, is what a key file would hold, from elsewhere.
	// The key of the file then only opens what it has sealed, until Rotate.
	Key string
	// Environment has the operator's secrets. They cannot be changed.
	Environment []Fixed
	Log         *slog.Logger // nil discards
}

// A Service is a store's secrets, and the operator's, implementing
// [engi.Secrets]. It is safe for concurrent use.
type Service struct {
	store Store
	path  string // of the key file, for messages
	fixed []fixed
	key   sealer
	old   *sealer // opens what a rotation that broke off left; nil if none did
}

// A sealer is a key and what is made from it.
type sealer struct {
	master      []byte
	aead        cipher.AEAD
	fingerprint string
}

func newSealer(master []byte) (sealer, error) {
	k := sealer{master: master}
	k.fingerprint = hex.EncodeToString(k.derive("fingerprint", 8))
	block, err := aes.NewCipher(k.derive("values", keySize))
	if err != nil {
		return sealer{}, engi.Errorf(engi.Internal, "%v", err)
	}
	if k.aead, err = cipher.NewGCM(block); err != nil {
		return sealer{}, engi.Errorf(engi.Internal, "%v", err)
	}
	return k, nil
}

func (k sealer) derive(purpose string, size int) []byte {
	b, err := hkdf.Key(sha256.New, k.master, nil, "engi secret: "+purpose, size)
	if err != nil {
		panic(err) // only for sizes out of range
	}
	return b
}

var _ engi.Secrets = (*Service)(nil)

// Open returns the secrets in store, and those of the environment. It reports
// Conflict if the key is lost or another one although secrets are there,
// Denied if others may read its file, Invalid if it is no key or a secret of
// the environment is none; each with the way out.
func Open(ctx context.Context, store Store, o Options) (_ *Service, err error) {
	defer engi.Annotate(&err, "open secrets")
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	known, err := store.Keys(ctx)
	if err != nil {
		return nil, err
	}
	f, err := o.key(known)
	if err != nil {
		return nil, err
	}
	s := &Service{store: store, path: o.origin()}
	if s.fixed, err = fix(o.Environment); err != nil {
		return nil, err
	}
	if s.key, err = newSealer(f.key); err != nil {
		return nil, err
	}
	if f.former != nil {
		old, err := newSealer(f.former)
		if err != nil {
			return nil, err
		}
		s.old = &old
	}
	for _, k := range known {
		switch {
		case k == s.key.fingerprint, s.old != nil && k == s.old.fingerprint:
		case slices.Contains(f.givenUp, k):
			o.Log.Warn("some secrets cannot be read, since their key was given up: store them again", "key", o.origin())
		case o.Key != "":
			return nil, engi.Errorf(engi.Conflict, "the key from the environment does not open all secrets in the database").
				WithRemedy("add the key before it as another line, 'former: KEY', and run 'engi secret rekey'")
		default:
			return nil, engi.Errorf(engi.Conflict, "the key in %s does not open all secrets in the database", o.Path).
				WithRemedy("put the right file back from a backup; to give the secrets up, empty the file: a new key is made")
		}
	}
	return s, nil
}

// key returns the key, which is made in the file if there is none.
func (o Options) key(known []string) (keyFile, error) {
	if o.Key != "" {
		return givenKey(o.Key, o.Path)
	}
	return readKey(o.Path, known)
}

// origin says where the key is, for messages.
func (o Options) origin() string {
	if o.Key != "" {
		return "the environment"
	}
	return o.Path
}

// Derive returns 32 bytes for another purpose, which tell nothing of the key
// and stay the same as long as it does.
func (s *Service) Derive(purpose string) []byte { return s.key.derive("other "+purpose, keySize) }

// Rotate makes a new key, seals every secret in store under it, and forgets
// the key before. If the key is given, it is the new one, and the file of the
// one before is removed at the end. Rotate may break off anywhere and be
// called again; between, all secrets open. Nobody else may use the store and
// the file meanwhile. It returns how many secrets it has sealed anew; those
// whose keys were given up before stay lost. What was derived from the key
// changes.
func Rotate(ctx context.Context, store Store, o Options) (n int, err error) {
	defer engi.Annotate(&err, "rotate %s", o.origin())
	s, err := Open(ctx, store, o) // also whether it is the right key
	if err != nil {
		return 0, err
	}
	if s.old == nil && o.Key != "" {
		return 0, engi.Errorf(engi.Conflict, "all secrets are sealed under the key from the environment already").
			WithRemedy("put a new key there, and the one before as another line, 'former: KEY'")
	}
	if s.old == nil {
		f, err := readFile(o.Path)
		if err != nil {
			return 0, err
		}
		f.key, f.former = newKey(), f.key
		if err := writeFile(o.Path, f); err != nil {
			return 0, err
		}
		if s, err = Open(ctx, store, o); err != nil {
			return 0, err
		}
	}
	all, err := store.List(ctx, "")
	if err != nil {
		return 0, err
	}
	for _, sec := range all {
		sec, v, err := store.Find(ctx, "", string(sec.ID))
		if err != nil {
			return n, err
		}
		if v.Key != s.old.fingerprint {
			continue
		}
		value, err := s.unseal(sec, v)
		if err != nil {
			return n, err
		}
		if err := store.Replace(ctx, sec, s.seal(sec, value), sec.Version); err != nil {
			return n, err
		}
		n++
	}
	return n, o.forget()
}

// bound is what a sealed value belongs to.
func bound(s engi.Secret) []byte {
	return fmt.Appendf(nil, "engi secret\x00%s\x00%s\x00%d", s.ID, s.Owner, s.Version)
}

func (s *Service) seal(of engi.Secret, value string) Sealed {
	nonce := make([]byte, s.key.aead.NonceSize())
	rand.Read(nonce) // never fails
	return Sealed{Key: s.key.fingerprint, Data: s.key.aead.Seal(nonce, nonce, []byte(value), bound(of))}
}

func (s *Service) unseal(of engi.Secret, v Sealed) (string, error) {
	k := &s.key
	if v.Key != k.fingerprint {
		if k = s.old; k == nil || v.Key != k.fingerprint {
			return "", engi.Errorf(engi.Conflict, "it was sealed under another key than that in %s", s.path).
				WithRemedy("store its value again, or put the former key file back and restart")
		}
	}
	n := k.aead.NonceSize()
	if len(v.Data) < n {
		return "", errDamaged
	}
	value, err := k.aead.Open(nil, v.Data[:n], v.Data[n:], bound(of))
	if err != nil {
		return "", errDamaged
	}
	return string(value), nil
}

var errDamaged = engi.Errorf(engi.Internal, "what is stored was changed by somebody else").
	WithRemedy("store its value again, and find out who writes to the database")

// Create stores a secret with sec's Owner, Name and Metadata. It reports
// Invalid for bad names, values and metadata, Conflict if the owner has one of
// that name, Exhausted if he has too many.
func (s *Service) Create(ctx context.Context, sec engi.Secret, value string) (_ engi.Secret, err error) {
	defer engi.Annotate(&err, "create secret %.40q", sec.Name)
	if !nameForm.MatchString(sec.Name) || strings.HasPrefix(sec.Name, idPrefix) {
		return engi.Secret{}, engi.Errorf(engi.Invalid, "this cannot be a secret's name").
			WithRemedy("use 1 to 128 letters, digits, dashes, dots and underscores, not beginning with %s", idPrefix)
	}
	if err := check(value, sec.Metadata); err != nil {
		return engi.Secret{}, err
	}
	if _, ok := s.fixedOf(sec.Owner, sec.Name); ok {
		return engi.Secret{}, errFixed
	}
	have, err := s.store.List(ctx, sec.Owner)
	if err != nil {
		return engi.Secret{}, err
	}
	if len(have) >= maxSecrets {
		return engi.Secret{}, engi.Errorf(engi.Exhausted, "there are %d secrets already", len(have)).WithRemedy("remove some")
	}
	sec.ID, sec.Version, sec.Metadata = cmp.Or(sec.ID, engi.NewSecretID()), 1, maps.Clone(sec.Metadata)
	sec.Created = now()
	sec.Updated = sec.Created
	return sec, s.store.Put(ctx, sec, s.seal(sec, value))
}

// Get returns a secret by ID or name, without its value.
func (s *Service) Get(ctx context.Context, owner engi.Owner, idOrName string) (_ engi.Secret, err error) {
	defer engi.Annotate(&err, "get secret %.40q", idOrName)
	sec, _, err := s.store.Find(ctx, owner, idOrName)
	if f, ok := s.fixedOf(owner, idOrName); ok && engi.KindOf(err) == engi.NotFound {
		return f.Secret, nil
	}
	return sec, err
}

// List returns secrets by name, with those of the environment.
func (s *Service) List(ctx context.Context, owner engi.Owner) ([]engi.Secret, error) {
	all, err := s.store.List(ctx, owner)
	if err != nil {
		return nil, err
	}
	stored := len(all)
	for _, f := range s.fixed {
		hidden := func(x engi.Secret) bool { return x.Name == f.Name && (x.Owner == owner || x.Owner == f.Owner) }
		if f.serves(owner) && !slices.ContainsFunc(all[:stored], hidden) {
			all = append(all, f.Secret)
		}
	}
	slices.SortStableFunc(all, func(a, b engi.Secret) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(string(a.Owner), string(b.Owner)))
	})
	return all, nil
}

// Update replaces the value, and the metadata if it is not nil.
func (s *Service) Update(ctx context.Context, owner engi.Owner, idOrName, value string, metadata map[string]string) (_ engi.Secret, err error) {
	defer engi.Annotate(&err, "update secret %.40q", idOrName)
	if err := check(value, metadata); err != nil {
		return engi.Secret{}, err
	}
	for try := 1; ; try++ {
		sec, _, err := s.store.Find(ctx, owner, idOrName)
		if err != nil {
			return engi.Secret{}, s.orFixed(owner, idOrName, err)
		}
		was := sec.Version
		sec.Version++
		sec.Updated = now()
		if metadata != nil {
			sec.Metadata = maps.Clone(metadata)
		}
		err = s.store.Replace(ctx, sec, s.seal(sec, value), was)
		if err == nil || engi.KindOf(err) != engi.Conflict || try == tries {
			return sec, err
		}
	}
}

// Remove deletes a secret.
func (s *Service) Remove(ctx context.Context, owner engi.Owner, idOrName string) (err error) {
	defer engi.Annotate(&err, "remove secret %.40q", idOrName)
	sec, _, err := s.store.Find(ctx, owner, idOrName)
	if err != nil {
		return s.orFixed(owner, idOrName, err)
	}
	return s.store.Remove(ctx, sec.ID)
}

// Reveal returns the value. It reports Conflict for one whose key is lost.
func (s *Service) Reveal(ctx context.Context, owner engi.Owner, idOrName string) (_ string, err error) {
	defer engi.Annotate(&err, "reveal secret %.40q", idOrName)
	sec, v, err := s.store.Find(ctx, owner, idOrName)
	if f, ok := s.fixedOf(owner, idOrName); ok && engi.KindOf(err) == engi.NotFound {
		return f.value(), nil
	}
	if err != nil {
		return "", err
	}
	return s.unseal(sec, v)
}

// check never repeats what it refuses.
func check(value string, metadata map[string]string) error {
	if value == "" || len(value) > maxValue {
		return engi.Errorf(engi.Invalid, "the value has %d bytes", len(value)).WithRemedy("use 1 to %d bytes", maxValue)
	}
	if len(metadata) > maxMetadata {
		return engi.Errorf(engi.Invalid, "there are %d pairs of metadata", len(metadata)).WithRemedy("use at most %d", maxMetadata)
	}
	for k, v := range metadata {
		if k == "" || len(k) > maxText || len(v) > maxText || !utf8.ValidString(k+v) || strings.ContainsRune(k+v, 0) {
			return engi.Errorf(engi.Invalid, "a pair of metadata is empty, too long or no text").
				WithRemedy("use at most %d bytes of UTF-8 on each side", maxText)
		}
	}
	return nil
}

// now is the time as stores keep it.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }
