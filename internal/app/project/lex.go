package project

import "strings"

// A lexer splits JavaScript, TypeScript and JSX into tokens without a parser's
// recursion. It finds imports in any text that resembles code, and it measures how
// deep a parser would have to go, because that of esbuild takes time that grows with
// the cube of the depth, and ends the process where its stack does.
//
// Where a slash or an angle bracket is ambiguous, it decides as
// most code means it, and counts the decision as a doubt.
type lexer struct {
	src    string
	jsx    bool // < may begin an element
	types  bool // < may also begin the parameters of a type
	pos    int
	line   int // from 1
	frames []frame
	top    int  // sum of the depths of all frames
	end    bool // the last token ends an expression
	word   string
	last   byte // first byte of the last token; 'a' for a name, '"' for a string
	fresh  bool // a line has ended since the last token
	closed bool // the last token closed a block

	deepest int
	work    int // sum of the squares of the depths
	doubts  int
	hidden  int // tokens in text, which may be code if the lexer is wrong
	tokens  int
	alias   int         // number of tokens at the start of the last type alias
	token   func(token) // for each name, string and punctuation mark
}

// A frame is a bracket that is open.
type frame struct {
	open   byte // ( [ { or $ for ${, < for a JSX tag, > for the text between tags
	after  bool // an operand follows the closing bracket, as after the ( of an if
	object bool // the { of an object, not of a block
	maybe  bool // possibly not a tag, or inside such a tag
	hidden int  // value of l.hidden when the bracket was opened
	chain  int  // tokens since the start of the statement for which a parser recurses
	commas int
}

// A token is a name, a string without its quotes, or a punctuation mark.
type token struct {
	kind byte // 'a', '"' or the mark
	text string
	line int
	at   int // where it begins
	deep int // open brackets
}

const (
	maxDepth  = 150
	maxCommas = 2000
	maxWork   = 50_000_000
)

// shallow reports whether a parser is certain to get through quickly.
func (l *lexer) shallow() bool {
	for _, f := range l.frames {
		if f.open == '>' && l.hidden-f.hidden > maxDepth {
			return false // a bracket is not closed
		}
	}
	return l.doubts == 0 && l.deepest <= maxDepth && l.work <= maxWork
}

// Names that are followed by an operand, not by an operator.
var before = words(`return typeof instanceof in of new delete void throw case do else yield await default extends export import
	const let var as satisfies keyof is if while for with switch`)

// Names for which a parser recurses.
var descends = words("typeof new delete void throw case do else yield await if while for with switch async function class keyof infer readonly unique asserts extends namespace module")

func words(s string) map[string]bool {
	m := map[string]bool{}
	for w := range strings.FieldsSeq(s) {
		m[w] = true
	}
	return m
}

func (l *lexer) frame() *frame { return &l.frames[len(l.frames)-1] }

func (l *lexer) push(f frame) {
	l.frames = append(l.frames, f)
	l.top++
	l.deepest = max(l.deepest, l.top)
}

func (l *lexer) pop() frame {
	f := *l.frame()
	l.top -= 1 + f.chain
	l.frames = l.frames[:len(l.frames)-1]
	return f
}

func (l *lexer) descend() {
	l.frame().chain++
	l.top++
	l.deepest = max(l.deepest, l.top)
}

// restart is the beginning of a statement or of an element of a list.
func (l *lexer) restart() {
	f := l.frame()
	l.top -= f.chain
	f.chain = 0
}

// run reads the whole source. It gives up if the nesting is much too deep.
func (l *lexer) run() {
	l.line = 1
	l.push(frame{open: '{'})
	if strings.HasPrefix(l.src, "#!") {
		l.toLineEnd()
	}
	for l.pos < len(l.src) && l.deepest <= 1<<20 {
		if l.frame().open == '>' {
			l.between()
			continue
		}
		c := l.src[l.pos]
		switch {
		case c == '\n':
			l.line++
			l.fresh = true
			l.pos++
		case c == ' ' || c == '\t' || c == '\r':
			l.pos++
		case c == '/' && l.at("//"):
			l.toLineEnd()
		case c == '/' && l.at("/*"):
			l.comment()
		default:
			l.next(c)
		}
	}
}

func (l *lexer) at(s string) bool { return strings.HasPrefix(l.src[l.pos:], s) }

