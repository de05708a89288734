package store

import (
	"cmp"
	"context"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/session"
)

// sessionStore implements [session.Store].
type sessionStore struct {
	table[session.Record, engi.SessionID]
}

var _ session.Store = sessionStore{}

// Sessions returns the store of sessions.
func Sessions(db *DB) session.Store {
	return sessionStore{table[session.Record, engi.SessionID]{
		db: db, name: "sessions", noun: "session", columns: `id, owner, name, volume, sandbox, created, used, ended, idempotency, fingerprint, detail`,
		fields: func(r *session.Record) []any {
			return []any{
				&r.ID, &r.Owner, &r.Name, &r.Volume, &r.Sandbox, (*stamp)(&r.Created), (*stamp)(&r.Used), (*stamp)(&r.Ended), &r.Idempotency, &r.Fingerprint,
				derived{func() (string, error) { return db.encodeSession(r) }, func(text string) error { return db.decodeSession(text, r) }},
			}
		},
		missing: errNoSession,
		exists:  engi.Errorf(engi.Conflict, "a session with that name or idempotency key exists").WithRemedy("use it, terminate it, or choose another name"),
	}}
}

// sessionDetail holds the fields of a session that no query selects by.
type sessionDetail struct {
	Mode        engi.SessionMode   `json:"mode"`
	Persistence engi.Persistence   `json:"persistence"`
	Template    string             `json:"template,omitempty"`
	Workspace   engi.WorkspaceID   `json:"workspace,omitempty"`
	Size        engi.Size          `json:"size"`
	Capacity    int64              `json:"capacity"`
	TTL         time.Duration      `json:"ttl"`
	Dormancy    time.Duration      `json:"dormancy"`
	Network     engi.NetworkPolicy `json:"network"`
	Metadata    map[string]string  `json:"metadata,omitempty"`
	Env         map[string]string  `json:"env,omitempty"`
	Git         *engi.GitSpec      `json:"git,omitempty"`
	MaxDuration time.Duration      `json:"max_duration,omitempty"`
	Boots       int                `json:"boots"`
	Why         string             `json:"why,omitempty"`
	Cleared     bool               `json:"cleared,omitempty"`
	Saved       time.Time          `json:"saved,omitzero"`
	Filled      bool               `json:"filled,omitempty"`
	Changed     bool               `json:"changed,omitempty"`
	GivenUp     bool               `json:"given_up,omitempty"`
	State       engi.SessionState  `json:"state,omitempty"` // empty in records of older versions

	Attached []engi.SessionClient `json:"attached,omitempty"`
	Overlay  engi.SnapshotID      `json:"overlay,omitempty"`
	Stale    []engi.SnapshotID    `json:"stale,omitempty"`
	CPUQuota float64              `json:"cpu_quota,omitempty"`
	Freed    time.Time            `json:"freed,omitzero"`

	Sealed []byte `json:"sealed,omitempty"` // replaces Env and Network if one of them may be secret
}

// encodeSession returns the detail of a session.
func (db *DB) encodeSession(r *session.Record) (string, error) {
	return db.closeDetail("sessions", string(r.ID), r.Owner, &sessionDetail{
		Mode: r.Mode, Persistence: r.Persistence, Template: r.Template, Workspace: r.Workspace, Size: r.Size, Capacity: r.Capacity, TTL: r.TTL, Dormancy: r.Dormancy, Network: r.Network, Metadata: r.Metadata, Env: r.Env, Git: r.Git, MaxDuration: r.MaxDuration, Boots: r.Boots, Why: r.EndReason, Cleared: r.Cleared,
		Saved: r.Saved, Filled: r.Filled, Changed: r.Changed, GivenUp: r.GivenUp, State: r.State, Attached: r.Attached, Overlay: r.Overlay, Stale: r.Stale, CPUQuota: r.CPUQuota, Freed: r.Freed,
	})
}

func (f sessionStore) Put(ctx context.Context, r session.Record) (err error) {
	defer engi.Annotate(&err, "record session %s", r.ID)
	return f.add(ctx, &r, engi.EventSessionCreated, map[string]any{
		"name": r.Name, "mode": r.Mode, "persistence": r.Persistence, "template": r.Template, "metadata": r.Metadata,
	})
}

