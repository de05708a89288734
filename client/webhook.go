package client

import (
	"context"
	"net/http"

	"github.com/engi-dev/engi/api/v1"
)

const webhookPath = "/v1/webhooks"

// CreateWebhook creates a webhook, and returns it with its secret.
func (c *Client) CreateWebhook(ctx context.Context, q v1.WebhookRequest) (v1.Webhook, error) {
	return create[v1.Webhook](ctx, c, webhookPath, q)
}

// Webhooks returns webhooks, oldest first.
func (c *Client) Webhooks(ctx context.Context) ([]v1.Webhook, error) {
	return all[v1.Webhook](ctx, c, webhookPath, nil)
}

// Webhook returns one webhook.
func (c *Client) Webhook(ctx context.Context, id string) (v1.Webhook, error) {
	return get[v1.Webhook](ctx, c, webhookPath+segment(id), nil)
}

// UpdateWebhook changes a webhook. Nil fields do not change. The secret is
// returned if it was changed.
func (c *Client) UpdateWebhook(ctx context.Context, id string, u v1.WebhookUpdate) (v1.Webhook, error) {
	return send[v1.Webhook](ctx, c, http.MethodPatch, webhookPath+segment(id), u)
}

// RemoveWebhook deletes a webhook.
func (c *Client) RemoveWebhook(ctx context.Context, id string) error {
	return c.remove(ctx, webhookPath+segment(id))
}

// WebhookDeliveries returns up to limit deliveries of a webhook, newest
// first; 0 means 100.
func (c *Client) WebhookDeliveries(ctx context.Context, id string, limit int) ([]v1.WebhookDelivery, error) {
	return list[v1.WebhookDelivery](ctx, c, webhookPath+segment(id)+"/deliveries", set("limit", number(limit)))
}

// Redeliver sends an event to a webhook again.
func (c *Client) Redeliver(ctx context.Context, id, event string) (v1.WebhookDelivery, error) {
	return create[v1.WebhookDelivery](ctx, c, webhookPath+segment(id)+"/deliveries", v1.RedeliveryRequest{EventID: event})
}
