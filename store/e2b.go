package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"strings"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/compat/e2b"
)

// e2bShelf is the shelf of the surface for E2B's clients.
type e2bStore struct{ db *DB }

var _ e2b.Store = e2bStore{}

// E2B returns the shelf of the surface for E2B's clients.
func E2B(db *DB) e2b.Store { return e2bStore{db} }

// e2bDetail is the part of a template nobody selects by.
type e2bDetail struct {
	Builds []e2bBuild `json:"builds,omitempty"`
	Tags   []e2bTag   `json:"tags,omitempty"`
}

type e2bBuild struct {
	ID       string    `json:"id"`
	State    string    `json:"state"`
	Template string    `json:"template"`
	Snapshot string    `json:"snapshot,omitempty"`
	Tags     []string  `json:"tags,omitempty"`
	Size     fleetSize `json:"size"`
	Reason   string    `json:"reason,omitempty"`
	Step     string    `json:"step,omitempty"`
	Created  int64     `json:"created"`
	Updated  int64     `json:"updated"`
}

type e2bTag struct {
	Name    string `json:"name"`
	Build   string `json:"build"`
	Created int64  `json:"created"`
}

func (s e2bStore) Put(ctx context.Context, t e2b.Template) (err error) {
	defer engi.Annotate(&err, "put template %s", t.ID)
	var d e2bDetail
	for _, b := range t.Builds {
		d.Builds = append(d.Builds, e2bBuild{b.ID, string(b.State), b.Template, string(b.Snapshot), b.Tags, fleetSize(b.Size), b.Reason, b.Step, nanos(b.Created), nanos(b.Updated)})
	}
	for _, g := range t.Tags {
		d.Tags = append(d.Tags, e2bTag{g.Name, g.Build, nanos(g.Created)})
	}
	detail, err := json.Marshal(d)
	if err != nil {
		return engi.Errorf(engi.Internal, "%v", err)
	}
	return s.db.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO e2b_templates (id, owner, name, detail, created, updated) VALUES (?, ?, ?, ?, ?, ?)
			ON CONFLICT (id) DO UPDATE SET owner = excluded.owner, name = excluded.name, detail = excluded.detail, updated = excluded.updated`,
			t.ID, string(t.Owner), t.Name, string(detail), nanos(t.Created), nanos(t.Updated))
		if err != nil {
			if strings.Contains(err.Error(), "UNIQUE constraint") {
				return engi.Errorf(engi.Conflict, "there is a template %q", t.Name)
			}
			return fault(ctx, err)
		}
		keep, args := make([]string, len(t.Builds)), []any{t.ID}
		for i, b := range t.Builds {
			keep[i], args = "?", append(args, b.ID)
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM e2b_lines WHERE template = ? AND build NOT IN (`+strings.Join(keep, ",")+`)`, args...); err != nil {
			return fault(ctx, err)
		}
		return nil
	})
}

const e2bColumns = `id, owner, name, detail, created, updated`

func (s e2bStore) Get(ctx context.Context, owner engi.Owner, idOrName string) (e2b.Template, error) {
	t, err := scanE2B(s.db.read.QueryRowContext(ctx, `SELECT `+e2bColumns+` FROM e2b_templates
		WHERE (id = ? OR name = ?) AND (? = '' OR owner = ?) ORDER BY owner LIMIT 1`, idOrName, idOrName, string(owner), string(owner)))
	if errors.Is(err, sql.ErrNoRows) {
		return t, engi.Errorf(engi.NotFound, "no such template")
	}
	if err != nil {
		return t, fault(ctx, err)
	}
	return t, nil
}

func (s e2bStore) List(ctx context.Context, owner engi.Owner) ([]e2b.Template, error) {
	rows, err := s.db.read.QueryContext(ctx, `SELECT `+e2bColumns+` FROM e2b_templates WHERE ? = '' OR owner = ? ORDER BY name, id`,
		string(owner), string(owner))
	if err != nil {
		return nil, fault(ctx, err)
	}
	defer rows.Close()
	var list []e2b.Template
	for rows.Next() {
		t, err := scanE2B(rows)
		if err != nil {
			return nil, fault(ctx, err)
		}
		list = append(list, t)
	}
	if err := rows.Err(); err != nil {
		return nil, fault(ctx, err)
	}
	return list, nil
}

func scanE2B(row interface{ Scan(...any) error }) (t e2b.Template, err error) {
	var detail string
	var created, updated int64
	if err := row.Scan(&t.ID, &t.Owner, &t.Name, &detail, &created, &updated); err != nil {
		return t, err
	}
	var d e2bDetail
	if err := json.Unmarshal([]byte(detail), &d); err != nil {
		return t, err
	}
	t.Created, t.Updated = moment(created), moment(updated)
	for _, b := range d.Builds {
		t.Builds = append(t.Builds, e2b.Build{ID: b.ID, State: e2b.BuildState(b.State), Template: b.Template, Snapshot: engi.SnapshotID(b.Snapshot),
			Tags: b.Tags, Size: engi.Size(b.Size), Reason: b.Reason, Step: b.Step, Created: moment(b.Created), Updated: moment(b.Updated)})
	}
	for _, g := range d.Tags {
		t.Tags = append(t.Tags, e2b.Tag{Name: g.Name, Build: g.Build, Created: moment(g.Created)})
	}
	return t, nil
}

func (s e2bStore) Remove(ctx context.Context, id string) error {
	if _, err := s.db.write.ExecContext(ctx, `DELETE FROM e2b_templates WHERE id = ?`, id); err != nil {
		return fault(ctx, err)
	}
	return nil
}

func (s e2bStore) AddLines(ctx context.Context, template, build string, lines []e2b.LogLine) (err error) {
	defer engi.Annotate(&err, "log build %s", build)
	return s.db.tx(ctx, func(tx *sql.Tx) error {
		for _, l := range lines {
			if _, err := tx.ExecContext(ctx, `INSERT INTO e2b_lines (template, build, time, level, step, text) VALUES (?, ?, ?, ?, ?, ?)`,
				template, build, nanos(l.Time), l.Level, l.Step, l.Text); err != nil {
				if strings.Contains(err.Error(), "FOREIGN KEY") {
					return engi.Errorf(engi.NotFound, "no such template")
				}
				return fault(ctx, err)
			}
		}
		return nil
	})
}

func (s e2bStore) Lines(ctx context.Context, build string, skip, limit int) ([]e2b.LogLine, error) {
	rows, err := s.db.read.QueryContext(ctx, `SELECT time, level, step, text FROM e2b_lines WHERE build = ? ORDER BY seq LIMIT ? OFFSET ?`, build, limit, skip)
	if err != nil {
		return nil, fault(ctx, err)
	}
	defer rows.Close()
	var list []e2b.LogLine
	for rows.Next() {
		var l e2b.LogLine
		var at int64
		if err := rows.Scan(&at, &l.Level, &l.Step, &l.Text); err != nil {
			return nil, fault(ctx, err)
		}
		l.Time = moment(at)
		list = append(list, l)
	}
	if err := rows.Err(); err != nil {
		return nil, fault(ctx, err)
	}
	return list, nil
}
