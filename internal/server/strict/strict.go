// Package strict decodes JSON requests strictly: unknown
// fields, duplicate fields, invalid UTF-8 and data after the
// value are refused, and the error names the place of each fault and the probable
// intention. Package rest decodes bodies with it. The package does not depend on HTTP
// or on the meaning of requests.
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
	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/spelling"
)

// An Error describes the faults of a body: a Text with its remedy about the
// whole body, or Faults of its fields.
type Error struct {
	Text   string
	Remedy string
	Faults []v1.Fault // at most MaxFaults; empty if Text is set
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

// longBody is the size in bytes from which [longStrings] is used.
const longBody = 16 << 10

var (
	unknown = json.RejectUnknownMembers(true)
	long    = json.JoinOptions(unknown, longStrings)
)

// Unmarshal decodes body into v, a pointer to a struct, or reports an [*Error].
// It searches for the places of faults only after the decoder has failed.
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
	if faults := explain(body, reflect.TypeOf(v).Elem()); len(faults) > 0 {
		return &Error{Faults: faults}
	}
	return &Error{Faults: []v1.Fault{{Detail: clip.Text(err.Error(), maxShown)}}}
}

// halfPair matches the decoder's error for a \u escape without its other half.
var halfPair = regexp.MustCompile(`^invalid (surrogate pair|escape sequence) .\\+u[dD][89a-fA-F][0-9a-fA-F]{2}`)

// malformed returns the error for a body that is not one JSON value.
func malformed(body []byte, e *jsontext.SyntacticError) *Error {
	at := position(body, int(e.ByteOffset))
	text := e.Err.Error()
	switch {
	case len(bytes.TrimSpace(body)) == 0:
		return refuse("send a JSON object; /docs has an example", "the body is empty")
	case !utf8.Valid(body):
		return refuse("send bytes that are not UTF-8 in a field that ends in _base64", "the body is not UTF-8")
	case halfPair.MatchString(text):
		return refuse("send bytes that are not UTF-8 in a field that ends in _base64", "the text at %s has half of a surrogate pair, which is not a character", at)
	case errors.Is(e.Err, jsontext.ErrDuplicateName):
		return refuse("send each field once", "the field %q is repeated at %s", clip.Text(e.JSONPointer.LastToken(), maxShown), at)
	case strings.HasSuffix(text, "after top-level value"):
		return refuse("send one JSON object, with no text after it", "there is more after the JSON value, at %s", at)
	case errors.Is(e.Err, io.ErrUnexpectedEOF):
		return refuse("correct the JSON", "the body is not JSON: it ends too early, at %s", at)
	}
	return refuse("correct the JSON", "the body is not JSON: %s at %s", clip.Text(text, maxShown), at)
}

// position returns the line and column of the byte at an offset.
func position(body []byte, at int) string {
	at = max(0, min(at, len(body)))
	line := 1 + bytes.Count(body[:at], []byte("\n"))
	column := 1 + utf8.RuneCount(body[bytes.LastIndexByte(body[:at], '\n')+1:at])
	return fmt.Sprintf("line %d, column %d", line, column)
}

// MaxFaults is the maximum number of faults reported for one request.
const MaxFaults = 20

// maxShown is the maximum number of bytes of a name or an explanation in a fault.
const maxShown = 200

// explain returns the faults of body as a value of type t, in their order, at most
// MaxFaults. It follows the decoder, which reports only the first
// fault, in one pass that ends with the last reported fault. So the time
// is linear, and bounded for a body with many faults.
func explain(body []byte, t reflect.Type) []v1.Fault {
	x := explainer{
		// The decoder refuses duplicate names; a check for them here would
		// need memory for each name.
		dec:    jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true)),
		fields: map[reflect.Type]fields{},
	}
	x.value("", t)
	return x.faults
}

type explainer struct {
	dec    *jsontext.Decoder
	fields map[reflect.Type]fields
	faults []v1.Fault
}

// fields holds the fields of a struct.
type fields struct {
	types map[string]reflect.Type
	names []string
}

func (x *explainer) fieldsOf(t reflect.Type) fields {
	if f, ok := x.fields[t]; ok {
		return f
	}
	f := fields{types: map[string]reflect.Type{}}
	for _, field := range reflect.VisibleFields(t) {
		if field.Anonymous {
			continue // its fields are promoted to this struct
		}
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		f.types[name] = field.Type
	}
	f.names = slices.Sorted(maps.Keys(f.types))
	x.fields[t] = f
	return f
}

