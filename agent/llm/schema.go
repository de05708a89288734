package llm

import (
	"encoding/json"
	"slices"
	"strings"

	"charm.land/fantasy"

	"github.com/engi-dev/engi"
)

// plain converts a JSON schema to one that all formats understand: without
// null as a second type, and without references, which some of them lose. It
// guides the model only; answers are checked against the original schema.
func plain(raw json.RawMessage) (map[string]any, error) {
	var root map[string]any
	if err := json.Unmarshal(raw, &root); err != nil {
		return nil, engi.Errorf(engi.Invalid, "the schema is not an object: %s", line(err.Error()))
	}
	p := schemaInliner{root: root, nodesLeft: maxNodes}
	out, _ := p.node(root, 0).(map[string]any)
	delete(out, "$defs")
	delete(out, "definitions")
	// The library takes the names for what they are only as strings.
	if names, ok := out["required"].([]any); ok {
		required := make([]string, 0, len(names))
		for _, n := range names {
			if name, ok := n.(string); ok {
				required = append(required, name)
			}
		}
		out["required"] = required
	}
	return out, nil
}

type schemaInliner struct {
	root      map[string]any
	nodesLeft int
}

const (
	maxNodes   = 10_000 // of a schema whose references are written out
	maxNesting = 40
)

func (in *schemaInliner) node(v any, depth int) any {
	if in.nodesLeft--; in.nodesLeft < 0 || depth > maxNesting {
		return map[string]any{} // accepts anything; Check decides
	}
	switch v := v.(type) {
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = in.node(e, depth+1)
		}
		return out
	case map[string]any:
		if ref, ok := v["$ref"].(string); ok {
			to, ok := resolvePointer(in.root, ref)
			if !ok || to == nil {
				to = map[string]any{}
			}
			return in.node(to, depth+1)
		}
		out := make(map[string]any, len(v))
		for name, e := range v {
			out[name] = in.node(e, depth+1)
		}
		if types, ok := v["type"].([]any); ok {
			types = slices.DeleteFunc(slices.Clone(types), func(t any) bool { return t == "null" })
			if len(types) > 0 {
				out["type"] = types[0]
			}
		}
		return out
	}
	return v
}

// wrapping is the name of the property that holds a value that is not an object.
const wrapping = "answer"

// wrap turns a schema of another type into one of an object, since arguments of
// tools are objects.
func wrap(s map[string]any) (_ map[string]any, wrapped bool) {
	if _, ok := s["properties"]; ok || s["type"] == "object" {
		return s, false
	}
	return map[string]any{"type": "object", "properties": map[string]any{wrapping: s}, "required": []string{wrapping}}, true
}

func unwrap(text string, wrapped bool) string {
	if !wrapped {
		return text
	}
	var o map[string]json.RawMessage
	if json.Unmarshal([]byte(stripFence(text)), &o) == nil && o[wrapping] != nil {
		return string(o[wrapping])
	}
	return text
}

// simple is the part of a JSON schema that the library can check objects
// against. With half it holds for objects that are not complete yet: the
// names that must be there are then said in words.
func simple(m map[string]any, half bool) *fantasy.Schema {
	s := &fantasy.Schema{}
	s.Type, _ = m["type"].(string)
	s.Description, _ = m["description"].(string)
	s.Format, _ = m["format"].(string)
	s.Enum, _ = m["enum"].([]any)
	if f, ok := m["minimum"].(float64); ok {
		s.Minimum = &f
	}
	if f, ok := m["maximum"].(float64); ok {
		s.Maximum = &f
	}
	if f, ok := m["minLength"].(float64); ok && !half {
		s.MinLength = new(int(f))
	}
	if f, ok := m["maxLength"].(float64); ok {
		s.MaxLength = new(int(f))
	}
	if props, ok := m["properties"].(map[string]any); ok {
		s.Properties = make(map[string]*fantasy.Schema, len(props))
		for name, p := range props {
			inner, _ := p.(map[string]any)
			s.Properties[name] = simple(inner, half)
		}
	}
	switch names := m["required"].(type) {
	case []string:
		s.Required = slices.Clone(names)
	case []any:
		for _, n := range names {
			if name, ok := n.(string); ok {
				s.Required = append(s.Required, name)
			}
		}
	}
	if half && len(s.Required) > 0 {
		s.Description = strings.TrimSpace(s.Description + " (must have " + strings.Join(s.Required, ", ") + ")")
		s.Required = nil
	}
	if items, ok := m["items"].(map[string]any); ok {
		s.Items = simple(items, half)
	}
	return s
}
