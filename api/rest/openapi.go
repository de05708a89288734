package rest

import (
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/engi-dev/engi/api/httpio"
	v1 "github.com/engi-dev/engi/api/v1"
)

// The wire's own values describe themselves here, because package v1 knows no
// OpenAPI.
type (
	durationSchema struct{}
	bytesSchema    struct{}
	modeSchema     struct{}
)

func (durationSchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		Type:        huma.TypeString,
		Pattern:     `^([0-9]+d)?([0-9]*\.?[0-9]+(ns|us|µs|μs|ms|s|m|h))*$|^0$`,
		Description: "decimal numbers with units ns, us, ms, s, m, h or d",
	}
}

func (bytesSchema) Schema(huma.Registry) *huma.Schema {
	zero := 0.0
	return &huma.Schema{
		OneOf: []*huma.Schema{
			{Type: huma.TypeInteger, Format: "int64", Minimum: &zero},
			{Type: huma.TypeString, Pattern: `^[0-9]+(\.[0-9]+)? *(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB)?$`},
		},
		Description: "bytes, or a number with a unit; answers always have bytes",
		Examples:    []any{536870912, "512MiB"},
	}
}

func (modeSchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Pattern: `^(0o)?[0-7]{1,4}$`, Description: "octal permission bits"}
}

// openAPI returns how huma is to work for us: it describes operations and
// reads their parameters. Bodies we read and write ourselves, strictly and
// only once.
func (s *server) openAPI() huma.Config {
	reg := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	alias[v1.Duration, durationSchema](reg)
	alias[v1.Bytes, bytesSchema](reg)
	alias[v1.Mode, modeSchema](reg)
	alias[v1.NetworkChoice, choiceSchema](reg)
	alias[answer, v1.Problem](reg)
	problems := huma.Format{
		Marshal: func(w io.Writer, v any) error {
			b, err := httpio.Marshal(v)
			if err == nil {
				_, err = w.Write(b)
			}
			return err
		},
		Unmarshal: json.Unmarshal,
	}
	return huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title:   "engi",
				Version: s.node.Version,
				Description: "Runs code in sandboxes. Durations are strings with a unit, sizes are bytes or strings with a unit, times are RFC 3339 in UTC. " +
					"Errors are application/problem+json documents with a kind, which says what the caller can do, and a remedy. " +
					"Requests with unknown fields or parameters are refused; readers of answers must ignore fields they do not know.",
			},
			Components: &huma.Components{
				Schemas: reg,
				SecuritySchemes: map[string]*huma.SecurityScheme{
					"bearer": {Type: "http", Scheme: "bearer", Description: "an API key; the admin key is in admin.key in the data directory"},
					"header": {Type: "apiKey", In: "header", Name: "X-API-Key", Description: "the same for callers that cannot send Authorization"},
				},
			},
			Security: []map[string][]string{{"bearer": {}}, {"header": {}}},
			Tags: []*huma.Tag{
				{Name: "executions", Description: "one run of code in a sandbox nobody else ever used"},
				{Name: "sandboxes", Description: "isolated environments that live until their owner, their deadline or their idleness ends them"},
				{Name: "processes", Description: "programs in a sandbox, their output, input and terminals"},
				{Name: "files", Description: "files in a sandbox"},
				{Name: "network", Description: "what crosses the wall around a sandbox"},
				{Name: "snapshots", Description: "copies of sandboxes that can start others"},
				{Name: "volumes", Description: "directories that outlive sandboxes"},
				{Name: "secrets", Description: "values that never enter a sandbox"},
				{Name: "sessions", Description: "long-lived contexts that code runs in, with packages and files that outlive sandboxes"},
				{Name: "docs", Description: "documentation and modules of code that agents search"},
				{Name: "events", Description: "what has happened, and the durable functions that it starts"},
				{Name: "templates", Description: "root file systems that sandboxes start from"},
				{Name: "node", Description: "the server that answers"},
				{Name: "keys", Description: "who may call"},
			},
		},
		Formats:       map[string]huma.Format{"application/json": problems, "json": problems},
		DefaultFormat: "application/json",
	}
}