// add adds a fault and reports whether more faults may be added.
func (x *explainer) add(path, format string, args ...any) bool {
	x.faults = append(x.faults, v1.Fault{Field: path, Detail: clip.Text(fmt.Sprintf(format, args...), maxShown)})
	return len(x.faults) < MaxFaults
}

// value explains the next value as one of type t. It reports whether there is
// more to explain, which is false after the last reported fault, and in
// broken JSON.
func (x *explainer) value(path string, t reflect.Type) bool {
	next := x.dec.PeekKind()
	if next == 'n' {
		return x.dec.SkipValue() == nil
	}
	// An object for a type that also has a shorter form has fields like other objects.
	if reflect.PointerTo(t).Implements(unmarshalerType) && !(t.Kind() == reflect.Struct && next == '{') {
		raw, err := x.dec.ReadValue()
		if err != nil {
			return false
		}
		if err := json.Unmarshal(raw, reflect.New(t).Interface()); err != nil {
			if e, ok := errors.AsType[*json.SemanticError](err); ok {
				err = e.Err
			}
			return x.add(path, "%s", err)
		}
		return true
	}
	switch t.Kind() {
	case reflect.Pointer:
		return x.value(path, t.Elem())
	case reflect.Struct, reflect.Map:
		if next != '{' {
			return x.other(path, "want an object, not %s")
		}
		return x.members(path, t)
	case reflect.Slice:
		switch {
		case t.Elem().Kind() == reflect.Uint8 && next != '"':
			return x.other(path, "want base64 in a string, not %s")
		case t.Elem().Kind() == reflect.Uint8:
			raw, err := x.dec.ReadValue()
			if err == nil && json.Unmarshal(raw, &[]byte{}) != nil {
				return x.add(path, "this is not base64")
			}
			return err == nil
		case next != '[':
			return x.other(path, "want a list, not %s")
		}
		if _, err := x.dec.ReadToken(); err != nil {
			return false
		}
		for i := 0; x.dec.PeekKind() != ']'; i++ {
			if !x.value(path+"["+strconv.Itoa(i)+"]", t.Elem()) {
				return false
			}
		}
		_, err := x.dec.ReadToken()
		return err == nil
	}
	raw, err := x.dec.ReadValue()
	if err != nil {
		return false
	}
	if json.Unmarshal(raw, reflect.New(t).Interface()) != nil {
		want := map[reflect.Kind]string{reflect.String: "a string", reflect.Bool: "true or false", reflect.Float64: "a number"}[t.Kind()]
		if want == "" {
			want = "a whole number"
		}
		return x.add(path, "want %s, not %s", want, kind(raw))
	}
	return true
}

// members explains an object as a struct or a map.
func (x *explainer) members(path string, t reflect.Type) bool {
	if _, err := x.dec.ReadToken(); err != nil {
		return false
	}
	for x.dec.PeekKind() != '}' {
		token, err := x.dec.ReadToken()
		if err != nil {
			return false
		}
		name := token.String()
		at := clip.Text(name, maxShown)
		if path != "" {
			at = path + "." + at
		}
		if t.Kind() == reflect.Map {
			if !x.value(at, t.Elem()) {
				return false
			}
			continue
		}
		of := x.fieldsOf(t)
		if ft, ok := of.types[name]; ok {
			if !x.value(at, ft) {
				return false
			}
			continue
		}
		detail := "there is no such field"
		if near := spelling.Nearest(name, of.names); near != "" {
			detail += fmt.Sprintf("; did you mean %q?", near)
		}
		if !x.add(at, "%s", detail) || x.dec.SkipValue() != nil {
			return false
		}
	}
	_, err := x.dec.ReadToken()
	return err == nil
}

// other adds the fault that the next value is of the wrong kind; format has a place for the
// value's kind.
func (x *explainer) other(path, format string) bool {
	raw, err := x.dec.ReadValue()
	return err == nil && x.add(path, format, kind(raw))
}

var unmarshalerType = reflect.TypeFor[json.Unmarshaler]()

// kind returns a text for the kind of the JSON value raw.
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
	return fmt.Sprintf("the number %.24s", strings.ToValidUTF8(string(raw), "\uFFFD")) // the rest of the value was not checked yet
}
