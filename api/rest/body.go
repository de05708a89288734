package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/api/v1"
)

// decode reads the body of r as a T, strictly: unknown fields, text that is
// not UTF-8 and anything after the value are refused.
func decode[T any](s *server, w http.ResponseWriter, r *http.Request) (T, error) {
	var v T
	if err := checkContentType(r); err != nil {
		return v, err
	}
	body, err := s.read(w, r)
	if err != nil {
		return v, err
	}
	defer s.held.Add(-int64(len(body)))
	if err := unmarshal(body, &v); err != nil {
		return v, err
	}
	return v, nil
}

func checkContentType(r *http.Request) error {
	given := r.Header.Get("Content-Type")
	if given == "" || given == "application/json" {
		return nil
	}
	kind, params, err := mime.ParseMediaType(given)
	if err != nil || kind != "application/json" && !strings.HasSuffix(kind, "+json") {
		return refuse(http.StatusUnsupportedMediaType, "send JSON with 'Content-Type: application/json'",
			"a body of type %.80q cannot be read", given)
	}
	if cs := params["charset"]; cs != "" && !strings.EqualFold(cs, "utf-8") {
		return refuse(http.StatusUnsupportedMediaType, "send JSON in UTF-8", "a body in %.40q cannot be read", cs)
	}
	return nil
}

// read returns the body of r, which counts as held until the caller says
// otherwise. On an error nothing is held.
func (s *server) read(w http.ResponseWriter, r *http.Request) (_ []byte, err error) {
	if r.ContentLength > s.maxBody {
		return nil, s.tooLarge(w, r)
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyTime)) // tests have writers without deadlines
	defer func() { _ = rc.SetReadDeadline(time.Time{}) }()

	var buf bytes.Buffer
	defer func() {
		if err != nil {
			s.held.Add(-int64(buf.Len()))
		}
	}()
	if n := min(r.ContentLength, 1<<20); n > 0 {
		buf.Grow(int(n) + bytes.MinRead)
	}
	for {
		n, err := io.CopyN(&buf, r.Body, min(1<<20, s.maxBody+1-int64(buf.Len())))
		if held := s.held.Add(n); held > s.maxHeld {
			return nil, engi.Errorf(engi.Exhausted, "the server is reading too many large requests already").
				WithRetry(engi.Retry{AfterMillis: 1000})
		}
		switch {
		case int64(buf.Len()) > s.maxBody:
			return nil, s.tooLarge(w, r)
		case errors.Is(err, io.EOF):
			return buf.Bytes(), nil
		case err != nil && r.Context().Err() != nil:
			return nil, engi.Errorf(engi.Expired, "the caller left while sending its request")
		case err != nil:
			return nil, refuse(http.StatusRequestTimeout, "send the body faster, or in smaller parts", "reading the body: %v", err)
		}
	}
}

// tooLarge refuses a body. Most clients listen only when they have sent
// everything, so the rest is read and thrown away, within reason; a client
// that asked before sending is told at once.
func (s *server) tooLarge(w http.ResponseWriter, r *http.Request) error {
	if r.Header.Get("Expect") == "" {
		rc := http.NewResponseController(w)
		_ = rc.SetReadDeadline(time.Now().Add(5 * time.Second))
		_, err := io.CopyN(io.Discard, r.Body, 128<<20)
		if !errors.Is(err, io.EOF) {
			w.Header().Set("Connection", "close")
		}
		_ = rc.SetReadDeadline(time.Time{})
	}
	return refuse(http.StatusRequestEntityTooLarge,
		"put large data into the template, or fetch it in parts", "the body is larger than the %s this server accepts", v1.Bytes(s.maxBody))
}

// unmarshal is strict. It finds out what is wrong, and where, only when
// something is.
func unmarshal(body []byte, v any) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return refuse(0, "send a JSON object; /docs shows one", "the body is empty")
	}
	if !utf8.Valid(body) {
		return refuse(0, "send bytes that are not UTF-8 in a field that ends in _base64", "the body is not UTF-8")
	}
	if at := loneSurrogate(body); at >= 0 {
		return refuse(0, "send bytes that are not UTF-8 in a field that ends in _base64",
			"the text at %s has half of a surrogate pair, which is no character", position(body, at))
	}
	if q, ok := v.(*v1.ExecutionRequest); ok && len(body) >= longBody && hoist(body, q) {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	err := dec.Decode(v)
	if err == nil {
		if rest := bytes.TrimSpace(body[dec.InputOffset():]); len(rest) > 0 {
			return refuse(0, "send one JSON object and nothing after it", "there is more after the JSON value, at %s", position(body, int(dec.InputOffset())))
		}
		return nil
	}
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return refuse(0, "correct the JSON", "the body is not JSON: %s at %s", syntax.Error(), position(body, int(syntax.Offset)-1))
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return refuse(0, "correct the JSON", "the body is not JSON: it ends too early, at %s", position(body, len(body)))
	}
	if faults := explain(nil, "", body, reflect.TypeOf(v).Elem()); len(faults) > 0 {
		return invalid(faults)
	}
	return invalid([]v1.Fault{{Detail: err.Error()}})
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

// maxFaults is how many faults of one request are told.
const maxFaults = 20

// explain returns every fault of raw as a value of type t. It follows what
// encoding/json does, but says where and what.
func explain(faults []v1.Fault, path string, raw json.RawMessage, t reflect.Type) []v1.Fault {
	if len(faults) >= maxFaults || string(raw) == "null" {
		return faults
	}
	add := func(format string, args ...any) []v1.Fault {
		return append(faults, v1.Fault{Field: path, Detail: fmt.Sprintf(format, args...)})
	}
	if reflect.PointerTo(t).Implements(unmarshalerType) {
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
		for f := range t.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			types[name] = f.Type
		}
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			if ft, ok := types[name]; ok {
				faults = explain(faults, join(path, name), fields[name], ft)
			} else {
				detail := "there is no such field"
				if near := nearest(name, slices.Sorted(maps.Keys(types))); near != "" {
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

// nearest returns the candidate that a person who wrote name probably meant;
// empty if none is near.
func nearest(name string, candidates []string) string {
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