func (l *lexer) toLineEnd() {
	if i := strings.IndexByte(l.src[l.pos:], '\n'); i >= 0 {
		l.pos += i
	} else {
		l.pos = len(l.src)
	}
}

func (l *lexer) comment() {
	n := strings.Index(l.src[l.pos+2:], "*/")
	if n < 0 {
		l.pos = len(l.src)
		return
	}
	text := l.src[l.pos : l.pos+n+4]
	if i := strings.Count(text, "\n"); i > 0 {
		l.line += i
		l.fresh = true
	}
	l.pos += len(text)
}

func isName(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '$' || c == '\\' || c >= 0x80
}

func (l *lexer) emit(kind byte, text string, line, at int) {
	l.last, l.fresh, l.closed = kind, false, false
	l.tokens++
	l.work += l.top * l.top
	if l.token != nil {
		l.token(token{kind: kind, text: text, line: line, at: at, deep: len(l.frames)})
	}
}

// next reads a token.
func (l *lexer) next(c byte) {
	at, line := l.pos, l.line
	f := l.frame()
	if f.open == '<' && l.attribute(c) {
		return
	}
	switch {
	case isName(c) || c == '@' || c == '#':
		for l.pos++; l.pos < len(l.src) && isName(l.src[l.pos]); l.pos++ {
		}
		l.name(l.src[at:l.pos], line, at)
		return
	case c == '"' || c == '\'':
		l.statement(c)
		text := l.quoted(c)
		l.end = true
		l.emit('"', text, line, at)
		return
	case c == '`':
		if l.end {
			l.descend()
		} else {
			l.statement(c)
		}
		l.pos++
		l.template()
		return
	case c == '/':
		if l.closed || l.last == '+' && l.word == "++" {
			l.doubts++
		}
		if !l.end {
			l.regexp()
			return
		}
	case c == '<' && l.jsx && l.element():
		return
	}
	l.mark(c, line, at)
}

// statement resets the recursion count if c begins a statement.
func (l *lexer) statement(c byte) {
	if l.closed || l.fresh && l.end && c != '(' && c != '[' && c != '`' {
		l.restart()
	}
}

func (l *lexer) name(word string, line, at int) {
	property := l.last == '.'
	continues := word == "else" || word == "catch" || word == "finally" || word == "while" || word == "instanceof" || word == "in" || word == "of" || word == "as" || word == "satisfies" || word == "extends"
	if !continues {
		l.statement('a')
	}
	if !property && descends[word] || l.end && (word == "as" || word == "satisfies") {
		l.descend()
	}
	l.end = property || !before[word]
	if l.last == 'a' && l.word == "type" {
		l.alias = l.tokens // alias of a type, whose = may follow within a few tokens
	}
	l.word = word
	if word == "of" || word == "yield" || word == "await" || word == "async" {
		// They may be names of variables; only a slash after them decides.
		if !property && strings.HasPrefix(strings.TrimLeft(l.src[l.pos:min(len(l.src), l.pos+8)], " "), "/") && !strings.HasPrefix(strings.TrimLeft(l.src[l.pos:min(len(l.src), l.pos+8)], " "), "//") {
			l.doubts++
		}
	}
	l.emit('a', word, line, at)
}

// quoted reads a string, which ends at the end of the line at the latest.
func (l *lexer) quoted(q byte) string {
	from := l.pos + 1
	for l.pos = from; l.pos < len(l.src); l.pos++ {
		switch l.src[l.pos] {
		case q:
			l.pos++
			return l.src[from : l.pos-1]
		case '\\':
			if l.pos+1 < len(l.src) && l.src[l.pos+1] == '\n' {
				l.line++
			}
			l.pos++
		case '\n':
			return l.src[from:l.pos]
		}
	}
	l.pos = len(l.src)
	return l.src[from:]
}

// template reads the text of a template up to its end or a ${.
func (l *lexer) template() {
	from, line := l.pos, l.line
	for l.pos < len(l.src) {
		switch l.src[l.pos] {
		case '\n':
			l.line++
		case '\\':
			if l.pos+1 < len(l.src) && l.src[l.pos+1] == '\n' {
				l.line++
			}
			l.pos++
		case '`':
			text := l.src[from:l.pos]
			l.pos++
			l.end = true
			l.emit('`', text, line, from)
			return
		case '$':
			if l.at("${") {
				l.pos += 2
				l.end = false
				l.emit('$', "", line, from)
				l.push(frame{open: '$'})
				return
			}
		}
		l.pos++
	}
	l.pos = min(l.pos, len(l.src))
}

