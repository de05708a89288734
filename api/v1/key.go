package v1

import "time"

// A KeyRequest asks for a new API key.
type KeyRequest struct {
	Name      string   `json:"name,omitempty" maxLength:"100" doc:"for people" example:"ci"`
	Owner     string   `json:"owner,omitempty" maxLength:"64" doc:"owner that callers with this key act for, and whose objects they see; absent means default" example:"team-a"`
	Admin     bool     `json:"admin,omitempty" doc:"may do everything"`
	Scopes    []string `json:"scopes,omitempty" enum:"executions,sandboxes,templates,volumes,secrets,keys,agents,docs,events,approvals,read" doc:"what it is for; absent means everything but administration and deciding on approvals; read looks at everything and changes nothing" example:"[\"executions\"]"`
	ExpiresIn Duration `json:"expires_in,omitempty" doc:"absent means never" example:"720h"`
}

// A Key lets a caller act as an owner.
type Key struct {
	ID        string     `json:"id" doc:"identifies the key; it is no secret" example:"key_u2dmwmlezjgprkqrgppgcz2mgu"`
	Name      string     `json:"name,omitempty"`
	Owner     string     `json:"owner,omitempty"`
	Admin     bool       `json:"admin"`
	Scopes    []string   `json:"scopes,omitempty" doc:"what it is for; absent means everything but administration and deciding on approvals"`
	Secret    string     `json:"secret,omitempty" doc:"only in the response that created the key; it is stored nowhere"`
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt *time.Time `json:"expires_at,omitempty" doc:"absent means never"`
	RevokedAt *time.Time `json:"revoked_at,omitempty" doc:"absent while it is valid"`
}
