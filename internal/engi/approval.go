package engi

import (
	"context"
	"slices"
	"time"
)

// A HeldRequest is an HTTP request of a sandbox that waits for a decision because a
// rule of the sandbox's network policy asks for one. It is a
// value, and its fields come from the sandbox unless a comment says
// otherwise.
type HeldRequest struct {
	Owner   Owner     // owner of the sandbox
	Sandbox SandboxID // sandbox that sent the request
	Host    string    // host, as the gateway verified it
	Port    uint16
	Method  string
	Path    string   // escaped, with the query
	Secrets []string // names of the secrets that would be added, from the policy
	Rule    string   // rule that asks, as the policy writes it
	Exact   bool     // decisions apply only to requests with the same query and body, because of the policy
	Body    []byte   // whole body, for the people who decide; valid and unchanged until Ask returns
}

// An ApprovalDecision is the answer to a [HeldRequest].
type ApprovalDecision struct {
	Allowed bool
	Reason  string // reason, which the program sees; empty if nobody gave one
}

// An Approver decides on held requests. It is safe for concurrent use.
type Approver interface {
	// Ask returns the decision on a request. It blocks until
	// there is one, at most for the time that the node lets requests wait, after which it returns
	// a refusal. It returns ctx's error if the program gives up first, and
	// Exhausted at once if too many requests of the owner are waiting.
	Ask(ctx context.Context, r HeldRequest) (ApprovalDecision, error)
}

// An Approval is the record of a held request, or of several identical requests that
// wait together. It is a value.
type Approval struct {
	ID          ApprovalID
	HeldRequest // with the first 4 KiB of Body

	BodySize int    // number of bytes that the rule examined
	Digest   string // SHA-256 of the whole request with its body, in hex
	BodyHash string // SHA-256 of the whole body, in hex; empty in approvals of earlier versions
	Maker    string // ID of the key or run that created the sandbox; empty if it is unknown
	State    ApprovalState
	Created  time.Time
	Expires  time.Time // time at which the request is refused if nobody has decided
	Ended    time.Time // zero while the approval is pending

	Decider string // ID of the deciding key; empty unless allowed or denied
	Reason  string
	Memory  ApprovalMemory // scope of the decision; Until is zero if it is for this request only

	// Record is the signed decision: JSON, whose exact bytes Signature covers
	// (Ed25519, by PublicKey). All three are empty unless allowed or denied.
	Record    []byte
	Signature []byte
	PublicKey []byte
}

// Decision returns the decision that the program sees.
func (a Approval) Decision() ApprovalDecision {
	d := ApprovalDecision{a.State == ApprovalAllowed, a.Reason}
	if a.State == ApprovalExpired {
		d.Reason = "nobody decided in time"
	}
	return d
}

// An ApprovalState is a point in the life of an approval.
type ApprovalState string

const (
	ApprovalPending   ApprovalState = "pending"   // a program waits
	ApprovalAllowed   ApprovalState = "allowed"   // somebody allowed the request
	ApprovalDenied    ApprovalState = "denied"    // somebody refused the request
	ApprovalExpired   ApprovalState = "expired"   // nobody decided in time, so the request was refused
	ApprovalAbandoned ApprovalState = "abandoned" // the program or the node stopped waiting
)

// ApprovalStates returns every state.
func ApprovalStates() []ApprovalState {
	return []ApprovalState{ApprovalPending, ApprovalAllowed, ApprovalDenied, ApprovalExpired, ApprovalAbandoned}
}

// CanBecome reports whether s may change to next: a pending approval ends once,
// and nothing changes after that.
func (s ApprovalState) CanBecome(next ApprovalState) bool {
	return s == ApprovalPending && next != ApprovalPending && slices.Contains(ApprovalStates(), next)
}

// An ApprovalMemory says to which later requests a decision also applies. The requests
// have the same owner, and match the same rule with the same secrets.
type ApprovalMemory struct {
	Until        time.Time // zero means none
	AllSandboxes bool      // include requests of all sandboxes of the owner; false means the same sandbox
	WholeRule    bool      // include all requests that match the rule; false means the same host, port, method and path
	Exact        bool      // only requests with the same query and body; false means any; excludes WholeRule
}

// An ApprovalAnswer is a decision on an approval.
type ApprovalAnswer struct {
	Allow    bool
	Reason   string // reason, which the program sees; at most 500 bytes
	Remember ApprovalMemory
}

// An ApprovalFilter selects approvals. Zero fields select all.
type ApprovalFilter struct {
	State      ApprovalState
	Remembered bool // only decisions that still apply to later requests
	Limit      int  // 0 means 100; 1000 at most
}

// Approvals is the interface for people who decide on held requests. Methods find only objects that
// viewer sees and report NotFound for all others. It is safe for concurrent use.
type Approvals interface {
	Get(ctx context.Context, viewer Viewer, id ApprovalID) (Approval, error)
	// List returns approvals, newest first.
	List(ctx context.Context, viewer Viewer, f ApprovalFilter) ([]Approval, error)
	// Decide allows or refuses the waiting request, in the name of [ActorOf] ctx. It
	// reports Conflict if the approval has ended, and Invalid for a decision that
	// cannot be remembered. A remembered decision also applies to similar requests that
	// are already waiting; each of them gets its own record.
	Decide(ctx context.Context, viewer Viewer, id ApprovalID, a ApprovalAnswer) (Approval, error)
	// Forget ends the effect of a remembered decision on later requests. It reports
	// Conflict if the decision has no such effect.
	Forget(ctx context.Context, viewer Viewer, id ApprovalID) error
	// PublicKey returns the Ed25519 key that signs decisions now.
	PublicKey() []byte
}
