package output

import (
	"fmt"
	"html"
	"strings"
)

// A tag is the meaning of a tag's name.
type tag int

const (
	wrapper  tag = iota // has no meaning of its own
	fileTag             // a whole file
	editTag             // blocks or a diff
	removal             // removal of a file
	move                // move of a file
	packages            // names of packages
	command
	message
	aside // ignored, with its content
	action
)

var tags = map[string]tag{
	"file": fileTag, "edit": editTag, "package": packages, "packages": packages, "command": command, "commands": command,
	"explanation": message, "files": wrapper, "structure": aside, "think": aside, "thinking": aside, "delete": removal, "rename": move,
	"dyad-write": fileTag, "dyad-search-replace": editTag, "dyad-edit": editTag, "dyad-delete": removal, "dyad-rename": move,
	"dyad-add-dependency": packages, "dyad-chat-summary": message, "dyad-command": wrapper, "dyad-execute-sql": aside,
	"boltArtifact": wrapper, "boltAction": action,
	"lov-code": wrapper, "lov-write": fileTag, "lov-delete": removal, "lov-rename": move, "lov-add-dependency": packages, "lov-thinking": aside,
}

var pathAttributes = []string{"path", "filePath", "filepath", "file_path", "target_file", "filename", "name", "file", "src"}

func (t tag) named() bool { return t == fileTag || t == editTag || t == removal }

// An element is a parsed tag.
type element struct {
	tag     tag
	name    string
	attrs   map[string]string
	empty   bool // has the form <a/>
	escaped bool // has the form &lt;a&gt;
	cut     bool // the text ends within it
	end     int  // position after it
}

func (e element) path() string {
	for _, a := range pathAttributes {
		if v := e.attrs[a]; v != "" {
			return v
		}
	}
	return ""
}

// tagged looks for the first tag in the rest of a line and reads its element. It
// reports whether there was one.
func (p *parser) tagged(line string, next int) bool {
	start := p.pos
	ticks := 0
	for i := 0; i < len(line); i++ {
		switch line[i] {
		case '`':
			ticks++
		case '<', '&':
			if ticks%2 != 0 && p.lastTick(line, next) > start+i {
				continue
			}
			e, ok := p.element(start + i)
			if !ok {
				continue
			}
			// A file begins at the beginning of a line or after another element, unless its tag has a path.
			if lead := strings.TrimSpace(line[:i]); lead != "" {
				if e.path() == "" && e.tag.named() || e.escaped {
					continue
				}
				p.say(lead)
			}
			if e.tag == fileTag && e.path() == "" && !e.cut && !p.closesLater("file") {
				continue
			}
			p.read(e, start+i)
			return true
		}
	}
	return false
}

func indentOf(s string) string { return s[:len(s)-len(strings.TrimLeft(s, " \t"))] }

// closesLater reports whether a closing tag follows. It searches each part of the text
// once for each name.
func (p *parser) closesLater(name string) bool { return p.closer(name, p.pos) >= 0 }

// closer returns the position of the next closing tag with a name at or after pos, or -1.
func (p *parser) closer(name string, pos int) int {
	at, ok := p.closing[name]
	if ok && (at < 0 || at >= pos) {
		return at
	}
	for {
		i := strings.Index(p.text[pos:], "</"+name)
		if i < 0 {
			p.closing[name] = -1
			return -1
		}
		if closeEnd(p.text, pos+i, "</"+name, ">") > 0 {
			p.closing[name] = pos + i
			return pos + i
		}
		pos += i + 2
	}
}

// closeEnd returns the position after a closing tag at pos, or 0 if there is none.
func closeEnd(text string, pos int, open, end string) int {
	if !strings.HasPrefix(text[pos:], open) {
		return 0
	}
	i := pos + len(open)
	for n := 0; i < len(text) && n < 8 && (text[i] == ' ' || text[i] == '\t'); n++ {
		i++
	}
	if !strings.HasPrefix(text[i:], end) {
		return 0
	}
	return i + len(end)
}

