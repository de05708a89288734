package rest

import (
	"net/http"
	"time"
	"unicode/utf8"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/httpio"
)

const approvalPath = "/v1/approvals"

type anApproval struct {
	ID engi.ApprovalID `path:"id" doc:"ID of the approval"`
}

type listApprovals struct {
	State      string `query:"state" enum:"pending,allowed,denied,expired,abandoned" doc:"Only objects in this state"`
	Remembered bool   `query:"remembered" doc:"Only decisions that also apply to later requests"`
	Limit      int    `query:"limit" minimum:"1" maximum:"1000" default:"100"`
}

type listApprovalEvents struct {
	After     int64  `query:"after" minimum:"-1" default:"-1" doc:"Only events after this seq, oldest first; -1 lists the newest events, or streams new ones"`
	LastEvent string `header:"Last-Event-ID" doc:"Alias of after, as browsers send it; takes precedence over after"`
	Limit     int    `query:"limit" minimum:"0" maximum:"1000" doc:"Maximum number of events; 0 means 100 in a list, and no limit in a stream"`
}

// Approvals returns the routes of approvals, on which requests of sandboxes wait.
func Approvals(service engi.Approvals, log engi.Events) Resource {
	e := &events{log: log}
	look, change := reads(engi.ScopeApprovals), writes(engi.ScopeApprovals)
	const one = approvalPath + "/{id}"
	return Resource{tag: "approvals", about: "requests of sandboxes that wait for somebody to decide", routes: []Route{
		list(Route{Pattern: "GET " + approvalPath, ID: "list-approvals", Summary: "List approvals", Text: "The newest come first.", Access: look},
			func(c *call, in *listApprovals) ([]engi.Approval, error) {
				return service.List(c, c.viewer(), engi.ApprovalFilter{State: engi.ApprovalState(in.State), Remembered: in.Remembered, Limit: in.Limit})
			}, approvalOf),
		raw(Route{
			Pattern: "GET " + approvalPath + "/events", ID: "list-approval-events", Summary: "List or stream events of approvals", Access: look,
			Text:    "Works as /v1/events, for keys that may only decide on approvals. A request that starts to wait is an event approval.requested; its decision or end is another event.",
			Answers: append([]answer{jsonOf[v1.List[v1.Event]](http.StatusOK, nil)}, streamOf[v1.Event](nil, httpio.NDJSON, httpio.SSE)...),
		}, func(c *call, in *listApprovalEvents, b none) error {
			return e.list(c, &listEvents{Type: "approval.*", After: in.After, LastEvent: in.LastEvent, Limit: in.Limit}, b)
		}),
		fetch(Route{Pattern: "GET " + approvalPath + "/key", ID: "get-approval-key", Summary: "Get the public key that signs decisions", Access: look, Objects: Shared,
			Text: "Store a copy of the key where the node cannot change it, to verify decisions later. The key changes when the key of secrets is rotated."},
			func(*call, *none) (v1.ApprovalKey, error) {
				return v1.ApprovalKey{Algorithm: "ed25519", PublicKey: service.PublicKey()}, nil
			}),
		fetch(Route{Pattern: "GET " + one, ID: "get-approval", Summary: "Get an approval", Access: look},
			func(c *call, in *anApproval) (v1.Approval, error) {
				return to(approvalOf)(service.Get(c, c.viewer(), in.ID))
			}),
		send(Route{
			Pattern: "POST " + one + "/decision", ID: "decide-approval", Summary: "Decide on an approval", Access: change,
			Text: "The waiting request is let through or refused before the answer is sent. Needs an admin key, or a key that was created with the scope approvals. A key without scopes is refused, " +
				"because the programs whose requests wait often have such keys. An approval that has ended is a conflict.",
			Bodies: []example{{"once", "this request only", `{"allow": true}`}},
		}, func(c *call, in *anApproval, q v1.ApprovalDecision) (v1.Approval, error) {
			x, err := answerOf(q)
			if err != nil {
				return v1.Approval{}, err
			}
			return to(approvalOf)(service.Decide(c, c.viewer(), in.ID, x))
		}),
		act(Route{
			Pattern: "DELETE " + one + "/remembered", ID: "forget-approval", Summary: "Delete a remembered decision", Access: change,
			Text: "Later requests of that kind wait for a decision again. The record of the decision stays.",
		}, func(c *call, in *anApproval, _ none) error { return service.Forget(c, c.viewer(), in.ID) }),
	}}
}

func answerOf(q v1.ApprovalDecision) (x engi.ApprovalAnswer, err error) {
	if q.Allow == nil {
		return x, invalid("allow", "it is missing")
	}
	x.Allow, x.Reason = *q.Allow, q.Reason
	m := q.Remember
	if m == nil {
		return x, nil
	}
	x.Remember = engi.ApprovalMemory{AllSandboxes: m.AllSandboxes, WholeRule: m.WholeRule, Exact: m.Exact}
	switch {
	case (m.For == 0) == (m.Until == nil):
		return x, invalid("remember", "give for or until")
	case m.Until != nil:
		x.Remember.Until = *m.Until
	default:
		x.Remember.Until = time.Now().Add(m.For.Std())
	}
	return x, nil
}

func approvalOf(x engi.Approval) v1.Approval {
	out := v1.Approval{
		ID: string(x.ID), Owner: string(x.Owner), SandboxID: string(x.Sandbox), Maker: x.Maker, State: string(x.State),
		Host: x.Host, Port: int(x.Port), Method: x.Method, Path: x.Path, Secrets: orEmpty(x.Secrets), Rule: x.Rule, BodySize: x.BodySize, Digest: x.Digest, BodySHA256: x.BodyHash, ExactOnly: x.Exact,
		CreatedAt: x.Created.UTC(), ExpiresAt: x.Expires.UTC(), EndedAt: moment(x.Ended),
		Decider: x.Decider, Reason: x.Reason, RememberedUntil: moment(x.Memory.Until), AllSandboxes: x.Memory.AllSandboxes, WholeRule: x.Memory.WholeRule, Exact: x.Memory.Exact,
		Record: string(x.Record), Signature: x.Signature, PublicKey: x.PublicKey,
	}
	if utf8.Valid(x.Body) {
		out.Body = string(x.Body)
	} else {
		out.BodyBase64 = x.Body
	}
	return out
}
