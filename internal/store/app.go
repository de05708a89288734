package store

import (
	"context"
	"encoding/json"
	"maps"
	"strconv"

	"github.com/engi-dev/engi/internal/app"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
)

// appStore implements [app.Store].
type appStore struct {
	table[app.Record, engi.AppID]
}

var _ app.Store = appStore{}

// Apps returns the store of apps.
func Apps(db *DB) app.Store {
	return appStore{table[app.Record, engi.AppID]{
		db: db, name: "apps", noun: "app", columns: `id, owner, name, created, used, idempotency, fingerprint, detail`, newest: true,
		fields: func(r *app.Record) []any {
			return []any{
				&r.ID, &r.Owner, &r.Name, (*stamp)(&r.Created), (*stamp)(&r.Used), &r.Idempotency, &r.Fingerprint,
				derived{func() (string, error) { return db.encodeApp(r) }, func(text string) error { return db.decodeApp(text, r) }},
			}
		},
		missing: engi.Errorf(engi.NotFound, "there is no such app").WithRemedy("'engi app list' shows yours"),
		exists:  engi.Errorf(engi.Conflict, "there is an app of that name or idempotency key").WithRemedy("use it, remove it, or choose another name"),
	}}
}

const fileColumns = `path, size, mode, digest, blob`

// appDetail holds the fields of an app that no query selects by.
type appDetail struct {
	Template string             `json:"template"`
	State    engi.AppState      `json:"state"`
	Sandbox  engi.SandboxID     `json:"sandbox_id,omitempty"`
	Port     int                `json:"port,omitempty"`
	Revision int64              `json:"revision"`
	Applying int64              `json:"applying,omitempty"`
	Editing  int64              `json:"editing,omitempty"`
	Error    *keptError         `json:"error,omitempty"`
	Metadata map[string]string  `json:"metadata,omitempty"`
	Boots    int                `json:"boots,omitempty"`
	Undo     *app.Undo          `json:"undo,omitempty"`
	Env      map[string]string  `json:"env,omitempty"`
	Network  engi.NetworkPolicy `json:"network"`

	Alerts    []engi.AppAlert  `json:"alerts,omitempty"`
	Published *publication     `json:"published,omitempty"`
	Snapshots []app.Snapshot   `json:"snapshots,omitempty"`
	Stray     app.Stray        `json:"stray,omitzero"`
	AttemptOf engi.AppID       `json:"attempt_of,omitempty"`
	Workspace engi.WorkspaceID `json:"workspace,omitempty"`
	Directory string           `json:"directory,omitempty"`
	Start     string           `json:"start,omitempty"`
	Ahead     bool             `json:"ahead,omitempty"`

	Sealed []byte `json:"sealed,omitempty"` // replaces Env and Network if one of them may be secret
}

// A publication describes the publication of an app, apart from its files.
type publication struct {
	Revision int64 `json:"revision"`
	At       int64 `json:"at"`
	Files    int   `json:"files"`
	Bytes    int64 `json:"bytes"`
	Private  bool  `json:"private,omitempty"`
}

// revisionDetail holds the fields of a revision that no query selects by.
type revisionDetail struct {
	Parent  int64            `json:"parent,omitempty"`
	Of      int64            `json:"of,omitempty"`
	From    engi.AppID       `json:"from,omitempty"`
	Message string           `json:"message"`
	Actor   string           `json:"actor,omitempty"`
	Commit  string           `json:"commit,omitempty"`
	Changed []engi.AppChange `json:"changed,omitempty"`
}

var errNoRevision = engi.Errorf(engi.NotFound, "there is no such revision").WithRemedy("'engi app history' shows the revisions that are kept")

// appKey returns the key of an app's event with a prefix, so that it differs from keys of
// other events.
func appKey(id engi.AppID, key string) string { return "app\x1f" + string(id) + "\x1f" + key }

// encodeApp returns the detail of an app.
func (db *DB) encodeApp(r *app.Record) (string, error) {
	var p *publication
	if x := r.Published; x.Revision != 0 {
		p = &publication{Revision: x.Revision, At: nanos(x.At), Files: x.Files, Bytes: x.Bytes, Private: x.Private}
	}
	return db.closeDetail("apps", string(r.ID), r.Owner, &appDetail{
		Template: r.Template, State: r.State, Sandbox: r.Sandbox, Port: r.Port, Revision: r.Revision, Applying: r.Applying, Editing: r.Editing, Error: keepError(r.Error), Metadata: r.Metadata, Boots: r.Boots, Undo: r.Undo, Env: r.Env, Network: r.Network, Alerts: r.Alerts, Published: p, Snapshots: r.Snapshots, Stray: r.Stray, AttemptOf: r.AttemptOf, Workspace: r.Workspace, Directory: r.Directory, Start: r.Start, Ahead: r.Ahead,
	})
}

func (d *appDetail) secret() (sealedPart, bool, error) { return networkPart(d.Env, d.Network) }
func (d *appDetail) hide(sealed []byte) {
	d.Env, d.Network, d.Sealed = nil, engi.NetworkPolicy{}, sealed
}
func (d *appDetail) hidden() []byte { return d.Sealed }
func (d *appDetail) show(p sealedPart) error {
	d.Env, d.Sealed = p.Env, nil
	return decode("network policy", string(p.Network), &d.Network)
}

