package store

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workflow"
	"github.com/engi-dev/engi/internal/workspace"
	"github.com/engi-dev/engi/internal/workspace/repo"
)

// workspaceStore implements [workspace.Store].
type workspaceStore struct {
	table[workspace.Record, engi.WorkspaceID]
}

var _ workspace.Store = workspaceStore{}

// Workspaces returns the store of workspaces.
func Workspaces(db *DB) workspace.Store { return workspacesOf(db) }

func workspacesOf(db *DB) workspaceStore {
	return workspaceStore{table[workspace.Record, engi.WorkspaceID]{
		db: db, name: "workspaces", noun: "workspace", columns: `id, owner, name, created, used, idempotency, fingerprint, detail`,
		fields: func(r *workspace.Record) []any {
			return []any{
				&r.ID, &r.Owner, &r.Name, (*stamp)(&r.Created), (*stamp)(&r.Used), &r.Idempotency, &r.Fingerprint,
				derived{func() (string, error) { return db.encodeWorkspace(r) }, func(text string) error { return db.decodeWorkspace(text, r) }},
			}
		},
		missing: errNoWorkspace,
		exists:  engi.Errorf(engi.Conflict, "there is a workspace of that name or idempotency key").WithRemedy("use it, remove it, or choose another name"),
	}}
}

const revisionFrom = `SELECT number, created, detail FROM workspace_revisions`

// workspaceDetail holds the fields of a workspace that no query selects by.
type workspaceDetail struct {
	Template      string                `json:"template"`
	State         engi.WorkspaceState   `json:"state"`
	Sandbox       engi.SandboxID        `json:"sandbox_id,omitempty"`
	Revision      int64                 `json:"revision"`
	Base          int64                 `json:"base,omitempty"`
	Size          int64                 `json:"size,omitempty"`
	Boots         int                   `json:"boots,omitempty"`
	Error         *keptError            `json:"error,omitempty"`
	Collaborators []keptCollaborator    `json:"collaborators,omitempty"`
	Preview       *keptPreview          `json:"preview,omitempty"`
	Metadata      map[string]string     `json:"metadata,omitempty"`
	Services      []keptService         `json:"services,omitempty"`
	Secrets       map[string]keptSecret `json:"secrets,omitempty"` // secrets of services, by name
	Sealed        []byte                `json:"sealed,omitempty"`  // replaces Secrets
}

type keptCollaborator struct {
	Owner engi.Owner         `json:"owner"`
	Role  engi.WorkspaceRole `json:"role"`
}

type keptPreview struct {
	Type   engi.PreviewType `json:"type"`
	Root   string           `json:"root,omitempty"`
	Port   int              `json:"port,omitempty"`
	Public bool             `json:"public,omitempty"`
}

// A keptService is a stored service without its secret.
type keptService struct {
	Name     string            `json:"name"`
	Type     engi.ServiceType  `json:"type"`
	Version  string            `json:"version,omitempty"`
	Server   string            `json:"server,omitempty"`
	State    engi.ServiceState `json:"state"`
	Sandbox  engi.SandboxID    `json:"sandbox_id,omitempty"`
	Volume   engi.VolumeID     `json:"volume_id,omitempty"`
	Host     string            `json:"host,omitempty"`
	Port     int               `json:"port,omitempty"`
	Exposed  bool              `json:"exposed,omitempty"`
	Needs    []string          `json:"needs,omitempty"`
	Restarts int               `json:"restarts,omitempty"`
	Error    *keptError        `json:"error,omitempty"`
	Started  int64             `json:"started,omitempty"`
	User     string            `json:"user,omitempty"`
	Database string            `json:"database,omitempty"`
	Wanted   string            `json:"wanted,omitempty"`
	Template string            `json:"template,omitempty"`
	Boots    int               `json:"boots,omitempty"`
	Failures int               `json:"failures,omitempty"`
	Going    bool              `json:"going,omitempty"`
}

