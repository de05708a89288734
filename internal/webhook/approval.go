package webhook

import (
	"context"
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/engi-dev/engi/internal/engi"
)

// NewApprovalFormat returns the format [engi.WebhookApproval].
func NewApprovalFormat(a engi.Approvals) engi.WebhookFormat { return deciding{approvals: a} }

// deciding is the format of approvals: its requests are those of Standard Webhooks.
type deciding struct {
	standard
	approvals engi.Approvals
}

var _ engi.WebhookAnswers = deciding{}

// Wants implements [engi.WebhookFormat].
func (deciding) Wants(_ engi.Webhook, e engi.Event) bool {
	return e.Type == engi.EventApprovalRequested
}

// Request implements [engi.WebhookFormat]. It sends the data of the event together with the
// details of the request that are only in the approval.
func (d deciding) Request(ctx context.Context, w engi.Webhook, secret string, delivery engi.FunctionRunID, e engi.Event, at time.Time) ([]byte, map[string]string, error) {
	if !d.Wants(w, e) {
		return nil, nil, engi.Errorf(engi.Invalid, "event %s of type %.140s needs no decision", e.ID, e.Type)
	}
	a, err := d.approvals.Get(ctx, w.Owner.Reach(), engi.ApprovalID(e.Subject))
	if err != nil {
		return nil, nil, err
	}
	data := map[string]any{}
	if err := json.Unmarshal(e.Data, &data); err != nil {
		return nil, nil, engi.Errorf(engi.Internal, "decode event %s: %v", e.ID, err)
	}
	data["maker"], data["digest"], data["body_sha256"] = a.Maker, a.Digest, a.BodyHash
	if utf8.Valid(a.Body) {
		data["body"] = string(a.Body)
	} else {
		data["body_base64"] = a.Body
	}
	if e.Data, err = json.Marshal(data); err != nil {
		return nil, nil, engi.Errorf(engi.Internal, "encode event %s: %v", e.ID, err)
	}
	return d.standard.Request(ctx, w, secret, delivery, e, at)
}

// Answered implements [engi.WebhookAnswers].
func (d deciding) Answered(ctx context.Context, w engi.Webhook, e engi.Event, body []byte) error {
	var q struct {
		Allow    *bool  `json:"allow"`
		Reason   string `json:"reason"`
		Remember struct {
			For          string     `json:"for"`
			Until        *time.Time `json:"until"`
			AllSandboxes bool       `json:"all_sandboxes"`
			WholeRule    bool       `json:"whole_rule"`
			Exact        bool       `json:"exact"`
		} `json:"remember"`
	}
	if err := json.Unmarshal(body, &q); err != nil || q.Allow == nil {
		return nil // the receiver leaves the decision to others
	}
	x := engi.ApprovalAnswer{Allow: *q.Allow, Reason: q.Reason, Remember: engi.ApprovalMemory{AllSandboxes: q.Remember.AllSandboxes, WholeRule: q.Remember.WholeRule, Exact: q.Remember.Exact}}
	switch r := q.Remember; {
	case r.Until != nil:
		x.Remember.Until = *r.Until
	case r.For != "":
		length, err := time.ParseDuration(r.For)
		if err != nil {
			return engi.Errorf(engi.Invalid, "the decision: remember.for is no duration").WithRemedy("answer with one like 1h30m")
		}
		x.Remember.Until = time.Now().Add(length)
	}
	_, err := d.approvals.Decide(engi.WithActor(ctx, string(w.ID)), w.Owner.Reach(), engi.ApprovalID(e.Subject), x)
	if engi.Is(err, engi.Conflict, engi.NotFound) {
		return nil // the approval was decided before, or no longer exists
	}
	return err
}
