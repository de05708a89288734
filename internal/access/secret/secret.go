// Package secret stores named values encrypted, so that neither a copy of the
// database nor a log reveals them. Only the egress gateway reads values ([Service.Reveal]),
// and inserts them into requests that leave a sandbox. The operator's
// secrets come from the server's environment and are not stored: secrets that
// owners may use ([EnvSecret]) and secrets of installed packages ([Package]).
//
// Each value is sealed with AES-256-GCM under a key from a file, bound to the
// secret's ID, owner, version and hosts. A row that was moved to another owner,
// restored from an older version, or given other hosts cannot be decrypted.
// There is no protection
// against an attacker who can also read the key file.
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
	"sync"
	"time"
	"unicode/utf8"

	"github.com/engi-dev/engi/internal/engi"
)

const (
	maxSecrets  = 1000 // maximum number of secrets of one owner
	maxMetadata = 64   // maximum number of pairs
	maxText     = 256  // maximum bytes of each side of a pair
	idPrefix    = "sec_"
	keySize     = 32
	maxAttempts = 8 // attempts to update a secret that others update at the same time
)

var nameForm = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

// A Sealed is an encrypted value.
type Sealed struct {
	Key  string // fingerprint of the key that encrypted the value
	Data []byte // nonce and ciphertext
}

// A Store stores sealed secrets. It is safe for concurrent use. Package
// secrettest tests these promises.
//
//  1. Put stores a new secret; Conflict if its ID, or its name for its owner,
//     exists already.
//  2. Find returns a secret that viewer sees by ID or name. It reports Conflict for a name that
//     several owners use.
//  3. List returns the secrets that viewer sees, by name, then owner. Count returns the number of secrets of owner.
//  4. Replace stores metadata, version, time of update and value of the
//     secret with s.ID if its version is still was; else Conflict, and
//     NotFound if it does not exist.
//  5. Remove deletes by ID; NotFound if it does not exist.
//  6. Keys returns the fingerprints of all sealed values, each once.
type Store interface {
	Put(ctx context.Context, s engi.Secret, v Sealed) error
	Find(ctx context.Context, viewer engi.Viewer, idOrName string) (engi.Secret, Sealed, error)
	// List returns secrets ordered by name and owner: those that follow after, unless after has
	// no name, and at most most of them, unless most is 0.
	List(ctx context.Context, viewer engi.Viewer, after engi.Secret, most int) ([]engi.Secret, error)
	Count(ctx context.Context, owner engi.Owner) (int, error)
	Replace(ctx context.Context, s engi.Secret, v Sealed, was int) error
	Remove(ctx context.Context, id engi.SecretID) error
	Keys(ctx context.Context) ([]string, error)
}

// Options configures a Service: its key, and secrets besides the stored ones.
type Options struct {
	// Path is the key file. It is created if it does not exist.
	Path string
	// Key, if not empty, replaces the key file and has the form of its contents.
	// The key in the file then only decrypts values that were sealed with it, until
	// Rotate.
	Key string
	// Environment holds the operator's secrets for owners. They cannot be changed.
	Environment []EnvSecret
	Packages    []Package // packages with their secrets
	// Reseal encrypts again, for [Rotate], the values that other packages encrypted with Seal, and
	// returns their number; nil if there are none.
	Reseal func(ctx context.Context, s *Service) (int, error)
	Log    *slog.Logger // nil discards
}

// A Service implements [engi.Secrets] on a store and the environment. It is safe
// for concurrent use.
type Service struct {
	store    Store
	path     string // path of the key file, for messages
	env      []envSecret
	packages []Package
	creating sync.Mutex // held from the count of secrets until one is added
	key      sealer
	old      *sealer // decrypts values that an unfinished rotation has not sealed again; nil if there is none
}

// A sealer is a master key and the keys derived from it.
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
		panic(err) // unreachable: the size is valid
	}
	return b
}

var _ engi.Secrets = (*Service)(nil)