func (f sessionStore) Save(ctx context.Context, r session.Record) (err error) {
	defer engi.Annotate(&err, "record session %s", r.ID)
	return f.db.tx(ctx, func(t *tx) error {
		if err := f.save(ctx, t, &r); err != nil {
			return err
		}
		for _, x := range r.Steps {
			data := map[string]any{"from": x.From, "to": x.To, "cause": x.Cause}
			if x.Sandbox != "" {
				data["sandbox_id"] = x.Sandbox
			}
			if x.To == engi.SessionTerminated {
				data["reason"] = r.EndReason
			}
			if err := f.record(ctx, t, &r, x.From.Event(x.To), data); err != nil {
				return err
			}
		}
		if r.Note == nil {
			return nil
		}
		return f.record(ctx, t, &r, r.Note.Type, r.Note.Data)
	})
}

var errNoSession = engi.Errorf(engi.NotFound, "there is no such session").WithRemedy("'engi session list' shows yours")

// Find prefers the session that has the name now to the last one that had it earlier.
func (f sessionStore) Find(ctx context.Context, viewer engi.Viewer, idOrName string) (session.Record, error) {
	r, err := f.named(ctx, seen(viewer, `(id = ? OR name = ? AND ended = 0 AND name <> '')`, idOrName, idOrName))
	if !engi.Is(err, engi.NotFound) {
		return r, err
	}
	w := seen(viewer, `name = ? AND name <> '' AND ended > 0`, idOrName)
	return first(ctx, f.db.read, f.missing, f.scan, f.query(w)+` ORDER BY ended DESC LIMIT 1`, w.args...)
}

func (f sessionStore) All(ctx context.Context) ([]session.Record, error) {
	return f.all(ctx, where{}, `seq DESC`, 0)
}

func (f sessionStore) Forget(ctx context.Context, id engi.SessionID) error {
	_, err := f.db.exec(ctx, `DELETE FROM sessions WHERE id = ?`, id)
	return err
}

// decodeSession sets the fields of r that are in its detail.
func (db *DB) decodeSession(text string, r *session.Record) error {
	var d sessionDetail
	lost, err := db.openDetail("sessions", string(r.ID), r.Owner, text, &d)
	if err != nil {
		return err
	}
	if lost {
		d.Network = lostNetwork
	}
	switch r.State = cmp.Or(d.State, engi.SessionIdle); {
	case !r.Ended.IsZero():
		r.State = engi.SessionTerminated
	case d.State == "" && r.Sandbox != "":
		r.State = engi.SessionRunning
	}
	r.Mode, r.Persistence, r.Template, r.Workspace, r.Size, r.Capacity, r.TTL, r.Dormancy = d.Mode, d.Persistence, d.Template, d.Workspace, d.Size, d.Capacity, d.TTL, d.Dormancy
	r.Network, r.Metadata, r.Env, r.Git, r.Boots, r.EndReason, r.Cleared = d.Network, d.Metadata, d.Env, d.Git, d.Boots, d.Why, d.Cleared
	r.MaxDuration, r.Saved, r.Filled, r.Changed, r.GivenUp, r.Attached, r.Overlay, r.Stale, r.CPUQuota, r.Freed = d.MaxDuration, d.Saved, d.Filled, d.Changed, d.GivenUp, d.Attached, d.Overlay, d.Stale, d.CPUQuota, d.Freed
	return nil
}

func (d *sessionDetail) secret() (sealedPart, bool, error) { return networkPart(d.Env, d.Network) }
func (d *sessionDetail) hide(sealed []byte) {
	d.Env, d.Network, d.Sealed = nil, engi.NetworkPolicy{}, sealed
}
func (d *sessionDetail) hidden() []byte { return d.Sealed }
func (d *sessionDetail) show(p sealedPart) error {
	d.Env, d.Sealed = p.Env, nil
	return decode("network policy", string(p.Network), &d.Network)
}
