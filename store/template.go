package store

import (
	"context"

	"github.com/engi-dev/engi"
)

// Announce appends events for what has changed about templates since the last
// time. Templates are directories that any process may build or remove, so the
// log follows them instead of changing with them.
func Announce(ctx context.Context, db *DB, templates []engi.Template) error {
	return db.tx(ctx, func(t *tx) error {
		type known struct{ name, digest string }
		all, err := list(ctx, t, func(row scanner) (k known, err error) { return k, row.Scan(&k.name, &k.digest) }, `SELECT name, digest FROM templates`)
		if err != nil {
			return err
		}
		before := map[string]string{}
		for _, k := range all {
			before[k.name] = k.digest
		}
		for _, x := range templates {
			if x.Digest == "" || before[x.Name] == x.Digest {
				if x.Digest != "" {
					delete(before, x.Name)
				}
				continue
			}
			delete(before, x.Name)
			if _, err := t.exec(ctx, `INSERT INTO templates (name, digest) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET digest = excluded.digest`, x.Name, x.Digest); err != nil {
				return err
			}
			if err := t.record(ctx, "", "template:"+x.Name, engi.EventTemplateBuilt, map[string]any{"name": x.Name, "digest": x.Digest, "bytes": x.Bytes}); err != nil {
				return err
			}
		}
		for name, digest := range before {
			if _, err := t.exec(ctx, `DELETE FROM templates WHERE name = ?`, name); err != nil {
				return err
			}
			if err := t.record(ctx, "", "template:"+name, engi.EventTemplateRemoved, map[string]any{"name": name, "digest": digest}); err != nil {
				return err
			}
		}
		return nil
	})
}
