package engi

import (
	"context"
	"slices"
	"time"
)

// A Key lets a caller act as an owner. The secret is shown once, at creation,
// and stored as a hash only.
type Key struct {
	ID      string // "key_" and 26 characters; not secret
	Owner   Owner
	Name    string  // for people
	Admin   bool    // may see and do everything on the node
	Scopes  []Scope // what it is for; empty means everything but administration and deciding on approvals
	Created time.Time
	Expires time.Time // zero means never
	Revoked time.Time // zero means never
}

// A Scope is a part of the API that a key may use.
type Scope string

const (
	ScopeExecutions Scope = "executions"
	ScopeSandboxes  Scope = "sandboxes" // with their files, processes and snapshots
	ScopeTemplates  Scope = "templates"
	ScopeVolumes    Scope = "volumes"
	ScopeSecrets    Scope = "secrets"
	ScopeKeys       Scope = "keys"
	ScopeAgents     Scope = "agents"    // models cost money; what tools do needs its own scopes
	ScopeDocs       Scope = "docs"      // add documents that agents read
	ScopeEvents     Scope = "events"    // includes whatever functions do on events
	ScopeApprovals  Scope = "approvals" // decide on held requests; only keys that name it, so that no agent approves what it asks for
	ScopeRead       Scope = "read"      // read everything, change nothing
)

// Scopes returns every scope.
func Scopes() []Scope {
	return []Scope{ScopeExecutions, ScopeSandboxes, ScopeTemplates, ScopeVolumes, ScopeSecrets, ScopeKeys, ScopeAgents, ScopeDocs, ScopeEvents, ScopeApprovals, ScopeRead}
}

// May reports Denied unless the key's scopes allow an operation on objects of s;
// write says whether the operation may change something. An empty s stands for
// what every key may do. May does not check who owns the objects.
func (k Key) May(s Scope, write bool) error {
	switch {
	case k.Admin || slices.Contains(k.Scopes, s), len(k.Scopes) == 0 && (s != ScopeApprovals || !write):
		return nil
	case !write && (s == "" || slices.Contains(k.Scopes, ScopeRead)):
		return nil
	case s == "":
		return Errorf(Denied, "key %s may only read", k.ID).WithRemedy("use a key without scopes")
	}
	return Errorf(Denied, "key %s does not have the scope %s", k.ID, s).
		WithRemedy("use a key with the scope %s; 'engi key create --scope %s' creates one", s, s)
}

// Keys authenticates callers and keeps their keys. It is safe for concurrent
// use.
type Keys interface {
	// Authenticate returns the key with this secret. It reports Anonymous for
	// an unknown, expired or revoked one; the text says which.
	Authenticate(ctx context.Context, secret string) (Key, error)
	// Valid returns a copy of ctx for what takes long: it ends when the key with
	// this secret is revoked or expires, and its cause is then what Authenticate
	// reports.
	Valid(ctx context.Context, secret string) (context.Context, context.CancelFunc)
	// Live returns the keys that may act on what owner has: its own and those of
	// administrators, less revoked and expired ones. It is for tokens that must not
	// outlive the key that they were given to. Callers do not change what it returns.
	Live(ctx context.Context, owner Owner) ([]Key, error)
	// Create stores a new key and returns its secret, "engi_" and 52
	// characters.
	Create(ctx context.Context, key Key) (Key, string, error)
	// List returns all keys of owner; of everybody if owner is empty.
	List(ctx context.Context, owner Owner, p Paging) ([]Key, error)
	// Revoke ends a key for good. It reports NotFound.
	Revoke(ctx context.Context, owner Owner, id string) error
}
