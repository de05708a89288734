package approval

import (
	"crypto/ed25519"
	"encoding/json"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// A Record is the signed form of a decision: the request, its destination and
// secrets, the decision, its author and its time. It never changes: an event records that a
// remembered decision was forgotten.
type Record struct {
	Approval  engi.ApprovalID `json:"approval"`
	Owner     engi.Owner      `json:"owner"`
	Sandbox   engi.SandboxID  `json:"sandbox_id"`
	Maker     string          `json:"maker,omitempty"`
	Host      string          `json:"host"`
	Port      uint16          `json:"port"`
	Method    string          `json:"method"`
	Path      string          `json:"path"`
	Secrets   []string        `json:"secrets"`
	Rule      string          `json:"rule"`
	Digest    string          `json:"digest"`
	BodyHash  string          `json:"body_sha256,omitempty"`
	Requested time.Time       `json:"requested_at"`

	Decision     engi.ApprovalState `json:"decision"`
	Reason       string             `json:"reason,omitempty"`
	Decider      string             `json:"decider,omitempty"`
	Decided      time.Time          `json:"decided_at"`
	Until        *time.Time         `json:"remembered_until,omitempty"`
	AllSandboxes bool               `json:"all_sandboxes,omitempty"`
	WholeRule    bool               `json:"whole_rule,omitempty"`
	Exact        bool               `json:"exact,omitempty"`
}

// sign adds the signed record of its decision to an approval.
func (m *Manager) sign(a *engi.Approval) (err error) {
	r := Record{
		Approval: a.ID, Owner: a.Owner, Sandbox: a.Sandbox, Maker: a.Maker, Host: a.Host, Port: a.Port, Method: a.Method, Path: a.Path, Secrets: append([]string{}, a.Secrets...), Rule: a.Rule, Digest: a.Digest, BodyHash: a.BodyHash, Requested: a.Created,
		Decision: a.State, Reason: a.Reason, Decider: a.Decider, Decided: a.Ended, AllSandboxes: a.Memory.AllSandboxes, WholeRule: a.Memory.WholeRule, Exact: a.Memory.Exact,
	}
	if !a.Memory.Until.IsZero() {
		r.Until = &a.Memory.Until
	}
	if a.Record, err = json.Marshal(r); err != nil {
		return engi.Errorf(engi.Internal, "the record of approval %s: %v", a.ID, err)
	}
	a.Signature, a.PublicKey = ed25519.Sign(m.key, a.Record), m.PublicKey()
	return nil
}
