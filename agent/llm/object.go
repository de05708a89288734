package llm

import (
	"context"
	"encoding/json"
	"reflect"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/engi-dev/engi"
)

// A Shape is a JSON schema that answers and arguments are checked against. It
// is safe for concurrent use.
type Schema struct {
	raw      json.RawMessage
	resolved *jsonschema.Resolved
}

// ShapeOf returns the schema of a Go type, by its JSON names; a field's
// jsonschema tag is its description. It reports Invalid for types that JSON
// cannot hold.
func SchemaOf(t reflect.Type) (*Schema, error) {
	s, err := jsonschema.ForType(t, nil)
	if err != nil {
		return nil, engi.Errorf(engi.Invalid, "describe %v: %v", t, err)
	}
	return resolve(s)
}

// maxShape bounds schemas that callers send: checking grows with them.
const maxSchema = 64 << 10

// ParseShape returns a schema that a caller sent. It reports Invalid.
func ParseSchema(raw json.RawMessage) (*Schema, error) {
	if len(raw) > maxSchema {
		return nil, engi.Errorf(engi.Invalid, "the schema has %d bytes, %d at most", len(raw), maxSchema)
	}
	var root any
	if err := json.Unmarshal(raw, &root); err != nil {
		return nil, engi.Errorf(engi.Invalid, "the schema is none: %s", line(err.Error()))
	}
	if err := checkSchemaSize(root); err != nil {
		return nil, err
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, engi.Errorf(engi.Invalid, "the schema is none: %s", line(err.Error()))
	}
	return resolve(&s)
}

func resolve(s *jsonschema.Schema) (*Schema, error) {
	r, err := s.Resolve(nil)
	if err != nil {
		return nil, engi.Errorf(engi.Invalid, "the schema is none: %s", line(err.Error()))
	}
	raw, err := json.Marshal(s)
	if err != nil {
		return nil, engi.Errorf(engi.Invalid, "the schema is none: %s", line(err.Error()))
	}
	return &Schema{raw, r}, nil
}

// JSON returns the schema. It must not be changed.
func (s *Schema) JSON() json.RawMessage { return s.raw }

// Check returns the JSON value in text, or reports Invalid in words that help
// a model to do better. Fences around the value are taken off: models like
// them.
func (s *Schema) Check(text string) (json.RawMessage, error) {
	text = stripFence(text)
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return nil, engi.Errorf(engi.Invalid, "this is no JSON: %s", line(err.Error()))
	}
	if err := s.resolved.Validate(v); err != nil {
		return nil, engi.Errorf(engi.Invalid, "this is not what was asked for: %s", line(err.Error()))
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

// maxRepairs is how often a model may try to keep to a schema.
const maxRepairs = 3

// Shaped asks m for a value that keeps to shape, and tells it what was wrong
// when it does not, a few times. It reports Unavailable when m never does.
// The reply's tokens are those of all attempts.
func GenerateJSON(ctx context.Context, m Model, q Request, shape *Schema, out func(Delta) error) (json.RawMessage, Reply, error) {
	q.Object = shape.JSON()
	var spent engi.Tokens
	for attempt := 0; ; attempt++ {
		r, err := m.Generate(ctx, q, out)
		spent = spent.Add(r.Tokens)
		r.Tokens = spent
		if err != nil {
			return nil, r, err
		}
		value, err := shape.Check(r.Message.Text)
		if err == nil {
			return value, r, nil
		}
		if attempt == maxRepairs {
			return nil, r, engi.Errorf(engi.Unavailable, "%s did not keep to the schema in %d attempts: %v", m.Name(), attempt+1, err).
				WithRemedy("simplify the schema, or choose another model")
		}
		said := r.Message.Text
		if said == "" {
			said = "(nothing)"
		}
		q.Messages = append(q.Messages[:len(q.Messages):len(q.Messages)],
			engi.Message{Role: engi.RoleAssistant, Text: said},
			engi.Message{Role: engi.RoleUser, Text: err.Error() + ". Answer again, with nothing but the corrected JSON."})
		if out != nil {
			if err := out(Delta{Again: true}); err != nil {
				return nil, r, err
			}
		}
	}
}

// Object asks m for a T. See [Shaped]. partial, if not nil, gets the object as
// far as it is known while it is written.
func GenerateObject[T any](ctx context.Context, m Model, q Request, partial func(T) error) (T, Reply, error) {
	var zero T
	shape, err := SchemaOf(reflect.TypeFor[T]())
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
				return nil // half a value may not fit yet
			}
			return partial(v)
		}
	}
	raw, r, err := GenerateJSON(ctx, m, q, shape, out)
	if err != nil {
		return zero, r, err
	}
	var v T
	if err := json.Unmarshal(raw, &v); err != nil {
		return zero, r, engi.Errorf(engi.Unavailable, "%s: the object does not fit: %s", m.Name(), line(err.Error()))
	}
	return v, r, nil
}
