package store

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/engi-dev/engi/internal/access/secret"
	"github.com/engi-dev/engi/internal/engi"
)

// secretStore implements [secret.Store].
type secretStore struct{ db *DB }

var _ secret.Store = secretStore{}

// Secrets returns the store of secrets.
func Secrets(db *DB) secret.Store { return secretStore{db} }

const secretColumns = `id, owner, name, version, metadata, created, updated, hosts`

func (s secretStore) Put(ctx context.Context, sec engi.Secret, v secret.Sealed) (err error) {
	defer engi.Annotate(&err, "put secret %s", sec.ID)
	metadata, err := encode("metadata", sec.Metadata)
	if err != nil {
		return err
	}
	return s.db.tx(ctx, func(t *tx) error {
		_, err := t.exec(ctx, `INSERT INTO secrets (`+secretColumns+`, key, value) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			sec.ID, sec.Owner, sec.Name, sec.Version, metadata, nanos(sec.Created), nanos(sec.Updated), strings.Join(sec.Hosts, " "), v.Key, append([]byte{}, v.Data...))
		if engi.Is(err, engi.Conflict) {
			return engi.Errorf(engi.Conflict, "a secret with that name exists").WithRemedy("update it, or choose another name")
		}
		if err != nil {
			return err
		}
		return t.record(ctx, sec.Owner, string(sec.ID), engi.EventSecretCreated, map[string]any{"name": sec.Name})
	})
}

func (s secretStore) Find(ctx context.Context, viewer engi.Viewer, idOrName string) (engi.Secret, secret.Sealed, error) {
	type found struct {
		engi.Secret
		sealed secret.Sealed
	}
	x, err := named(ctx, s.db.read, "secret", errNoSecret, func(x found) engi.Owner { return cmp.Or(x.Owner, "another") }, func(row scanner) (x found, err error) {
		x.Secret, err = scanSecretWith(row, &x.sealed.Key, &x.sealed.Data)
		return x, err
	}, `SELECT `+secretColumns+`, key, value FROM secrets WHERE (id = ? OR name = ?) AND (? = '*' OR owner = ?) LIMIT 2`, idOrName, idOrName, viewer, viewer)
	return x.Secret, x.sealed, err
}

var errNoSecret = engi.Errorf(engi.NotFound, "no such secret")

func (s secretStore) List(ctx context.Context, viewer engi.Viewer, after engi.Secret, most int) ([]engi.Secret, error) {
	var w where
	w.owned(viewer)
	w.and(after.Name != "" && viewer != engi.Everyone, `name > ?`, after.Name)
	w.and(after.Name != "" && viewer == engi.Everyone, `(name, owner) > (?, ?)`, after.Name, after.Owner)
	return list(ctx, s.db.read, scanSecret, `SELECT `+secretColumns+` FROM secrets`+w.String()+` ORDER BY name, owner LIMIT ?`, append(w.args, limit(most))...)
}

func (s secretStore) Count(ctx context.Context, owner engi.Owner) (int, error) {
	n, _, err := s.db.total(ctx, "secret", owner)
	return n, err
}

func (s secretStore) Replace(ctx context.Context, sec engi.Secret, v secret.Sealed, was int) (err error) {
	defer engi.Annotate(&err, "replace secret %s", sec.ID)
	metadata, err := encode("metadata", sec.Metadata)
	if err != nil {
		return err
	}
	return s.db.tx(ctx, func(t *tx) error {
		version, err := first(ctx, t, errNoSecret, value[int], `SELECT version FROM secrets WHERE id = ?`, sec.ID)
		if err != nil {
			return err
		}
		if version != was {
			return engi.Errorf(engi.Conflict, "it has been changed since")
		}
		if _, err := t.exec(ctx, `UPDATE secrets SET version = ?, metadata = ?, updated = ?, hosts = ?, key = ?, value = ? WHERE id = ?`,
			sec.Version, metadata, nanos(sec.Updated), strings.Join(sec.Hosts, " "), v.Key, v.Data, sec.ID); err != nil {
			return err
		}
		if sec.Version == was { // only the encryption key has changed
			return nil
		}
		return t.record(ctx, sec.Owner, string(sec.ID), engi.EventSecretUpdated, map[string]any{"name": sec.Name, "version": sec.Version})
	})
}

func (s secretStore) Remove(ctx context.Context, id engi.SecretID) error {
	return change(ctx, s.db, errNoSecret, scanSecret, func(t *tx, sec engi.Secret) error {
		return t.record(ctx, sec.Owner, string(id), engi.EventSecretRemoved, map[string]any{"name": sec.Name})
	}, `DELETE FROM secrets WHERE id = ? RETURNING `+secretColumns, id)
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

func scanSecret(row scanner) (engi.Secret, error) { return scanSecretWith(row) }

// scanSecretWith scans secretColumns and then more.
func scanSecretWith(row scanner, more ...any) (s engi.Secret, err error) {
	var metadata, hosts string
	if err := row.Scan(append([]any{&s.ID, &s.Owner, &s.Name, &s.Version, &metadata, (*stamp)(&s.Created), (*stamp)(&s.Updated), &hosts}, more...)...); err != nil {
		return s, err
	}
	if hosts != "" {
		s.Hosts = strings.Split(hosts, " ")
	}
	return s, decode("secret "+string(s.ID), metadata, &s.Metadata)
}