// A keptSecret holds the fields of a service that may be secret.
type keptSecret struct {
	Password string            `json:"password,omitempty"`
	Env      map[string]string `json:"env,omitempty"`
}

func keepService(s workspace.ServiceRecord) keptService {
	return keptService{
		Name: s.Name, Type: s.Type, Version: s.Version, Server: s.Server, State: s.State, Sandbox: s.Sandbox, Volume: s.Volume, Host: s.Host, Port: s.Port, Exposed: s.Exposed, Needs: s.Needs, Restarts: s.Restarts, Error: keepError(s.Error), Started: nanos(s.Started),
		User: s.User, Database: s.Database, Wanted: s.Wanted, Template: s.Template, Boots: s.Boots, Failures: s.Failures, Going: s.Going,
	}
}

func (k keptService) decode(secret keptSecret) workspace.ServiceRecord {
	return workspace.ServiceRecord{
		Service: engi.Service{
			Name: k.Name, Type: k.Type, Version: k.Version, Server: k.Server, State: k.State, Sandbox: k.Sandbox, Volume: k.Volume, Host: k.Host, Port: k.Port,
			Exposed: k.Exposed, Needs: k.Needs, Restarts: k.Restarts, Error: k.Error.decode(), Started: moment(k.Started),
		},
		User: k.User, Password: secret.Password, Database: k.Database, Env: secret.Env, Wanted: k.Wanted, Template: k.Template, Boots: k.Boots, Failures: k.Failures, Going: k.Going,
	}
}

// workspaceRevision holds the fields of a revision that no query selects by.
type workspaceRevision struct {
	Parent  int64            `json:"parent,omitempty"`
	Of      int64            `json:"of,omitempty"`
	Message string           `json:"message"`
	Actor   string           `json:"actor,omitempty"`
	Commit  string           `json:"commit"`
	Changed []engi.AppChange `json:"changed,omitempty"`
}

var (
	errNoWorkspace         = engi.Errorf(engi.NotFound, "there is no such workspace").WithRemedy("'engi workspace list' shows your workspaces")
	errNoWorkspaceRevision = engi.Errorf(engi.NotFound, "there is no such revision").WithRemedy("'engi workspace history' shows them")
)

// encodeWorkspace returns the detail of a workspace.
func (db *DB) encodeWorkspace(r *workspace.Record) (string, error) {
	d := workspaceDetail{
		Template: r.Template, State: r.State, Sandbox: r.Sandbox, Revision: r.Revision, Base: r.Base, Size: r.Size, Boots: r.Boots, Error: keepError(r.Error), Metadata: r.Metadata,
		Secrets: map[string]keptSecret{},
	}
	d.Collaborators = mapped(r.Collaborators, func(c engi.Collaborator) keptCollaborator { return keptCollaborator(c) })
	if r.Preview.Type != engi.PreviewNone {
		d.Preview = new(keptPreview(r.Preview))
	}
	for _, s := range r.Services {
		d.Services = append(d.Services, keepService(s))
		d.Secrets[s.Name] = keptSecret{s.Password, s.Env}
	}
	return db.closeDetail("workspaces", string(r.ID), r.Owner, &d)
}

func (d *workspaceDetail) secret() (sealedPart, bool, error) {
	if len(d.Secrets) == 0 {
		return sealedPart{}, false, nil
	}
	secrets, err := encode("secrets of services", d.Secrets)
	return sealedPart{Services: json.RawMessage(secrets)}, true, err
}
func (d *workspaceDetail) hide(sealed []byte) { d.Secrets, d.Sealed = nil, sealed }
func (d *workspaceDetail) hidden() []byte     { return d.Sealed }
func (d *workspaceDetail) show(p sealedPart) error {
	d.Sealed = nil
	return decode("secrets of services", string(p.Services), &d.Secrets)
}

