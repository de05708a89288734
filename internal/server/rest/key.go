package rest

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/access/key"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
)

const keyPath = "/v1/keys"

type keys struct{ engi.Keys }

type aKey struct {
	ID string `path:"id" maxLength:"64" doc:"ID of the key"`
}

// Keys returns the routes of API keys.
func Keys(service engi.Keys) Resource {
	k := &keys{service}
	return Resource{tag: "keys", about: "API keys", routes: []Route{
		paged(Route{Pattern: "GET " + keyPath, ID: "list-keys", Summary: "List API keys", Text: "Includes revoked and expired keys. The newest come first.", Access: reads(engi.ScopeKeys)},
			paging(service, engi.Keys.List), keyOf, func(x v1.Key) string { return x.ID }),
		send(Route{
			Pattern: "POST " + keyPath, ID: "create-key", Summary: "Create an API key", Access: adminOnly, Objects: Owned,
			Text:    "The answer has the key's secret; it is never shown again. Needs an admin key.",
			Creates: "a repeated key creates no second API key; the secret cannot be shown again, so the answer is a conflict that names the first one",
			Status:  http.StatusCreated, Location: "path of the key",
			Bodies: []example{{"a month", "a key for a month", `{"name": "ci", "owner": "team-a", "expires_in": "30d"}`}},
		}, k.create),
		act(Route{
			Pattern: "DELETE " + keyPath + "/{id}", ID: "revoke-key", Summary: "Revoke an API key", Access: writes(engi.ScopeKeys),
			Text: "The key stops working at once and cannot be restored. Revoking a key twice is no error.",
		}, func(c *call, in *aKey, _ none) error { return k.Revoke(c, c.viewer(), in.ID) }),
	}}
}

// ownerByDefault is the owner of a key whose request names none.
const ownerByDefault = "default"

func (s *keys) create(c *call, _ *none, q v1.KeyRequest) (v1.Key, error) {
	k := engi.Key{Name: q.Name, Owner: engi.Owner(q.Owner), Admin: q.Admin}
	for i, name := range q.Scopes {
		if !slices.Contains(engi.Scopes(), engi.Scope(name)) {
			return v1.Key{}, invalid(fmt.Sprintf("scopes[%d]", i), "%.40q is not one of %s", name, key.ScopeNames())
		}
		k.Scopes = append(k.Scopes, engi.Scope(name))
	}
	if k.Owner == "" && !k.Admin {
		k.Owner = ownerByDefault
	}
	if q.ExpiresIn > 0 {
		k.Expires = time.Now().Add(q.ExpiresIn.Std())
		if k.Expires.Year() > 9999 {
			return v1.Key{}, invalid("expires_in", "the time is after the year 9999; leave it out for a key that never expires")
		}
	}
	create := func(ids []string) (v1.Key, error) {
		k.ID = idempotency.FirstID[string](ids)
		made, secret, err := s.Create(c, k)
		if err != nil {
			return v1.Key{}, err
		}
		answer := keyOf(made)
		answer.Secret = secret
		return answer, nil
	}
	answer, err := once(c, q, idempotency.Creation[v1.Key]{
		IDs:  []string{key.NewID()},
		Work: create,
		Find: func(ids []string, ended bool) (v1.Key, error) {
			if !ended {
				// If the key does not exist yet, it is created now.
				if x, err := create(ids); !engi.Is(err, engi.Conflict) {
					return x, err
				}
			}
			return v1.Key{}, engi.Errorf(engi.Conflict, "this Idempotency-Key created key %s, whose secret was shown then", ids[0]).
				WithRemedy("if the secret is lost, revoke the key and create another with a new Idempotency-Key")
		},
	})
	if err != nil {
		return v1.Key{}, err
	}
	c.Header().Set("Cache-Control", "no-store")
	c.location(keyPath, answer.ID)
	return answer, nil
}

func keyOf(x engi.Key) v1.Key {
	return v1.Key{
		Scopes: words(x.Scopes...),
		ID:     x.ID, Name: x.Name, Owner: string(x.Owner), Admin: x.Admin,
		CreatedAt: x.Created.UTC(), ExpiresAt: moment(x.Expires), RevokedAt: moment(x.Revoked),
	}
}