// closed are the schemas of requests, where an unknown field is a mistake. In
// answers it is something newer than the reader.
var closed = map[string]bool{
	"SandboxRequest": true, "SandboxUpdate": true, "HibernateRequest": true, "ResumeRequest": true, "ExtendRequest": true, "SnapshotRequest": true,
	"ForkRequest": true, "LinkRequest": true, "ProcessRequest": true, "SignalRequest": true, "TerminalSize": true, "PathRequest": true, "MoveRequest": true,
	"NetworkPolicy": true, "Grant": true, "HeaderRule": true, "UpstreamProxy": true, "NetworkLimits": true,
	"SessionRequest": true, "EventRequest": true, "ReplayRequest": true, "CodeRequest": true,
	"DocumentRequest": true, "CodeModulesRequest": true, "CodeModuleRequest": true,
	"VolumeRequest": true, "SecretRequest": true, "SecretUpdate": true,
	"ExecutionRequest": true, "File": true, "ArtifactLimits": true, "TemplateRequest": true, "KeyRequest": true,
}

// loosen lets answers grow.
func (s *server) loosen() {
	for name, schema := range s.api.OpenAPI().Components.Schemas.Map() {
		if !closed[name] {
			schema.AdditionalProperties = nil
		}
	}
}

func alias[T, A any](reg huma.Registry) {
	reg.RegisterTypeAlias(reflect.TypeFor[T](), reflect.TypeFor[A]())
}

// schema describes T.
func schema[T any](s *server) *huma.Schema {
	return s.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[T](), true, "")
}

// operation begins the description of one; status is that of success.
func (s *server) operation(method, path, id, tag, summary, description string, status int) huma.Operation {
	return huma.Operation{
		Method: method, Path: path, OperationID: id, Tags: []string{tag},
		Summary: summary, Description: description, DefaultStatus: status,
		Responses: map[string]*huma.Response{
			strconv.Itoa(status): {Description: http.StatusText(status)},
			"default": {
				Description: "why the request was not answered",
				Content:     map[string]*huma.MediaType{"application/problem+json": {Schema: schema[v1.Problem](s)}},
			},
		},
	}
}

// answers adds an answer of T to op.
func answers[T any](s *server, op *huma.Operation, status int, contentType string, example any) {
	code := strconv.Itoa(status)
	if op.Responses[code] == nil {
		op.Responses[code] = &huma.Response{Description: http.StatusText(status)}
	}
	if op.Responses[code].Content == nil {
		op.Responses[code].Content = map[string]*huma.MediaType{}
	}
	op.Responses[code].Content[contentType] = &huma.MediaType{Schema: schema[T](s), Example: example}
}

// accepts adds a body of T to op.
func accepts[T any](s *server, op *huma.Operation, examples map[string]*huma.Example) {
	op.RequestBody = &huma.RequestBody{
		Required: true,
		Content:  map[string]*huma.MediaType{"application/json": {Schema: schema[T](s), Examples: examples}},
	}
}

// mayAccept adds a body of T that may be left out.
func mayAccept[T any](s *server, op *huma.Operation) {
	accepts[T](s, op, nil)
	op.RequestBody.Required = false
}

// header adds a header to an answer of op.
func header(op *huma.Operation, status int, name, description string) {
	resp := op.Responses[strconv.Itoa(status)]
	if resp.Headers == nil {
		resp.Headers = map[string]*huma.Param{}
	}
	resp.Headers[name] = &huma.Param{Description: description, Schema: &huma.Schema{Type: huma.TypeString}}
}

const executions = "/v1/executions"

