package v1

import "time"

// A KeyRequest creates an API key.
type KeyRequest struct {
	Name      string   `json:"name,omitempty" maxLength:"100" doc:"Text for people" example:"ci"`
	Owner     string   `json:"owner,omitempty" maxLength:"64" doc:"Owner that callers with this key act for, and whose objects they see; absent means default" example:"team-a"`
	Admin     bool     `json:"admin,omitempty" doc:"Create an admin key, which has every right"`
	Scopes    []string `json:"scopes,omitempty" enum:"executions,sandboxes,templates,volumes,secrets,keys,agents,docs,events,approvals,read" doc:"Scopes of the key; absent means everything except administration and decisions on approvals; read allows reading everything and changing nothing" example:"[\"executions\"]"`
	ExpiresIn Duration `json:"expires_in,omitempty" doc:"Lifetime of the key; absent means no limit" example:"720h"`
}

// A Key lets a caller act as an owner.
type Key struct {
	ID        string     `json:"id" doc:"ID of the key; it is not secret" example:"key_u2dmwmlezjgprkqrgppgcz2mgu"`
	Name      string     `json:"name,omitempty"`
	Owner     string     `json:"owner,omitempty"`
	Admin     bool       `json:"admin"`
	Scopes    []string   `json:"scopes,omitempty" doc:"Scopes of the key; absent means everything except administration and decisions on approvals"`
	Secret    string     `json:"secret,omitempty" doc:"Secret of the key; only in the response that created the key, and stored nowhere"`
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt *time.Time `json:"expires_at,omitempty" doc:"Time of expiry; absent means never"`
	RevokedAt *time.Time `json:"revoked_at,omitempty" doc:"Time of the revocation; absent while the key is valid"`
}