// element reads a tag at pos whose name is in tags.
func (p *parser) element(pos int) (element, bool) {
	s := p.text[pos:]
	if s[0] == '&' {
		return p.escapedElement(pos)
	}
	i := 1
	for i < len(s) && i < 24 && (s[i] >= 'a' && s[i] <= 'z' || s[i] >= 'A' && s[i] <= 'Z' || s[i] == '-') {
		i++
	}
	kind, ok := tags[s[1:i]]
	if !ok {
		return element{}, false
	}
	e := element{tag: kind, name: s[1:i], attrs: map[string]string{}}
	end, state := attributes(s, i, e.attrs)
	switch state {
	case broken:
		return element{}, false
	case unfinished:
		e.cut = true
	case slashed:
		e.empty = true
	}
	e.end = pos + end
	if e.tag == action {
		switch e.attrs["type"] {
		case "file":
			e.tag = fileTag
		case "shell", "build":
			e.tag = command
		case "":
			return element{}, false
		default: // start: ignored, because the server runs anyway
			e.tag = aside
		}
	}
	if act := e.attrs["action"]; e.tag == fileTag && (act == "delete" || act == "remove") {
		e.tag = removal
	}
	return e, true
}

// escapedElement reads a tag that is written with entities; some models escape a
// whole answer.
func (p *parser) escapedElement(pos int) (element, bool) {
	s, _ := p.rest(pos)
	if !strings.HasPrefix(s, "&lt;") || len(s) > 5 && s[4] == '/' {
		return element{}, false
	}
	stop := min(len(s), 1024)
	end := strings.Index(s[:stop], "&gt;")
	if end < 0 {
		return element{}, false
	}
	head := html.UnescapeString(s[:end+len("&gt;")])
	sub := parser{text: head}
	if head[0] != '<' || !strings.HasSuffix(head, ">") {
		return element{}, false
	}
	e, ok := sub.element(0)
	if !ok || e.cut || e.end != len(head) || !e.tag.named() || e.path() == "" {
		return element{}, false
	}
	e.escaped, e.end = true, pos+end+len("&gt;")
	return e, true
}

// A tagEnd is the kind of end of a tag.
type tagEnd int

const (
	plain      tagEnd = iota // ends with >
	slashed                  // ends with />
	broken                   // is not a valid tag
	unfinished               // the text ends within the tag
)

// attributes reads the attributes of a tag from index i. A value does not contain <,
// so that no part of a text is read more than twice.
func attributes(s string, i int, attrs map[string]string) (end int, state tagEnd) {
	for n := 0; n < 32; n++ {
		before := i
		for i < len(s) && (s[i] == ' ' || s[i] == '\t' || s[i] == '\n') {
			i++
		}
		if i == len(s) {
			return i, unfinished
		}
		switch {
		case s[i] == '>':
			return i + 1, plain
		case s[i] == '/':
			if i+1 == len(s) {
				return i, unfinished
			}
			if s[i+1] != '>' {
				return i, broken
			}
			return i + 2, slashed
		case i == before:
			return i, broken
		}
		from := i
		for i < len(s) && i-from < 32 && (s[i] >= 'a' && s[i] <= 'z' || s[i] >= 'A' && s[i] <= 'Z' || s[i] == '-' || s[i] == '_') {
			i++
		}
		name := s[from:i]
		if name == "" {
			return i, broken
		}
		if i == len(s) {
			return i, unfinished
		}
		eq := i
		for eq < len(s) && s[eq] == ' ' {
			eq++
		}
		if eq < len(s) && s[eq] != '=' {
			attrs[name] = ""
			continue
		}
		for i = eq + 1; i < len(s) && s[i] == ' '; {
			i++
		}
		if i >= len(s) {
			return len(s), unfinished
		}
		value, next, state := attributeValue(s, i)
		if state != plain {
			return next, state
		}
		if _, again := attrs[name]; !again {
			attrs[name] = html.UnescapeString(value)
		}
		i = next
	}
	return i, broken
}

func attributeValue(s string, i int) (value string, next int, state tagEnd) {
	for _, q := range [][2]string{{`"`, `"`}, {"'", "'"}, {"“", "”"}, {"‘", "’"}, {"{\"", "\"}"}, {"{'", "'}"}} {
		if !strings.HasPrefix(s[i:], q[0]) {
			continue
		}
		from := i + len(q[0])
		rest := s[from:min(len(s), from+1024)]
		if stop := strings.IndexAny(rest, "<\n"); stop >= 0 {
			if line := strings.TrimRight(rest[:stop], " "); rest[stop] == '\n' && !strings.Contains(line, q[1]) && strings.HasSuffix(line, ">") {
				return strings.TrimSuffix(line, ">"), from + len(line) - 1, plain // the closing quote is missing
			}
			rest = rest[:stop]
		} else if from+len(rest) == len(s) && !strings.Contains(rest, q[1]) {
			return "", len(s), unfinished
		}
		end := strings.Index(rest, q[1])
		if end < 0 {
			return "", i, broken
		}
		return rest[:end], from + end + len(q[1]), plain
	}
	from := i
	for i < len(s) && i-from < 512 && !strings.ContainsRune(" \t\n<>\"'`", rune(s[i])) && !strings.HasPrefix(s[i:], "/>") {
		i++
	}
	switch {
	case i == len(s):
		return "", i, unfinished
	case i == from:
		return "", i, broken
	}
	return s[from:i], i, plain
}

