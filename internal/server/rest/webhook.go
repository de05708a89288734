package rest

import (
	"net/http"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
)

const webhookPath = "/v1/webhooks"

type webhooks struct{ engi.Webhooks }

type aWebhook = byID[engi.WebhookID]

type listDeliveries struct {
	aWebhook
	Limit int `query:"limit" minimum:"1" maximum:"1000" default:"100"`
}

// Webhooks returns the routes of webhooks, which receive events; service may be nil.
func Webhooks(service engi.Webhooks) Resource {
	absent := absentUnless(service != nil, "this node has no webhooks", "switch on durable functions in its configuration, section [events]")
	w := &webhooks{service}
	const one = webhookPath + "/{id}"
	look, change := reads(engi.ScopeEvents), writes(engi.ScopeEvents)
	return Resource{tag: "webhooks", about: "URLs to which events are sent", missing: absent, routes: []Route{
		create(Route{
			Pattern: "POST " + webhookPath, ID: "create-webhook", Summary: "Create a webhook", Access: change,
			Text: "The webhook receives events from now on, signed as Standard Webhooks (standardwebhooks.com) specify. A delivery that is not answered with a 2xx status is repeated " +
				"24 times within about 8 hours; status 410 disables the webhook. The answer has the secret; it is never shown again.",
			Creates:  "a repeated key returns the first webhook, without its secret, instead of creating another",
			Location: "path of the webhook",
			Bodies:   []example{{"keys", "keys that end", `{"url": "https://example.com/hooks/engi", "types": ["key.revoked"]}`}},
		}, engi.NewWebhookID, w.create, func(c *call, id engi.WebhookID) (v1.Webhook, error) {
			return to(webhookOf)(w.Get(c, c.viewer(), id))
		}, func(x v1.Webhook) v1.Webhook { return x }),
		paged(Route{Pattern: "GET " + webhookPath, ID: "list-webhooks", Summary: "List webhooks", Text: "The oldest come first.", Access: look}, paging(service, engi.Webhooks.List), webhookOf, func(x v1.Webhook) string { return x.ID }),
		fetch(Route{Pattern: "GET " + one, ID: "get-webhook", Summary: "Get a webhook", Access: look}, getting(service, engi.Webhooks.Get, webhookOf)),
		send(Route{Pattern: "PATCH " + one, ID: "update-webhook", Summary: "Change a webhook", Text: "Fields that the body does not have stay unchanged. An enabled webhook receives events from then on.", Access: change}, w.update),
		act(Route{Pattern: "DELETE " + one, ID: "remove-webhook", Summary: "Delete a webhook", Text: "Deliveries that are pending are dropped.", Access: change},
			ending(service, engi.Webhooks.Remove)),
		list(Route{Pattern: "GET " + one + "/deliveries", ID: "list-webhook-deliveries", Summary: "List deliveries of a webhook", Text: "The newest come first.", Access: look},
			func(c *call, in *listDeliveries) ([]engi.WebhookDelivery, error) {
				return w.Deliveries(c, c.viewer(), in.ID, in.Limit)
			}, deliveryOf),
		send(Route{
			Pattern: "POST " + one + "/deliveries", ID: "redeliver-event", Summary: "Deliver an event to a webhook again", Access: change,
			Text: "The delivery has the same webhook-id as before.", Status: http.StatusAccepted,
			Creates: "a repeated key sends the event once and returns the first delivery",
		}, w.redeliver),
	}}
}

// mayDecide reports Denied if the caller makes or changes a webhook whose answers
// decide requests that the caller itself may not decide.
func mayDecide(c *call, format string) error {
	if format != engi.WebhookApproval {
		return nil
	}
	return c.auth.May(engi.ScopeApprovals, true)
}

func (w *webhooks) update(c *call, in *aWebhook, q v1.WebhookUpdate) (v1.Webhook, error) {
	x, err := w.Get(c, c.viewer(), in.ID)
	if err != nil {
		return v1.Webhook{}, err
	}
	if err := mayDecide(c, x.Format); err != nil {
		return v1.Webhook{}, err
	}
	x, secret, err := w.Update(c, c.viewer(), in.ID, engi.WebhookUpdate(q))
	return withSecret(x, secret), err
}

func (w *webhooks) create(c *call, _ *none, id engi.WebhookID, q v1.WebhookRequest) (v1.Webhook, error) {
	if err := mayDecide(c, q.Format); err != nil {
		return v1.Webhook{}, err
	}
	x, secret, err := w.Create(c, engi.WebhookSpec{ID: id, Owner: c.owner(), Name: q.Name, URL: q.URL, Types: q.Types, Format: q.Format, Secret: q.Secret, Disabled: q.Disabled})
	return withSecret(x, secret), err
}

func (w *webhooks) redeliver(c *call, in *aWebhook, q v1.RedeliveryRequest) (v1.WebhookDelivery, error) {
	event, err := engi.ParseEventID(q.EventID)
	if err != nil {
		return v1.WebhookDelivery{}, invalid("event_id", "%v", err)
	}
	return to(deliveryOf)(once(c, q, idempotency.Creation[engi.WebhookDelivery]{
		Work: func([]string) (engi.WebhookDelivery, error) { return w.Redeliver(c, c.viewer(), in.ID, event) },
		Made: func(d engi.WebhookDelivery) []string { return []string{string(d.ID)} },
		Find: func(ids []string, _ bool) (engi.WebhookDelivery, error) {
			all, err := w.Deliveries(c, c.viewer(), in.ID, 1000)
			for _, d := range all {
				if string(d.ID) == ids[0] {
					return d, nil
				}
			}
			if err == nil {
				err = engi.Errorf(engi.NotFound, "delivery %s is forgotten", ids[0])
			}
			return engi.WebhookDelivery{}, err
		},
	}))
}

func withSecret(x engi.Webhook, secret string) v1.Webhook {
	out := webhookOf(x)
	out.Secret = secret
	return out
}

func webhookOf(x engi.Webhook) v1.Webhook {
	return v1.Webhook{
		ID: string(x.ID), Owner: string(x.Owner), Name: x.Name, URL: x.URL, Types: orEmpty(x.Types), Format: x.Format, Enabled: x.Enabled, Reason: x.Reason,
		CreatedAt: x.Created.UTC(), UpdatedAt: x.Updated.UTC(),
	}
}

func deliveryOf(x engi.WebhookDelivery) v1.WebhookDelivery {
	return v1.WebhookDelivery{
		ID: string(x.ID), WebhookID: string(x.Webhook), EventID: string(x.Event), State: string(x.State), Attempts: x.Attempts, Status: x.Status,
		Error: problemOf(x.Error), CreatedAt: x.Created.UTC(), EndedAt: moment(x.Ended),
	}
}
