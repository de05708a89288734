// Package strict reads JSON requests without forgiving anything: unknown
// fields, fields sent twice, text that is not UTF-8 and anything after the
// value are refused, and the refusal says where each fault is and what was
// probably meant. Package rest reads bodies with it; it knows nothing of HTTP,
// nor of what requests mean.
package strict

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/spelling"
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

// longBody is the size in bytes from which a body is read with [longStrings].
const longBody = 16 << 10

var (
	unknown = json.RejectUnknownMembers(true)
	long    = json.JoinOptions(unknown, longStrings)
)

// Unmarshal reads body into v, a pointer to a struct, or reports an [*Error].
// It finds out what is wrong, and where, only when something is.
func Unmarshal(body []byte, v any) error {
	options := unknown
	if len(body) >= longBody {
		options = long
	}
	err := json.Unmarshal(body, v, options)
	if err == nil {
		return nil
	}
	if syntax, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		return malformed(body, syntax)
	}
	if faults := explain(nil, "", body, reflect.TypeOf(v).Elem()); len(faults) > 0 {
		return &Error{Faults: faults}
	}
	return &Error{Faults: []v1.Fault{{Detail: err.Error()}}}
}

// halfPair matches what the decoder says of a \u escape without its other half.
var halfPair = regexp.MustCompile(`^invalid (surrogate pair|escape sequence) .\\+u[dD][89a-fA-F][0-9a-fA-F]{2}`)

// malformed refuses a body that is not one JSON value.
func malformed(body []byte, e *jsontext.SyntacticError) *Error {
	at := position(body, int(e.ByteOffset))
	text := e.Err.Error()
	switch {
	case len(bytes.TrimSpace(body)) == 0:
		return refuse("send a JSON object; /docs shows one", "the body is empty")
	case !utf8.Valid(body):
		return refuse("send bytes that are not UTF-8 in a field that ends in _base64", "the body is not UTF-8")
	case halfPair.MatchString(text):
		return refuse("send bytes that are not UTF-8 in a field that ends in _base64", "the text at %s has half of a surrogate pair, which is no character", at)
	case errors.Is(e.Err, jsontext.ErrDuplicateName):
		return refuse("send each field once", "the field %q comes twice, again at %s", e.JSONPointer.LastToken(), at)
	case strings.HasSuffix(text, "after top-level value"):
		return refuse("send one JSON object and nothing after it", "there is more after the JSON value, at %s", at)
	case errors.Is(e.Err, io.ErrUnexpectedEOF):
		return refuse("correct the JSON", "the body is not JSON: it ends too early, at %s", at)
	}
	return refuse("correct the JSON", "the body is not JSON: %s at %s", text, at)
}

// position returns where people find the byte at an offset.
func position(body []byte, at int) string {
	at = max(0, min(at, len(body)))
	line := 1 + bytes.Count(body[:at], []byte("\n"))
	column := 1 + utf8.RuneCount(body[bytes.LastIndexByte(body[:at], '\n')+1:at])
	return fmt.Sprintf("line %d, column %d", line, column)
}

// MaxFaults is how many faults of one request are told.
const MaxFaults = 20

// explain returns every fault of raw, which is valid JSON, as a value of type
// t. It follows what the decoder does, which reports the first fault only.
func explain(faults []v1.Fault, path string, raw jsontext.Value, t reflect.Type) []v1.Fault {
	if len(faults) >= MaxFaults || raw.Kind() == 'n' {
		return faults
	}
	add := func(format string, args ...any) []v1.Fault {
		return append(faults, v1.Fault{Field: path, Detail: fmt.Sprintf(format, args...)})
	}
	// An object for a type that has a shorter form too has fields like others.
	if reflect.PointerTo(t).Implements(unmarshalerType) && !(t.Kind() == reflect.Struct && raw.Kind() == '{') {
		if err := json.Unmarshal(raw, reflect.New(t).Interface()); err != nil {
			if e, ok := errors.AsType[*json.SemanticError](err); ok {
				err = e.Err
			}
			return add("%s", err)
		}
		return faults
	}
	switch t.Kind() {
	case reflect.Pointer:
		return explain(faults, path, raw, t.Elem())
	case reflect.Struct:
		var fields map[string]jsontext.Value
		if json.Unmarshal(raw, &fields) != nil {
			return add("want an object, not %s", kind(raw))
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
				if near := spelling.Nearest(name, slices.Sorted(maps.Keys(types))); near != "" {
					detail += fmt.Sprintf("; did you mean %q?", near)
				}
				faults = append(faults, v1.Fault{Field: join(path, name), Detail: detail})
			}
		}
	case reflect.Map:
		var values map[string]jsontext.Value
		if json.Unmarshal(raw, &values) != nil {
			return add("want an object, not %s", kind(raw))
		}
		for _, name := range slices.Sorted(maps.Keys(values)) {
			faults = explain(faults, join(path, name), values[name], t.Elem())
		}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			if raw.Kind() != '"' {
				return add("want base64 in a string, not %s", kind(raw))
			}
			if json.Unmarshal(raw, &[]byte{}) != nil {
				return add("this is not base64")
			}
			return faults
		}
		var values []jsontext.Value
		if json.Unmarshal(raw, &values) != nil {
			return add("want a list, not %s", kind(raw))
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
			return add("want %s, not %s", want, kind(raw))
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

// kind says what kind of JSON value raw is.
func kind(raw jsontext.Value) string {
	switch raw.Kind() {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case 't', 'f':
		return "true or false"
	}
	return fmt.Sprintf("the number %.24s", strings.ToValidUTF8(string(raw), "\uFFFD")) // nobody has looked at what follows yet
}