// Open returns the secrets in store and those of o. It reports Conflict if
// the key cannot decrypt existing secrets, Denied if other users may read the key
// file, and Invalid for a malformed key or environment secret, each with
// a remedy.
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
	s := &Service{store: store, path: o.keyOrigin(), packages: o.Packages}
	if s.env, err = loadEnv(o.Environment); err != nil {
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
			o.Log.Warn("some secrets cannot be read because their key was given up: store them again", "key", o.keyOrigin())
		case o.Key != "":
			return nil, engi.Errorf(engi.Conflict, "the key from the environment does not decrypt all secrets in the database").
				WithRemedy("add the previous key as another line, 'former: KEY', and run 'engi secret rekey'")
		default:
			return nil, engi.Errorf(engi.Conflict, "the key in %s does not decrypt all secrets in the database", o.Path).
				WithRemedy("restore the right file from a backup; to give the secrets up, empty the file: a new key is created")
		}
	}
	return s, nil
}

// key returns the key. It creates the file if there is none.
func (o Options) key(known []string) (keyFile, error) {
	if o.Key != "" {
		return parseGivenKey(o.Key, o.Path)
	}
	return readKey(o.Path, known)
}

// keyOrigin returns the source of the key, for messages.
func (o Options) keyOrigin() string {
	if o.Key != "" {
		return "the environment"
	}
	return o.Path
}

// Derive returns a key of 32 bytes for another purpose. It changes only when the
// service's key does, and does not reveal that key.
func (s *Service) Derive(purpose string) []byte { return s.key.derive("other "+purpose, keySize) }

