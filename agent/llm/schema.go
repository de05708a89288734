package llm

import (
	"encoding/json"
	"slices"

	"github.com/engi-dev/engi"
)

// plain is a JSON schema as all formats understand it: with one type where
// there may also be null, and without references, which some of them lose. It
// is a hint to the model: answers are checked against the schema as it was. It
// reports Invalid for what is no schema of ours to send.
func plain(raw json.RawMessage) (map[string]any, error) {
	var root map[string]any
	if err := json.Unmarshal(raw, &root); err != nil {
		return nil, engi.Errorf(engi.Invalid, "the schema is no object: %s", line(err.Error()))
	}
	p := plainer{root: root, left: maxNodes}
	out, _ := p.node(root, 0).(map[string]any)
	delete(out, "$defs")
	delete(out, "definitions")
	return out, nil
}

type plainer struct {
	root map[string]any
	left int
}

const (
	maxNodes   = 10_000 // of a schema whose references are written out
	maxNesting = 40
)

func (p *plainer) node(v any, depth int) any {
	if p.left--; p.left < 0 || depth > maxNesting {
		return map[string]any{} // anything: the check has the last word
	}
	switch v := v.(type) {
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = p.node(e, depth+1)
		}
		return out
	case map[string]any:
		if ref, ok := v["$ref"].(string); ok {
			to, ok := pointed(p.root, ref)
			if !ok || to == nil {
				to = map[string]any{}
			}
			return p.node(to, depth+1)
		}
		out := make(map[string]any, len(v))
		for name, e := range v {
			out[name] = p.node(e, depth+1)
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

// wrapping is the name under which what is no object is asked for.
const wrapping = "answer"

// wrap makes an object of a schema of something else, for tools take nothing
// else.
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
	if json.Unmarshal([]byte(unfence(text)), &o) == nil && o[wrapping] != nil {
		return string(o[wrapping])
	}
	return text
}
