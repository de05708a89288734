// Package strict reads JSON requests without forgiving anything: unknown
// fields, text that is no text and anything after the value are refused, and
// the refusal says where each fault is and what was probably meant. Package
// rest reads bodies with it; it knows nothing of HTTP, nor of what requests
// mean.
package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/engi-dev/engi/api/v1"
)

// An Error says what is wrong with a body: a text with its remedy about the
// whole, or Faults of its fields.
type Error struct {
	Text   string
	Remedy string
	Faults []v1.Fault // at most MaxFaults; empty if Text says it
}

// Error returns the text, or the first fault.
func (e *Error) Error() string {
	if len(e.Faults) == 0 {
		return e.Text
	}
	text := e.Faults[0].Detail
	if field := e.Faults[0].Field; field != "" {
		text = field + ": " + text
	}
	if more := len(e.Faults) - 1; more > 0 {
		text = fmt.Sprintf("%s (and %d more)", text, more)
	}
	return text
}

func refuse(remedy, format string, args ...any) *Error {
	return &Error{Text: fmt.Sprintf(format, args...), Remedy: remedy}
}

// Unmarshal reads body into v, a pointer to a struct, or reports an [*Error].
// It finds out what is wrong, and where, only when something is.
func Unmarshal(body []byte, v any) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return refuse("send a JSON object; /docs shows one", "the body is empty")
	}
	if !utf8.Valid(body) {
		return refuse("send bytes that are not UTF-8 in a field that ends in _base64", "the body is not UTF-8")
	}
	if at := loneSurrogate(body); at >= 0 {
		return refuse("send bytes that are not UTF-8 in a field that ends in _base64", "the text at %s has half of a surrogate pair, which is no character", position(body, at))
	}
	if q, ok := v.(*v1.ExecutionRequest); ok && len(body) >= longBody && hoist(body, q) {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	err := dec.Decode(v)
	if err == nil {
		if rest := bytes.TrimSpace(body[dec.InputOffset():]); len(rest) > 0 {
			return refuse("send one JSON object and nothing after it", "there is more after the JSON value, at %s", position(body, int(dec.InputOffset())))
		}
		return nil
	}
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return refuse("correct the JSON", "the body is not JSON: %s at %s", syntax.Error(), position(body, int(syntax.Offset)-1))
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return refuse("correct the JSON", "the body is not JSON: it ends too early, at %s", position(body, len(body)))
	}
	if faults := explain(nil, "", body, reflect.TypeOf(v).Elem()); len(faults) > 0 {
		return &Error{Faults: faults}
	}
	return &Error{Faults: []v1.Fault{{Detail: err.Error()}}}
}

// position returns where people find the byte at an offset.
func position(body []byte, at int) string {
	at = max(0, min(at, len(body)))
	line := 1 + bytes.Count(body[:at], []byte("\n"))
	column := 1 + utf8.RuneCount(body[bytes.LastIndexByte(body[:at], '\n')+1:at])
	return fmt.Sprintf("line %d, column %d", line, column)
}

// loneSurrogate returns the offset of a \u escape that is half of a pair, or
// -1. encoding/json would silently replace it, and so change a program.
func loneSurrogate(body []byte) int {
	high := -1 // offset of a high half that waits for its low one
	for i := 0; ; {
		n := bytes.IndexByte(body[i:], '\\')
		if n < 0 || i+n+6 > len(body) || high >= 0 && n > 0 {
			return high
		}
		i += n
		code := uint64(0)
		if body[i+1] == 'u' {
			code, _ = strconv.ParseUint(string(body[i+2:i+6]), 16, 16)
		}
		switch isLow := code >= 0xdc00 && code < 0xe000; {
		case isLow && high < 0:
			return i
		case !isLow && high >= 0:
			return high
		case isLow:
			high = -1
		case code >= 0xd800 && code < 0xdc00:
			high = i
		}
		if body[i+1] == 'u' {
			i += 6
		} else {
			i += 2
		}
	}
}

