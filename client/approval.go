package client

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"reflect"
	"time"

	"github.com/engi-dev/engi/api/v1"
)

const approvals = "/v1/approvals"

// An ApprovalFilter selects approvals. Zero fields select all approvals.
type ApprovalFilter struct {
	State      string // v1.ApprovalPending …
	Remembered bool   // only remembered decisions, which also apply to later requests
	Limit      int    // 0 means 100; at most 1000
}

// Approvals returns requests of sandboxes that wait, or waited, for a decision,
// newest first.
func (c *Client) Approvals(ctx context.Context, f ApprovalFilter) ([]v1.Approval, error) {
	remembered := ""
	if f.Remembered {
		remembered = "true"
	}
	return list[v1.Approval](ctx, c, approvals, set("state", f.State, "remembered", remembered, "limit", number(f.Limit)))
}

// Approval returns one approval.
func (c *Client) Approval(ctx context.Context, id string) (v1.Approval, error) {
	return get[v1.Approval](ctx, c, approvals+segment(id), nil)
}

// DecideApproval allows or refuses a waiting request. The key needs the scope
// approvals.
func (c *Client) DecideApproval(ctx context.Context, id string, q v1.ApprovalDecision) (v1.Approval, error) {
	return send[v1.Approval](ctx, c, http.MethodPost, approvals+segment(id)+"/decision", q)
}

// ForgetApproval makes a remembered decision apply to its own request only.
func (c *Client) ForgetApproval(ctx context.Context, id string) error {
	return c.remove(ctx, approvals+segment(id)+"/remembered")
}

// ApprovalKey returns the key that signs decisions now.
func (c *Client) ApprovalKey(ctx context.Context) (v1.ApprovalKey, error) {
	return get[v1.ApprovalKey](ctx, c, approvals+"/key", nil)
}

// ApprovalEvents returns up to limit events of approvals, newest first; 0
// means 100.
func (c *Client) ApprovalEvents(ctx context.Context, limit int) ([]v1.Event, error) {
	return list[v1.Event](ctx, c, approvals+"/events", set("limit", number(limit)))
}

// FollowApprovals is [Client.FollowEvents] for events of approvals. It also works with a key
// that may see no other events.
func (c *Client) FollowApprovals(ctx context.Context, after int64) iter.Seq2[v1.Event, error] {
	return c.followEvents(ctx, approvals+"/events", after, EventFilter{})
}

// VerifyApproval returns the signed record of a decision. It reports an error
// unless the Ed25519 key signed the approval and the approval agrees with its
// record.
func VerifyApproval(a v1.Approval, key []byte) (r v1.ApprovalRecord, err error) {
	switch {
	case a.Record == "":
		return r, errors.New("the request was not decided: it has no record")
	case len(key) != ed25519.PublicKeySize:
		return r, errors.New("the key does not have 32 bytes")
	case !ed25519.Verify(key, []byte(a.Record), a.Signature):
		return r, errors.New("the record is not signed with this key, or was changed")
	}
	if err := json.Unmarshal([]byte(a.Record), &r); err != nil {
		return r, errors.New("the record is not JSON")
	}
	says := v1.ApprovalRecord{
		Approval: a.ID, Owner: a.Owner, SandboxID: a.SandboxID, Maker: a.Maker, Host: a.Host, Port: a.Port, Method: a.Method, Path: a.Path, Secrets: a.Secrets,
		Rule: a.Rule, Digest: a.Digest, BodySHA256: a.BodySHA256, RequestedAt: a.CreatedAt, Decision: a.State, Reason: a.Reason, Decider: a.Decider,
		AllSandboxes: a.AllSandboxes, WholeRule: a.WholeRule, Exact: a.Exact,
		RememberedUntil: r.RememberedUntil, // a forgotten decision ends earlier
	}
	if a.EndedAt != nil {
		says.DecidedAt = *a.EndedAt
	}
	for _, t := range []*time.Time{&says.RequestedAt, &says.DecidedAt, &r.RequestedAt, &r.DecidedAt} {
		*t = t.UTC()
	}
	if !reflect.DeepEqual(says, r) {
		return r, errors.New("the approval differs from its record")
	}
	return r, nil
}
