package engi

import (
	"context"
	"slices"
	"time"
)

// A HeldRequest is an HTTP request that a sandbox made, that a rule of its
// network policy asks about, and that waits until somebody decides. It is a
// value, and what its fields hold comes from the sandbox unless it says
// otherwise.
type HeldRequest struct {
	Owner   Owner     // of the sandbox
	Sandbox SandboxID // that made it
	Host    string    // judged by the wall
	Port    uint16
	Method  string
	Path    string   // escaped, with the query
	Secrets []string // names of the secrets it would be sent with, from the policy
	Rule    string   // that asks, as the policy writes it
	Body    []byte   // all of it, for people to judge by; valid and unchanged until Ask returns
}

// An ApprovalDecision is the answer to a [HeldRequest].
type ApprovalDecision struct {
	Allowed bool
	Reason  string // told to the program; empty if nobody gave one
}

// An Approver decides on held requests. It is safe for concurrent use.
type Approver interface {
	// Ask returns the decision of somebody who may decide. It blocks until
	// there is one, for as long as the node lets requests wait: then it returns
	// a refusal. It returns ctx's error if the program gives up first, and
	// Exhausted at once if too many requests of the owner wait already.
	Ask(ctx context.Context, r HeldRequest) (ApprovalDecision, error)
}

// An Approval is the record of a held request, or of several that are alike and
// wait together. It is a value.
type Approval struct {
	ID          ApprovalID
	HeldRequest // with the first 4 KiB of Body

	BodySize int    // of what the rule looked at
	Digest   string // SHA-256 in hex of all of the request, with the whole Body
	Maker    string // who caused the sandbox: a key or a run by ID; empty if that is not known
	State    ApprovalState
	Created  time.Time
	Expires  time.Time // when nobody has decided
	Ended    time.Time // zero while it is pending

	Decider string // a key by ID; empty unless it is allowed or denied
	Reason  string
	Memory  ApprovalMemory // Until is zero if the decision is, or was, for this request only

	// Record is the decision as it was signed: JSON, whose exact bytes Signature is
	// of (Ed25519, by PublicKey). All are empty unless it is allowed or denied.
	Record    []byte
	Signature []byte
	PublicKey []byte
}

// Decision returns what the program is told.
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
	ApprovalAllowed   ApprovalState = "allowed"   // somebody has said yes
	ApprovalDenied    ApprovalState = "denied"    // somebody has said no
	ApprovalExpired   ApprovalState = "expired"   // nobody has said anything in time, which is a refusal
	ApprovalAbandoned ApprovalState = "abandoned" // the program, or the node, did not wait
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

// An ApprovalMemory says which later requests a decision is for, too, whatever
// their query and body. They are of the same owner, asked about by the same rule
// with the same secrets.
type ApprovalMemory struct {
	Until        time.Time // zero means none
	AllSandboxes bool      // of the owner; else those of the same sandbox
	WholeRule    bool      // wherever they go; else those with the same host, port, method and path
}

// An ApprovalAnswer is a decision on an approval.
type ApprovalAnswer struct {
	Allow    bool
	Reason   string // up to 500 bytes; told to the program
	Remember ApprovalMemory
}

// An ApprovalFilter selects approvals. Zero fields select all.
type ApprovalFilter struct {
	State      ApprovalState
	Remembered bool // only decisions that are still for later requests
	Limit      int  // 0 means 100; 1000 at most
}

// Approvals are the held requests, for those who decide. Methods see only what
// owner owns; the rest is NotFound. The empty owner sees all. It is safe for
// concurrent use.
type Approvals interface {
	Get(ctx context.Context, owner Owner, id ApprovalID) (Approval, error)
	// List returns approvals, newest first.
	List(ctx context.Context, owner Owner, f ApprovalFilter) ([]Approval, error)
	// Decide lets what waits go on, or refuses it, in the name of [ActorOf] ctx. It
	// reports Conflict if the approval has ended already, and Invalid for what
	// cannot be remembered. A decision to remember is also for those of the same kind that
	// wait already, each of which gets its own record.
	Decide(ctx context.Context, owner Owner, id ApprovalID, a ApprovalAnswer) (Approval, error)
	// Forget makes a remembered decision one for its request only. It reports
	// Conflict if it is that already.
	Forget(ctx context.Context, owner Owner, id ApprovalID) error
	// PublicKey is the Ed25519 key that decisions are signed with now.
	PublicKey() []byte
}