func (s *server) opCreateExecution() huma.Operation {
	op := s.operation(http.MethodPost, executions, "create-execution", "executions", "Run code",
		"Runs a program in a sandbox nobody else ever used. How the answer comes is decided by Accept: as one JSON document when the program has ended, "+
			"or as a stream of events while it runs. With async the answer is 202 at once. "+
			"A caller that waits for JSON and leaves cancels its run, unless it sent an Idempotency-Key; leaving a stream cancels nothing.", http.StatusOK)
	accepts[v1.ExecutionRequest](s, &op, map[string]*huma.Example{
		"a line": {Summary: "a line of Python", Value: json.RawMessage(`{"language": "python", "code": "print(6*7)"}`)},
		"files": {Summary: "several files, with limits", Value: json.RawMessage(`{
			"language": "go", "entry": "main.go", "args": ["world"], "timeout": "30s", "memory": "512MiB",
			"files": [
				{"path": "go.mod", "content": "module example\n\ngo 1.26\n"},
				{"path": "main.go", "content": "package main\n\nimport (\n\t\"fmt\"\n\t\"os\"\n)\n\nfunc main() { fmt.Println(\"hello\", os.Args[1]) }\n"}
			]}`)},
		"later": {Summary: "without waiting", Value: json.RawMessage(`{"language": "bash", "code": "sleep 5; date", "async": true}`)},
	})
	answers[v1.Execution](s, &op, http.StatusOK, string(httpio.JSON), exampleExecution)
	answers[v1.Event](s, &op, http.StatusOK, string(httpio.NDJSON), json.RawMessage(`{"type": "stdout", "offset": 3, "data": "42\\n"}`))
	answers[v1.Event](s, &op, http.StatusOK, string(httpio.SSE), nil)
	answers[v1.Execution](s, &op, http.StatusAccepted, string(httpio.JSON), nil)
	header(&op, http.StatusOK, "Location", "path of the execution")
	header(&op, http.StatusAccepted, "Location", "path of the execution")
	return op
}

var exampleExecution = json.RawMessage(`{
	"id": "exe_u2dmwmlezjgprkqrgppgcz2mgu", "state": "done", "language": "python", "template": "base", "sandbox_id": "sbx_qjpm5zk6v3nqc7xw2a4tdroeyi",
	"created_at": "2026-11-20T20:00:00Z", "started_at": "2026-11-20T20:00:00.002Z", "ended_at": "2026-11-20T20:00:00.008Z",
	"result": {
		"exit_code": 0, "cause": "exited", "stdout": "42\n", "stderr": "", "stdout_truncated": false, "stderr_truncated": false, "artifacts": [],
		"duration": "5.1ms", "queue_time": "0s", "claim_time": "412µs", "warm": true, "tier": "gvisor", "not_enforced": []
	}}`)

