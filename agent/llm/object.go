package llm

import (
	"context"
	"encoding/json"
	"reflect"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/engi-dev/engi"
)

// A Schema is a JSON schema for answers and arguments. It is immutable and safe
// for concurrent use.
type Schema struct {
	raw      json.RawMessage
	resolved *jsonschema.Resolved
}

// SchemaOf returns the schema of a Go type, with its JSON names; a field's
// jsonschema tag is its description. It reports Invalid for types that JSON
// cannot represent.
func SchemaOf(t reflect.Type) (*Schema, error) {
	s, err := jsonschema.ForType(t, nil)
	if err != nil {
		return nil, engi.Errorf(engi.Invalid, "describe %v: %v", t, err)
	}
	return resolve(s)
}

// maxSchema bounds the bytes of a caller's schema.
const maxSchema = 64 << 10

// ParseSchema parses a caller's schema. It reports Invalid, also for a schema
// that is recursive or too large.
func ParseSchema(raw json.RawMessage) (*Schema, error) {
	if len(raw) > maxSchema {
		return nil, engi.Errorf(engi.Invalid, "the schema has %d bytes, %d at most", len(raw), maxSchema)
	}
	var root any
	if err := json.Unmarshal(raw, &root); err != nil {
		return nil, engi.Errorf(engi.Invalid, "this is not a JSON schema: %s", line(err.Error()))
	}
	if err := checkSchemaSize(root); err != nil {
		return nil, err
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, engi.Errorf(engi.Invalid, "this is not a JSON schema: %s", line(err.Error()))
	}
	return resolve(&s)
}

func resolve(s *jsonschema.Schema) (*Schema, error) {
	r, err := s.Resolve(nil)
	if err != nil {
		return nil, engi.Errorf(engi.Invalid, "this is not a JSON schema: %s", line(err.Error()))
	}
	raw, err := json.Marshal(s)
	if err != nil {
		return nil, engi.Errorf(engi.Invalid, "this is not a JSON schema: %s", line(err.Error()))
	}
	return &Schema{raw, r}, nil
}

// JSON returns the schema. It must not be changed.
func (s *Schema) JSON() json.RawMessage { return s.raw }

// Check returns the JSON value in text, without the code fence that models like
// to put around it. It reports Invalid in words that help the model to correct
// itself.
func (s *Schema) Check(text string) (json.RawMessage, error) {
	text = stripFence(text)
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return nil, engi.Errorf(engi.Invalid, "this is not JSON: %s", line(err.Error()))
	}
	if err := s.resolved.Validate(v); err != nil {
		return nil, engi.Errorf(engi.Invalid, "this does not conform to the schema: %s", line(err.Error()))
	}
	return json.RawMessage(text), nil
}

func stripFence(text string) string {
	text = strings.TrimSpace(text)
	inner, ok := strings.CutPrefix(text, "```")
	if !ok {
		return text
	}
	_, inner, ok = strings.Cut(inner, "\n")
	if !ok {
		return text
	}
	inner, ok = strings.CutSuffix(strings.TrimSpace(inner), "```")
	if !ok {
		return text
	}
	return strings.TrimSpace(inner)
}

// maxRepairs is how often a model is asked to correct an answer.
const maxRepairs = 3

// GenerateJSON asks m for a value that conforms to schema. If the value does
// not, it tells the model why and asks again, a few times, and then reports
// Unavailable. The reply's tokens are those of all attempts.
func GenerateJSON(ctx context.Context, m Model, q Request, schema *Schema, out func(Delta) error) (json.RawMessage, Reply, error) {
	q.Object = schema.JSON()
	var spent engi.Tokens
	for attempt := 0; ; attempt++ {
		r, err := m.Generate(ctx, q, out)
		spent = spent.Add(r.Tokens)
		r.Tokens = spent
		if err != nil {
			return nil, r, err
		}
		value, err := schema.Check(r.Message.Text)
		if err == nil {
			return value, r, nil
		}
		if attempt == maxRepairs {
			return nil, r, engi.Errorf(engi.Unavailable, "%s gave no answer that conforms to the schema in %d attempts: %v", m.Name(), attempt+1, err).
				WithRemedy("simplify the schema, or choose another model")
		}
		said := r.Message.Text
		if said == "" {
			said = "(nothing)"
		}
		q.Messages = append(q.Messages[:len(q.Messages):len(q.Messages)],
			engi.Message{Role: engi.RoleAssistant, Text: said},
			engi.Message{Role: engi.RoleUser, Text: err.Error() + ". Answer again, with the corrected JSON and nothing else."})
		if out != nil {
			if err := out(Delta{Reset: true}); err != nil {
				return nil, r, err
			}
		}
	}
}

// GenerateObject asks m for a T; see [GenerateJSON]. partial, if not nil, is
// called with the object as far as it has been written.
func GenerateObject[T any](ctx context.Context, m Model, q Request, partial func(T) error) (T, Reply, error) {
	var zero T
	schema, err := SchemaOf(reflect.TypeFor[T]())
	if err != nil {
		return zero, Reply{}, err
	}
	var out func(Delta) error
	if partial != nil {
		out = func(d Delta) error {
			if d.Object == nil {
				return nil
			}
			raw, err := json.Marshal(d.Object)
			if err != nil {
				return nil
			}
			var v T
			if json.Unmarshal(raw, &v) != nil {
				return nil // an incomplete value may not fit
			}
			return partial(v)
		}
	}
	raw, r, err := GenerateJSON(ctx, m, q, schema, out)
	if err != nil {
		return zero, r, err
	}
	var v T
	if err := json.Unmarshal(raw, &v); err != nil {
		return zero, r, engi.Errorf(engi.Unavailable, "%s: the object does not fit the type: %s", m.Name(), line(err.Error()))
	}
	return v, r, nil
}
