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
	Name    string  // name, for people
	Admin   bool    // the key has every right on the node
	Scopes  []Scope // scopes; empty means everything except administration and decisions on approvals
	Created time.Time
	Expires time.Time // zero means never
	Revoked time.Time // zero means never
}

// A Scope is a part of the API that a key may use.
type Scope string

const (
	ScopeExecutions Scope = "executions"
	ScopeSandboxes  Scope = "sandboxes" // sandboxes with their files, processes and snapshots
	ScopeTemplates  Scope = "templates"
	ScopeVolumes    Scope = "volumes"
	ScopeSecrets    Scope = "secrets"
	ScopeKeys       Scope = "keys"
	ScopeAgents     Scope = "agents"    // agents, which cost money; their tools need scopes of their own
	ScopeDocs       Scope = "docs"      // documents that agents read
	ScopeEvents     Scope = "events"    // events, including the effects of the functions that they start
	ScopeApprovals  Scope = "approvals" // decisions on held requests; a key without scopes does not include it, so that no agent approves its own requests
	ScopeRead       Scope = "read"      // reading everything and changing nothing
)

// Scopes returns every scope.
func Scopes() []Scope {
	return []Scope{ScopeExecutions, ScopeSandboxes, ScopeTemplates, ScopeVolumes, ScopeSecrets, ScopeKeys, ScopeAgents, ScopeDocs, ScopeEvents, ScopeApprovals, ScopeRead}
}

// May reports Denied unless the key's scopes allow an operation on objects of s;
// write says whether the operation can change something. An empty s means an
// operation that every key may do. May does not check who owns the objects.
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
	// an unknown, expired or revoked key; the text says which.
	Authenticate(ctx context.Context, secret string) (Key, error)
	// Valid returns a copy of ctx for long requests: it ends when the key with
	// this secret is revoked or expires, and its cause is then the error that Authenticate
	// reports.
	Valid(ctx context.Context, secret string) (context.Context, context.CancelFunc)
	// Live returns the keys with access to the objects of owner: the owner's keys and those of
	// administrators, except revoked and expired ones. It is for tokens that must not
	// outlive the key for which they were issued. Callers must not change the result.
	Live(ctx context.Context, owner Owner) ([]Key, error)
	// Create stores a new key and returns its secret, "engi_" and 52
	// characters.
	Create(ctx context.Context, key Key) (Key, string, error)
	// List returns the keys that viewer sees.
	List(ctx context.Context, viewer Viewer, p Paging) ([]Key, error)
	// Revoke ends a key permanently. It reports NotFound.
	Revoke(ctx context.Context, viewer Viewer, id string) error
}
