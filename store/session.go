package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/session"
)

// sessionStore implements [session.Store].
type sessionStore struct{ db *DB }

var _ session.Store = sessionStore{}

// Sessions returns the store of sessions.
func Sessions(db *DB) session.Store { return sessionStore{db} }

const sessionColumns = `id, owner, name, volume, sandbox, created, used, ended, idempotency, fingerprint, detail`

// sessionDetail has the fields of a session that no query selects by.
type sessionDetail struct {
	Mode        engi.SessionMode   `json:"mode"`
	Persistence engi.Persistence   `json:"persistence"`
	Template    string             `json:"template,omitempty"`
	Size        engi.Size          `json:"size"`
	Capacity    int64              `json:"capacity"`
	TTL         time.Duration      `json:"ttl"`
	Dormancy    time.Duration      `json:"dormancy"`
	Network     engi.NetworkPolicy `json:"network"`
	Metadata    map[string]string  `json:"metadata,omitempty"`
	Env         map[string]string  `json:"env,omitempty"`
	Boots       int                `json:"boots"`
	Why         string             `json:"why,omitempty"`
	Cleared     bool               `json:"cleared,omitempty"`
	Sealed      []byte             `json:"sealed,omitempty"` // instead of Env and Network, unless neither may be secret
}

// sessionValues are the values of sessionColumns.
func (db *DB) sessionValues(r session.Record) ([]any, error) {
	detail, err := db.closeSession(string(r.ID), r.Owner, sessionDetail{
		r.Mode, r.Persistence, r.Template, r.Size, r.Capacity, r.TTL, r.Dormancy, r.Network, r.Metadata, r.Env, r.Boots, r.EndReason, r.Cleared, nil,
	})
	if err != nil {
		return nil, err
	}
	return []any{
		string(r.ID), string(r.Owner), r.Name, string(r.Volume), string(r.Sandbox), nanos(r.Created), nanos(r.Used), nanos(r.Ended),
		r.Idempotency, r.Fingerprint, detail,
	}, nil
}

func (f sessionStore) Put(ctx context.Context, r session.Record) (err error) {
	defer engi.Annotate(&err, "record session %s", r.ID)
	values, err := f.db.sessionValues(r)
	if err != nil {
		return err
	}
	return f.db.tx(ctx, func(t *tx) error {
		_, err := t.exec(ctx, `INSERT INTO sessions (`+sessionColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, values...)
		if engi.KindOf(err) == engi.Conflict {
			return engi.Errorf(engi.Conflict, "a session with that name or idempotency key exists").WithRemedy("use it, terminate it, or choose another name")
		}
		if err != nil {
			return err
		}
		return t.record(ctx, r.Owner, string(r.ID), engi.EventSessionCreated, map[string]any{
			"name": r.Name, "mode": r.Mode, "persistence": r.Persistence, "template": r.Template, "metadata": r.Metadata,
		})
	})
}

func (f sessionStore) Save(ctx context.Context, r session.Record) (err error) {
	defer engi.Annotate(&err, "record session %s", r.ID)
	values, err := f.db.sessionValues(r)
	if err != nil {
		return err
	}
	return f.db.tx(ctx, func(t *tx) error {
		before, err := first(ctx, t, errNoSession, f.db.scanSession, `SELECT `+sessionColumns+` FROM sessions WHERE id = ?`, r.ID)
		if err != nil {
			return err
		}
		if _, err := t.exec(ctx, `UPDATE sessions SET (`+sessionColumns+`) = (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) WHERE id = ?`, append(values, r.ID)...); err != nil {
			return err
		}
		switch {
		case before.Ended.IsZero() && !r.Ended.IsZero():
			return t.record(ctx, r.Owner, string(r.ID), engi.EventSessionTerminated, map[string]any{"reason": r.EndReason})
		case before.Sandbox != r.Sandbox && r.Sandbox != "":
			return t.record(ctx, r.Owner, string(r.ID), engi.EventSessionStarted, map[string]any{"sandbox_id": r.Sandbox})
		case before.Sandbox != r.Sandbox:
			return t.record(ctx, r.Owner, string(r.ID), engi.EventSessionReleased, map[string]any{"sandbox_id": before.Sandbox})
		}
		return nil
	})
}

