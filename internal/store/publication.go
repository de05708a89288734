package store

import (
	"context"

	"github.com/engi-dev/engi/internal/app"
	"github.com/engi-dev/engi/internal/engi"
)

// dropParts deletes the contents of an app that no publication uses.
const dropParts = `DELETE FROM app_parts WHERE app = ?1 AND digest NOT IN (SELECT digest FROM app_published WHERE app = ?1 UNION SELECT packed FROM app_published WHERE app = ?1)`

func (x appTx) Publish(files []app.Published, contents map[string][]byte, b app.Bounds) error {
	exec := func(query string, args ...any) error {
		_, err := x.t.exec(x.ctx, query, args...)
		return err
	}
	drop := `DELETE FROM app_published WHERE app = ? AND former = 1`
	if len(files) == 0 {
		drop = `DELETE FROM app_published WHERE app = ?`
	}
	if err := exec(drop, x.app); err != nil {
		return err
	}
	if err := exec(`UPDATE app_published SET former = 1 WHERE app = ?`, x.app); err != nil {
		return err
	}
	for digest, data := range contents {
		size := len(data)
		if data == nil {
			data = []byte{} // nil would be stored as NULL
		}
		for part := 0; part == 0 || len(data) > 0; part++ {
			n := min(len(data), app.PartSize)
			if err := exec(`INSERT INTO app_parts (app, digest, part, size, data) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`, x.app, digest, part, size, data[:n]); err != nil {
				return err
			}
			data = data[n:]
		}
	}
	for _, f := range files {
		if err := exec(`INSERT INTO app_published (app, path, former, size, digest, packed, fixed) VALUES (?, ?, 0, ?, ?, ?, ?)`, x.app, f.Path, f.Size, f.Digest, f.Packed, f.Fixed); err != nil {
			return err
		}
	}
	if err := exec(dropParts, x.app); err != nil {
		return err
	}
	lost, err := first(x.ctx, x.t, nil, value[int],
		`SELECT count(*) FROM app_published p WHERE app = ? AND NOT EXISTS (SELECT 1 FROM app_parts q WHERE q.app = p.app AND q.digest = p.digest)`, x.app)
	if err == nil && lost > 0 {
		err = engi.Errorf(engi.Internal, "the contents of %d published files are not there", lost)
	}
	if err != nil {
		return err
	}
	return x.measure(b)
}

// measure records the size of an app's contents, and reports Exhausted if all apps of its
// owner exceed b.
func (x appTx) measure(b app.Bounds) error {
	if _, err := x.t.exec(x.ctx, `UPDATE apps SET bytes = (SELECT coalesce(sum(size), 0) FROM app_contents WHERE app = ?1) + (SELECT coalesce(sum(size), 0) FROM app_parts WHERE app = ?1 AND part = 0) WHERE id = ?1`, x.app); err != nil {
		return err
	}
	total, err := first(x.ctx, x.t, nil, value[int64], `SELECT coalesce(sum(bytes), 0) FROM apps WHERE owner = ?`, x.owner)
	if err == nil && total > b.Owner {
		err = engi.Errorf(engi.Exhausted, "the files of all your apps, with their histories, would have %d MiB; the limit is %d", total>>20, b.Owner>>20).
			WithRemedy("remove unused apps: 'engi app list' shows them")
	}
	return err
}

func (s appStore) Published(ctx context.Context, id engi.AppID, path string) (app.Published, error) {
	return first(ctx, s.db.read, engi.Errorf(engi.NotFound, "the app has published no file %.100q", path), func(row scanner) (f app.Published, err error) {
		return f, row.Scan(&f.Path, &f.Size, &f.Digest, &f.Packed, &f.Fixed)
	}, `SELECT path, size, digest, packed, fixed FROM app_published WHERE app = ? AND path = ? AND (former = 0 OR fixed) ORDER BY former LIMIT 1`, id, path)
}

func (s appStore) Part(ctx context.Context, app engi.AppID, digest string, part int) (size int64, data []byte, err error) {
	_, err = first(ctx, s.db.read, engi.Errorf(engi.NotFound, "the content %.16s is not published any more", digest), func(row scanner) (struct{}, error) {
		return struct{}{}, row.Scan(&size, &data)
	}, `SELECT size, data FROM app_parts WHERE app = ? AND digest = ? AND part = ?`, app, digest, part)
	return size, data, err
}

func (s appStore) Branch(ctx context.Context, r app.Record, rev engi.Revision, b app.Bounds) (err error) {
	defer engi.Annotate(&err, "record app %s", r.ID)
	return s.db.tx(ctx, func(t *tx) error {
		exec := func(query string, args ...any) error {
			_, err := t.exec(ctx, query, args...)
			return err
		}
		if _, err := first(ctx, t, errNoRevision, value[int], `SELECT 1 FROM app_revisions r JOIN apps a ON a.id = r.app WHERE app = ? AND number = ? AND owner = ?`, rev.From, rev.Of, r.Owner); err != nil {
			return err
		}
		if err := s.insert(ctx, t, r, map[string]any{"from_id": rev.From, "of": rev.Of}); err != nil {
			return err
		}
		x := appTx{ctx, t, r.ID, r.Owner}
		if err := exec(`INSERT INTO app_contents (app, digest, size, data) SELECT ?1, digest, size, data FROM app_contents WHERE app = ?2 AND digest IN
			(SELECT digest FROM app_files WHERE app = ?2 AND since <= ?3 AND (until = 0 OR until > ?3))`, r.ID, rev.From, rev.Of); err != nil {
			return err
		}
		if err := exec(`INSERT INTO app_files (app, since, until, `+fileColumns+`) SELECT ?1, 1, 0, `+fileColumns+` FROM app_files WHERE app = ?2 AND since <= ?3 AND (until = 0 OR until > ?3)`, r.ID, rev.From, rev.Of); err != nil {
			return err
		}
		if err := x.Revise(rev, nil, nil, nil, b); err != nil {
			return err
		}
		if err := x.measure(b); err != nil {
			return err
		}
		_, err := x.Emit(engi.EventAppApplied, map[string]any{"revision": rev.Number, "text": rev.Message, "commit": rev.Commit, "of": rev.Of, "from_id": rev.From})
		return err
	})
}
