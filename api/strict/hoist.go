package strict

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/engi-dev/engi/api/v1"
)

// encoding/json looks at each byte of a body several times, one by one: 10 ms
// for 1 MiB. What makes a request large are a few long strings. They are
// taken out first, and the rest is read as always. Whatever is not quite
// plain is left to the reader that knows everything.

const (
	longBody   = 16 << 10 // bytes of a body that are worth it
	longString = 1 << 10  // bytes of a string that are
)

// A hoister takes long strings out of a body. It is used once.
type hoister struct {
	body []byte
	rest []byte // the body with "" for what was taken out
	done int    // bytes of body that are in rest, or were taken out

	code, stdin string
	stdinBytes  []byte
	files       map[int]hoisted
}

type hoisted struct {
	text  string
	bytes []byte
}

// hoist reads body, which is UTF-8 without half surrogate pairs, as a
// request. It returns false if somebody else has to.
func hoist(body []byte, q *v1.ExecutionRequest) bool {
	h := hoister{body: body, files: map[int]hoisted{}}
	end, ok := h.request(space(body, 0))
	if !ok || space(body, end) != len(body) {
		return false
	}
	h.rest = append(h.rest, body[h.done:]...)
	dec := json.NewDecoder(bytes.NewReader(h.rest))
	dec.DisallowUnknownFields()
	var v v1.ExecutionRequest
	if dec.Decode(&v) != nil {
		return false
	}
	if h.code != "" {
		v.Code = h.code
	}
	if h.stdin != "" {
		v.Stdin = h.stdin
	}
	if h.stdinBytes != nil {
		v.StdinBase64 = h.stdinBytes
	}
	for i, f := range h.files {
		if f.text != "" {
			v.Files[i].Content = f.text
		}
		if f.bytes != nil {
			v.Files[i].ContentBase64 = f.bytes
		}
	}
	*q = v
	return true
}

func (h *hoister) request(at int) (end int, ok bool) {
	return h.object(at, []string{"code", "stdin", "stdin_base64", "files"}, func(key string, at int) (int, bool) {
		switch key {
		case "code":
			return h.text(at, &h.code)
		case "stdin":
			return h.text(at, &h.stdin)
		case "stdin_base64":
			return h.base64(at, &h.stdinBytes)
		}
		return h.list(at)
	})
}

func (h *hoister) list(at int) (end int, ok bool) {
	if at == len(h.body) || h.body[at] != '[' {
		return 0, false
	}
	at = space(h.body, at+1)
	for i := 0; at < len(h.body) && h.body[at] == '{'; i++ {
		var f hoisted
		at, ok = h.object(at, []string{"content", "content_base64"}, func(key string, at int) (int, bool) {
			if key == "content" {
				return h.text(at, &f.text)
			}
			return h.base64(at, &f.bytes)
		})
		if !ok {
			return 0, false
		}
		if f.text != "" || f.bytes != nil {
			h.files[i] = f
		}
		if at = space(h.body, at); at < len(h.body) && h.body[at] == ',' {
			at = space(h.body, at+1)
		}
	}
	// A comma too many or too few is in rest as well, and is found there.
	if at == len(h.body) || h.body[at] != ']' {
		return 0, false
	}
	return at + 1, true
}

