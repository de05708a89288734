package store

import (
	"context"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/compat/e2b"
)

// e2bStore implements [e2b.Store].
type e2bStore struct{ db *DB }

var _ e2b.Store = e2bStore{}

// E2B returns the store of package e2b's templates.
func E2B(db *DB) e2b.Store { return e2bStore{db} }

// e2bDetail has the fields of a template that no query selects by.
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

func (s e2bStore) Put(ctx context.Context, x e2b.Template) (err error) {
	defer engi.Annotate(&err, "put template %s", x.ID)
	var d e2bDetail
	for _, b := range x.Builds {
		d.Builds = append(d.Builds, e2bBuild{b.ID, string(b.State), b.Template, string(b.Snapshot), b.Tags, fleetSize(b.Size), b.Reason, b.Step, nanos(b.Created), nanos(b.Updated)})
	}
	for _, g := range x.Tags {
		d.Tags = append(d.Tags, e2bTag{g.Name, g.Build, nanos(g.Created)})
	}
	detail, err := encode("template", d)
	if err != nil {
		return err
	}
	return s.db.tx(ctx, func(t *tx) error {
		_, err := t.exec(ctx, `INSERT INTO e2b_templates (id, owner, name, detail, created, updated) VALUES (?, ?, ?, ?, ?, ?)
			ON CONFLICT (id) DO UPDATE SET owner = excluded.owner, name = excluded.name, detail = excluded.detail, updated = excluded.updated`,
			x.ID, x.Owner, x.Name, detail, nanos(x.Created), nanos(x.Updated))
		if engi.Is(err, engi.Conflict) {
			return engi.Errorf(engi.Conflict, "there is a template %q", x.Name)
		}
		if err != nil {
			return err
		}
		keep, args := make([]string, len(x.Builds)), []any{x.ID}
		for i, b := range x.Builds {
			keep[i], args = "?", append(args, b.ID)
		}
		if _, err := t.exec(ctx, `DELETE FROM e2b_lines WHERE template = ? AND build NOT IN (`+strings.Join(keep, ",")+`)`, args...); err != nil {
			return err
		}
		return nil
	})
}

const e2bColumns = `id, owner, name, detail, created, updated`

func (s e2bStore) Get(ctx context.Context, owner engi.Owner, idOrName string) (e2b.Template, error) {
	return first(ctx, s.db.read, errNoTemplate, scanE2B, `SELECT `+e2bColumns+` FROM e2b_templates
		WHERE (id = ? OR name = ?) AND (? = '' OR owner = ?) ORDER BY id = ? DESC, owner LIMIT 1`, idOrName, idOrName, owner, owner, idOrName)
}

var errNoTemplate = engi.Errorf(engi.NotFound, "no such template")

func (s e2bStore) List(ctx context.Context, owner engi.Owner) ([]e2b.Template, error) {
	var w where
	w.owned(owner)
	return list(ctx, s.db.read, scanE2B, `SELECT `+e2bColumns+` FROM e2b_templates`+w.String()+` ORDER BY name, id`, w.args...)
}

func scanE2B(row scanner) (t e2b.Template, err error) {
	var detail string
	if err := row.Scan(&t.ID, &t.Owner, &t.Name, &detail, (*stamp)(&t.Created), (*stamp)(&t.Updated)); err != nil {
		return t, err
	}
	var d e2bDetail
	if err := decode("template "+t.ID, detail, &d); err != nil {
		return t, err
	}
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
	_, err := s.db.exec(ctx, `DELETE FROM e2b_templates WHERE id = ?`, id)
	return err
}

func (s e2bStore) AddLines(ctx context.Context, template, build string, lines []e2b.LogLine) (err error) {
	defer engi.Annotate(&err, "log build %s", build)
	return s.db.tx(ctx, func(t *tx) error {
		for _, l := range lines {
			_, err := t.exec(ctx, `INSERT INTO e2b_lines (template, build, time, level, step, text) VALUES (?, ?, ?, ?, ?, ?)`,
				template, build, nanos(l.Time), l.Level, l.Step, l.Text)
			if engi.Is(err, engi.NotFound) {
				return errNoTemplate
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func (s e2bStore) Lines(ctx context.Context, build string, skip, limit int) ([]e2b.LogLine, error) {
	return list(ctx, s.db.read, func(row scanner) (l e2b.LogLine, err error) {
		err = row.Scan((*stamp)(&l.Time), &l.Level, &l.Step, &l.Text)
		return l, err
	}, `SELECT time, level, step, text FROM e2b_lines WHERE build = ? ORDER BY seq LIMIT ? OFFSET ?`, build, limit, skip)
}
