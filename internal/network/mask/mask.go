// Package mask overwrites secret values in text and streams, both unencoded and in
// the encodings in which servers repeat them. It does not know which values are
// secret: its callers do, such as package secret.
package mask

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"html"
	"io"
	"net/url"
	"slices"
	"strings"
)

const (
	// MinLength is the minimum length of masked text. Shorter values would
	// match everywhere.
	MinLength = 6
	maskByte  = '*'
)

// Forms returns the encodings in which a value may appear in a response: unencoded,
// escaped for URLs, JSON and HTML, in hexadecimal and in base64, even as part
// of a longer text. A value that is too short has no forms.
func Forms(value string) [][]byte {
	lower := func(s string) string { // lowers only percent escapes
		b := []byte(s)
		for i := 0; i+2 < len(b); i++ {
			if b[i] == '%' {
				copy(b[i+1:], bytes.ToLower(b[i+1:i+3]))
			}
		}
		return string(b)
	}
	quoted := func(escape bool) string {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(escape)
		if e.Encode(value) != nil {
			return value
		}
		return strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(b.String()), `"`), `"`)
	}
	digits := hex.EncodeToString([]byte(value))
	texts := []string{
		value, url.QueryEscape(value), lower(url.QueryEscape(value)), url.PathEscape(value), lower(url.PathEscape(value)),
		quoted(true), quoted(false), html.EscapeString(value), digits, strings.ToUpper(digits),
	}
	for skip := range 3 {
		raw := append(make([]byte, skip), value...)
		// The first and the last digit may depend on neighbouring bytes.
		first, last := (skip*8+5)/6, len(raw)*8/6
		for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			if text := enc.EncodeToString(raw); first < last {
				texts = append(texts, text[first:last])
			}
		}
	}
	for _, t := range texts {
		if strings.Contains(t, "/") {
			texts = append(texts, strings.ReplaceAll(t, "/", `\/`))
		}
	}
	var forms [][]byte
	slices.Sort(texts)
	for _, t := range slices.Compact(texts) {
		if len(t) >= MinLength && len(value) >= MinLength {
			forms = append(forms, []byte(t))
		}
	}
	return forms
}

// A masker overwrites forms in a stream byte by byte, so that lengths do not
// change. The zero value overwrites nothing.
//
// A possible beginning of a form is held back until more bytes arrive, except for
// a few bytes: otherwise event streams would stall at each byte with which a value
// begins.
type masker struct {
	forms    [][]byte
	pending  []byte // the last bytes of the stream, which may begin a form
	masked   []byte // the same bytes, masked
	released int    // number of pending bytes that were already returned
}

// next adds part to the stream and returns the bytes that can be passed on. If end is set,
// the stream is complete and all bytes are returned.
func (m *masker) next(part []byte, end bool) []byte {
	if len(m.forms) == 0 {
		return part
	}
	m.pending = append(m.pending, part...)
	m.masked = append(m.masked, part...)
	old := len(m.pending) - len(part)
	for _, f := range m.forms {
		// Only matches that end in part are new.
		from := max(old-len(f)+1, 0)
		for {
			at := bytes.Index(m.pending[from:], f)
			if at < 0 {
				break
			}
			at += from
			for n := at; n < at+len(f); n++ {
				m.masked[n] = maskByte
			}
			from = at + 1
		}
	}
	hold := 0
	if !end {
		hold = m.heldBack()
	}
	keep := len(m.pending) - hold
	free := keep
	if hold > 0 {
		free += releasable(hold, m.forms, m.pending[keep:])
	}
	free = max(free, m.released)
	result := bytes.Clone(m.masked[m.released:free])
	m.pending = append(m.pending[:0], m.pending[keep:]...)
	m.masked = append(m.masked[:0], m.masked[keep:]...)
	m.released = free - keep
	return result
}

// heldBack returns the length of the longest suffix of pending that begins a form.
func (m *masker) heldBack() int {
	longest := 0
	for _, f := range m.forms {
		tail := m.pending[max(len(m.pending)-len(f)+1, 0):]
		for len(tail) > longest {
			at := bytes.IndexByte(tail, f[0])
			if at < 0 {
				break
			}
			if tail = tail[at:]; len(tail) > longest && bytes.HasPrefix(f, tail) {
				longest = len(tail)
			} else {
				tail = tail[1:]
			}
		}
	}
	return longest
}

// releasable returns the number of held-back bytes that may be passed on anyway: all
// if they are few and a small part of any form, otherwise none.
func releasable(hold int, forms [][]byte, tail []byte) int {
	for _, f := range forms {
		if bytes.HasPrefix(f, tail) && hold > min(3, len(f)/4) {
			return 0
		}
	}
	return hold
}

// Text masks a complete text.
func Text(text string, forms [][]byte) string {
	if len(forms) == 0 {
		return text
	}
	m := masker{forms: forms}
	return string(m.next([]byte(text), true))
}

// A Reader masks the bytes that it reads.
type Reader struct {
	from io.ReadCloser
	mask masker
	buf  []byte
	rest []byte // masked bytes that were not read yet
	err  error
}

const readSize = 32 << 10

// NewReader returns a Reader that masks forms in the content of from.
func NewReader(from io.ReadCloser, forms [][]byte) *Reader {
	return &Reader{from: from, mask: masker{forms: forms}}
}

// Read implements [io.Reader].
func (r *Reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for len(r.rest) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		if r.buf == nil {
			r.buf = make([]byte, readSize)
		}
		var n int
		n, r.err = r.from.Read(r.buf)
		// After errors other than EOF, held-back bytes are not returned.
		r.rest = r.mask.next(r.buf[:n], r.err == io.EOF)
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// Close closes the underlying reader of r.
func (r *Reader) Close() error { return r.from.Close() }