// object walks the object at at. take gets the values of the keys that are
// wanted, and returns where they end; a key that comes twice, or in other
// letters, is not plain.
func (h *hoister) object(at int, wanted []string, take func(key string, at int) (int, bool)) (end int, ok bool) {
	b := h.body
	if at == len(b) || b[at] != '{' {
		return 0, false
	}
	seen := make(map[string]bool, len(wanted))
	for at = space(b, at+1); at < len(b) && b[at] == '"'; {
		stop := stringEnd(b, at)
		if stop < 0 {
			return 0, false
		}
		key := string(b[at+1 : stop-1])
		if strings.Contains(key, `\`) {
			return 0, false
		}
		at = space(b, stop)
		if at == len(b) || b[at] != ':' {
			return 0, false
		}
		at = space(b, at+1)
		if i := slices.IndexFunc(wanted, func(w string) bool { return strings.EqualFold(w, key) }); i < 0 {
			at = skip(b, at)
			ok = at >= 0
		} else if wanted[i] != key || seen[key] {
			return 0, false
		} else {
			seen[key] = true
			at, ok = take(key, at)
		}
		if !ok {
			return 0, false
		}
		if at = space(b, at); at < len(b) && b[at] == ',' {
			at = space(b, at+1)
		}
	}
	if at == len(b) || b[at] != '}' {
		return 0, false
	}
	return at + 1, true
}

// take moves the string at at out of the body if it is long; raw is nil if it
// stays.
func (h *hoister) take(at int) (raw []byte, end int, ok bool) {
	if at == len(h.body) || h.body[at] != '"' {
		return nil, 0, false
	}
	if end = stringEnd(h.body, at); end < 0 {
		return nil, 0, false
	}
	if end-at < longString {
		return nil, end, true
	}
	h.rest = append(append(h.rest, h.body[h.done:at]...), '"', '"')
	h.done = end
	return h.body[at+1 : end-1], end, true
}

func (h *hoister) text(at int, to *string) (end int, ok bool) {
	raw, end, ok := h.take(at)
	if ok && raw != nil {
		*to, ok = unescape(raw)
	}
	return end, ok
}

func (h *hoister) base64(at int, to *[]byte) (end int, ok bool) {
	raw, end, ok := h.take(at)
	if ok && raw != nil {
		if bytes.ContainsAny(raw, "\\\r\n") {
			return 0, false
		}
		data := make([]byte, base64.StdEncoding.DecodedLen(len(raw)))
		n, err := base64.StdEncoding.Decode(data, raw)
		*to, ok = data[:n], err == nil
	}
	return end, ok
}

// space returns where the next byte is that is no space.
func space(b []byte, at int) int {
	for at < len(b) && (b[at] == ' ' || b[at] == '\n' || b[at] == '\t' || b[at] == '\r') {
		at++
	}
	return at
}

// stringEnd returns the end of the string that begins at at, or -1.
func stringEnd(b []byte, at int) int {
	for i := at + 1; ; i++ {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			return -1
		}
		i += n
		escapes := 0
		for b[i-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return i + 1
		}
	}
}

// skip returns the end of the value at at, or -1; rest has it too, where it
// is held to all rules.
func skip(b []byte, at int) int {
	for depth := 0; at < len(b); {
		switch b[at] {
		case '"':
			if at = stringEnd(b, at); at < 0 {
				return -1
			}
		case '[', '{':
			depth++
			at++
		case ']', '}':
			depth--
			at++
		default:
			at++
			if depth == 0 { // a number or word: up to what ends it
				for at < len(b) && !bytes.ContainsRune([]byte(" \n\t\r,]}"), rune(b[at])) {
					at++
				}
			}
		}
		if depth == 0 {
			return at
		}
		if depth < 0 {
			return -1
		}
	}
	return -1
}

var plainEscapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// unescape returns the text of what is between the quotes of a JSON string.
func unescape(raw []byte) (string, bool) {
	for _, c := range raw {
		if c < ' ' {
			return "", false
		}
	}
	var out strings.Builder
	out.Grow(len(raw))
	for {
		n := bytes.IndexByte(raw, '\\')
		if n < 0 {
			out.Write(raw)
			return out.String(), true
		}
		out.Write(raw[:n])
		if raw = raw[n+1:]; len(raw) == 0 {
			return "", false // unreachable: stringEnd counts escapes
		}
		if c := plainEscapes[raw[0]]; c != 0 {
			out.WriteByte(c)
			raw = raw[1:]
			continue
		}
		r, ok := codeUnit(raw)
		if !ok {
			return "", false
		}
		raw = raw[5:]
		if utf16.IsSurrogate(r) {
			if len(raw) == 0 || raw[0] != '\\' {
				return "", false
			}
			low, ok := codeUnit(raw[1:])
			if r = utf16.DecodeRune(r, low); !ok || r == utf8.RuneError {
				return "", false
			}
			raw = raw[6:]
		}
		out.WriteRune(r)
	}
}

// codeUnit reads uXXXX.
func codeUnit(raw []byte) (rune, bool) {
	if len(raw) < 5 || raw[0] != 'u' || raw[1] == '+' || raw[1] == '-' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(raw[1:5]), 16, 16)
	return rune(n), err == nil
}
