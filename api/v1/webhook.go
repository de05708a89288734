package v1

import "time"

// A WebhookRequest makes a webhook.
type WebhookRequest struct {
	URL      string   `json:"url" doc:"http or https; gets a POST request for each event" example:"https://example.com/hooks/engi"`
	Name     string   `json:"name,omitempty" example:"deploys"`
	Types    []string `json:"types,omitempty" doc:"of events; sandbox.* stands for all that begin so; absent means all" example:"[\"sandbox.*\",\"execution.done\"]"`
	Secret   string   `json:"secret,omitempty" doc:"that requests are signed with: whsec_ and 24 to 64 bytes in base64; absent means a fresh one"`
	Format   string   `json:"format,omitempty" enum:"standard,approval" doc:"approval sends requests of sandboxes that wait for somebody to decide, and its answers decide; it has no types, and needs a key that may decide"`
	Disabled bool     `json:"disabled,omitempty"`
}

// A WebhookUpdate changes a webhook. What is absent stays.
type WebhookUpdate struct {
	URL     *string   `json:"url,omitempty"`
	Name    *string   `json:"name,omitempty"`
	Types   *[]string `json:"types,omitempty"`
	Secret  *string   `json:"secret,omitempty" doc:"an empty one means a fresh one"`
	Enabled *bool     `json:"enabled,omitempty"`
}

// A Webhook is where events are sent.
type Webhook struct {
	ID        string    `json:"id" example:"whk_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner     string    `json:"owner,omitempty"`
	Name      string    `json:"name,omitempty"`
	URL       string    `json:"url"`
	Types     []string  `json:"types" doc:"none means all"`
	Format    string    `json:"format" example:"standard"`
	Enabled   bool      `json:"enabled"`
	Reason    string    `json:"reason,omitempty" doc:"why the server has disabled it"`
	Secret    string    `json:"secret,omitempty" doc:"shown once: when it is made or changed"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
}

// A WebhookDelivery is the sending of an event to a webhook.
type WebhookDelivery struct {
	ID        string     `json:"id" doc:"of the durable function's run that sends it" example:"fnr_u2dmwmlezjgprkqrgppgcz2mgu"`
	WebhookID string     `json:"webhook_id"`
	EventID   string     `json:"event_id"`
	State     string     `json:"state" enum:"queued,running,waiting,done,failed,cancelled" doc:"waiting: for its next attempt"`
	Attempts  int        `json:"attempts"`
	Status    int        `json:"status,omitempty" doc:"of the answer that was a success"`
	Error     *Problem   `json:"error,omitempty" doc:"of the last attempt that failed"`
	CreatedAt time.Time  `json:"created_at"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
}

// A RedeliveryRequest sends an event to a webhook again.
type RedeliveryRequest struct {
	EventID string `json:"event_id" example:"evt_u2dmwmlezjgprkqrgppgcz2mgu"`
}
