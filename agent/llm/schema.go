package llm

import (
	"charm.land/fantasy"
)

// simple is the part of a JSON schema that every provider's way of asking for
// objects understands. It is a hint to the model: answers are checked against
// the whole schema.
func simple(node any) *fantasy.Schema {
	m, _ := node.(map[string]any)
	s := &fantasy.Schema{}
	switch t := m["type"].(type) {
	case string:
		s.Type = t
	case []any: // what may be null is written so
		for _, one := range t {
			if name, ok := one.(string); ok && name != "null" {
				s.Type = name
				break
			}
		}
	}
	s.Description, _ = m["description"].(string)
	s.Format, _ = m["format"].(string)
	s.Enum, _ = m["enum"].([]any)
	if f, ok := m["minimum"].(float64); ok {
		s.Minimum = &f
	}
	if f, ok := m["maximum"].(float64); ok {
		s.Maximum = &f
	}
	if f, ok := m["minLength"].(float64); ok {
		s.MinLength = new(int(f))
	}
	if f, ok := m["maxLength"].(float64); ok {
		s.MaxLength = new(int(f))
	}
	if props, ok := m["properties"].(map[string]any); ok {
		s.Properties = make(map[string]*fantasy.Schema, len(props))
		for name, p := range props {
			s.Properties[name] = simple(p)
		}
	}
	if names, ok := m["required"].([]any); ok {
		for _, n := range names {
			if name, ok := n.(string); ok {
				s.Required = append(s.Required, name)
			}
		}
	}
	if items, ok := m["items"]; ok {
		s.Items = simple(items)
	}
	return s
}