// decodeWorkspace sets the fields of r that are in its detail.
func (db *DB) decodeWorkspace(text string, r *workspace.Record) error {
	var d workspaceDetail
	if _, err := db.openDetail("workspaces", string(r.ID), r.Owner, text, &d); err != nil {
		return err
	}
	r.Template, r.State, r.Sandbox, r.Revision, r.Base, r.Size, r.Boots = d.Template, d.State, d.Sandbox, d.Revision, d.Base, d.Size, d.Boots
	r.Error, r.Metadata = d.Error.decode(), d.Metadata
	r.Collaborators = mapped(d.Collaborators, func(c keptCollaborator) engi.Collaborator { return engi.Collaborator(c) })
	if d.Preview != nil {
		r.Preview = engi.WorkspacePreview(*d.Preview)
	}
	r.Services = mapped(d.Services, func(s keptService) workspace.ServiceRecord { return s.decode(d.Secrets[s.Name]) })
	return nil
}

func (s workspaceStore) Put(ctx context.Context, r workspace.Record, f func(workspace.Tx) error) (err error) {
	defer engi.Annotate(&err, "record workspace %s", r.ID)
	return s.db.tx(ctx, func(t *tx) error {
		if err := s.put(ctx, t, &r); err != nil {
			return err
		}
		if err := t.collaborate(ctx, r); err != nil {
			return err
		}
		data := map[string]any{"name": r.Name, "template": r.Template, "metadata": r.Metadata}
		if err := t.recordFirst(ctx, r.Owner, string(r.ID), engi.EventWorkspaceCreated, data); err != nil || f == nil {
			return err
		}
		return f(workspaceTx{ctx, t, r.ID, r.Owner})
	})
}

// collaborate stores the collaborators of a workspace.
func (t *tx) collaborate(ctx context.Context, r workspace.Record) error {
	if _, err := t.exec(ctx, `DELETE FROM workspace_collaborators WHERE workspace = ?`, r.ID); err != nil {
		return err
	}
	for _, c := range r.Collaborators {
		if _, err := t.exec(ctx, `INSERT INTO workspace_collaborators (owner, workspace) VALUES (?, ?)`, c.Owner, r.ID); err != nil {
			return err
		}
	}
	return nil
}

// shared adds the condition that viewer sees a workspace as its owner or as a collaborator.
func (w *where) shared(viewer engi.Viewer) {
	w.and(viewer != engi.Everyone, `(owner = ? OR id IN (SELECT workspace FROM workspace_collaborators WHERE owner = ?))`, string(viewer), string(viewer))
}

func (s workspaceStore) Find(ctx context.Context, viewer engi.Viewer, idOrName string) (none workspace.Record, err error) {
	var w where
	// A name alone is never that of a workspace that somebody else shares: sharing one must not
	// make it the target of commands that were meant for another.
	if i := strings.LastIndexByte(idOrName, '/'); i >= 0 {
		w = when(`(owner = ? AND name = ?)`, idOrName[:i], idOrName[i+1:])
	} else if viewer == engi.Everyone {
		w = when(`(id = ? OR name = ?)`, idOrName, idOrName)
	} else {
		w = when(`(id = ? OR name = ? AND owner = ?)`, idOrName, idOrName, string(viewer))
	}
	w.shared(viewer)
	all, err := list(ctx, s.db.read, s.scan, s.query(w)+` ORDER BY id = ? DESC, owner = ? DESC LIMIT 2`, append(w.args, idOrName, string(viewer.Owner()))...)
	switch {
	case err != nil:
		return none, err
	case len(all) == 0:
		return none, s.missing
	case len(all) > 1 && all[0].Owner != viewer.Owner():
		return none, engi.Errorf(engi.Conflict, "several owners have a workspace with this name").WithRemedy("use OWNER/NAME, or its ID")
	}
	return all[0], nil
}

func (s workspaceStore) List(ctx context.Context, viewer engi.Viewer, p engi.Paging) ([]workspace.Record, error) {
	var w where
	w.shared(viewer)
	return s.page(ctx, p, w, true, `seq`)
}