func (s *server) opListExecutions() huma.Operation {
	op := s.operation(http.MethodGet, executions, "list-executions", "executions", "List executions", "The newest come first.", http.StatusOK)
	answers[v1.List[v1.ExecutionSummary]](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opGetExecution() huma.Operation {
	op := s.operation(http.MethodGet, executions+"/{id}", "get-execution", "executions", "Get an execution",
		"Returns the record as it is, or with wait as it is when the run has ended or the time is over.", http.StatusOK)
	answers[v1.Execution](s, &op, http.StatusOK, string(httpio.JSON), exampleExecution)
	return op
}

func (s *server) opCancelExecution() huma.Operation {
	return s.operation(http.MethodDelete, executions+"/{id}", "cancel-execution", "executions", "Cancel an execution",
		"Ends the run with cause cancelled. The record stays. Cancelling a run that has ended changes nothing and is no error.", http.StatusNoContent)
}

func (s *server) opWatchExecution() huma.Operation {
	op := s.operation(http.MethodGet, executions+"/{id}/events", "watch-execution", "executions", "Watch an execution",
		"Streams the run's events from an offset on: started when the offset is 0, then output as it comes, and the result, which is the last. "+
			"Whoever comes back with the offset of the last event seen loses nothing. Idle streams have heartbeats: events of that type on NDJSON, comments on SSE.", http.StatusOK)
	answers[v1.Event](s, &op, http.StatusOK, string(httpio.NDJSON), json.RawMessage(`{"type": "stdout", "offset": 3, "data": "42\\n"}`))
	answers[v1.Event](s, &op, http.StatusOK, string(httpio.SSE), nil)
	return op
}

func (s *server) opGetArtifact() huma.Operation {
	op := s.operation(http.MethodGet, executions+"/{id}/artifacts/{path}", "get-artifact", "executions", "Get a file that an execution left",
		"The answer is the file, always as an attachment of unknown type: programs make these files. The ETag is its SHA-256.", http.StatusOK)
	op.Metadata = map[string]any{"path": executions + "/{id}/artifacts/{path...}"}
	op.Responses["200"].Content = map[string]*huma.MediaType{
		"application/octet-stream": {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}},
	}
	header(&op, http.StatusOK, "ETag", "SHA-256 of the file, in hex and quotes")
	return op
}

func (s *server) opListTemplates() huma.Operation {
	op := s.operation(http.MethodGet, "/v1/templates", "list-templates", "templates", "List templates",
		"Definitions that were not built yet are in the list too.", http.StatusOK)
	answers[v1.List[v1.Template]](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opGetTemplate() huma.Operation {
	op := s.operation(http.MethodGet, "/v1/templates/{name}", "get-template", "templates", "Get a template", "", http.StatusOK)
	answers[v1.Template](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opBuildTemplate() huma.Operation {
	op := s.operation(http.MethodPost, "/v1/templates", "build-template", "templates", "Build a template",
		"Answers when it is built, or with a stream of progress, by Accept. Nothing is done if nothing changed. A caller that leaves cancels the build; finished steps stay cached. Needs an admin key.", http.StatusOK)
	accepts[v1.TemplateRequest](s, &op, map[string]*huma.Example{
		"built-in": {Summary: "a built-in template", Value: json.RawMessage(`{"name": "base"}`)},
	})
	answers[v1.Template](s, &op, http.StatusOK, string(httpio.JSON), nil)
	answers[v1.BuildEvent](s, &op, http.StatusOK, string(httpio.NDJSON), nil)
	answers[v1.BuildEvent](s, &op, http.StatusOK, string(httpio.SSE), nil)
	return op
}

func (s *server) opRemoveTemplate() huma.Operation {
	return s.operation(http.MethodDelete, "/v1/templates/{name}", "remove-template", "templates", "Remove a template",
		"Is refused while sandboxes use it. Needs an admin key.", http.StatusNoContent)
}

func (s *server) opPruneTemplates() huma.Operation {
	op := s.operation(http.MethodPost, "/v1/templates/prune", "prune-templates", "templates", "Delete builds no template refers to",
		"Needs an admin key.", http.StatusOK)
	answers[v1.Pruned](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opListPools() huma.Operation {
	op := s.operation(http.MethodGet, "/v1/pools", "list-pools", "node", "List warm pools", "", http.StatusOK)
	answers[v1.List[v1.Pool]](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opGetNode() huma.Operation {
	op := s.operation(http.MethodGet, "/v1/node", "get-node", "node", "Describe the server", "", http.StatusOK)
	answers[v1.Node](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opHealth() huma.Operation {
	op := s.operation(http.MethodGet, "/healthz", "get-health", "node", "Is the server alive?", "Needs no key.", http.StatusOK)
	op.Security = []map[string][]string{}
	op.Responses["200"].Content = map[string]*huma.MediaType{"text/plain; charset=utf-8": {Schema: &huma.Schema{Type: huma.TypeString}}}
	return op
}

func (s *server) opReadiness() huma.Operation {
	op := s.operation(http.MethodGet, "/readyz", "get-readiness", "node", "Is every warm pool warm?",
		"Answers 503 until every pool has had its first member, and when the server is going away. Needs no key.", http.StatusOK)
	op.Security = []map[string][]string{}
	answers[v1.Readiness](s, &op, http.StatusOK, string(httpio.JSON), nil)
	answers[v1.Readiness](s, &op, http.StatusServiceUnavailable, string(httpio.JSON), nil)
	return op
}

func (s *server) opListKeys() huma.Operation {
	op := s.operation(http.MethodGet, "/v1/keys", "list-keys", "keys", "List keys", "Revoked and expired ones too; the newest come first.", http.StatusOK)
	answers[v1.List[v1.Key]](s, &op, http.StatusOK, string(httpio.JSON), nil)
	return op
}

func (s *server) opCreateKey() huma.Operation {
	op := s.operation(http.MethodPost, "/v1/keys", "create-key", "keys", "Make a key",
		"The answer is the only place where its secret will ever be. Needs an admin key.", http.StatusCreated)
	accepts[v1.KeyRequest](s, &op, map[string]*huma.Example{
		"a month": {Summary: "a key for a month", Value: json.RawMessage(`{"name": "ci", "owner": "team-a", "expires_in": "30d"}`)},
	})
	answers[v1.Key](s, &op, http.StatusCreated, string(httpio.JSON), nil)
	header(&op, http.StatusCreated, "Location", "path of the key")
	return op
}

func (s *server) opRevokeKey() huma.Operation {
	return s.operation(http.MethodDelete, "/v1/keys/{id}", "revoke-key", "keys", "Revoke a key",
		"It ends at once and for ever. Revoking it twice is no error.", http.StatusNoContent)
}