// read reads the content of an element that begins at start.
func (p *parser) read(e element, start int) {
	line := p.lineAt(start)
	p.pos = e.end
	if e.cut {
		if e.tag.named() && e.tag != removal && e.path() != "" {
			p.do(op{kind: cut, path: e.path(), line: line})
		}
		p.warn(line, "", "the text ends in the middle of a tag")
		p.pos = len(p.text)
		return
	}
	switch e.tag {
	case wrapper:
		if p.out.Message == "" && e.attrs["title"] != "" {
			p.out.Message = summary(e.attrs["title"])
		}
	case fileTag, editTag:
		content, closed := "", true
		if !e.empty {
			content, closed = p.body(e)
		}
		switch {
		case e.path() == "":
			p.warn(line, "", fmt.Sprintf("the <%s> names no path", e.name))
		case !closed:
			p.do(op{kind: cut, path: e.path(), line: line})
		case e.tag == editTag:
			p.edited(e.path(), content, line)
		default:
			p.written(e.path(), content, line)
		}
	case removal:
		if e.path() == "" {
			p.warn(line, "", fmt.Sprintf("the <%s> names no path", e.name))
		} else {
			p.do(op{kind: remove, path: e.path(), line: line})
		}
		p.short(e)
	case move:
		from, to := first(e.attrs, "from", "old", "original_file_path"), first(e.attrs, "to", "new", "new_file_path")
		if from == "" || to == "" {
			p.warn(line, "", fmt.Sprintf("the <%s> does not say from what path and to what", e.name))
		} else {
			p.do(op{kind: change, path: to, from: from, line: line})
		}
		p.short(e)
	case packages, command:
		if strings.HasSuffix(e.name, "s") && !e.empty {
			head := p.text[p.pos:min(len(p.text), p.pos+200)]
			if strings.HasPrefix(strings.TrimLeft(head, " \t\n"), "<"+strings.TrimSuffix(e.name, "s")+">") {
				return // the tag is a list of packages
			}
		}
		if e.tag == command {
			p.commandTag(e, line)
			return
		}
		list := strings.Join([]string{e.attrs["packages"], e.attrs["package"], e.attrs["name"]}, " ")
		body, _ := p.short(e)
		p.install(list+" "+body, line)
	case message:
		if body, _ := p.short(e); p.out.Message == "" {
			p.out.Message = summary(body)
		}
	case aside:
		if _, closed := p.short(e); !closed && !e.empty && (e.name == "think" || e.name == "thinking") {
			p.pos = len(p.text) // the text ends within the model's reasoning
		}
	}
}

func (p *parser) commandTag(e element, line int) {
	if body, closed := p.short(e); closed {
		p.run(body, line)
	} else {
		p.warn(line, "", "the command is cut off")
	}
}

func first(attrs map[string]string, names ...string) string {
	for _, n := range names {
		if attrs[n] != "" {
			return attrs[n]
		}
	}
	return ""
}

// short reads the body of an element that is not a file. Without a closing tag, the body is
// the rest of the line.
func (p *parser) short(e element) (body string, closed bool) {
	if e.empty {
		return "", true
	}
	if at := p.closer(e.name, p.pos); at >= 0 {
		body = p.text[p.pos:at]
		// If another element with this name begins first, this one was never closed.
		if e.tag == aside || !strings.Contains(body, "<"+e.name) {
			p.pos = closeEnd(p.text, at, "</"+e.name, ">")
			return html.UnescapeString(body), true
		}
	}
	if e.tag == removal || e.tag == move || e.tag == aside {
		return "", false
	}
	body, next := p.rest(p.pos)
	if i := strings.IndexByte(body, '<'); i >= 0 {
		body, next = body[:i], p.pos+i
	}
	p.pos = next
	return html.UnescapeString(body), false
}