// Rotate creates a new key, seals every secret in store with it and drops the
// previous key. If o.Key is set, it becomes the new key, and the key file is
// deleted at the end. Rotate may be killed at any point and called again; until
// then all secrets stay readable. No other code may use the store and the file
// in the meantime. It returns the number of secrets that it sealed again; those whose keys were
// given up stay lost. Keys from [Service.Derive] change.
func Rotate(ctx context.Context, store Store, o Options) (n int, err error) {
	defer engi.Annotate(&err, "rotate %s", o.keyOrigin())
	s, err := Open(ctx, store, o) // also checks that the key is the right one
	if err != nil {
		return 0, err
	}
	if s.old == nil && o.Key != "" {
		return 0, engi.Errorf(engi.Conflict, "all secrets are sealed with the key from the environment already").
			WithRemedy("set a new key, with the previous one as another line, 'former: KEY'")
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
	all, err := store.List(ctx, engi.Everyone, engi.Secret{}, 0)
	if err != nil {
		return 0, err
	}
	for _, sec := range all {
		sec, v, err := store.Find(ctx, engi.Everyone, string(sec.ID))
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
	if o.Reseal != nil {
		more, err := o.Reseal(ctx, s)
		if n += more; err != nil {
			return n, err
		}
	}
	return n, o.dropOldKey()
}

// additionalData returns the data that a sealed value is bound to.
func additionalData(s engi.Secret) []byte {
	bound := fmt.Appendf(nil, "engi secret\x00%s\x00%s\x00%d", s.ID, s.Owner, s.Version)
	for _, h := range s.Hosts {
		bound = append(append(bound, 0), h...)
	}
	return bound
}

func (s *Service) seal(of engi.Secret, value string) Sealed {
	return s.sealFor(additionalData(of), value)
}

func (s *Service) sealFor(bound []byte, value string) Sealed {
	nonce := make([]byte, s.key.aead.NonceSize())
	rand.Read(nonce) // never fails
	return Sealed{Key: s.key.fingerprint, Data: s.key.aead.Seal(nonce, nonce, []byte(value), bound)}
}

// Seal encrypts a value that the caller stores, bound to a purpose.
func (s *Service) Seal(purpose, value string) []byte {
	v := s.sealFor([]byte("engi other\x00"+purpose), value)
	return append([]byte(v.Key), v.Data...)
}

// Unseal decrypts a value of Seal for the same purpose.
func (s *Service) Unseal(purpose string, sealed []byte) (string, error) {
	n := len(s.key.fingerprint)
	if len(sealed) < n {
		return "", errDamaged
	}
	return s.unsealFor([]byte("engi other\x00"+purpose), Sealed{Key: string(sealed[:n]), Data: sealed[n:]})
}

func (s *Service) unseal(of engi.Secret, v Sealed) (string, error) {
	return s.unsealFor(additionalData(of), v)
}

func (s *Service) unsealFor(bound []byte, v Sealed) (string, error) {
	k := &s.key
	if v.Key != k.fingerprint {
		if k = s.old; k == nil || v.Key != k.fingerprint {
			return "", engi.Errorf(engi.Conflict, "it was encrypted with another key than the key in %s", s.path).
				WithRemedy("store its value again, or restore the previous key file and restart")
		}
	}
	n := k.aead.NonceSize()
	if len(v.Data) < n {
		return "", errDamaged
	}
	value, err := k.aead.Open(nil, v.Data[:n], v.Data[n:], bound)
	if err != nil {
		return "", errDamaged
	}
	return string(value), nil
}

var errDamaged = engi.Errorf(engi.Internal, "the stored value was changed outside of engi").
	WithRemedy("store its value again, and find out which program writes to the database")

// Create stores a secret with sec's Owner, Name and Metadata. It reports
// Invalid for invalid names, values and metadata, Conflict if the owner has a secret of
// that name, and Exhausted if the owner has too many secrets.
func (s *Service) Create(ctx context.Context, sec engi.Secret, value string) (_ engi.Secret, err error) {
	defer engi.Annotate(&err, "create secret %.40q", sec.Name)
	if !nameForm.MatchString(sec.Name) || strings.HasPrefix(sec.Name, idPrefix) {
		return engi.Secret{}, engi.Errorf(engi.Invalid, "this cannot be a secret's name").
			WithRemedy("use 1 to 128 letters, digits, dashes, dots and underscores, not beginning with %s", idPrefix)
	}
	if err := check(value, sec.Metadata); err != nil {
		return engi.Secret{}, err
	}
	if sec.Hosts, err = parseHosts(sec.Hosts); err != nil {
		return engi.Secret{}, err
	}
	if _, ok := s.findEnv(sec.Owner.Reach(), sec.Name); ok {
		return engi.Secret{}, errFromEnv
	}
	s.creating.Lock()
	defer s.creating.Unlock()
	have, err := s.store.Count(ctx, sec.Owner)
	if err != nil {
		return engi.Secret{}, err
	}
	if have >= maxSecrets {
		return engi.Secret{}, engi.Errorf(engi.Exhausted, "there are %d secrets already", have).WithRemedy("remove some")
	}
	sec.ID, sec.Version, sec.Metadata = cmp.Or(sec.ID, engi.NewSecretID()), 1, maps.Clone(sec.Metadata)
	sec.Created = now()
	sec.Updated = sec.Created
	return sec, s.store.Put(ctx, sec, s.seal(sec, value))
}

// Get returns a secret by ID or name, without its value.
func (s *Service) Get(ctx context.Context, viewer engi.Viewer, idOrName string) (_ engi.Secret, err error) {
	defer engi.Annotate(&err, "get secret %.40q", idOrName)
	sec, _, err := s.store.Find(ctx, viewer, idOrName)
	if f, ok := s.findEnv(viewer, idOrName); ok && engi.Is(err, engi.NotFound) {
		return f.Secret, nil
	}
	return sec, err
}

// List returns secrets, including those from the environment, by name.
func (s *Service) List(ctx context.Context, viewer engi.Viewer, p engi.Paging) ([]engi.Secret, error) {
	after, err := s.last(ctx, viewer, p)
	if err != nil {
		return nil, err
	}
	all, err := s.store.List(ctx, viewer, after, p.Limit)
	if err != nil {
		return nil, err
	}
	stored := len(all)
	for _, f := range s.env {
		hidden := func(x engi.Secret) bool { return x.Name == f.Name && (x.Owner == viewer.Owner() || x.Owner == f.Owner) }
		if f.visibleTo(viewer) && byName(f.Secret, after) > 0 && !slices.ContainsFunc(all[:stored], hidden) {
			all = append(all, f.Secret)
		}
	}
	slices.SortStableFunc(all, byName)
	return engi.Cut(engi.Paging{Limit: p.Limit}, all, nil)
}

// last returns the last secret of the page before p; the zero secret before the first page.
func (s *Service) last(ctx context.Context, viewer engi.Viewer, p engi.Paging) (engi.Secret, error) {
	if p.After == "" {
		return engi.Secret{}, nil
	}
	for _, f := range s.env {
		if f.visibleTo(viewer) && string(f.ID) == p.After {
			return f.Secret, nil
		}
	}
	sec, _, err := s.store.Find(ctx, viewer, p.After)
	if err == nil && string(sec.ID) != p.After || engi.Is(err, engi.NotFound) {
		err = p.Lost()
	}
	return sec, err
}

func byName(a, b engi.Secret) int {
	return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(string(a.Owner), string(b.Owner)))
}

// Update implements [engi.Secrets].
func (s *Service) Update(ctx context.Context, viewer engi.Viewer, idOrName, value string, metadata map[string]string, hosts *[]string) (_ engi.Secret, err error) {
	defer engi.Annotate(&err, "update secret %.40q", idOrName)
	if err := check(value, metadata); err != nil {
		return engi.Secret{}, err
	}
	for attempt := 1; ; attempt++ {
		sec, _, err := s.store.Find(ctx, viewer, idOrName)
		if err != nil {
			return engi.Secret{}, s.explainEnv(viewer, idOrName, err)
		}
		was := sec.Version
		sec.Version++
		sec.Updated = now()
		if metadata != nil {
			sec.Metadata = maps.Clone(metadata)
		}
		if hosts != nil {
			if sec.Hosts, err = parseHosts(*hosts); err != nil {
				return engi.Secret{}, err
			}
		}
		err = s.store.Replace(ctx, sec, s.seal(sec, value), was)
		if !engi.Is(err, engi.Conflict) || attempt == maxAttempts {
			return sec, err
		}
	}
}

// Remove deletes a secret.
func (s *Service) Remove(ctx context.Context, viewer engi.Viewer, idOrName string) (err error) {
	defer engi.Annotate(&err, "remove secret %.40q", idOrName)
	sec, _, err := s.store.Find(ctx, viewer, idOrName)
	if err != nil {
		return s.explainEnv(viewer, idOrName, err)
	}
	return s.store.Remove(ctx, sec.ID)
}

// Reveal returns a value. It reports Conflict for a value whose key is lost.
func (s *Service) Reveal(ctx context.Context, viewer engi.Viewer, idOrName string) (string, error) {
	value, _, _, err := s.Use(ctx, viewer, idOrName)
	return value, err
}

// Use returns a value for the egress gateway, the hosts that it is pinned to, if any, and
// whether it must be masked in responses, because the owner may use it but not read
// it. It reports Conflict for a value whose key is lost. It returns secrets of
// packages to every owner; see [Service.Check].
func (s *Service) Use(ctx context.Context, viewer engi.Viewer, idOrName string) (value string, hosts []string, strip bool, err error) {
	defer engi.Annotate(&err, "reveal secret %.40q", idOrName)
	if v, ok := s.packageValue(idOrName); ok {
		return v, nil, false, nil
	}
	sec, v, err := s.store.Find(ctx, viewer, idOrName)
	if f, ok := s.findEnv(viewer, idOrName); ok && engi.Is(err, engi.NotFound) {
		return f.value(), f.Hosts, len(f.Hosts) > 0, nil
	}
	if err != nil {
		return "", nil, false, err
	}
	value, err = s.unseal(sec, v)
	return value, sec.Hosts, false, err
}

// check checks a value and metadata. Its errors do not contain them.
func check(value string, metadata map[string]string) error {
	var f engi.Faults
	f.Secret(value)
	if err := f.Err(); err != nil {
		return err
	}
	if len(metadata) > maxMetadata {
		return engi.Errorf(engi.Invalid, "there are %d pairs of metadata", len(metadata)).WithRemedy("use at most %d", maxMetadata)
	}
	for k, v := range metadata {
		if k == "" || len(k) > maxText || len(v) > maxText || !utf8.ValidString(k+v) || strings.ContainsRune(k+v, 0) {
			return engi.Errorf(engi.Invalid, "a pair of metadata has no key, is too long or is not text").
				WithRemedy("use at most %d bytes of UTF-8 on each side", maxText)
		}
	}
	return nil
}

// now returns the time with the precision of stores.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }
