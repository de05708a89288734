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

// An Approval is a request of a sandbox that waits, or waited, for a
// decision. The sandbox chose its host, method, path and body.
type Approval struct {
	ID        string   `json:"id" example:"apv_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner     string   `json:"owner,omitempty"`
	SandboxID string   `json:"sandbox_id" example:"sbx_u2dmwmlezjgprkqrgppgcz2mgu"`
	Maker     string   `json:"maker,omitempty" doc:"Key or run that created the sandbox" example:"key_u2dmwmlezjgprkqrgppgcz2mgu"`
	State     string   `json:"state" enum:"pending,allowed,denied,expired,abandoned" doc:"expired: nobody decided in time, so the request was refused; abandoned: the program stopped waiting"`
	Host      string   `json:"host" example:"api.example.com"`
	Port      int      `json:"port" example:"443"`
	Method    string   `json:"method" example:"POST"`
	Path      string   `json:"path" doc:"Path with the query" example:"/v1/payments?currency=EUR"`
	Secrets   []string `json:"secrets" doc:"Names of the secrets that would be sent with the request" example:"[\"bank\"]"`
	Rule      string   `json:"rule" doc:"Rule of the network policy that asks for approval"`

	Body       string `json:"body,omitempty" doc:"First 4 KiB of the body, if they are text"`
	BodyBase64 []byte `json:"body_base64,omitempty" doc:"First 4 KiB of the body in base64, if they are not text"`
	BodySize   int    `json:"body_size" doc:"Number of bytes of the body that the rule examined"`
	Digest     string `json:"digest" doc:"SHA-256 of the whole request with its body; requests with the same digest wait together"`
	BodySHA256 string `json:"body_sha256,omitempty" doc:"SHA-256 of the whole body, in hex"`
	ExactOnly  bool   `json:"exact_only,omitempty" doc:"The rule says ask_exact: decisions are remembered only for requests with the same query and body"`

	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt time.Time  `json:"expires_at" doc:"Time at which the request is refused if nobody decides"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`

	Decider         string     `json:"decider,omitempty" doc:"ID of the key that decided" example:"key_u2dmwmlezjgprkqrgppgcz2mgu"`
	Reason          string     `json:"reason,omitempty"`
	RememberedUntil *time.Time `json:"remembered_until,omitempty" doc:"Time until which the decision applies to later requests"`
	AllSandboxes    bool       `json:"all_sandboxes,omitempty" doc:"The decision applies to requests of all sandboxes of the owner; by default only of the same sandbox"`
	WholeRule       bool       `json:"whole_rule,omitempty" doc:"The decision applies to all requests that match the same rule with the same secrets; by default only to requests with the same host, port, method and path"`
	Exact           bool       `json:"exact,omitempty" doc:"The decision applies only to requests with the same query and body; by default to requests with any"`

	Record    string `json:"record,omitempty" doc:"Signed record of the decision: the exact bytes, which are JSON"`
	Signature []byte `json:"signature,omitempty" doc:"Ed25519 signature of record"`
	PublicKey []byte `json:"public_key,omitempty" doc:"Public key that verifies the signature; see /v1/approvals/key"`
}

// An ApprovalRecord is the decoded form of Approval.Record.
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
	BodySHA256  string    `json:"body_sha256,omitempty"`
	RequestedAt time.Time `json:"requested_at"`

	Decision        string     `json:"decision"`
	Reason          string     `json:"reason,omitempty"`
	Decider         string     `json:"decider,omitempty"`
	DecidedAt       time.Time  `json:"decided_at"`
	RememberedUntil *time.Time `json:"remembered_until,omitempty"`
	AllSandboxes    bool       `json:"all_sandboxes,omitempty"`
	WholeRule       bool       `json:"whole_rule,omitempty"`
	Exact           bool       `json:"exact,omitempty"`
}

// An ApprovalDecision is a decision on an approval.
type ApprovalDecision struct {
	Allow    *bool             `json:"allow" doc:"True allows the request, false refuses it"`
	Reason   string            `json:"reason,omitempty" doc:"Reason, which the program sees; at most 500 bytes" example:"agreed with the bank"`
	Remember *ApprovalRemember `json:"remember,omitempty" doc:"Apply the decision to later requests too, with any query and body unless exact is true; absent means this request only"`
}

// An ApprovalRemember selects the later requests that a decision covers. They belong to
// the same owner and match the same rule with the same secrets.
type ApprovalRemember struct {
	For          Duration   `json:"for,omitempty" doc:"Duration; at most 30 days" example:"1h"`
	Until        *time.Time `json:"until,omitempty" doc:"End of the duration; send either for or until"`
	AllSandboxes bool       `json:"all_sandboxes,omitempty" doc:"The decision applies to requests of all sandboxes of the owner; by default only of the same sandbox"`
	WholeRule    bool       `json:"whole_rule,omitempty" doc:"Apply the decision to all requests that match the same rule; by default to requests with the same host, port, method and path"`
	Exact        bool       `json:"exact,omitempty" doc:"Apply the decision only to requests with the same query and body; excludes whole_rule; always true for a rule that says ask_exact"`
}

// An ApprovalKey is the key that signs decisions now.
type ApprovalKey struct {
	Algorithm string `json:"algorithm" enum:"ed25519"`
	PublicKey []byte `json:"public_key" doc:"Ed25519 public key, 32 bytes in base64"`
}