// body reads the content of a file up to its closing tag. closed is false if the
// text ends or another file begins first; parsing continues there.
func (p *parser) body(e element) (content string, closed bool) {
	open, shut, lead := "</"+e.name, ">", byte('<')
	if e.escaped {
		open, shut, lead = "&lt;/"+e.name, "&gt;", '&'
	}
	start := p.pos
	if data := strings.TrimLeft(p.text[start:], " \t\n"); strings.HasPrefix(data, "<![CDATA[") {
		from := len(p.text) - len(data) + len("<![CDATA[")
		for pos := from; ; {
			i := strings.Index(p.text[pos:], "]]>")
			if i < 0 {
				p.pos = len(p.text)
				return "", false
			}
			after := pos + i + 3
			for after < len(p.text) && strings.IndexByte(" \t\n", p.text[after]) >= 0 {
				after++
			}
			if end := closeEnd(p.text, after, open, shut); end > 0 {
				p.pos = end
				return strings.TrimPrefix(p.text[from:pos+i], "\n"), true
			}
			pos += i + 3
			if after > pos {
				pos = after
			}
		}
	}
	q := quoting{from: start}
	for pos := start; ; pos++ {
		i := strings.IndexByte(p.text[pos:], lead)
		if i < 0 {
			p.pos = len(p.text)
			return "", false
		}
		pos += i
		if end := closeEnd(p.text, pos, open, shut); end > 0 {
			if q.inside(p.text, pos) {
				continue
			}
			p.pos = end
			return p.content(start, pos, e), true
		}
		if next, ok := p.element(pos); ok && next.tag.named() && !next.cut && next.path() != "" && p.alone(start, pos) {
			p.pos = pos
			return "", false
		}
	}
}

// alone reports whether the line has only white space before pos.
func (p *parser) alone(start, pos int) bool {
	for pos > start && (p.text[pos-1] == ' ' || p.text[pos-1] == '\t') {
		pos--
	}
	return pos == 0 || pos > start && p.text[pos-1] == '\n'
}

// quoting tracks the open quote of a line. It reads each part of the line once.
type quoting struct {
	from int
	open byte
}

// inside reports whether a quote is open at pos. pos must not be less than in an earlier call.
func (q *quoting) inside(text string, pos int) bool {
	if i := strings.LastIndexByte(text[q.from:pos], '\n'); i >= 0 {
		q.from, q.open = q.from+i+1, 0
	}
	for ; q.from < pos; q.from++ {
		c := text[q.from]
		switch {
		case c == '\\':
			q.from++
		case c != '"' && c != '\'' && c != '`':
		case strings.HasPrefix(text[q.from:pos], "```"):
			for q.from+1 < pos && text[q.from+1] == '`' {
				q.from++
			}
		case q.open == c:
			q.open = 0
		case q.open == 0:
			if c == '\'' && q.from > 0 && letters(text[q.from-1:q.from]) > 0 {
				continue // an apostrophe
			}
			q.open = c
		}
	}
	q.from = min(q.from, pos)
	return q.open != 0
}

// content returns the content of a file that the text has from start to end.
func (p *parser) content(start, end int, e element) string {
	s := p.text[start:end]
	ownLine := false
	if i := strings.IndexByte(s, '\n'); i >= 0 && strings.TrimSpace(s[:i]) == "" {
		s, ownLine = s[i+1:], true
	}
	if i := strings.LastIndexByte(s, '\n'); strings.TrimSpace(s[i+1:]) == "" {
		s = s[:i+1]
	}
	if ownLine && !prose[extension(e.path())] {
		s = dedent(s, indentOf(firstLine(s)))
	}
	if e.escaped || entities(e.path(), s) {
		s = html.UnescapeString(s)
	}
	return s
}

// dedent removes the common indentation of all lines, but at most limit.
func dedent(s, limit string) string {
	for l := range strings.SplitSeq(s, "\n") {
		if limit == "" {
			return s
		}
		if strings.TrimSpace(l) == "" {
			continue
		}
		n := 0
		for n < len(limit) && n < len(l) && l[n] == limit[n] {
			n++
		}
		limit = limit[:n]
	}
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		if strings.TrimSpace(l) == "" {
			lines[i] = ""
		} else {
			lines[i] = l[len(limit):]
		}
	}
	return strings.Join(lines, "\n")
}

// entities reports whether a model has written code with entities instead of angle brackets;
// such code has no angle brackets.
func entities(path, s string) bool {
	if strings.ContainsAny(s, "<>") || !strings.Contains(s, "&lt;") && !strings.Contains(s, "&gt;") {
		return false
	}
	return !prose[extension(path)]
}
