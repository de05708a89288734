package v1

import "time"

// A SecretRequest stores a secret.
type SecretRequest struct {
	Name     string            `json:"name" minLength:"1" maxLength:"128" doc:"letters, digits, dashes, dots and underscores" example:"github"`
	Value    string            `json:"value" minLength:"1" maxLength:"65536" doc:"never shown again" example:"s3cret"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Hosts    []string          `json:"hosts,omitempty" doc:"names and *.SUFFIX: it may be sent to these and nowhere else, whatever grants it; absent means anywhere" example:"api.github.com"`
}

// A SecretUpdate replaces a secret's value.
type SecretUpdate struct {
	Value    string             `json:"value" minLength:"1" maxLength:"65536" doc:"never shown again" example:"s3cret"`
	Metadata *map[string]string `json:"metadata,omitempty" doc:"absent means unchanged"`
	Hosts    *[]string          `json:"hosts,omitempty" doc:"absent means unchanged, empty means anywhere" example:"api.github.com"`
}

// A Secret is a named value that is put into requests of sandboxes without ever
// entering one.
type Secret struct {
	ID        string            `json:"id" example:"sec_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner     string            `json:"owner,omitempty"`
	Name      string            `json:"name" example:"github"`
	Version   int               `json:"version" doc:"1, plus one for each change of the value"`
	Metadata  map[string]string `json:"metadata,omitempty"`
	Hosts     []string          `json:"hosts,omitempty" doc:"it may be sent to these and nowhere else" example:"api.github.com"`
	CreatedAt time.Time         `json:"created_at"`
	UpdatedAt time.Time         `json:"updated_at"`
}
