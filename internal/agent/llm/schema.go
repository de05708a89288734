package llm

import (
	"encoding/json"
	"slices"

	"github.com/engi-dev/engi/internal/engi"
)

// plain converts a JSON schema to one that all formats support: without
// null as a second type, and without references, which some formats lose. It
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
	return out, nil
}

type schemaInliner struct {
	root      map[string]any
	nodesLeft int
}

const (
	maxNodes   = 10_000 // maximum number of nodes of a schema with expanded references
	maxNesting = 40
)

func (in *schemaInliner) node(v any, depth int) any {
	if in.nodesLeft--; in.nodesLeft < 0 || depth > maxNesting {
		return map[string]any{} // accepts any value; Check decides
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

// wrap converts a schema of another type to one of an object, since arguments of
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
	for value := range candidates(text) {
		var o map[string]json.RawMessage
		if json.Unmarshal([]byte(value), &o) == nil && o[wrapping] != nil {
			return string(o[wrapping])
		}
	}
	return text
}