func (s workspaceStore) Change(ctx context.Context, id engi.WorkspaceID, f func(*workspace.Record, workspace.Tx) error) (r workspace.Record, err error) {
	defer engi.Annotate(&err, "record workspace %s", id)
	return s.change(ctx, when(`id = ?`, id), func(t *tx, r *workspace.Record) error {
		before := slices.Clone(r.Collaborators)
		if err := f(r, workspaceTx{ctx, t, r.ID, r.Owner}); err != nil || slices.Equal(before, r.Collaborators) {
			return err
		}
		return t.collaborate(ctx, *r)
	})
}

func (s workspaceStore) Remove(ctx context.Context, id engi.WorkspaceID) (err error) {
	defer engi.Annotate(&err, "remove workspace %s", id)
	return s.db.tx(ctx, func(t *tx) error {
		if _, err := t.removeWorkflows(ctx, `workspace = ?`, id); err != nil {
			return err
		}
		r, err := first(ctx, t, s.missing, s.scan, `DELETE FROM workspaces WHERE id = ? RETURNING `+s.columns, id)
		if err != nil {
			return err
		}
		return s.record(ctx, t, &r, engi.EventWorkspaceRemoved, map[string]any{"name": r.Name})
	})
}

func (s workspaceStore) Revisions(ctx context.Context, id engi.WorkspaceID, p engi.Paging) ([]engi.WorkspaceRevision, error) {
	return listRevisions(ctx, s.db, p, scanWorkspaceRevision, revisionFrom, when(`workspace = ?`, id),
		func(number int64) (engi.WorkspaceRevision, error) { return s.Revision(ctx, id, number) })
}

func (s workspaceStore) Revision(ctx context.Context, id engi.WorkspaceID, number int64) (engi.WorkspaceRevision, error) {
	return first(ctx, s.db.read, errNoWorkspaceRevision, scanWorkspaceRevision, revisionFrom+` WHERE workspace = ? AND number = ?`, id, number)
}

func (s workspaceStore) Touched(ctx context.Context, id engi.WorkspaceID, path string, last int64, most int) ([]engi.WorkspaceRevision, error) {
	return list(ctx, s.db.read, scanWorkspaceRevision, revisionFrom+` WHERE workspace = ?1
		AND number IN (SELECT number FROM workspace_changes WHERE workspace = ?1 AND path = ?2 AND number <= ?3 ORDER BY number DESC LIMIT ?4) ORDER BY number DESC`, id, path, last, limit(most))
}

func scanWorkspaceRevision(row scanner) (r engi.WorkspaceRevision, err error) {
	var text string
	if err := row.Scan(&r.Number, (*stamp)(&r.Created), &text); err != nil {
		return r, err
	}
	var d workspaceRevision
	if err := decode("revision of a workspace", text, &d); err != nil {
		return r, err
	}
	r.Parent, r.Of, r.Message, r.Actor, r.Commit, r.Changed = d.Parent, d.Of, d.Message, d.Actor, d.Commit, d.Changed
	return r, nil
}

func (s workspaceStore) Object(ctx context.Context, id engi.WorkspaceID, hash string) (repo.Object, error) {
	return workspaceObject(ctx, s.db.read, id, hash)
}

func workspaceObject(ctx context.Context, q querier, id engi.WorkspaceID, hash string) (repo.Object, error) {
	return first(ctx, q, engi.Errorf(engi.NotFound, "there is no object %.40q of git", hash), func(row scanner) (o repo.Object, err error) {
		return o, row.Scan(&o.Hash, &o.Kind, &o.Size, &o.Packed)
	}, `SELECT hash, kind, size, data FROM workspace_objects WHERE workspace = ? AND hash = ?`, id, hash)
}

func (s workspaceStore) Sizes(ctx context.Context, id engi.WorkspaceID, kind repo.Kind, hashes []string) (map[string]int64, error) {
	text, err := encode("hashes", hashes)
	if err != nil {
		return nil, err
	}
	sizes := make(map[string]int64, len(hashes))
	_, err = list(ctx, s.db.read, func(row scanner) (none struct{}, err error) {
		var hash string
		var size int64
		err = row.Scan(&hash, &size)
		sizes[hash] = size
		return none, err
	}, `SELECT hash, size FROM workspace_objects WHERE workspace = ? AND kind = ? AND hash IN (SELECT value FROM json_each(?))`, id, kind, text)
	return sizes, err
}

