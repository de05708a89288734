package markup

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// A Line is one JSON object of an answer. Exactly one field besides Raw is set.
type Line struct {
	Raw     string // original text, with line ends in strings escaped; a line that is too long is truncated
	Patches []engi.PagePatch
	HTML    *string // not sanitized
	Modules []engi.CodeModule
	Stats   stdjson.RawMessage // a JSON object, including its type
	Err     error              // Invalid, with the error for the model
}

// A Parser finds the lines in an answer, which arrives in pieces of any
// size. It finds JSON objects, regardless of the text around and between them: prose,
// Markdown fences, other objects, line ends. A broken object does not affect others,
// since a line that begins like an object with a type ends it. The zero value is
// ready to use. It must be used by one goroutine at a time.
type Parser struct {
	tail   string // bytes of an incomplete character
	state  parserState
	buf    []byte // bytes of the current object so far
	over   bool   // the object is longer than maxLine; buf has its beginning
	depth  int    // number of open braces and brackets
	items  int    // number of items in lists of the object
	escape bool   // the last character was a backslash
	match  []byte // possible beginning of another object in this line; nil if there is none

	// State of the members of the object itself:
	wantKey bool
	start   int // index in buf at which the string begins
	key     string
	kind    string // value of "type"

	// State of a line that replaces the page:
	partial  bool
	html     strings.Builder // decoded part of the page
	from, to int             // undecoded range of buf; to is 0 while the string has not ended

	decoder jsontext.Decoder
	input   bytes.Buffer // input of decoder
	text    []byte       // text that is being decoded
}

type parserState uint8

const (
	outside parserState = iota
	opened              // after a brace that may begin an object
	inside
	inString
)

// Write returns the lines that text completes.
func (p *Parser) Write(text string) []Line {
	if p.tail != "" {
		text, p.tail = p.tail+text, ""
	}
	if n := len(text); n > 0 && text[n-1] >= utf8.RuneSelf {
		for i := n - 1; i >= 0 && i > n-utf8.UTFMax; i-- {
			if utf8.RuneStart(text[i]) {
				if !utf8.FullRuneInString(text[i:]) {
					text, p.tail = text[:i], strings.Clone(text[i:])
				}
				break
			}
		}
	}
	return p.scan(nil, valid(text))
}

// Close returns the incomplete line at the end of the answer as an
// error, if there is one, and resets the parser.
func (p *Parser) Close() []Line {
	lines := p.scan(nil, valid(p.tail))
	if p.state >= inside {
		lines = append(lines, p.broken(string(p.buf), "the answer ends in the middle of a line"))
	}
	*p = Parser{}
	return lines
}

// Partial returns the HTML so far of an unfinished line that replaces the page.
// A call only decodes the text that has arrived since the last call.
func (p *Parser) Partial() (html string, ok bool) {
	if !p.partial {
		return "", false
	}
	if !p.over {
		to := p.to
		if to == 0 {
			to = len(p.buf)
		}
		p.from += unescape(&p.html, p.buf[p.from:to])
	}
	return p.html.String(), true
}

// valid replaces each invalid byte of UTF-8 separately, so that the result does not depend on
// the boundaries of pieces.
func valid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return string([]rune(s))
}

func (p *Parser) scan(lines []Line, text string) []Line {
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch p.state {
		case outside:
			n := strings.IndexByte(text[i:], '{')
			if n < 0 {
				return lines
			}
			i += n
			p.open()
		case opened:
			switch c {
			case '"':
				p.state, p.depth, p.wantKey = inside, 1, true
				p.structure(c)
			case '{':
				p.open()
			case ' ', '\t', '\r', '\n':
				if p.put(c); p.over {
					p.reset()
				}
			default:
				p.reset()
			}
		default:
			if p.match != nil {
				if p.begins(c) {
					begin := string(p.match)
					raw := strings.TrimSuffix(string(p.buf), begin[:len(begin)-1])
					lines = append(lines, p.broken(raw, "another line begins in the middle of this one"))
					p.reset()
					lines = p.scan(lines, begin)
					continue
				}
			}
			if c == '\n' {
				p.match = make([]byte, 0, 32)
			}
			if p.state == inside {
				if p.structure(c) {
					lines = p.decode(lines)
					p.reset()
				}
				continue
			}
			if p.match == nil && !p.escape {
				n := i
				for n < len(text) && text[n] != '"' && text[n] != '\\' && text[n] >= ' ' {
					n++
				}
				if n > i {
					p.run(text[i:n])
					i = n - 1
					continue
				}
			}
			p.char(c)
		}
	}
	return lines
}

