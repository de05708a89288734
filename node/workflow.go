package node

import (
	"context"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/compat/e2b"
	"github.com/engi-dev/engi/node/workflows"
	"github.com/engi-dev/engi/store"
	"github.com/engi-dev/engi/webhook"
)

// openWorkflows makes durable functions and the webhooks that they serve, or
// none where they are off.
func (n *Node) openWorkflows(ctx context.Context) (err error) {
	if n.config.Events.Off {
		return nil
	}
	client, err := n.config.Webhooks.Client()
	if err != nil {
		return err
	}
	n.webhooks, err = webhook.Open(ctx, webhook.Options{
		Store: store.Webhooks(n.db), Events: store.Events(n.db), Client: client, Seal: n.secrets, Fixed: n.config.Webhooks.Fixed(),
		Formats: map[string]engi.WebhookFormat{e2b.WebhookFormat: e2b.NewWebhookFormat()},
		Log:     n.log.With("room", "webhook"),
	})
	if err != nil {
		return err
	}
	n.workflows, err = workflows.Open(n.config, workflows.Options{
		DB: n.db, Executions: n.fleet.Executions(), Sandboxes: n.fleet.Sandboxes(), Templates: n.templates, Agents: n.Agents(),
		Source: n.webhooks, URL: n.Endpoint().URL, Log: n.log.With("room", "workflow"),
	})
	if err == nil {
		n.webhooks.Bind(n.workflows.Runs())
	}
	return err
}

// Webhooks are where events are sent; nil if the node has no durable functions.
func (n *Node) Webhooks() engi.Webhooks {
	if n.webhooks == nil {
		return nil
	}
	return n.webhooks
}

// Functions are the node's durable functions; nil if it has none.
func (n *Node) Functions() engi.Functions { return n.workflows.Functions() }

// Events is the log of what has happened on the node.
func (n *Node) Events() engi.Events { return store.Events(n.db) }