// decodeApp sets the fields of r that are in its detail.
func (db *DB) decodeApp(text string, r *app.Record) error {
	var d appDetail
	lost, err := db.openDetail("apps", string(r.ID), r.Owner, text, &d)
	if err != nil {
		return err
	}
	if lost {
		d.Network = lostNetwork
	}
	r.Template, r.State, r.Sandbox, r.Port, r.Revision, r.Applying, r.Editing = d.Template, d.State, d.Sandbox, d.Port, d.Revision, d.Applying, d.Editing
	r.Error, r.Metadata, r.Boots, r.Undo, r.Env, r.Network = d.Error.decode(), d.Metadata, d.Boots, d.Undo, d.Env, d.Network
	r.Alerts, r.Snapshots, r.Stray, r.AttemptOf, r.Workspace = d.Alerts, d.Snapshots, d.Stray, d.AttemptOf, d.Workspace
	r.Directory, r.Start, r.Ahead = d.Directory, d.Start, d.Ahead
	if x := d.Published; x != nil {
		r.Published = engi.Publication{Revision: x.Revision, At: moment(x.At), Files: x.Files, Bytes: x.Bytes, Private: x.Private}
	}
	return nil
}

func (s appStore) Put(ctx context.Context, r app.Record) (err error) {
	defer engi.Annotate(&err, "record app %s", r.ID)
	return s.db.tx(ctx, func(t *tx) error { return s.insert(ctx, t, r, nil) })
}

// insert adds an app, with additional data in its event.
func (s appStore) insert(ctx context.Context, t *tx, r app.Record, more map[string]any) error {
	if err := s.put(ctx, t, &r); err != nil {
		return err
	}
	data := map[string]any{"name": r.Name, "template": r.Template, "metadata": r.Metadata}
	maps.Copy(data, more)
	return t.recordFirst(ctx, r.Owner, string(r.ID), engi.EventAppCreated, data)
}

func (s appStore) Change(ctx context.Context, id engi.AppID, f func(*app.Record, app.Tx) error) (r app.Record, err error) {
	defer engi.Annotate(&err, "record app %s", id)
	return s.change(ctx, when(`id = ?`, id), func(t *tx, r *app.Record) error { return f(r, appTx{ctx, t, r.ID, r.Owner}) })
}

func (s appStore) Remove(ctx context.Context, id engi.AppID) (err error) {
	defer engi.Annotate(&err, "remove app %s", id)
	return s.remove(ctx, when(`id = ?`, id), engi.EventAppRemoved, func(r app.Record) any { return map[string]any{"name": r.Name} })
}

func (s appStore) EventByIdempotencyKey(ctx context.Context, owner engi.Owner, app engi.AppID, key string) (idempotency.Event, error) {
	return s.db.eventOf(ctx, owner, appKey(app, key))
}

func (s appStore) Revisions(ctx context.Context, app engi.AppID, p engi.Paging) ([]engi.Revision, error) {
	return listRevisions(ctx, s.db, p, scanRevision, `SELECT app, number, created, detail FROM app_revisions`, when(`app = ?`, app),
		func(number int64) (engi.Revision, error) { return s.Revision(ctx, app, number) })
}

// listRevisions returns a page of the history that from and w select, newest first; one finds the revision that the page follows.
func listRevisions[R any](ctx context.Context, db *DB, p engi.Paging, scan func(scanner) (R, error), from string, w where, one func(number int64) (R, error)) ([]R, error) {
	if p.After != "" {
		after, err := strconv.ParseInt(p.After, 10, 64)
		if err != nil {
			return nil, p.Lost()
		}
		if _, err := one(after); engi.Is(err, engi.NotFound) {
			return nil, p.Lost()
		} else if err != nil {
			return nil, err
		}
		w.and(true, `number < ?`, after)
	}
	return list(ctx, db.read, scan, from+w.String()+` ORDER BY number DESC LIMIT ?`, append(w.args, limit(p.Limit))...)
}

func (s appStore) Revision(ctx context.Context, app engi.AppID, number int64) (engi.Revision, error) {
	return first(ctx, s.db.read, errNoRevision, scanRevision, `SELECT app, number, created, detail FROM app_revisions WHERE app = ? AND number = ?`, app, number)
}

func scanRevision(row scanner) (r engi.Revision, err error) {
	var text string
	if err := row.Scan(&r.App, &r.Number, (*stamp)(&r.Created), &text); err != nil {
		return r, err
	}
	var d revisionDetail
	if err := decode("revision of "+string(r.App), text, &d); err != nil {
		return r, err
	}
	r.Parent, r.Of, r.From, r.Message, r.Actor, r.Commit, r.Changed = d.Parent, d.Of, d.From, d.Message, d.Actor, d.Commit, d.Changed
	return r, nil
}

