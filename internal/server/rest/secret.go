package rest

import (
	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

const secretPath = "/v1/secrets"

type aSecret struct {
	Name string `path:"name" maxLength:"128" doc:"ID or name of the secret"`
}

// Secrets returns the routes of secrets, whose values never enter a sandbox; service may be nil.
func Secrets(service engi.Secrets) Resource {
	look, change := reads(engi.ScopeSecrets), writes(engi.ScopeSecrets)
	return Resource{tag: "secrets", about: "values that are added to requests of sandboxes and never enter them", missing: missing(service != nil, "secrets"), routes: []Route{
		create(Route{
			Pattern: "POST " + secretPath, ID: "create-secret", Summary: "Create a secret", Access: change,
			Text:    "The value is stored encrypted and never shown again. A name that exists is a conflict.",
			Creates: "a repeated key returns the first secret instead of storing another", Location: "path of the secret",
			Bodies: []example{{"a token", "a token", `{"name": "registry", "value": "t0ken", "metadata": {"for": "ci"}}`},
				{"pinned", "a token for one host", `{"name": "github", "value": "t0ken", "hosts": ["api.github.com"]}`}},
		}, engi.NewSecretID, func(c *call, _ *none, id engi.SecretID, q v1.SecretRequest) (engi.Secret, error) {
			return service.Create(c, engi.Secret{ID: id, Owner: c.owner(), Name: q.Name, Metadata: q.Metadata, Hosts: q.Hosts}, q.Value)
		}, func(c *call, id engi.SecretID) (engi.Secret, error) { return service.Get(c, c.viewer(), string(id)) }, secretOn),
		paged(Route{Pattern: "GET " + secretPath, ID: "list-secrets", Summary: "List secrets", Text: "Lists secrets by name, without their values.", Access: look}, paging(service, engi.Secrets.List), secretOn, func(x v1.Secret) string { return x.ID }),
		fetch(Route{Pattern: "GET " + secretPath + "/{name}", ID: "get-secret", Summary: "Get a secret", Text: "Returns the secret without its value.", Access: look},
			func(c *call, in *aSecret) (v1.Secret, error) {
				return to(secretOn)(service.Get(c, c.viewer(), in.Name))
			}),
		send(Route{Pattern: "PUT " + secretPath + "/{name}", ID: "update-secret", Summary: "Replace a secret's value", Access: change,
			Text: "Also replaces the labels and the allowed hosts if the body has them. The hosts cannot be changed without sending the value."},
			func(c *call, in *aSecret, q v1.SecretUpdate) (v1.Secret, error) {
				var metadata map[string]string
				if q.Metadata != nil {
					if metadata = *q.Metadata; metadata == nil {
						metadata = map[string]string{}
					}
				}
				return to(secretOn)(service.Update(c, c.viewer(), in.Name, q.Value, metadata, q.Hosts))
			}),
		act(Route{Pattern: "DELETE " + secretPath + "/{name}", ID: "remove-secret", Summary: "Delete a secret", Access: change},
			func(c *call, in *aSecret, _ none) error { return service.Remove(c, c.viewer(), in.Name) }),
	}}
}

func secretOn(x engi.Secret) v1.Secret {
	return v1.Secret{
		ID: string(x.ID), Owner: string(x.Owner), Name: x.Name, Version: x.Version, Metadata: x.Metadata, Hosts: x.Hosts,
		CreatedAt: x.Created.UTC(), UpdatedAt: x.Updated.UTC(),
	}
}
