package llm

import (
	"cmp"
	"context"
	"encoding/json"
	"iter"
	"reflect"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/engi-dev/engi/internal/engi"
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

// maxSchema is the maximum number of bytes of a caller's schema.
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

// Check returns the JSON value in text that conforms to the schema. Models often
// add a code fence around it, or prose. It reports Invalid with a text that helps
// the model to correct itself.
func (s *Schema) Check(text string) (json.RawMessage, error) {
	text = strings.TrimSpace(text)
	var fault error
	for value := range candidates(text) {
		var v any
		err := json.Unmarshal([]byte(value), &v)
		if err != nil {
			err = engi.Errorf(engi.Invalid, "this is not JSON: %s", line(err.Error()))
		} else if err = s.resolved.Validate(v); err != nil {
			err = engi.Errorf(engi.Invalid, "this does not conform to the schema: %s", line(err.Error()))
		}
		if err == nil {
			return json.RawMessage(value), nil
		}
		if fault == nil || value != text && json.Valid([]byte(value)) {
			fault = err // error of the whole text, or of the last value in it
		}
	}
	return nil, fault
}

// candidates yields the parts of text that may be its JSON value: all of it, the contents of
// its code fences, and the objects and lists in its prose. Their number is
// limited, so that a text of only brackets does not take too long.
func candidates(text string) iter.Seq[string] {
	const most = 32
	return func(yield func(string) bool) {
		if !yield(text) || json.Valid([]byte(text)) {
			return
		}
		rest := text
		for range most {
			_, after, ok := strings.Cut(rest, "```")
			if !ok {
				break
			}
			_, body, ok := strings.Cut(after, "\n")
			inner, outside, closed := strings.Cut(body, "```")
			if !ok || !closed {
				break
			}
			if !yield(strings.TrimSpace(inner)) {
				return
			}
			rest = outside
		}
		rest = text
		for range most {
			at := strings.IndexAny(rest, "{[")
			if at < 0 {
				return
			}
			rest = rest[at:]
			var value json.RawMessage
			d := json.NewDecoder(strings.NewReader(rest))
			if d.Decode(&value) != nil {
				rest = rest[1:]
				continue
			}
			if !yield(string(value)) {
				return
			}
			rest = rest[len(value):]
		}
	}
}

// maxRepairs is the maximum number of requests to correct an answer.
const maxRepairs = 3

// GenerateJSON asks m for a value that conforms to schema. If the value does
// not, it sends the model the error and asks again, a few times, and then reports
// Unavailable. It reports Denied for a withheld answer, and Exhausted
// for one that exceeded the limit; the reply's Stop says so too. The reply's
// tokens are the sum of all attempts.
func GenerateJSON(ctx context.Context, m Model, q Request, schema *Schema, out func(Delta) error) (json.RawMessage, Reply, error) {
	q.Object = schema.JSON()
	var spent engi.Tokens
	for attempt := 0; ; attempt++ {
		r, err := m.Generate(ctx, q, out)
		q.Interrupted = false
		spent = spent.Add(r.Tokens)
		r.Tokens = spent
		if err != nil {
			return nil, r, err
		}
		switch r.Stop {
		case StopFilter:
			return nil, r, engi.Errorf(engi.Denied, "%s withheld the answer: %s", m.Name(), cmp.Or(r.Reason, "no reason given")).
				WithRemedy("change the request, or choose another model")
		case StopLength:
			return nil, r, engi.Errorf(engi.Exhausted, "the answer of %s became too long before it was complete", m.Name()).
				WithRemedy("allow more tokens, or ask for less")
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