// MaxFaults is how many faults of one request are told.
const MaxFaults = 20

// explain returns every fault of raw as a value of type t. It follows what
// encoding/json does, but says where and what.
func explain(faults []v1.Fault, path string, raw json.RawMessage, t reflect.Type) []v1.Fault {
	if len(faults) >= MaxFaults || string(raw) == "null" {
		return faults
	}
	add := func(format string, args ...any) []v1.Fault {
		return append(faults, v1.Fault{Field: path, Detail: fmt.Sprintf(format, args...)})
	}
	// An object for a type that has a shorter form too has fields like others.
	if reflect.PointerTo(t).Implements(unmarshalerType) && !(t.Kind() == reflect.Struct && raw[0] == '{') {
		if err := json.Unmarshal(raw, reflect.New(t).Interface()); err != nil {
			return add("%s", err)
		}
		return faults
	}
	switch t.Kind() {
	case reflect.Pointer:
		return explain(faults, path, raw, t.Elem())
	case reflect.Struct:
		var fields map[string]json.RawMessage
		if json.Unmarshal(raw, &fields) != nil {
			return add("want an object, not %s", sort(raw))
		}
		types := map[string]reflect.Type{}
		for _, f := range reflect.VisibleFields(t) {
			if f.Anonymous {
				continue // its fields are there too
			}
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			types[name] = f.Type
		}
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			if ft, ok := types[name]; ok {
				faults = explain(faults, join(path, name), fields[name], ft)
			} else {
				detail := "there is no such field"
				if near := Nearest(name, slices.Sorted(maps.Keys(types))); near != "" {
					detail += fmt.Sprintf("; did you mean %q?", near)
				}
				faults = append(faults, v1.Fault{Field: join(path, name), Detail: detail})
			}
		}
	case reflect.Map:
		var values map[string]json.RawMessage
		if json.Unmarshal(raw, &values) != nil {
			return add("want an object, not %s", sort(raw))
		}
		for _, name := range slices.Sorted(maps.Keys(values)) {
			faults = explain(faults, join(path, name), values[name], t.Elem())
		}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			if raw[0] != '"' {
				return add("want base64 in a string, not %s", sort(raw))
			}
			if json.Unmarshal(raw, &[]byte{}) != nil {
				return add("this is not base64")
			}
			return faults
		}
		var values []json.RawMessage
		if json.Unmarshal(raw, &values) != nil {
			return add("want a list, not %s", sort(raw))
		}
		for i, value := range values {
			faults = explain(faults, path+"["+strconv.Itoa(i)+"]", value, t.Elem())
		}
	default:
		if json.Unmarshal(raw, reflect.New(t).Interface()) != nil {
			want := map[reflect.Kind]string{reflect.String: "a string", reflect.Bool: "true or false", reflect.Float64: "a number"}[t.Kind()]
			if want == "" {
				want = "a whole number"
			}
			return add("want %s, not %s", want, sort(raw))
		}
	}
	return faults
}

var unmarshalerType = reflect.TypeFor[json.Unmarshaler]()

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// sort says what kind of JSON value raw is.
func sort(raw json.RawMessage) string {
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case 't', 'f':
		return "true or false"
	}
	return fmt.Sprintf("the number %.24s", raw)
}

// Nearest returns the candidate that a person who wrote name probably meant;
// empty if none is near.
func Nearest(name string, candidates []string) string {
	best, least := "", 1+max(1, len(name)/3)
	for _, c := range candidates {
		d := distance(strings.ToLower(name), c)
		if len(name) >= 3 && strings.HasPrefix(c, strings.ToLower(name)) {
			d = 1
		}
		if d < least {
			best, least = c, d
		}
	}
	return best
}

// distance is the number of letters to insert, delete, replace or swap with
// their neighbour to get from a to b.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return len(a) + len(b)
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
