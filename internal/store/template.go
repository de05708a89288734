package store

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// announceEvery is the interval at which templates that other processes built are noticed.
const announceEvery = time.Minute

// ChangingTemplates are templates that announce changes.
type ChangingTemplates interface {
	// Changed returns a channel that is closed when this process next changes a template.
	Changed() <-chan struct{}
	List(ctx context.Context) ([]engi.Template, error)
}

// An Announcer appends events about changes of templates.
type Announcer struct {
	db        *DB
	templates ChangingTemplates
}

// NewAnnouncer returns an announcer, which works while Run runs.
func NewAnnouncer(db *DB, t ChangingTemplates) *Announcer { return &Announcer{db, t} }

// Run announces changes until ctx ends.
func (a *Announcer) Run(ctx context.Context, ready func()) error {
	ready()
	tick := time.NewTicker(announceEvery)
	defer tick.Stop()
	for {
		changed := a.templates.Changed()
		all, err := a.templates.List(ctx)
		if err == nil {
			err = Announce(ctx, a.db, all)
		}
		if err != nil && ctx.Err() == nil && a.db.Log != nil {
			a.db.Log.WarnContext(ctx, "tell the log of events about templates; it is tried again", "error", err)
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// Announce appends events for the changes of templates since the last
// call. Templates are directories that any process may build or remove, so the
// log records changes after they happened.
func Announce(ctx context.Context, db *DB, templates []engi.Template) error {
	known, err := list(ctx, db.read, scanTemplateName, selectTemplateNames)
	if err != nil {
		return err
	}
	if built, gone := compareTemplates(known, templates); len(built)+len(gone) == 0 {
		return nil
	}
	return db.tx(ctx, func(t *tx) error {
		known, err := list(ctx, t, scanTemplateName, selectTemplateNames)
		if err != nil {
			return err
		}
		built, gone := compareTemplates(known, templates)
		for _, x := range built {
			if _, err := t.exec(ctx, `INSERT INTO templates (name, owner, digest) VALUES (?, ?, ?)
				ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, digest = excluded.digest`, x.Name, string(x.Owner), x.Digest); err != nil {
				return err
			}
			data := map[string]any{"name": x.Name, "digest": x.Digest, "bytes": x.Bytes}
			if err := t.record(ctx, x.Owner, "template:"+x.Name, engi.EventTemplateBuilt, data); err != nil {
				return err
			}
		}
		for _, x := range gone {
			if _, err := t.exec(ctx, `DELETE FROM templates WHERE name = ?`, x.Name); err != nil {
				return err
			}
			if err := t.record(ctx, x.Owner, "template:"+x.Name, engi.EventTemplateRemoved, map[string]any{"name": x.Name, "digest": x.Digest}); err != nil {
				return err
			}
		}
		return nil
	})
}

const selectTemplateNames = `SELECT name, owner, digest FROM templates ORDER BY name`

func scanTemplateName(row scanner) (t engi.Template, err error) {
	return t, row.Scan(&t.Name, &t.Owner, &t.Digest)
}

// compareTemplates returns the templates that are new or changed, and the
// known templates that are gone.
func compareTemplates(known, templates []engi.Template) (built, gone []engi.Template) {
	before := map[string]engi.Template{}
	for _, k := range known {
		before[k.Name] = k
	}
	for _, x := range templates {
		if x.Digest == "" { // the template is not built
			continue
		}
		if k := before[x.Name]; k.Digest != x.Digest || k.Owner != x.Owner {
			built = append(built, x)
		}
		delete(before, x.Name)
	}
	for _, k := range known {
		if _, ok := before[k.Name]; ok {
			gone = append(gone, k)
		}
	}
	return built, gone
}
