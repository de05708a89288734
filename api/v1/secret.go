package v1

import "time"

// A SecretRequest stores a secret.
type SecretRequest struct {
	Name     string            `json:"name" minLength:"1" maxLength:"128" doc:"Name: letters, digits, dashes, dots and underscores" example:"github"`
	Value    string            `json:"value" minLength:"1" maxLength:"65536" doc:"Value; never shown again" example:"s3cret"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Hosts    []string          `json:"hosts,omitempty" doc:"Names and *.SUFFIX: the secret is sent to these hosts only, whatever grants it; absent means every host" example:"api.github.com"`
}

// A SecretUpdate replaces a secret's value.
type SecretUpdate struct {
	Value    string             `json:"value" minLength:"1" maxLength:"65536" doc:"Value; never shown again" example:"s3cret"`
	Metadata *map[string]string `json:"metadata,omitempty" doc:"Labels; absent means unchanged"`
	Hosts    *[]string          `json:"hosts,omitempty" doc:"Hosts to which the secret may be sent; absent means unchanged, empty means every host" example:"api.github.com"`
}

// A Secret is a named value that is inserted into requests of sandboxes without ever
// entering one.
type Secret struct {
	ID        string            `json:"id" example:"sec_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner     string            `json:"owner,omitempty"`
	Name      string            `json:"name" example:"github"`
	Version   int               `json:"version" doc:"Version: 1, plus one for each change of the value"`
	Metadata  map[string]string `json:"metadata,omitempty"`
	Hosts     []string          `json:"hosts,omitempty" doc:"Hosts to which the secret may be sent; absent means every host" example:"api.github.com"`
	CreatedAt time.Time         `json:"created_at"`
	UpdatedAt time.Time         `json:"updated_at"`
}
