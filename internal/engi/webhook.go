package engi

import (
	"context"
	"time"
)

// A Webhook sends events of its owner to a URL, as signed POST requests. It is
// a value.
type Webhook struct {
	ID      WebhookID
	Owner   Owner // empty for a webhook of the node, which receives the events of all owners
	Name    string
	URL     string
	Types   []string // types of events, as in [EventFilter]; empty means all
	Format  string   // format of requests: [WebhookStandard] or one that a compatible API has added
	Enabled bool
	Reason  string // reason why the node has disabled the webhook; empty if it has not
	Created time.Time
	Updated time.Time
}

// WebhookStandard is the format of Standard Webhooks
// (https://www.standardwebhooks.com): the event as JSON, signed with
// HMAC-SHA256.
const WebhookStandard = "standard"

// WebhookApproval is the format of webhooks that decide on approvals: a request is
// that of [WebhookStandard] for an event [EventApprovalRequested], with the whole
// held request of the [Approval]. The answer may be a decision, in JSON as in the
// HTTP API, and Webhook.ID is recorded as the decider. Such a webhook has no Types, and needs https
// unless its URL is on this host.
const WebhookApproval = "approval"

// A WebhookSpec asks for a webhook.
type WebhookSpec struct {
	ID       WebhookID // empty means a new one
	Owner    Owner
	Name     string // up to 128 characters; may be empty
	URL      string // http or https
	Types    []string
	Format   string // empty means WebhookStandard
	Secret   string // secret that signs the requests; empty means a new one
	Disabled bool
}

// A WebhookUpdate changes a webhook. Nil fields stay unchanged.
type WebhookUpdate struct {
	URL     *string
	Name    *string
	Types   *[]string
	Secret  *string // empty means a new one
	Enabled *bool
}

// A WebhookDelivery is the delivery of one event to one webhook, with its
// repetitions.
type WebhookDelivery struct {
	ID       FunctionRunID // run of the durable function that sends the event
	Webhook  WebhookID
	Event    EventID
	State    FunctionState
	Attempts int
	Status   int    // HTTP status of the successful attempt
	Error    *Error // error of the last failed attempt
	Created  time.Time
	Ended    time.Time // zero while the delivery is pending
}

// Webhooks sends events to URLs. Methods find only objects that viewer sees and report NotFound for
// all others. It is safe for concurrent use.
type Webhooks interface {
	// Create creates a webhook, which receives events from now on, and returns the
	// secret that signs its requests, which is never shown again. It reports
	// Invalid for a bad spec, and Exhausted if the owner has too many webhooks.
	Create(ctx context.Context, spec WebhookSpec) (w Webhook, secret string, err error)
	Get(ctx context.Context, viewer Viewer, id WebhookID) (Webhook, error)
	// List returns webhooks, oldest first.
	List(ctx context.Context, viewer Viewer, p Paging) ([]Webhook, error)
	// Update changes a webhook. It returns the secret if it was changed.
	Update(ctx context.Context, viewer Viewer, id WebhookID, u WebhookUpdate) (w Webhook, secret string, err error)
	// Remove deletes a webhook. Pending deliveries
	// are dropped.
	Remove(ctx context.Context, viewer Viewer, id WebhookID) error
	// Deliveries returns up to limit deliveries, newest first; 0 means 100.
	Deliveries(ctx context.Context, viewer Viewer, id WebhookID, limit int) ([]WebhookDelivery, error)
	// Redeliver sends an event of the webhook's owner again.
	Redeliver(ctx context.Context, viewer Viewer, id WebhookID, event EventID) (WebhookDelivery, error)
}

// A WebhookFormat builds the requests of webhooks. It is safe for concurrent use.
type WebhookFormat interface {
	// Wants reports whether a webhook of this format receives an event. It is
	// called instead of matching Types, and must be quick.
	Wants(w Webhook, e Event) bool
	// Request returns the body and the headers of an attempt to send an event.
	// secret is the secret of the webhook; delivery is the
	// same in all attempts.
	Request(ctx context.Context, w Webhook, secret string, delivery FunctionRunID, e Event, at time.Time) (body []byte, header map[string]string, err error)
}

// WebhookAnswers is implemented by a [WebhookFormat] whose receivers send data in
// their answers.
type WebhookAnswers interface {
	// Answered processes the body, at most 64 KiB of it, of an answer with a status
	// of 2xx. An error fails the attempt.
	Answered(ctx context.Context, w Webhook, e Event, body []byte) error
}