func (p *Parser) open() {
	p.reset()
	p.state = opened
	p.put('{')
}

// reset discards the object.
func (p *Parser) reset() {
	if cap(p.buf) > 64<<10 {
		p.buf = nil
	}
	p.state, p.buf, p.over, p.depth, p.items, p.escape, p.match = outside, p.buf[:0], false, 0, 0, false, nil
	p.key, p.kind = "", ""
	if p.partial {
		p.partial, p.html = false, strings.Builder{}
	}
}

func (p *Parser) put(c byte) {
	if len(p.buf) < maxLine {
		p.buf = append(p.buf, c)
	} else {
		p.over = true
	}
}

// structure handles a byte outside of strings, and reports whether it ends the object.
func (p *Parser) structure(c byte) bool {
	p.put(c)
	switch c {
	case '"':
		p.state, p.start = inString, len(p.buf)
		if p.depth == 1 && !p.wantKey && p.key == "html" && p.kind == "full" {
			p.html, p.partial, p.from, p.to = strings.Builder{}, true, p.start, 0
		}
	case '{', '[':
		if p.depth == 2 {
			p.items++
		}
		p.depth++
	case '}', ']':
		p.depth--
	case ',':
		if p.depth == 1 {
			p.wantKey = true
		}
	case ':':
		if p.depth == 1 {
			p.wantKey = false
		}
	}
	return p.depth == 0
}

// run handles a part of a string without special characters.
func (p *Parser) run(s string) {
	if room := maxLine - len(p.buf); len(s) > room {
		s, p.over = s[:room], true
	}
	p.buf = append(p.buf, s...)
}

// char handles one byte of a string.
func (p *Parser) char(c byte) {
	if c < ' ' { // JSON does not allow control characters in strings, but models write them
		const hex = "0123456789abcdef"
		for _, c := range []byte{'\\', 'u', '0', '0', hex[c>>4], hex[c&15]} {
			p.put(c)
		}
		p.escape = false
		return
	}
	p.put(c)
	switch {
	case p.escape:
		p.escape = false
	case c == '\\':
		p.escape = true
	case c == '"':
		p.state = inside
		if p.depth != 1 || p.over {
			break
		}
		s := p.buf[p.start : len(p.buf)-1]
		switch {
		case p.wantKey:
			p.key = known(s)
		case p.key == "type":
			p.kind = known(s)
		case p.partial && p.to == 0:
			p.to = len(p.buf) - 1
		}
	}
}

// known converts a word to a string, without an allocation for common words.
func known(s []byte) string {
	switch string(s) {
	case "type":
		return "type"
	case "html":
		return "html"
	case "patches":
		return "patches"
	case "full":
		return "full"
	}
	return string(s)
}

// unescape appends the decoded form of a JSON string, and returns the number of bytes in s that were
// complete.
func unescape(to *strings.Builder, s []byte) int {
	for i := 0; i < len(s); {
		n := bytes.IndexByte(s[i:], '\\')
		if n < 0 {
			n = len(s) - i
		}
		to.Write(s[i : i+n])
		if i += n; i == len(s) {
			break
		}
		if i+1 == len(s) {
			return i
		}
		if s[i+1] != 'u' {
			c := s[i+1]
			if n := strings.IndexByte("bfnrt", c); n >= 0 {
				c = "\b\f\n\r\t"[n]
			}
			to.WriteByte(c)
			i += 2
			continue
		}
		r, ok := hex4(s[i:])
		if !ok {
			return i
		}
		i += 6
		if utf16.IsSurrogate(r) {
			low, ok := hex4(s[i:])
			if !ok && len(s)-i < 6 && bytes.HasPrefix([]byte(`\u`), s[i:min(len(s), i+2)]) {
				return i - 6
			}
			if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
				i += 6
			}
		}
		to.WriteRune(r)
	}
	return len(s)
}

