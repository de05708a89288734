package llm

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestHalf(t *testing.T) {
	for text, want := range map[string]string{
		``:                        ``,
		`  `:                      ``,
		`{`:                       `{}`,
		`{"na`:                    `{}`,
		`{"name"`:                 `{}`,
		`{"name":`:                `{}`,
		`{"name":"K`:              `{"name":"K"}`,
		`{"name":"K\`:             `{"name":"K"}`,
		`{"name":"K\\`:            `{"name":"K\\"}`,
		`{"name":"K\u00f`:         `{"name":"K"}`,
		`{"name":"K\u00f6`:        `{"name":"Kö"}`,
		"{\"name\":\"K\xc3":       `{"name":"K"}`,
		`{"name":"Köln",`:         `{"name":"Köln"}`,
		`{"name":"Köln","n":12`:   `{"name":"Köln"}`,
		`{"name":"Köln","n":12,`:  `{"name":"Köln","n":12}`,
		`{"n":tru`:                `{}`,
		`{"n":true,"m":[1,2,{"a"`: `{"n":true,"m":[1,2,{}]}`,
		`["a","b`:                 `["a","b"]`,
		`"abc`:                    `"abc"`,
		`{"a":[}`:                 ``,
		`]`:                       ``,
		`not JSON`:                ``,
		strings.Repeat("[", 1000): ``,
	} {
		v, ok := half([]byte(text))
		var w any
		if want != "" {
			if err := json.Unmarshal([]byte(want), &w); err != nil {
				t.Fatal(err)
			}
		}
		if ok != (want != "") || ok && !reflect.DeepEqual(v, w) {
			t.Errorf("half(%.40q) = %v %v, want %s", text, v, ok, want)
		}
	}
}

// FuzzHalf checks that each prefix of a JSON object or list gives a value which
// the next prefix only adds to, and that other text does no harm.
func FuzzHalf(f *testing.F) {
	f.Add(`{"a":"b\"\u00e9é","n":[1,-2.5e3,true,null,{"x":{}}],"s":""}`)
	f.Add(`[[["]"]],"{"]`)
	f.Add(`{"a":`)
	f.Add("\"\xff\\")
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 2000 {
			return
		}
		var whole any
		valid := json.Unmarshal([]byte(text), &whole) == nil && utf8.ValidString(text) && len(text) > 0 && (text[0] == '{' || text[0] == '[')
		seen := 0
		for i := 1; i <= len(text); i++ {
			v, ok := half([]byte(text[:i]))
			if !valid {
				continue
			}
			if !ok {
				if strings.Count(text[:i], "[")+strings.Count(text[:i], "{") < 200 {
					t.Fatalf("%q gives nothing", text[:i])
				}
				return
			}
			if n := leaves(v); n < seen && !repeats(text) {
				t.Fatalf("%q gives %v, less than before", text[:i], v)
			} else {
				seen = n
			}
		}
		if valid {
			if v, _ := half([]byte(text)); !reflect.DeepEqual(v, whole) {
				t.Fatalf("%q gives %v, not %v", text, v, whole)
			}
		}
	})
}

// leaves counts values.
func leaves(v any) int {
	n := 1
	switch v := v.(type) {
	case map[string]any:
		for _, e := range v {
			n += leaves(e)
		}
	case []any:
		for _, e := range v {
			n += leaves(e)
		}
	}
	return n
}

// repeats reports whether names may occur twice, so that a later value replaces
// an earlier one.
func repeats(text string) bool {
	dec := json.NewDecoder(strings.NewReader(text))
	seen := map[any]bool{}
	for {
		t, err := dec.Token()
		if err != nil {
			return false
		}
		if s, ok := t.(string); ok {
			if seen[s] {
				return true
			}
			seen[s] = true
		}
	}
}
