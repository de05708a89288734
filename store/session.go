package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"strings"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/session"
)

// sessionShelf is the session room's shelf in the database.
type sessionStore struct{ db *DB }

var _ session.Store = sessionStore{}

// Sessions returns the session room's shelf.
func Sessions(db *DB) session.Store { return sessionStore{db} }

const sessionColumns = `id, owner, name, volume, sandbox, created, used, ended, idempotency, fingerprint, detail`

// sessionDetail is what of a session nobody searches for.
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
}

// sessionValues are the values of sessionColumns.
func sessionValues(r session.Record) ([]any, error) {
	detail, err := json.Marshal(sessionDetail{
		r.Mode, r.Persistence, r.Template, r.Size, r.Capacity, r.TTL, r.Dormancy, r.Network, r.Metadata, r.Env, r.Boots, r.Why, r.Cleared,
	})
	if err != nil {
		return nil, engi.Errorf(engi.Invalid, "encode session %s: %v", r.ID, err)
	}
	return []any{
		string(r.ID), string(r.Owner), r.Name, string(r.Volume), string(r.Sandbox), nanos(r.Created), nanos(r.Used), nanos(r.Ended),
		r.Idempotency, r.Fingerprint, string(detail),
	}, nil
}

func (f sessionStore) Put(ctx context.Context, r session.Record) (err error) {
	defer engi.Annotate(&err, "record session %s", r.ID)
	values, err := sessionValues(r)
	if err != nil {
		return err
	}
	_, err = f.db.write.ExecContext(ctx, `INSERT INTO sessions (`+sessionColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, values...)
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "UNIQUE constraint"):
		return engi.Errorf(engi.Conflict, "there is one of that name or idempotency key").WithRemedy("use it, terminate it, or choose another name")
	}
	return fault(ctx, err)
}

func (f sessionStore) Save(ctx context.Context, r session.Record) (err error) {
	defer engi.Annotate(&err, "record session %s", r.ID)
	values, err := sessionValues(r)
	if err != nil {
		return err
	}
	res, err := f.db.write.ExecContext(ctx, `UPDATE sessions SET (`+sessionColumns+`) = (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) WHERE id = ?`,
		append(values, string(r.ID))...)
	if err != nil {
		return fault(ctx, err)
	}
	if n, err := res.RowsAffected(); err != nil {
		return fault(ctx, err)
	} else if n == 0 {
		return noSession()
	}
	return nil
}

func noSession() error {
	return engi.Errorf(engi.NotFound, "there is no such session").WithRemedy("'engi session list' shows yours")
}

func (f sessionStore) Find(ctx context.Context, owner engi.Owner, idOrName string) (session.Record, error) {
	found, err := f.query(ctx, `(id = ? OR name = ? AND ended = 0 AND name <> '') AND (? = '' OR owner = ?) ORDER BY owner = '' DESC LIMIT 2`,
		idOrName, idOrName, string(owner), string(owner))
	switch {
	case err != nil:
		return session.Record{}, err
	case len(found) == 0:
		return session.Record{}, noSession()
	case len(found) > 1 && found[0].Owner != "":
		return session.Record{}, engi.Errorf(engi.Conflict, "several owners have a session of that name").WithRemedy("use its ID")
	}
	return found[0], nil
}

func (f sessionStore) All(ctx context.Context) ([]session.Record, error) {
	return f.query(ctx, `true ORDER BY seq DESC`)
}

func (f sessionStore) Repeated(ctx context.Context, owner engi.Owner, key string) (session.Record, error) {
	found, err := f.query(ctx, `owner = ? AND idempotency = ? AND idempotency <> ''`, string(owner), key)
	if err != nil {
		return session.Record{}, err
	}
	if len(found) == 0 {
		return session.Record{}, noSession()
	}
	return found[0], nil
}

func (f sessionStore) Forget(ctx context.Context, id engi.SessionID) error {
	if _, err := f.db.write.ExecContext(ctx, `DELETE FROM sessions WHERE id = ?`, string(id)); err != nil {
		return fault(ctx, err)
	}
	return nil
}

func (f sessionStore) query(ctx context.Context, where string, args ...any) ([]session.Record, error) {
	rows, err := f.db.read.QueryContext(ctx, `SELECT `+sessionColumns+` FROM sessions WHERE `+where, args...)
	if err != nil {
		return nil, fault(ctx, err)
	}
	return scanSessions(ctx, rows)
}

func scanSessions(ctx context.Context, rows *sql.Rows) ([]session.Record, error) {
	defer rows.Close()
	var list []session.Record
	for rows.Next() {
		var r session.Record
		var created, used, ended int64
		var detail string
		err := rows.Scan(&r.ID, &r.Owner, &r.Name, &r.Volume, &r.Sandbox, &created, &used, &ended, &r.Idempotency, &r.Fingerprint, &detail)
		if err != nil {
			return nil, fault(ctx, err)
		}
		var d sessionDetail
		if err := json.Unmarshal([]byte(detail), &d); err != nil {
			return nil, engi.Errorf(engi.Internal, "decode session %s: %v", r.ID, err)
		}
		r.Created, r.Used, r.Ended, r.State = moment(created), moment(used), moment(ended), engi.SessionIdle
		if ended != 0 {
			r.State = engi.SessionTerminated
		}
		r.Mode, r.Persistence, r.Template, r.Size, r.Capacity, r.TTL, r.Dormancy = d.Mode, d.Persistence, d.Template, d.Size, d.Capacity, d.TTL, d.Dormancy
		r.Network, r.Metadata, r.Env, r.Boots, r.Why, r.Cleared = d.Network, d.Metadata, d.Env, d.Boots, d.Why, d.Cleared
		list = append(list, r)
	}
	if err := rows.Err(); err != nil {
		return nil, fault(ctx, err)
	}
	return list, nil
}