// regexp reads a regular expression, or a slash if no regular expression ends on the line.
func (l *lexer) regexp() {
	line, at := l.line, l.pos
	class := false
	for i := l.pos + 1; i < len(l.src) && l.src[i] != '\n'; i++ {
		switch c := l.src[i]; {
		case c == '\\':
			i++
		case c == '[':
			class = true
		case c == ']':
			class = false
		case c == '/' && !class:
			for i++; i < len(l.src) && isName(l.src[i]); i++ {
			}
			l.pos = i
			l.statement('/')
			l.end = true
			l.emit('/', "", line, at)
			return
		}
	}
	l.pos++ // a syntax error
	l.doubts++
}

// mark reads a punctuation mark.
func (l *lexer) mark(c byte, line, at int) {
	l.pos++
	f := l.frame()
	switch c {
	case '(', '[', '{':
		if c != '{' && l.end && !l.closed {
			l.descend() // a call or an index
		} else if c != '{' {
			l.statement(c)
		}
		n := frame{open: c}
		if c == '(' {
			n.after = l.last == 'a' && (l.word == "if" || l.word == "while" || l.word == "for" || l.word == "with")
		}
		if c == '{' {
			// After an operator other than an arrow, the brace begins an object.
			n.object = !l.end && strings.IndexByte("=(,[?&|+:$\"", l.last) >= 0 || l.last == 'a' && !l.end && l.word != "else" && l.word != "do" || f.open == '<'
		}
		l.emit(c, "", line, at)
		l.push(n)
		l.end = false
		return
	case ')', ']', '}':
		if len(l.frames) == 1 {
			l.doubts++
			l.emit(c, "", line, at)
			return
		}
		n := l.pop()
		if want := map[byte]byte{')': '(', ']': '[', '}': '{'}[c]; n.open != want && !(c == '}' && n.open == '$') {
			l.doubts++
		}
		if n.open == '$' {
			l.template()
			return
		}
		l.emit(c, "", line, at)
		l.end = !n.after
		if c == '}' && l.frame().open != '<' && l.frame().open != '>' {
			l.end = n.object
			l.closed = !n.object
		}
		return
	case ';':
		l.restart()
		f.commas = 0
	case ',':
		if f.commas++; f.commas > maxCommas && f.open != '[' && !f.object {
			l.deepest = max(l.deepest, maxDepth+1)
		}
		l.restart()
	case '=':
		l.descend()
		if l.at(">") {
			l.pos++
			l.end = false
			l.emit('>', "=>", line, at)
			return
		}
		for l.at("=") {
			l.pos++
		}
	case '+', '-':
		if l.pos < len(l.src) && l.src[l.pos] == c {
			l.pos++
			l.descend()
			l.word = "++"
			end := l.end
			l.emit('+', "++", line, at)
			l.end = end
			return
		}
		if !l.end {
			l.descend()
		}
		l.word = ""
	case '!', '~', '?', '.', ':', '<':
		if c == '.' && l.at("..") {
			l.pos += 2
			l.emit('(', "...", line, at)
			l.end = false
			return
		}
		if c == '?' && l.at(".") {
			l.pos++
			c = '.'
		}
		if c != ':' || !f.object {
			l.descend()
		}
		if c == '!' && l.end && !l.fresh { // TypeScript's non-null assertion
			l.emit(c, "", line, at)
			l.end = true
			return
		}
	case '*':
		if l.at("*") {
			l.pos++
			l.descend()
		}
	case '&', '|':
		if l.pos < len(l.src) && l.src[l.pos] == c {
			l.pos++
		}
	}
	l.emit(c, "", line, at)
	l.end = false
}

// element reports whether < begins a JSX element, and begins it.
func (l *lexer) element() bool {
	if l.end && !l.closed {
		return false
	}
	rest := l.src[l.pos+1:]
	if rest == "" || rest[0] != '>' && (!isName(rest[0]) || rest[0] >= '0' && rest[0] <= '9') {
		return false
	}
	n := 0
	for n < len(rest) && (isName(rest[n]) || rest[n] == '.' || rest[n] == '-' || rest[n] == ':') {
		n++
	}
	tail := strings.TrimLeft(rest[n:min(len(rest), n+16)], " \t\n")
	if rest[0] != '>' && (strings.HasPrefix(tail, ",") || strings.HasPrefix(tail, "extends ") || strings.HasPrefix(tail, "=")) {
		return false // parameters of a type
	}
	if l.closed {
		l.doubts++
	}
	maybe := l.frame().maybe || l.types && (l.last == ':' || l.last == '|' || l.last == '&' || l.last == '=' && l.alias > 0 && l.tokens-l.alias < 100)
	l.emit('<', rest[:n], l.line, l.pos)
	l.pos += 1 + n
	l.push(frame{open: '<', maybe: maybe, hidden: l.hidden})
	return true
}

