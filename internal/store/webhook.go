package store

import (
	"context"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/webhook"
)

type webhookStore struct{ db *DB }

var _ webhook.Store = webhookStore{}

// Webhooks returns the store of webhooks.
func Webhooks(db *DB) webhook.Store { return webhookStore{db} }

var errNoWebhook = engi.Errorf(engi.NotFound, "there is no such webhook").WithRemedy("'engi webhook list' shows yours")

// webhookEvent is the data of events about webhooks. A URL may be secret.
type webhookEvent struct {
	Name    string   `json:"name"`
	Types   []string `json:"types"`
	Format  string   `json:"format"`
	Enabled bool     `json:"enabled"`
	Reason  string   `json:"reason,omitempty"`
}

func (s webhookStore) write(ctx context.Context, r webhook.Record, kind, query string, missing error) error {
	types, err := encode("types", r.Types)
	if err != nil {
		return err
	}
	return s.db.tx(ctx, func(t *tx) error {
		n, err := t.exec(ctx, query, r.Name, r.URL, types, r.Format, r.Sealed, r.Enabled, r.Reason, nanos(r.Updated), r.ID, r.Owner, nanos(r.Created))
		if err == nil && n == 0 {
			err = missing
		}
		if err != nil {
			return err
		}
		return t.record(ctx, r.Owner, string(r.ID), kind, webhookEvent{Name: r.Name, Types: r.Types, Format: r.Format, Enabled: r.Enabled, Reason: r.Reason})
	})
}

func (s webhookStore) Put(ctx context.Context, r webhook.Record) error {
	return s.write(ctx, r, engi.EventWebhookCreated,
		`INSERT INTO webhooks (name, url, types, format, secret, enabled, reason, updated, id, owner, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, nil)
}

func (s webhookStore) Update(ctx context.Context, r webhook.Record) error {
	return s.write(ctx, r, engi.EventWebhookUpdated,
		`UPDATE webhooks SET name = ?1, url = ?2, types = ?3, format = ?4, secret = ?5, enabled = ?6, reason = ?7, updated = ?8 WHERE id = ?9 AND owner = ?10 AND created = ?11`, errNoWebhook)
}

func (s webhookStore) Remove(ctx context.Context, id engi.WebhookID) error {
	return change(ctx, s.db, errNoWebhook, scanWebhook, func(t *tx, r webhook.Record) error {
		return t.record(ctx, r.Owner, string(id), engi.EventWebhookRemoved, webhookEvent{Name: r.Name, Types: r.Types, Format: r.Format, Enabled: r.Enabled, Reason: r.Reason})
	}, `DELETE FROM webhooks WHERE id = ? RETURNING `+webhookColumns, id)
}

const webhookColumns = `id, owner, name, url, types, format, secret, enabled, reason, created, updated`

func (s webhookStore) All(ctx context.Context) ([]webhook.Record, error) {
	return list(ctx, s.db.read, scanWebhook, `SELECT `+webhookColumns+` FROM webhooks ORDER BY seq`)
}

func scanWebhook(row scanner) (r webhook.Record, err error) {
	var types string
	if err := row.Scan(&r.ID, &r.Owner, &r.Name, &r.URL, &types, &r.Format, &r.Sealed, &r.Enabled, &r.Reason, (*stamp)(&r.Created), (*stamp)(&r.Updated)); err != nil {
		return r, err
	}
	return r, decode("types of webhook "+string(r.ID), types, &r.Types)
}
