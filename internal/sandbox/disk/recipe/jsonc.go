package recipe

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
)

// plainJSON returns JSON with comments and trailing commas replaced by spaces, so
// that offsets and lines stay the same.
func plainJSON(text []byte) []byte {
	out := bytes.Clone(text)
	blank := func(from, to int) {
		for i := from; i < to; i++ {
			if out[i] != '\n' && out[i] != '\r' {
				out[i] = ' '
			}
		}
	}
	if bytes.HasPrefix(out, []byte("\xef\xbb\xbf")) {
		blank(0, 3)
	}
	comma := -1 // offset of the last comma if only space follows it
	for i := 0; i < len(out); {
		switch c := out[i]; {
		case c == '"':
			for i++; i < len(out) && out[i] != '"'; i++ {
				if out[i] == '\\' {
					i++
				}
			}
			comma = -1
		case c == '/' && i+1 < len(out) && (out[i+1] == '/' || out[i+1] == '*'):
			end := bytes.IndexByte(out[i:], '\n')
			if out[i+1] == '*' {
				if end = bytes.Index(out[i+2:], []byte("*/")); end >= 0 {
					end += 4
				}
			}
			if end < 0 {
				end = len(out) - i
			}
			blank(i, i+end)
			i += end
			continue
		case c == ',':
			comma = i
		case c == '}' || c == ']':
			if comma >= 0 {
				out[comma] = ' '
			}
			comma = -1
		case c != ' ' && c != '\t' && c != '\n' && c != '\r':
			comma = -1
		}
		i++
	}
	return out
}

// A member is a key of a JSON object with its value.
type member struct {
	key   string
	value json.RawMessage
	line  int // line of the key
}

// members returns the members of a JSON object, in their order. Of a broken object, it
// returns the members before the fault. first is the line where the object begins.
func members(text []byte, first int) (all []member, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	counted, lines := int64(0), first
	line := func() int {
		to := min(d.InputOffset(), int64(len(text)))
		lines += bytes.Count(text[counted:to], []byte("\n"))
		counted = to
		return lines
	}
	fail := func(err error) error {
		at := line()
		if s, ok := errors.AsType[*json.SyntaxError](err); ok {
			at = first + bytes.Count(text[:min(s.Offset, int64(len(text)))], []byte("\n"))
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return invalid("line %d: the JSON ends too early", at)
		}
		return invalid("line %d: this is not JSON: %v", at, err)
	}
	t, err := d.Token()
	if err != nil {
		return nil, fail(err)
	}
	if t != json.Delim('{') {
		return nil, invalid("line %d: this must be an object", line())
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return all, fail(err)
		}
		key, ok := t.(string)
		if !ok {
			return all, invalid("line %d: a key must be in quotes", line())
		}
		m := member{key: key, line: line()}
		if err := d.Decode(&m.value); err != nil {
			return all, fail(err)
		}
		all = append(all, m)
	}
	if _, err := d.Token(); err != nil {
		return all, fail(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return all, invalid("line %d: there is text after the object", line())
	}
	return all, nil
}
