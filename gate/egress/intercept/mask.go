package intercept

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
	// minForm is the length of what is looked for at least: shorter ones are
	// found everywhere.
	minForm = 6
	star    = '*'
)

// formsOf returns the ways in which a value may come back: as it is, escaped
// for URLs, JSON and HTML, in hexadecimal digits and in base64, also as a part
// of something longer.
func formsOf(value string) [][]byte {
	lower := func(s string) string { // of percent escapes only
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
		// The first and the last digit may be made of neighbours, too.
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
		if len(t) >= minForm && len(value) >= minForm {
			forms = append(forms, []byte(t))
		}
	}
	return forms
}

// A masker overwrites forms in a stream, byte for byte, so that lengths stay
// what the other end said. The zero value overwrites nothing.
//
// What may be the beginning of a form is held back until more is there, but
// for a few bytes: streams of events would stop at each byte that a value
// begins with.
type masker struct {
	forms [][]byte
	raw   []byte // the last bytes, which may begin a form
	shown []byte // what becomes of them
	out   int    // how many of them are out already
}

// next takes a part of the stream and returns what may go out. The result is
// valid until the next call; end says that nothing follows.
func (m *masker) next(part []byte, end bool) []byte {
	if len(m.forms) == 0 {
		return part
	}
	m.raw = append(m.raw, part...)
	m.shown = append(m.shown, part...)
	old := len(m.raw) - len(part)
	for _, f := range m.forms {
		// A match ends behind what was searched before.
		from := max(old-len(f)+1, 0)
		for {
			at := bytes.Index(m.raw[from:], f)
			if at < 0 {
				break
			}
			at += from
			for n := at; n < at+len(f); n++ {
				m.shown[n] = star
			}
			from = at + 1
		}
	}
	hold := 0
	if !end {
		hold = m.begun()
	}
	keep := len(m.raw) - hold
	free := keep
	if hold > 0 {
		free += early(hold, m.forms, m.raw[keep:])
	}
	free = max(free, m.out)
	result := bytes.Clone(m.shown[m.out:free])
	m.raw = append(m.raw[:0], m.raw[keep:]...)
	m.shown = append(m.shown[:0], m.shown[keep:]...)
	m.out = free - keep
	return result
}

// begun returns the length of the longest end of raw that begins a form.
func (m *masker) begun() int {
	longest := 0
	for _, f := range m.forms {
		tail := m.raw[max(len(m.raw)-len(f)+1, 0):]
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

// early returns how many bytes of a beginning may go out before it is known
// what follows: nothing of what is longer than a few bytes, or a notable part
// of a form.
func early(hold int, forms [][]byte, tail []byte) int {
	for _, f := range forms {
		if bytes.HasPrefix(f, tail) && hold > min(3, len(f)/4) {
			return 0
		}
	}
	return hold
}

// text masks a whole text.
func mask(text string, forms [][]byte) string {
	if len(forms) == 0 {
		return text
	}
	m := masker{forms: forms}
	return string(m.next([]byte(text), true))
}

// A maskReader masks what it reads. Done runs once, after the end or Close.
type maskReader struct {
	from io.ReadCloser
	mask masker
	buf  []byte
	rest []byte // masked, not yet read
	err  error
}

const readSize = 32 << 10

func newMaskReader(from io.ReadCloser, forms [][]byte) *maskReader {
	return &maskReader{from: from, mask: masker{forms: forms}}
}

func (r *maskReader) Read(p []byte) (int, error) {
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
		// After an error that is no end, what was held back stays back.
		r.rest = r.mask.next(r.buf[:n], r.err == io.EOF)
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func (r *maskReader) Close() error { return r.from.Close() }
