package store

import (
	"context"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/webhook"
)

type webhookStore struct {
	table[webhook.Record, engi.WebhookID]
}

var _ webhook.Store = webhookStore{}

// Webhooks returns the store of webhooks.
func Webhooks(db *DB) webhook.Store {
	return webhookStore{table[webhook.Record, engi.WebhookID]{
		db: db, name: "webhooks", noun: "webhook", columns: `id, owner, name, url, types, format, secret, enabled, reason, created, updated`,
		fields: func(r *webhook.Record) []any {
			return []any{&r.ID, &r.Owner, &r.Name, &r.URL, asJSON("types", &r.Types), &r.Format, &r.Sealed, &r.Enabled, &r.Reason, (*stamp)(&r.Created), (*stamp)(&r.Updated)}
		},
		missing: engi.Errorf(engi.NotFound, "there is no such webhook").WithRemedy("'engi webhook list' shows yours"),
	}}
}

// webhookEvent returns the data of events about a webhook. A URL may be secret.
func webhookEvent(r webhook.Record) any {
	return struct {
		Name    string   `json:"name"`
		Types   []string `json:"types"`
		Format  string   `json:"format"`
		Enabled bool     `json:"enabled"`
		Reason  string   `json:"reason,omitempty"`
	}{r.Name, r.Types, r.Format, r.Enabled, r.Reason}
}

func (s webhookStore) Put(ctx context.Context, r webhook.Record) error {
	return s.add(ctx, &r, engi.EventWebhookCreated, webhookEvent(r))
}

func (s webhookStore) Update(ctx context.Context, r webhook.Record) error {
	return s.db.tx(ctx, func(t *tx) error {
		if err := s.save(ctx, t, &r); err != nil {
			return err
		}
		return s.record(ctx, t, &r, engi.EventWebhookUpdated, webhookEvent(r))
	})
}

func (s webhookStore) Remove(ctx context.Context, id engi.WebhookID) error {
	return s.remove(ctx, when(`id = ?`, id), engi.EventWebhookRemoved, webhookEvent)
}

func (s webhookStore) All(ctx context.Context) ([]webhook.Record, error) {
	return s.all(ctx, where{}, `seq`, 0)
}
