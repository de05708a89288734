package llm_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/agent/llm"
	"github.com/engi-dev/engi/internal/engi"
)

// doubling returns a schema with 2 to the n nodes when its references are
// expanded.
func doubling(n int) string {
	var b strings.Builder
	b.WriteString(`{"$ref":"#/$defs/d0","$defs":{`)
	for i := range n {
		fmt.Fprintf(&b, `"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
	}
	fmt.Fprintf(&b, `"d%d":{"type":"object"}}}`, n)
	return b.String()
}

func TestHostileSchemas(t *testing.T) {
	for name, raw := range map[string]string{
		"itself":         `{"$ref":"#"}`,
		"itself, in all": `{"allOf":[{"$ref":"#"}]}`,
		"each other":     `{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"not":{"$ref":"#/$defs/a"}}}}`,
		"other spelling": `{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/%24defs/a"}}}`,
		"nested":         `{"properties":{"x":{"$ref":"#"}}}`,
		"dynamic":        `{"$dynamicAnchor":"a","$dynamicRef":"#a"}`,
		"elsewhere":      `{"$ref":"https://example.com/s"}`,
		"anchor":         `{"$anchor":"a","$ref":"#a"}`,
		"doubling":       doubling(60),
		"deep":           strings.Repeat(`{"not":`, 5000) + `{}` + strings.Repeat(`}`, 5000),
		"nowhere":        `{"$ref":"#/$defs/none"}`,
		"no schema":      `[1]`,
	} {
		s, err := llm.ParseSchema([]byte(raw))
		if !engi.Is(err, engi.Invalid) {
			t.Errorf("%s: %v", name, err)
			if err == nil {
				_, err = s.Check(`{"x":{}}`)
				t.Logf("%s: checked: %v", name, err)
			}
		}
	}
	for name, raw := range map[string]string{
		"defs":       `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"a":{"$ref":"#/definitions/x"},"b":{"$ref":"#/definitions/x"}},"definitions":{"x":{"type":"string"}}}`,
		"properties": `{"type":"object","properties":{"a":{"type":"string"},"b":{"$ref":"#/properties/a"},"$ref":{"type":"string"}}}`,
		"doubling":   doubling(8),
		"true":       `true`,
	} {
		s, err := llm.ParseSchema([]byte(raw))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, err := s.Check(`{"a":"x","b":"y"}`); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzShape(f *testing.F) {
	f.Add(`{"type":"object","properties":{"a":{"$ref":"#/$defs/x"}},"$defs":{"x":{"type":"string"}}}`, `{"a":"x"}`)
	f.Add(`{"$ref":"#"}`, `{}`)
	f.Add(`{"$id":"x","$ref":"x#","$defs":{"a":{"$anchor":"b"}}}`, `{}`)
	f.Add(doubling(4), `{}`)
	f.Fuzz(func(t *testing.T, schema, value string) {
		s, err := llm.ParseSchema([]byte(schema))
		if err != nil {
			if !engi.Is(err, engi.Invalid) {
				t.Errorf("%v", err)
			}
			return
		}
		_, _ = s.Check(value) // must return
	})
}
