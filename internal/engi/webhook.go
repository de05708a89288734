package engi

import (
	"context"
	"time"
)

// A Webhook sends events of its owner to a URL, as signed POST requests. It is
// a value.
type Webhook struct {
	ID      WebhookID
	Owner   Owner // empty for the node's own, which sees the events of all owners
	Name    string
	URL     string
	Types   []string // of events, as in [EventFilter]; empty means all
	Format  string   // of requests; [WebhookStandard] or what a compatible API has added
	Enabled bool
	Reason  string // why the node has disabled it; empty if it has not
	Created time.Time
	Updated time.Time
}

// WebhookStandard is the format of Standard Webhooks
// (https://www.standardwebhooks.com): the event as JSON, signed with
// HMAC-SHA256.
const WebhookStandard = "standard"

// WebhookApproval is the format of webhooks that decide on approvals: a request is
// that of [WebhookStandard] for an event [EventApprovalRequested], with all that the
// [Approval] has of what is asked. The answer may be a decision, in JSON as in the
// HTTP API, and Webhook.ID is who has decided. Such a webhook has no Types, and https
// unless it is on this host.
const WebhookApproval = "approval"

// A WebhookSpec asks for a webhook.
type WebhookSpec struct {
	ID       WebhookID // empty means a fresh one
	Owner    Owner
	Name     string // up to 128 characters; may be empty
	URL      string // http or https
	Types    []string
	Format   string // empty means WebhookStandard
	Secret   string // that requests are signed with; empty means a fresh one
	Disabled bool
}

// A WebhookUpdate changes a webhook. Nil fields stay as they are.
type WebhookUpdate struct {
	URL     *string
	Name    *string
	Types   *[]string
	Secret  *string // empty means a fresh one
	Enabled *bool
}

// A WebhookDelivery is the sending of one event to one webhook, with its
// repetitions.
type WebhookDelivery struct {
	ID       FunctionRunID // the durable function that sends it
	Webhook  WebhookID
	Event    EventID
	State    FunctionState
	Attempts int
	Status   int    // of the HTTP response of a successful attempt
	Error    *Error // of the last failed attempt
	Created  time.Time
	Ended    time.Time // zero while it goes on
}

// Webhooks sends events to URLs. Methods see only what owner owns; the rest is
// NotFound. The empty owner sees all. It is safe for concurrent use.
type Webhooks interface {
	// Create makes a webhook, which gets the events from now on, and returns the
	// secret that its requests are signed with, for the only time. It reports
	// Invalid for a bad spec, and Exhausted if the owner has too many.
	Create(ctx context.Context, spec WebhookSpec) (w Webhook, secret string, err error)
	Get(ctx context.Context, owner Owner, id WebhookID) (Webhook, error)
	// List returns webhooks, oldest first.
	List(ctx context.Context, owner Owner, p Paging) ([]Webhook, error)
	// Update changes a webhook. It returns the secret if that was changed.
	Update(ctx context.Context, owner Owner, id WebhookID, u WebhookUpdate) (w Webhook, secret string, err error)
	// Remove deletes a webhook. What is not delivered
	// yet is given up.
	Remove(ctx context.Context, owner Owner, id WebhookID) error
	// Deliveries returns up to limit deliveries, newest first; 0 means 100.
	Deliveries(ctx context.Context, owner Owner, id WebhookID, limit int) ([]WebhookDelivery, error)
	// Redeliver sends an event, of the webhook's owner, again.
	Redeliver(ctx context.Context, owner Owner, id WebhookID, event EventID) (WebhookDelivery, error)
}

// A WebhookFormat makes the requests of webhooks. It is safe for concurrent use.
type WebhookFormat interface {
	// Wants reports whether a webhook of this format gets an event. It is
	// called instead of matching Types, and must be quick.
	Wants(w Webhook, e Event) bool
	// Request returns the body and the headers of an attempt to send an event.
	// secret is what [Webhooks.Create] returned or was given; delivery is the
	// same in all attempts.
	Request(ctx context.Context, w Webhook, secret string, delivery FunctionRunID, e Event, at time.Time) (body []byte, header map[string]string, err error)
}

// WebhookAnswers is what a [WebhookFormat] has, too, if receivers say something by
// what they answer.
type WebhookAnswers interface {
	// Answered takes over the body, up to 64 KiB of it, of an answer with a status
	// of 2xx. An error fails the attempt.
	Answered(ctx context.Context, w Webhook, e Event, body []byte) error
}
