package store

import (
	"context"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/registry"
)

// registryStore implements [registry.Store].
type registryStore struct {
	table[registry.Template, string]
}

var _ registry.Store = registryStore{}

// Registry returns the store of package registry's templates.
func Registry(db *DB) registry.Store {
	return registryStore{table[registry.Template, string]{
		db: db, name: "e2b_templates", noun: "template", columns: `id, owner, name, detail, created, updated`,
		fields: func(x *registry.Template) []any {
			return []any{&x.ID, &x.Owner, &x.Name, derived{func() (string, error) { return encodeTemplate(x) }, func(text string) error { return decodeTemplate(text, x) }}, (*stamp)(&x.Created), (*stamp)(&x.Updated)}
		},
		missing: engi.Errorf(engi.NotFound, "no such template"),
	}}
}

// registryDetail holds the fields of a template that no query selects by.
type registryDetail struct {
	Builds []registryBuild `json:"builds,omitempty"`
	Tags   []registryTag   `json:"tags,omitempty"`
}

type registryBuild struct {
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

type registryTag struct {
	Name    string `json:"name"`
	Build   string `json:"build"`
	Created int64  `json:"created"`
}

// encodeTemplate returns the detail of a template.
func encodeTemplate(x *registry.Template) (string, error) {
	var d registryDetail
	for _, b := range x.Builds {
		d.Builds = append(d.Builds, registryBuild{ID: b.ID, State: string(b.State), Template: b.Template, Snapshot: string(b.Snapshot), Tags: b.Tags, Size: fleetSize(b.Size), Reason: b.Reason, Step: b.Step, Created: nanos(b.Created), Updated: nanos(b.Updated)})
	}
	d.Tags = mapped(x.Tags, func(g registry.Tag) registryTag { return registryTag{g.Name, g.Build, nanos(g.Created)} })
	return encode("template", d)
}

func (s registryStore) Put(ctx context.Context, x registry.Template) (err error) {
	defer engi.Annotate(&err, "put template %s", x.ID)
	return s.db.tx(ctx, func(t *tx) error {
		_, err := t.exec(ctx, `INSERT INTO e2b_templates (`+s.columns+`) VALUES (`+marks(6)+`)
			ON CONFLICT (id) DO UPDATE SET owner = excluded.owner, name = excluded.name, detail = excluded.detail, updated = excluded.updated`,
			s.fields(&x)...)
		if engi.Is(err, engi.Conflict) {
			return engi.Errorf(engi.Conflict, "there is a template %q", x.Name)
		}
		if err != nil {
			return err
		}
		args := []any{x.ID}
		for _, b := range x.Builds {
			args = append(args, b.ID)
		}
		_, err = t.exec(ctx, `DELETE FROM e2b_lines WHERE template = ? AND build NOT IN (`+marks(len(x.Builds))+`)`, args...)
		return err
	})
}

func (s registryStore) Get(ctx context.Context, viewer engi.Viewer, idOrName string) (registry.Template, error) {
	w := seen(viewer, `(id = ? OR name = ?)`, idOrName, idOrName)
	return first(ctx, s.db.read, s.missing, s.scan, s.query(w)+` ORDER BY id = ? DESC, owner LIMIT 1`, append(w.args, idOrName)...)
}

func (s registryStore) List(ctx context.Context, viewer engi.Viewer) ([]registry.Template, error) {
	var w where
	w.owned(viewer)
	return s.all(ctx, w, `name, id`, 0)
}

// decodeTemplate sets the fields of t that are in its detail.
func decodeTemplate(text string, t *registry.Template) error {
	var d registryDetail
	if err := decode("detail", text, &d); err != nil {
		return err
	}
	for _, b := range d.Builds {
		t.Builds = append(t.Builds, registry.Build{ID: b.ID, State: registry.BuildState(b.State), Template: b.Template, Snapshot: engi.SnapshotID(b.Snapshot),
			Tags: b.Tags, Size: engi.Size(b.Size), Reason: b.Reason, Step: b.Step, Created: moment(b.Created), Updated: moment(b.Updated)})
	}
	t.Tags = mapped(d.Tags, func(g registryTag) registry.Tag {
		return registry.Tag{Name: g.Name, Build: g.Build, Created: moment(g.Created)}
	})
	return nil
}

func (s registryStore) Remove(ctx context.Context, id string) error {
	_, err := s.db.exec(ctx, `DELETE FROM e2b_templates WHERE id = ?`, id)
	return err
}

func (s registryStore) AddLines(ctx context.Context, template, build string, lines []registry.LogLine) (err error) {
	defer engi.Annotate(&err, "log build %s", build)
	return s.db.tx(ctx, func(t *tx) error {
		for _, l := range lines {
			if _, err := t.exec(ctx, `INSERT INTO e2b_lines (template, build, time, level, step, text) VALUES (?, ?, ?, ?, ?, ?)`,
				template, build, nanos(l.Time), l.Level, l.Step, l.Text); engi.Is(err, engi.NotFound) {
				return s.missing
			} else if err != nil {
				return err
			}
		}
		return nil
	})
}

func (s registryStore) Lines(ctx context.Context, build string, skip, limit int) ([]registry.LogLine, error) {
	return list(ctx, s.db.read, func(row scanner) (l registry.LogLine, err error) {
		err = row.Scan((*stamp)(&l.Time), &l.Level, &l.Step, &l.Text)
		return l, err
	}, `SELECT time, level, step, text FROM e2b_lines WHERE build = ? ORDER BY seq LIMIT ? OFFSET ?`, build, limit, skip)
}