// hex4 decodes \uXXXX.
func hex4(s []byte) (rune, bool) {
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return 0, false
	}
	r, err := strconv.ParseUint(string(s[2:6]), 16, 16)
	return rune(r), err == nil
}

// begins reports whether c completes a text at the beginning of a line that only another
// object begins with.
func (p *Parser) begins(c byte) bool {
	p.match = append(p.match, c)
	have := strings.ReplaceAll(string(p.match), " ", "")
	for _, kind := range []string{"patches", "full", "code_modules", "stats"} {
		if whole := `{"type":"` + kind + `"`; have == whole {
			return true
		} else if p.match[0] == '{' && len(p.match) < 64 && strings.HasPrefix(whole, have) {
			return false
		}
	}
	p.match = nil
	return false
}

func (p *Parser) broken(raw, why string) Line {
	return Line{Raw: valid(raw), Err: invalid("write it again, whole, with all brackets, and with quotes and line ends in strings escaped", "%s", why)}
}

// decode appends the lines of the object: two lines if some of its patches are valid and others are not.
func (p *Parser) decode(lines []Line) []Line {
	if p.over {
		const shown = 1 << 10
		return append(lines, Line{Raw: valid(string(p.buf[:min(shown, len(p.buf))])), Err: invalid("write several shorter lines", "the line is longer than %d bytes", maxLine)})
	}
	l := Line{Raw: string(p.buf)}
	var err error
	switch p.kind {
	case "patches":
		l.Patches, err = p.patches(l.Raw)
	case "full":
		var o struct {
			HTML *string `json:"html"`
		}
		if err = json.Unmarshal(p.buf, &o, lenient); err == nil && o.HTML == nil {
			err = errors.New("it has no html")
		}
		l.HTML = o.HTML
	case "code_modules":
		l.Modules, err = modules(p.buf)
	case "stats":
		var o jsontext.Value
		if err = json.Unmarshal(p.buf, &o, lenient); err == nil {
			err = o.Compact(lenient)
		}
		l.Stats = stdjson.RawMessage(o)
	default:
		var o jsontext.Value
		if err = json.Unmarshal(p.buf, &o, lenient); err == nil {
			err = fmt.Errorf("its type is %.40q", p.kind)
		}
	}
	if err == nil {
		return append(lines, l)
	}
	bad := Line{Raw: l.Raw, Err: invalid(`write objects whose type is "patches", "full", "code_modules" or "stats", and escape quotes and line ends in strings`, "the line is not understood: %s", reason(err, p.buf))}
	if len(l.Patches) > 0 {
		lines = append(lines, l)
	}
	return append(lines, bad)
}

// reason returns the error in raw, with its position.
func reason(err error, raw []byte) string {
	if e, ok := errors.AsType[*json.SemanticError](err); ok && e.JSONPointer != "" {
		kinds := map[jsontext.Kind]string{'n': "null", 't': "true", 'f': "false", '"': "text", '0': "a number", '{': "an object", '[': "an array"}
		return fmt.Sprintf("%s can not be %s", e.JSONPointer, kinds[e.JSONKind])
	}
	if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok && e.Err != nil {
		at := min(int(e.ByteOffset), len(raw))
		return fmt.Sprintf("%v after %q", e.Err, valid(string(raw[max(0, at-40):at])))
	}
	return err.Error()
}

// lenient accepts deviations that other JSON decoders tolerate; numeric accepts numbers in place
// of text, with their literal form as the text.
var (
	lenient = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	numeric = json.JoinOptions(lenient, json.WithUnmarshalers(json.UnmarshalFromFunc(numberAsText)))
)

func (p *Parser) patches(raw string) ([]engi.PagePatch, error) {
	all, ok := p.plain(raw)
	if ok {
		return all, nil
	}
	var o struct {
		Patches []engi.PagePatch `json:"patches"`
	}
	err := json.Unmarshal(p.buf, &o, lenient)
	if err != nil {
		o.Patches, err = each(p.buf)
	}
	switch {
	case len(o.Patches) > maxPatches:
		return nil, fmt.Errorf("it has %d patches, more than %d", len(o.Patches), maxPatches)
	case len(o.Patches) == 0 && err == nil:
		err = errors.New("it has no patches")
	}
	return o.Patches, err
}

