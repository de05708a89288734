package engi

import "context"

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
	Path    string   // escaped, without the query, which may hold values
	Secrets []string // names of the secrets it would be sent with, from the policy
	Rule    string   // that asks, as the policy writes it
	Body    []byte   // its first bytes, as far as the rule looked; for people to judge by
}

// An ApprovalDecision is the answer to a [HeldRequest].
type ApprovalDecision struct {
	Allowed bool
	Reason  string // why not, told to the program; empty if nobody gave one
}

// An Approver decides on held requests. It is safe for concurrent use.
type Approver interface {
	// Ask returns the decision of somebody who may decide. It blocks until
	// there is one, for as long as the node lets requests wait: then it returns
	// a refusal. It returns ctx's error if the program gives up first, and
	// Exhausted at once if too many requests of the owner wait already.
	Ask(ctx context.Context, r HeldRequest) (ApprovalDecision, error)
}