var errNoSession = engi.Errorf(engi.NotFound, "there is no such session").WithRemedy("'engi session list' shows yours")

// Find prefers the session that has the name now to the last one that had it.
func (f sessionStore) Find(ctx context.Context, owner engi.Owner, idOrName string) (session.Record, error) {
	r, err := named(ctx, f.db.read, "session", errNoSession, func(r session.Record) engi.Owner { return r.Owner }, f.db.scanSession,
		`SELECT `+sessionColumns+` FROM sessions WHERE (id = ? OR name = ? AND ended = 0 AND name <> '') AND (? = '' OR owner = ?) ORDER BY owner = '' DESC LIMIT 2`,
		idOrName, idOrName, owner, owner)
	if err == nil || engi.KindOf(err) != engi.NotFound {
		return r, err
	}
	return first(ctx, f.db.read, errNoSession, f.db.scanSession,
		`SELECT `+sessionColumns+` FROM sessions WHERE name = ? AND name <> '' AND ended > 0 AND (? = '' OR owner = ?) ORDER BY ended DESC LIMIT 1`, idOrName, owner, owner)
}

func (f sessionStore) All(ctx context.Context) ([]session.Record, error) {
	return list(ctx, f.db.read, f.db.scanSession, `SELECT `+sessionColumns+` FROM sessions ORDER BY seq DESC`)
}

func (f sessionStore) ByIdempotencyKey(ctx context.Context, owner engi.Owner, key string) (session.Record, error) {
	return first(ctx, f.db.read, errNoSession, f.db.scanSession, `SELECT `+sessionColumns+` FROM sessions WHERE owner = ? AND idempotency = ? AND idempotency <> ''`, owner, key)
}

func (f sessionStore) Forget(ctx context.Context, id engi.SessionID) error {
	_, err := f.db.exec(ctx, `DELETE FROM sessions WHERE id = ?`, id)
	return err
}

func (db *DB) scanSession(row scanner) (r session.Record, err error) {
	var detail string
	if err := row.Scan(&r.ID, &r.Owner, &r.Name, &r.Volume, &r.Sandbox, (*stamp)(&r.Created), (*stamp)(&r.Used), (*stamp)(&r.Ended), &r.Idempotency, &r.Fingerprint, &detail); err != nil {
		return r, err
	}
	d, lost, err := db.openSession(string(r.ID), r.Owner, detail)
	if err != nil {
		return r, err
	}
	if lost {
		d.Network = lostNetwork
	}
	r.State = engi.SessionIdle
	if !r.Ended.IsZero() {
		r.State = engi.SessionTerminated
	}
	r.Mode, r.Persistence, r.Template, r.Size, r.Capacity, r.TTL, r.Dormancy = d.Mode, d.Persistence, d.Template, d.Size, d.Capacity, d.TTL, d.Dormancy
	r.Network, r.Metadata, r.Env, r.Boots, r.EndReason, r.Cleared = d.Network, d.Metadata, d.Env, d.Boots, d.Why, d.Cleared
	return r, nil
}

// closeSession returns the JSON of d, sealed where it may be secret.
func (db *DB) closeSession(id string, owner engi.Owner, d sessionDetail) (string, error) {
	if db.Sealer != nil && (len(d.Env) > 0 || hasSecrets(d.Network)) {
		network, err := json.Marshal(d.Network)
		if err != nil {
			return "", engi.Errorf(engi.Invalid, "encode session: %v", err)
		}
		if d.Sealed, err = db.seal("sessions", id, owner, sealedPart{Env: d.Env, Network: network}); err != nil {
			return "", err
		}
		d.Env, d.Network = nil, engi.NetworkPolicy{}
	}
	return encode("session", d)
}

// openSession reads what closeSession wrote, or an earlier version. lost says that
// the key for what is sealed was given up.
func (db *DB) openSession(id string, owner engi.Owner, text string) (d sessionDetail, lost bool, err error) {
	if err := decode("session "+id, text, &d); err != nil || d.Sealed == nil {
		return d, false, err
	}
	p, ok, err := db.unseal("sessions", id, owner, d.Sealed)
	if err != nil || !ok {
		return d, true, err
	}
	d.Sealed, d.Env = nil, p.Env
	return d, false, decode("session "+id, string(p.Network), &d.Network)
}
