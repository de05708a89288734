package rest

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/idempotency"
	"github.com/engi-dev/engi/internal/server/httpio"
)

// A description builds the OpenAPI document. huma makes schemas
// of Go types; this package itself reads requests.
type description struct {
	doc     huma.OpenAPI
	schemas huma.Registry
	closed  map[string]bool // names of the schemas of requests
}

func newDescription(version string) *description {
	reg := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	alias[v1.Duration, durationSchema](reg)
	alias[v1.Bytes, bytesSchema](reg)
	alias[v1.Mode, modeSchema](reg)
	alias[v1.NetworkChoice, choiceSchema](reg)
	return &description{schemas: reg, closed: map[string]bool{}, doc: huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{
			Title:   "engi",
			Version: version,
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
		Servers:  []*huma.Server{{URL: "/", Description: "this node"}},
		Security: []map[string][]string{{"bearer": {}}, {"header": {}}},
	}}
}

func alias[T, A any](reg huma.Registry) {
	reg.RegisterTypeAlias(reflect.TypeFor[T](), reflect.TypeFor[A]())
}

// describe returns the document for the given resources.
func describe(version string, resources []Resource) []byte {
	d := newDescription(version)
	for _, res := range resources {
		d.tag(res)
		for i := range res.routes {
			d.add(&res.routes[i])
		}
	}
	return d.json()
}

// tag adds the group of a resource's routes.
func (d *description) tag(res Resource) {
	if res.about != "" {
		d.doc.Tags = append(d.doc.Tags, &huma.Tag{Name: res.tag, Description: res.about})
	}
}

// add adds a route.
func (d *description) add(r *Route) {
	if r.ID == "" {
		return
	}
	op := &huma.Operation{
		Method: r.method(), Path: strings.ReplaceAll(r.path(), "...}", "}"), OperationID: r.ID, Tags: []string{r.Tag},
		Summary: r.Summary, Description: r.Text, Responses: map[string]*huma.Response{},
	}
	if r.Access.Open {
		op.Security = []map[string][]string{}
	}
	for _, p := range newParams(d.schemas, r.params).fields {
		op.Parameters = append(op.Parameters, p.Param)
	}
	if r.Creates != "" {
		op.Parameters = append(op.Parameters, &huma.Param{
			Name: idempotency.Header, In: "header", Description: r.Creates,
			Schema: &huma.Schema{Type: huma.TypeString, Description: r.Creates, MaxLength: new(engi.MaxKey)},
		})
	}
	for _, a := range r.Answers {
		d.answer(op, a)
	}
	problem := reflect.TypeFor[v1.Problem]()
	if r.Error != nil {
		problem = reflect.TypeFor[v1.DialectProblem]()
	}
	op.Responses["default"] = &huma.Response{
		Description: "why the request was not answered",
		Content:     map[string]*huma.MediaType{"application/problem+json": {Schema: d.schema(problem)}},
	}
	if r.body != nil || len(r.Uploads) > 0 {
		op.RequestBody = &huma.RequestBody{Required: !r.Optional, Content: map[string]*huma.MediaType{}}
	}
	if r.body != nil {
		media := &huma.MediaType{Schema: d.schema(r.body)}
		for _, e := range r.Bodies {
			if media.Examples == nil {
				media.Examples = map[string]*huma.Example{}
			}
			media.Examples[e.name] = &huma.Example{Summary: e.summary, Value: json.RawMessage(e.Body)}
		}
		op.RequestBody.Content[string(httpio.JSON)] = media
		d.close(media.Schema)
	}
	for _, t := range r.Uploads {
		op.RequestBody.Content[t] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}
	}
	d.doc.AddOperation(op)
}

// answer adds one form of a response.
func (d *description) answer(op *huma.Operation, a answer) {
	code := strconv.Itoa(a.status)
	resp := op.Responses[code]
	if resp == nil {
		resp = &huma.Response{Description: http.StatusText(a.status)}
		op.Responses[code] = resp
	}
	for name, text := range a.headers {
		if resp.Headers == nil {
			resp.Headers = map[string]*huma.Param{}
		}
		resp.Headers[name] = &huma.Param{Description: text, Schema: &huma.Schema{Type: huma.TypeString}}
	}
	if a.media == "" {
		return
	}
	if resp.Content == nil {
		resp.Content = map[string]*huma.MediaType{}
	}
	media := &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}, Example: a.example}
	if a.of != nil {
		media.Schema = d.schema(a.of)
	}
	resp.Content[a.media] = media
}

func (d *description) schema(t reflect.Type) *huma.Schema { return d.schemas.Schema(t, true, "") }

// close marks the schemas of requests, which refuse
// unknown fields.
func (d *description) close(s *huma.Schema) {
	if s == nil {
		return
	}
	if s.Ref != "" {
		name := strings.TrimPrefix(s.Ref, "#/components/schemas/")
		if !d.closed[name] {
			d.closed[name] = true
			d.close(d.schemas.Map()[name])
		}
		return
	}
	for _, p := range s.Properties {
		d.close(p)
	}
	for _, one := range s.OneOf {
		d.close(one)
	}
	d.close(s.Items)
	if of, ok := s.AdditionalProperties.(*huma.Schema); ok {
		d.close(of)
	}
}

// json returns the document. The schemas of answers allow unknown fields, because later
// versions may add some.
func (d *description) json() []byte {
	for name, s := range d.schemas.Map() {
		if s.AdditionalProperties == false && !d.closed[name] {
			s.AdditionalProperties = nil
		}
	}
	b, err := json.Marshal(&d.doc)
	if err != nil {
		panic(err) // a schema cannot be encoded; every test would show it
	}
	return b
}

// Schemas of the special types of package v1 are defined here, because that package does not
// depend on OpenAPI.
type (
	durationSchema struct{}
	bytesSchema    struct{}
	modeSchema     struct{}
	choiceSchema   struct{}
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

func (choiceSchema) Schema(reg huma.Registry) *huma.Schema {
	modes := &huma.Schema{Type: huma.TypeString}
	for _, m := range networkModes() {
		modes.Enum = append(modes.Enum, m)
	}
	return &huma.Schema{
		OneOf:       []*huma.Schema{modes, reg.Schema(reflect.TypeFor[v1.NetworkPolicy](), true, "")},
		Description: "a policy, or its mode alone",
	}
}
