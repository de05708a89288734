package v1

import "time"

// A WebhookRequest creates a webhook.
type WebhookRequest struct {
	URL      string   `json:"url" doc:"http or https URL, which receives a POST request for each event" example:"https://example.com/hooks/engi"`
	Name     string   `json:"name,omitempty" example:"deploys"`
	Types    []string `json:"types,omitempty" doc:"Types of events; sandbox.* matches all types with this prefix; absent means all" example:"[\"sandbox.*\",\"execution.done\"]"`
	Secret   string   `json:"secret,omitempty" doc:"Secret that signs the requests: whsec_ followed by 24 to 64 bytes in base64; absent means a generated one"`
	Format   string   `json:"format,omitempty" enum:"standard,approval" doc:"approval sends requests of sandboxes that wait for approval, and the answers decide; it excludes types, and needs a key with the scope approvals"`
	Disabled bool     `json:"disabled,omitempty"`
}

// A WebhookUpdate changes a webhook. Absent fields do not change.
type WebhookUpdate struct {
	URL     *string   `json:"url,omitempty"`
	Name    *string   `json:"name,omitempty"`
	Types   *[]string `json:"types,omitempty"`
	Secret  *string   `json:"secret,omitempty" doc:"Secret that signs the requests; empty means a generated one"`
	Enabled *bool     `json:"enabled,omitempty"`
}

// A Webhook is a destination of events.
type Webhook struct {
	ID        string    `json:"id" example:"whk_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner     string    `json:"owner,omitempty"`
	Name      string    `json:"name,omitempty"`
	URL       string    `json:"url"`
	Types     []string  `json:"types" doc:"Types of events; empty means all"`
	Format    string    `json:"format" example:"standard"`
	Enabled   bool      `json:"enabled"`
	Reason    string    `json:"reason,omitempty" doc:"Reason why the server has disabled the webhook"`
	Secret    string    `json:"secret,omitempty" doc:"Secret; shown once, when it is created or changed"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
}

// A WebhookDelivery is the sending of an event to a webhook.
type WebhookDelivery struct {
	ID        string     `json:"id" doc:"ID of the function run that sends the delivery" example:"fnr_u2dmwmlezjgprkqrgppgcz2mgu"`
	WebhookID string     `json:"webhook_id"`
	EventID   string     `json:"event_id"`
	State     string     `json:"state" enum:"queued,running,waiting,done,failed,cancelled" doc:"waiting: the next attempt is scheduled"`
	Attempts  int        `json:"attempts"`
	Status    int        `json:"status,omitempty" doc:"HTTP status of the successful answer"`
	Error     *Problem   `json:"error,omitempty" doc:"Error of the last failed attempt"`
	CreatedAt time.Time  `json:"created_at"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
}

// A RedeliveryRequest sends an event to a webhook again.
type RedeliveryRequest struct {
	EventID string `json:"event_id" example:"evt_u2dmwmlezjgprkqrgppgcz2mgu"`
}