// plain decodes the most common lines, which are patches with a selector and a text. It only uses the
// tokenizer, which is much faster. ok is false for all other lines, valid or not.
// raw is the content of buf.
func (p *Parser) plain(raw string) (all []engi.PagePatch, ok bool) {
	if p.items == 0 || p.items > maxPatches {
		return nil, false
	}
	d := &p.decoder
	p.input = *bytes.NewBuffer(p.buf)
	d.Reset(&p.input, lenient)
	token := func(kind jsontext.Kind) bool {
		t, err := d.ReadToken()
		return err == nil && t.Kind() == kind
	}
	all = make([]engi.PagePatch, 0, p.items)
	texts := make([]string, p.items)
	if !token('{') {
		return nil, false
	}
	for d.PeekKind() == '"' {
		if name, err := d.ReadValue(); err != nil {
			return nil, false
		} else if string(name) != `"patches"` {
			if bytes.IndexByte(name, '\\') >= 0 || d.SkipValue() != nil {
				return nil, false
			}
			continue
		}
		if len(all) > 0 || !token('[') {
			return nil, false
		}
		for d.PeekKind() == '{' && token('{') {
			text, changed := &texts[len(all)], false
			all = append(all, engi.PagePatch{})
			x := &all[len(all)-1]
			for d.PeekKind() == '"' {
				name, err := d.ReadValue()
				if err != nil {
					return nil, false
				}
				to := text
				switch string(name) {
				case `"selector"`:
					to = &x.Selector
				case `"text"`:
					x.Text = to
				case `"html"`:
					x.HTML = to
				case `"value"`:
					x.Value = to
				case `"append"`:
					x.Append = to
				case `"prepend"`:
					x.Prepend = to
				case `"before"`:
					x.Before = to
				case `"after"`:
					x.After = to
				case `"replace"`:
					x.Replace = to
				default:
					return nil, false
				}
				v, err := d.ReadValue()
				if err != nil || v.Kind() != '"' || to == text && changed {
					return nil, false
				}
				changed = changed || to == text
				if bytes.IndexByte(v, '\\') < 0 {
					end := int(d.InputOffset())
					*to = raw[end-len(v)+1 : end-1]
				} else if p.text, err = jsontext.AppendUnquote(p.text[:0], v); err != nil { // one half of a surrogate pair
					return nil, false
				} else {
					*to = string(p.text)
				}
			}
			if !token('}') {
				return nil, false
			}
		}
		if !token(']') {
			return nil, false
		}
	}
	return all, token('}') && int(d.InputOffset()) == len(raw) && len(all) > 0
}

// each decodes patches one by one. It returns the valid patches, and the first error of
// the others.
func each(raw []byte) ([]engi.PagePatch, error) {
	var o struct {
		Patches []jsontext.Value `json:"patches"`
	}
	if err := json.Unmarshal(raw, &o, lenient); err != nil {
		return nil, err
	}
	var good []engi.PagePatch
	var wrong error
	for i, raw := range o.Patches {
		var p engi.PagePatch
		if err := json.Unmarshal(raw, &p, numeric); err == nil {
			good = append(good, p)
		} else if wrong == nil {
			wrong = fmt.Errorf("patch %d: %s", i+1, reason(err, raw))
		}
	}
	return good, wrong
}

func numberAsText(d *jsontext.Decoder, s *string) error {
	if d.PeekKind() != '0' {
		return errors.ErrUnsupported
	}
	t, err := d.ReadToken()
	*s = t.String()
	return err
}

func modules(raw []byte) ([]engi.CodeModule, error) {
	var o struct {
		Modules []struct {
			Path        string   `json:"path"`
			Description string   `json:"description"`
			Exports     []string `json:"exports"`
			Usage       string   `json:"usage"`
			Scope       string   `json:"scope"`
		} `json:"modules"`
	}
	if err := json.Unmarshal(raw, &o, lenient); err != nil {
		return nil, err
	}
	if len(o.Modules) == 0 {
		return nil, errors.New("it has no modules")
	}
	var all []engi.CodeModule
	for _, m := range o.Modules {
		c := engi.CodeModule{Path: m.Path, Description: m.Description, Exports: m.Exports, Usage: m.Usage}
		if engi.ModuleScope(m.Scope) == engi.ModuleUser {
			c.Scope = engi.ModuleUser
		}
		all = append(all, c)
	}
	return all, nil
}
