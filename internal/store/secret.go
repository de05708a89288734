package store

import (
	"cmp"
	"context"
	"slices"

	"github.com/engi-dev/engi/internal/access/secret"
	"github.com/engi-dev/engi/internal/engi"
)

// secretStore implements [secret.Store].
type secretStore struct {
	table[engi.Secret, engi.SecretID]
}

var _ secret.Store = secretStore{}

// Secrets returns the store of secrets.
func Secrets(db *DB) secret.Store {
	return secretStore{table[engi.Secret, engi.SecretID]{
		db: db, name: "secrets", noun: "secret", columns: `id, owner, name, version, metadata, created, updated, hosts`,
		fields: func(s *engi.Secret) []any {
			return []any{&s.ID, &s.Owner, &s.Name, &s.Version, asJSON("metadata", &s.Metadata), (*stamp)(&s.Created), (*stamp)(&s.Updated), (*wordList[string])(&s.Hosts)}
		},
		missing: engi.Errorf(engi.NotFound, "no such secret"),
		exists:  engi.Errorf(engi.Conflict, "a secret with that name exists").WithRemedy("update it, or choose another name"),
	}}
}

// sealed returns the table with the encrypted value, which v holds.
func (s secretStore) sealed(v *secret.Sealed) table[engi.Secret, engi.SecretID] {
	return s.with("key", func(*engi.Secret) any { return &v.Key }).with("value", func(*engi.Secret) any { return (*blob)(&v.Data) })
}

func (s secretStore) Put(ctx context.Context, sec engi.Secret, v secret.Sealed) (err error) {
	defer engi.Annotate(&err, "put secret %s", sec.ID)
	return s.sealed(&v).add(ctx, &sec, engi.EventSecretCreated, map[string]any{"name": sec.Name})
}

func (s secretStore) Find(ctx context.Context, viewer engi.Viewer, idOrName string) (found engi.Secret, v secret.Sealed, err error) {
	full, w := s.sealed(&v), seen(viewer, `(id = ? OR name = ?)`, idOrName, idOrName)
	found, err = named(ctx, s.db.read, s.noun, s.missing, func(x engi.Secret) engi.Owner { return cmp.Or(x.Owner, "another") }, full.scan,
		full.query(w)+` LIMIT 2`, w.args...)
	return found, v, err
}

func (s secretStore) List(ctx context.Context, viewer engi.Viewer, after engi.Secret, most int) ([]engi.Secret, error) {
	var w where
	w.owned(viewer)
	w.and(after.Name != "" && viewer != engi.Everyone, `name > ?`, after.Name)
	w.and(after.Name != "" && viewer == engi.Everyone, `(name, owner) > (?, ?)`, after.Name, after.Owner)
	return s.all(ctx, w, `name, owner`, most)
}

func (s secretStore) Count(ctx context.Context, owner engi.Owner) (int, error) {
	n, _, err := s.db.total(ctx, "secret", owner)
	return n, err
}

func (s secretStore) Replace(ctx context.Context, sec engi.Secret, v secret.Sealed, was int) (err error) {
	defer engi.Annotate(&err, "replace secret %s", sec.ID)
	return s.db.tx(ctx, func(t *tx) error {
		before, err := s.one(ctx, t, when(`id = ?`, sec.ID))
		if err != nil {
			return err
		}
		if before.Version != was {
			return engi.Errorf(engi.Conflict, "it has been changed since")
		}
		if err := s.sealed(&v).save(ctx, t, &sec); err != nil || sec.Version == was { // only the encryption key has changed
			return err
		}
		return s.record(ctx, t, &sec, engi.EventSecretUpdated, map[string]any{"name": sec.Name, "version": sec.Version})
	})
}

func (s secretStore) Remove(ctx context.Context, id engi.SecretID) error {
	return s.remove(ctx, when(`id = ?`, id), engi.EventSecretRemoved, func(x engi.Secret) any { return map[string]any{"name": x.Name} })
}

func (s secretStore) Keys(ctx context.Context) ([]string, error) {
	keys, err := list(ctx, s.db.read, value[string], `SELECT DISTINCT key FROM secrets`)
	if err != nil {
		return nil, err
	}
	more, err := s.db.sealKeys(ctx)
	slices.Sort(more)
	for _, k := range slices.Compact(more) {
		if !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	return keys, err
}