// workspaceTx implements [workspace.Tx].
type workspaceTx struct {
	ctx   context.Context
	t     *tx
	id    engi.WorkspaceID
	owner engi.Owner
}

func (x workspaceTx) Emit(kind string, data any) error {
	return x.t.record(x.ctx, x.owner, string(x.id), kind, data)
}

// rowBytes is the approximate size of a row without its data.
const rowBytes = 100

func (x workspaceTx) Revise(r engi.WorkspaceRevision, objects []repo.Object, most int64) error {
	detail, err := encode("revision", workspaceRevision{Parent: r.Parent, Of: r.Of, Message: r.Message, Actor: r.Actor, Commit: r.Commit, Changed: r.Changed})
	if err != nil {
		return err
	}
	n, err := x.t.exec(x.ctx, `INSERT INTO workspace_revisions (workspace, number, created, detail)
		SELECT ?1, ?2, ?3, ?4 WHERE ?2 = 1 + (SELECT coalesce(max(number), 0) FROM workspace_revisions WHERE workspace = ?1)`, x.id, r.Number, nanos(r.Created), detail)
	if err != nil {
		return err
	}
	if n == 0 {
		return engi.Errorf(engi.Conflict, "revision %d is not the next one", r.Number).WithRemedy("try it again")
	}
	bytes := int64(rowBytes + len(detail))
	insert, err := x.t.prepare(x.ctx, `INSERT INTO workspace_objects (workspace, hash, kind, size, data) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`)
	if err != nil {
		return fault(x.ctx, err)
	}
	defer insert.Close()
	ctx := context.WithoutCancel(x.ctx) // see tx
	for _, o := range objects {
		n, err := changed(x.ctx)(insert.ExecContext(ctx, string(x.id), o.Hash, string(o.Kind), o.Size, o.Packed))
		if err != nil {
			return err
		}
		bytes += n * int64(rowBytes+len(o.Packed))
	}
	touch, err := x.t.prepare(x.ctx, `INSERT INTO workspace_changes (workspace, number, path) VALUES (?, ?, ?)`)
	if err != nil {
		return fault(x.ctx, err)
	}
	defer touch.Close()
	for _, c := range r.Changed {
		if _, err := touch.ExecContext(ctx, string(x.id), r.Number, c.Path); err != nil {
			return fault(x.ctx, err)
		}
		bytes += int64(rowBytes + len(c.Path))
	}
	tree, err := x.t.treeOf(x.ctx, x.id, r.Commit)
	if engi.Is(err, engi.NotFound) {
		return engi.Errorf(engi.Internal, "the commit of revision %d is not there", r.Number)
	}
	if err != nil {
		return err
	}
	if _, err := x.t.exec(x.ctx, `UPDATE workspace_revisions SET tree = ? WHERE workspace = ? AND number = ?`, tree, x.id, r.Number); err != nil {
		return err
	}
	if err := x.t.void(x.ctx, x.id, workflow.Content{Revision: r.Number, Hash: tree}, r.Actor, time.Now().UTC()); err != nil {
		return err
	}
	if _, err := x.t.exec(x.ctx, `UPDATE workspaces SET bytes = bytes + ? WHERE id = ?`, bytes, x.id); err != nil {
		return err
	}
	total, err := first(x.ctx, x.t, nil, value[int64], `SELECT coalesce(sum(bytes), 0) FROM workspaces WHERE owner = ?`, x.owner)
	if err == nil && total > most {
		err = engi.Errorf(engi.Exhausted, "the histories of all your workspaces would have %d bytes; the limit is %d", total, most).
			WithRemedy("remove unused workspaces: 'engi workspace list' shows them")
	}
	return err
}
