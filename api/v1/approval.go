package v1

import "time"

// States of approvals.
const (
	ApprovalPending   = "pending"
	ApprovalAllowed   = "allowed"
	ApprovalDenied    = "denied"
	ApprovalExpired   = "expired"
	ApprovalAbandoned = "abandoned"
)

// An Approval is a request of a sandbox that waited, or waits, for somebody to
// decide. What is in host, method, path and body is from the sandbox.
type Approval struct {
	ID        string   `json:"id" example:"apv_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner     string   `json:"owner,omitempty"`
	SandboxID string   `json:"sandbox_id" example:"sbx_u2dmwmlezjgprkqrgppgcz2mgu"`
	Maker     string   `json:"maker,omitempty" doc:"the key or run that caused the sandbox" example:"key_u2dmwmlezjgprkqrgppgcz2mgu"`
	State     string   `json:"state" enum:"pending,allowed,denied,expired,abandoned" doc:"expired: nobody has decided in time, which is a refusal; abandoned: the program has not waited"`
	Host      string   `json:"host" example:"api.example.com"`
	Port      int      `json:"port" example:"443"`
	Method    string   `json:"method" example:"POST"`
	Path      string   `json:"path" doc:"with the query" example:"/v1/payments?currency=EUR"`
	Secrets   []string `json:"secrets" doc:"names of those that would be sent with it" example:"[\"bank\"]"`
	Rule      string   `json:"rule" doc:"of the network policy, that asks"`

	Body       string `json:"body,omitempty" doc:"the first 4 KiB, if they are text"`
	BodyBase64 []byte `json:"body_base64,omitempty" doc:"the same, if they are not"`
	BodySize   int    `json:"body_size" doc:"bytes of the body that the rule looked at"`
	Digest     string `json:"digest" doc:"SHA-256 of the whole request, with its body: requests with the same one wait together"`

	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt time.Time  `json:"expires_at" doc:"when it is refused if nobody decides"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`

	Decider         string     `json:"decider,omitempty" doc:"the key that decided" example:"key_u2dmwmlezjgprkqrgppgcz2mgu"`
	Reason          string     `json:"reason,omitempty"`
	RememberedUntil *time.Time `json:"remembered_until,omitempty" doc:"the decision is, or was, for later requests, too"`
	AllSandboxes    bool       `json:"all_sandboxes,omitempty" doc:"of the owner; else those of the same sandbox"`
	WholeRule       bool       `json:"whole_rule,omitempty" doc:"all that the rule asks about with the same secrets; else those with the same host, port, method and path"`

	Record    string `json:"record,omitempty" doc:"the decision as it was signed: JSON, to the byte"`
	Signature []byte `json:"signature,omitempty" doc:"of record: Ed25519"`
	PublicKey []byte `json:"public_key,omitempty" doc:"that the signature is checked with; see /v1/approvals/key"`
}

// An ApprovalRecord is what Approval.Record holds.
type ApprovalRecord struct {
	Approval    string    `json:"approval"`
	Owner       string    `json:"owner"`
	SandboxID   string    `json:"sandbox_id"`
	Maker       string    `json:"maker,omitempty"`
	Host        string    `json:"host"`
	Port        int       `json:"port"`
	Method      string    `json:"method"`
	Path        string    `json:"path"`
	Secrets     []string  `json:"secrets"`
	Rule        string    `json:"rule"`
	Digest      string    `json:"digest"`
	RequestedAt time.Time `json:"requested_at"`

	Decision        string     `json:"decision"`
	Reason          string     `json:"reason,omitempty"`
	Decider         string     `json:"decider,omitempty"`
	DecidedAt       time.Time  `json:"decided_at"`
	RememberedUntil *time.Time `json:"remembered_until,omitempty"`
	AllSandboxes    bool       `json:"all_sandboxes,omitempty"`
	WholeRule       bool       `json:"whole_rule,omitempty"`
}

// An ApprovalDecision decides on an approval.
type ApprovalDecision struct {
	Allow    *bool             `json:"allow" doc:"false refuses the request"`
	Reason   string            `json:"reason,omitempty" doc:"told to the program; up to 500 bytes" example:"agreed with the bank"`
	Remember *ApprovalRemember `json:"remember,omitempty" doc:"decide on later requests, too, whatever their query and body; absent means this one only"`
}

// An ApprovalRemember says which later requests a decision is for. They are of
// the same owner, asked about by the same rule with the same secrets.
type ApprovalRemember struct {
	For          Duration   `json:"for,omitempty" doc:"how long; 30 days at most" example:"1h"`
	Until        *time.Time `json:"until,omitempty" doc:"the same as a time; give one of the two"`
	AllSandboxes bool       `json:"all_sandboxes,omitempty" doc:"of the owner; else those of the same sandbox"`
	WholeRule    bool       `json:"whole_rule,omitempty" doc:"wherever they go; else those with the same host, port, method and path"`
}

// An ApprovalKey is what decisions are signed with now.
type ApprovalKey struct {
	Algorithm string `json:"algorithm" enum:"ed25519"`
	PublicKey []byte `json:"public_key" doc:"32 bytes"`
}
