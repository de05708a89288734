// Package openai serves OpenAI's formats, so that unmodified clients work: chat
// completions, responses and embeddings. In all of them, the model is the name of an
// agent. The agent's own tools run here, and the client does not see them; the client runs the
// request's tools. A field that engi cannot honour is refused, never
// ignored.
package openai

import (
	"regexp"
	"slices"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/server/compat/dialect"
	"github.com/engi-dev/engi/internal/server/rest"
)

// front answers requests with runs of agents.
type front struct {
	agents   engi.Agents
	embedder Embedder // nil if the node has none
	started  time.Time
}

var (
	look   = rest.Access{Scope: engi.ScopeAgents}
	change = rest.Access{Scope: engi.ScopeAgents, Write: true}
)

// Resource returns the routes for OpenAI's clients. started is the time at which the server
// started, and the creation time of every model. agents and embedder may be nil.
func Resource(agents engi.Agents, embedder Embedder, started time.Time) rest.Resource {
	f := &front{agents, embedder, started}
	return dialect.Resource(agents, slices.Concat(f.models(), f.responses(), []rest.Route{f.completions(), f.embeddings()})...)
}

type aModel struct {
	Name string `path:"name" maxLength:"64" doc:"Name of the agent"`
}

// models returns the routes that list agents.
func (f *front) models() []rest.Route {
	return []rest.Route{
		rest.Foreign(rest.Route{
			Pattern: "GET /v1/models", ID: "list-models", Summary: "List agents as models (OpenAI)", Text: "Lists the agents of /v1/agents, followed by the embedding model of /v1/embeddings if the node has one.",
			Access: look, Objects: rest.Shared, Error: errorOf,
		}, func(ex *rest.Exchange, _ *struct{}) error {
			all := []any{}
			for _, name := range f.names() {
				all = append(all, f.model(name))
			}
			return ex.Reply(map[string]any{"object": "list", "data": all})
		}),
		rest.Foreign(rest.Route{
			Pattern: "GET /v1/models/{name}", ID: "get-model", Summary: "Get an agent as a model (OpenAI)",
			Access: look, Objects: rest.Shared, Error: errorOf,
		}, func(ex *rest.Exchange, in *aModel) error {
			if slices.Contains(f.names(), in.Name) {
				return ex.Reply(f.model(in.Name))
			}
			return engi.Errorf(engi.NotFound, "there is no agent %s", in.Name).WithRemedy("GET /v1/models lists them")
		}),
	}
}

// names returns the names that OpenAI's clients can use as models.
func (f *front) names() (names []string) {
	for _, x := range f.agents.Agents() {
		names = append(names, x.Name)
	}
	if f.embedder != nil {
		names = append(names, f.embedder.Name())
	}
	return names
}

func (f *front) model(name string) map[string]any {
	return map[string]any{"id": name, "object": "model", "created": f.started.Unix(), "owned_by": "engi"}
}

// paramName matches the name of the invalid field in an error.
var paramName = regexp.MustCompile(`^([a-z_]+(?:\[\d+\])?): `)

// errorOf returns a problem in the format that OpenAI's clients expect.
func errorOf(p v1.Problem) any { return errorObject(p) }

func errorObject(p v1.Problem) map[string]any {
	kind, code, param := "invalid_request_error", any(nil), any(nil)
	if m := paramName.FindStringSubmatch(p.Detail); m != nil {
		param = m[1]
	}
	switch p.Kind {
	case v1.Anonymous:
		code = "invalid_api_key"
	case v1.NotFound:
		if code = "model_not_found"; param == "previous_response_id" {
			code = "previous_response_not_found"
		}
	case v1.Exhausted:
		kind, code = "rate_limit_error", "rate_limit_exceeded"
	case v1.Denied:
		kind, code = "permission_error", "permission_denied"
	case v1.Internal, v1.Unavailable, v1.Expired:
		kind = "server_error"
	}
	return map[string]any{"message": dialect.WithRemedy(p), "type": kind, "code": code, "param": param}
}