func (s appStore) Files(ctx context.Context, app engi.AppID, number int64) ([]app.File, error) {
	if _, err := s.Revision(ctx, app, number); err != nil {
		return nil, err
	}
	return list(ctx, s.db.read, scanFile, `SELECT `+fileColumns+`, since FROM app_files WHERE app = ?1 AND since <= ?2 AND (until = 0 OR until > ?2) ORDER BY path`, app, number)
}

func scanFile(row scanner) (f app.File, err error) {
	return f, row.Scan(&f.Path, &f.Size, &f.Mode, &f.Digest, &f.Blob, &f.Since)
}

func (s appStore) Content(ctx context.Context, app engi.AppID, digest string) ([]byte, error) {
	return first(ctx, s.db.read, engi.Errorf(engi.NotFound, "the content %.16s of a file is gone", digest), value[[]byte],
		`SELECT data FROM app_contents WHERE app = ? AND digest = ?`, app, digest)
}

// appTx implements [app.Tx].
type appTx struct {
	ctx   context.Context
	t     *tx
	app   engi.AppID
	owner engi.Owner
}

func (x appTx) Emit(kind string, data any) (int64, error) {
	return x.EmitOnce(kind, data, idempotency.Request{})
}

func (x appTx) EmitOnce(kind string, data any, q idempotency.Request) (int64, error) {
	raw, err := encode("event", data)
	if err != nil {
		return 0, err
	}
	if q.Key != "" {
		q.Key = appKey(x.app, q.Key)
	}
	e, err := x.t.append(x.ctx, engi.EventSpec{Owner: x.owner, Subject: string(x.app), Type: kind, Data: json.RawMessage(raw), Idempotency: q.Key, Fingerprint: q.Fingerprint})
	return e.Seq, err
}

func (x appTx) Revise(r engi.Revision, put []app.File, removed []string, contents map[string][]byte, b app.Bounds) error {
	detail, err := encode("revision", revisionDetail{Parent: r.Parent, Of: r.Of, From: r.From, Message: r.Message, Actor: r.Actor, Commit: r.Commit, Changed: r.Changed})
	if err != nil {
		return err
	}
	exec := func(query string, args ...any) error {
		_, err := x.t.exec(x.ctx, query, args...)
		return err
	}
	if err := exec(`INSERT INTO app_revisions (app, number, created, detail) VALUES (?, ?, ?, ?)`, x.app, r.Number, nanos(r.Created), detail); err != nil {
		return err
	}
	for digest, data := range contents {
		if data == nil {
			data = []byte{} // nil would be stored as NULL
		}
		if err := exec(`INSERT INTO app_contents (app, digest, size, data) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING`, x.app, digest, len(data), data); err != nil {
			return err
		}
	}
	for _, path := range removed {
		if err := exec(`UPDATE app_files SET until = ? WHERE app = ? AND path = ? AND until = 0`, r.Number, x.app, path); err != nil {
			return err
		}
	}
	for _, f := range put {
		if err := exec(`UPDATE app_files SET until = ? WHERE app = ? AND path = ? AND until = 0`, r.Number, x.app, f.Path); err != nil {
			return err
		}
		if err := exec(`INSERT INTO app_files (app, since, until, `+fileColumns+`) SELECT ?, ?, 0, ?, ?, ?, ?, ? WHERE EXISTS (SELECT 1 FROM app_contents WHERE app = ? AND digest = ?)`,
			x.app, r.Number, f.Path, f.Size, f.Mode, f.Digest, f.Blob, x.app, f.Digest); err != nil {
			return err
		}
		n, err := first(x.ctx, x.t, nil, value[int], `SELECT count(*) FROM app_files WHERE app = ? AND path = ? AND since = ?`, x.app, f.Path, r.Number)
		if err != nil {
			return err
		}
		if n == 0 {
			return engi.Errorf(engi.Internal, "the content of %s is not there", f.Path)
		}
	}
	if err := x.drop(r.Number, b); err != nil || len(contents) == 0 {
		return err
	}
	return x.measure(b)
}

// drop deletes revisions before the last one that exceed b.
func (x appTx) drop(last int64, b app.Bounds) error {
	count := func(query string) (int64, error) {
		return first(x.ctx, x.t, nil, value[int64], query, x.app)
	}
	oldest, err := count(`SELECT min(number) FROM app_revisions WHERE app = ?`)
	if err != nil {
		return err
	}
	for keep := max(oldest, last-int64(b.Revisions)+1); ; keep++ {
		if keep > oldest {
			for _, query := range []string{
				`DELETE FROM app_revisions WHERE app = ? AND number < ?`,
				`DELETE FROM app_files WHERE app = ? AND until > 0 AND until <= ?`,
				`DELETE FROM app_contents WHERE app = ?1 AND digest NOT IN (SELECT digest FROM app_files WHERE app = ?1) AND ?2 > 0`,
			} {
				if _, err := x.t.exec(x.ctx, query, x.app, keep); err != nil {
					return err
				}
			}
		}
		if keep >= last-1 {
			return nil
		}
		bytes, err := count(`SELECT coalesce(sum(size), 0) FROM app_contents WHERE app = ?`)
		if err != nil || bytes <= b.Bytes {
			return err
		}
	}
}