// attribute reads syntax that only tags have, and the ends of tags.
func (l *lexer) attribute(c byte) bool {
	switch {
	case c == '>':
		l.pos++
		l.frame().open = '>'
		return true
	case c == '/' && l.at("/>"):
		l.pos += 2
		l.closeElement()
		return true
	case c == '"' || c == '\'':
		// A string in a tag has no escapes and may have several lines.
		from, line := l.pos+1, l.line
		n := strings.IndexByte(l.src[from:], c)
		if n < 0 {
			l.pos = len(l.src)
			return true
		}
		text := l.src[from : from+n]
		l.line += strings.Count(text, "\n")
		l.pos = from + n + 1
		l.emit('"', text, line, from-1)
		return true
	case c == '<' && l.types && l.last == '<' && l.arguments():
		return true
	case c == '<':
		l.doubts += boolInt(l.last != '=')
		l.end = false
		return l.element()
	case c == '{' || c == '/':
		if c == '{' {
			l.end = false
			l.mark(c, l.line, l.pos)
		} else {
			l.pos++
			l.doubts++
		}
		return true
	}
	if isName(c) || c == '-' || c == ':' || c == '.' || c == '=' {
		from := l.pos
		for l.pos++; c != '=' && l.pos < len(l.src) && (isName(l.src[l.pos]) || l.src[l.pos] == '-' || l.src[l.pos] == ':'); l.pos++ {
		}
		l.emit(map[bool]byte{true: '=', false: 'a'}[c == '='], l.src[from:l.pos], l.line, from)
		return true
	}
	l.doubts++
	l.pos++
	return true
}

// arguments skips simple type arguments after the name of an element.
func (l *lexer) arguments() bool {
	depth := 0
	for i := l.pos; i < len(l.src) && i < l.pos+300; i++ {
		switch c := l.src[i]; {
		case c == '<':
			depth++
		case c == '>':
			if depth--; depth == 0 {
				l.pos = i + 1
				return true
			}
		case !isName(c) && strings.IndexByte(" ,.|&[]", c) < 0:
			return false
		}
	}
	return false
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (l *lexer) closeElement() {
	if f := l.pop(); f.maybe && l.hidden-f.hidden > maxDepth {
		l.doubts++
	}
	l.end, l.closed, l.last = true, false, 'a'
}

// hide counts the tokens in a text as if it were code.
func (l *lexer) hide(s string) {
	name := false
	for i := range len(s) {
		switch c := s[i]; {
		case isName(c):
			if !name {
				l.hidden++
			}
			name = true
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			name = false
		default:
			l.hidden++
			name = false
		}
	}
}

// between reads the text between the tags of an element, up to the next character that is
// not text.
func (l *lexer) between() {
	i := strings.IndexAny(l.src[l.pos:], "<{")
	if i < 0 {
		i = len(l.src) - l.pos
	}
	l.hide(l.src[l.pos : l.pos+i])
	if l.pos+i == len(l.src) {
		l.pos = len(l.src)
		return
	}
	l.line += strings.Count(l.src[l.pos:l.pos+i], "\n")
	l.pos += i
	if l.src[l.pos] == '{' {
		l.end = false
		l.mark('{', l.line, l.pos)
		return
	}
	if !l.at("</") {
		l.end, l.closed = false, false
		if !l.element() {
			l.doubts++
			l.pos++
		}
		return
	}
	n := strings.IndexByte(l.src[l.pos:], '>')
	if n < 0 {
		l.pos = len(l.src)
		return
	}
	if strings.ContainsAny(l.src[l.pos+2:l.pos+n], "<{}()\"'`") {
		l.doubts++
	}
	l.line += strings.Count(l.src[l.pos:l.pos+n], "\n")
	l.pos += n + 1
	l.closeElement()
}
