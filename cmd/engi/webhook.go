package main

import (
	"context"
	"strings"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"
)

type webhookCommand struct {
	Create     webhookCreate     `cmd:"" help:"Send events to a URL."`
	List       listCommand       `cmd:"" aliases:"ls" help:"List webhooks."`
	Show       showCommand       `cmd:"" aliases:"get" help:"Show a webhook."`
	Update     webhookUpdate     `cmd:"" help:"Change, enable or disable a webhook."`
	Remove     removeCommand     `cmd:"" aliases:"rm" help:"Delete webhooks."`
	Deliveries webhookDeliveries `cmd:"" help:"List the deliveries of a webhook."`
	Redeliver  webhookRedeliver  `cmd:"" help:"Send an event again."`
}

var webhookCommands = webhookCommand{
	List: lists(example("engi webhook list"), table[v1.Webhook]{"WEBHOOK\tNAME\tURL\tTYPES\tSTATE\tCREATED", func(x v1.Webhook) []any {
		return []any{x.ID, printable(x.Name), printable(x.URL), strings.Join(x.Types, " "), webhookState(x), ago(x.CreatedAt)}
	}, nil}, (*client.Client).Webhooks),
	Show:   shows(example("engi webhook show whk_u2dmwmlezjgprkqrgppgcz2mgu"), (*globals).showWebhook, (*client.Client).Webhook),
	Remove: removes(example("engi webhook remove whk_u2dmwmlezjgprkqrgppgcz2mgu"), "removed", (*client.Client).RemoveWebhook),
}

type webhookCreate struct {
	URL      string   `arg:"" help:"URL to send to." placeholder:"URL"`
	Type     []string `help:"Only events of these types; sandbox.* means all with this prefix." placeholder:"TYPE"`
	Name     string   `help:"Name, for people." placeholder:"NAME"`
	Decide   bool     `help:"Send requests that wait for approval; the answers of the URL decide. Needs a key with the scope approvals."`
	Disabled bool     `help:"Create the webhook disabled."`
}

func (webhookCreate) Help() string {
	return `Prints the webhook's ID and the secret that signs its requests, as Standard Webhooks specify. The
secret is not shown again. Private addresses receive nothing unless webhooks.private in the
configuration allows them.

Examples:
  engi webhook create https://example.com/hooks/engi --type 'sandbox.*' --type execution.done
  engi webhook create https://example.com/hooks/engi --json
  engi webhook create https://example.com/decide --decide`
}

func (w *webhookCreate) Run(ctx context.Context, g *globals) error {
	format := ""
	if w.Decide {
		format = engi.WebhookApproval
	}
	return show(ctx, g, func(d *connection) (v1.Webhook, error) {
		return d.CreateWebhook(ctx, v1.WebhookRequest{URL: w.URL, Name: w.Name, Types: w.Type, Format: format, Disabled: w.Disabled})
	}, g.showWebhook)
}

func (g *globals) showWebhook(x v1.Webhook) {
	var f facts
	f.add("webhook", "%s", x.ID)
	f.add("name", "%s", printable(x.Name))
	f.add("url", "%s", printable(x.URL))
	f.add("format", "%s", x.Format)
	f.add("types", "%s", strings.Join(x.Types, " "))
	f.add("state", "%s", webhookState(x))
	f.add("secret", "%s", x.Secret)
	f.add("created", "%s", ago(x.CreatedAt))
	f.print(g)
}

func webhookState(x v1.Webhook) string {
	switch {
	case x.Enabled:
		return "enabled"
	case x.Reason != "":
		return "disabled: " + printable(x.Reason)
	}
	return "disabled"
}

type webhookUpdate struct {
	ID      string    `arg:"" help:"Webhook." placeholder:"ID"`
	To      *string   `help:"URL to send to." placeholder:"URL"`
	Type    *[]string `help:"Types of events, which replace the current ones." placeholder:"TYPE"`
	Name    *string   `help:"Name, for people." placeholder:"NAME"`
	Enable  bool      `help:"Enable the webhook." xor:"enabled"`
	Disable bool      `help:"Disable the webhook." xor:"enabled"`
	Rotate  bool      `help:"Sign with a new secret, which is printed."`
}

func (webhookUpdate) Help() string {
	return `Examples:
  engi webhook update whk_u2dmwmlezjgprkqrgppgcz2mgu --disable
  engi webhook update whk_u2dmwmlezjgprkqrgppgcz2mgu --rotate`
}

func (w *webhookUpdate) Run(ctx context.Context, g *globals) error {
	u := v1.WebhookUpdate{URL: w.To, Name: w.Name, Types: w.Type}
	if w.Enable || w.Disable {
		u.Enabled = &w.Enable
	}
	if w.Rotate {
		u.Secret = new("")
	}
	return show(ctx, g, func(d *connection) (v1.Webhook, error) { return d.UpdateWebhook(ctx, w.ID, u) }, g.showWebhook)
}

type webhookDeliveries struct {
	ID    string `arg:"" help:"Webhook." placeholder:"ID"`
	Limit int    `help:"Maximum number of results." default:"20" placeholder:"N"`
}

func (webhookDeliveries) Help() string {
	return `The newest come first.

Examples:
  engi webhook deliveries whk_u2dmwmlezjgprkqrgppgcz2mgu`
}

func (w *webhookDeliveries) Run(ctx context.Context, g *globals) error {
	deliveries := table[v1.WebhookDelivery]{"DELIVERY\tEVENT\tSTATE\tATTEMPTS\tCREATED\tERROR", func(x v1.WebhookDelivery) []any {
		why := ""
		if x.Error != nil {
			why = printable(x.Error.Detail)
		}
		return []any{x.ID, x.EventID, x.State, x.Attempts, ago(x.CreatedAt), why}
	}, nil}
	return deliveries.list(ctx, g, false, func(d *connection) ([]v1.WebhookDelivery, error) { return d.WebhookDeliveries(ctx, w.ID, w.Limit) })
}

type webhookRedeliver struct {
	ID    string `arg:"" help:"Webhook." placeholder:"ID"`
	Event string `arg:"" help:"Event." placeholder:"EVENT"`
}

func (webhookRedeliver) Help() string {
	return example("engi webhook redeliver whk_u2dmwmlezjgprkqrgppgcz2mgu evt_u2dmwmlezjgprkqrgppgcz2mgu")
}

func (w *webhookRedeliver) Run(ctx context.Context, g *globals) error {
	return show(ctx, g, func(d *connection) (v1.WebhookDelivery, error) { return d.Redeliver(ctx, w.ID, w.Event) },
		func(x v1.WebhookDelivery) { g.note("%s is sent as %s", x.EventID, x.ID) })
}
