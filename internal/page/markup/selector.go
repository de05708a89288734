package markup

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/net/html"
)

// A selector is a parsed CSS selector, of the subset that depends on nothing but the tree and
// that browsers implement alike. Matching it costs at most its length times the number of nodes of the
// page.
type selector [][]compound // alternatives between commas

// A compound matches one element. It begins with the combinator that relates the element to that of the
// compound before it: ' ', '>', '+' or '~'; 0 for the first.
type compound struct {
	relation byte
	tests    []test
	counts   bool // needs the position among siblings
}

// A test is one property of an element.
type test func(n *html.Node, at place) bool

// A place is the position of an element among the children of its parent, and among those
// of the same type, counted from 1 and from either end.
type place struct{ first, last, firstOf, lastOf int }

const maxCompounds = 16 // maximum number of compounds of a selector

// A table lists the elements of a page in document order; the root is the first.
type table struct {
	rows   []row
	places []place // positions of the rows, if the selector needs them
}

// A row is an element, with the indexes of the rows of its parent and of the sibling before it; -1 if
// there is none.
type row struct {
	n            *html.Node
	parent, prev int32
}

func (t *table) add(n *html.Node, parent, prev int32) int32 {
	i := int32(len(t.rows))
	t.rows = append(t.rows, row{n, parent, prev})
	last := int32(-1)
	for k := n.FirstChild; k != nil; k = k.NextSibling {
		if k.Type == html.ElementNode {
			last = t.add(k, i, last)
		}
	}
	return i
}

func (t *table) count() {
	type kind struct {
		parent      int32
		space, name string
	}
	t.places = make([]place, len(t.rows))
	kinds, all := map[kind]int{}, make([]int, len(t.rows))
	t.places[0] = place{1, 1, 1, 1}
	for i, r := range t.rows[1:] {
		k := kind{r.parent, r.n.Namespace, r.n.Data}
		all[r.parent]++
		kinds[k]++
		t.places[i+1] = place{first: all[r.parent], firstOf: kinds[k]}
	}
	for i, r := range t.rows[1:] {
		at := &t.places[i+1]
		at.last = all[r.parent] - at.first + 1
		at.lastOf = kinds[kind{r.parent, r.n.Namespace, r.n.Data}] - at.firstOf + 1
	}
}

// find returns the elements that s matches.
func (t *table) find(s selector) []*html.Node {
	found := make([]bool, len(t.rows))
	for _, steps := range s {
		var set []bool
		for i := range steps {
			set = t.step(&steps[i], set)
		}
		for i, is := range set {
			found[i] = found[i] || is
		}
	}
	var nodes []*html.Node
	for i, is := range found {
		if is {
			nodes = append(nodes, t.rows[i].n)
		}
	}
	return nodes
}

// step returns the elements that match c and are related to those in from.
func (t *table) step(c *compound, from []bool) []bool {
	if c.counts && t.places == nil {
		t.count()
	}
	set := make([]bool, len(t.rows))
	related := make([]bool, len(t.rows))
	var at place
	for i, r := range t.rows {
		switch c.relation {
		case 0:
			related[i] = true
		case ' ':
			related[i] = i > 0 && (from[r.parent] || related[r.parent])
		case '>':
			related[i] = i > 0 && from[r.parent]
		case '+':
			related[i] = r.prev > 0 && from[r.prev]
		case '~':
			related[i] = r.prev > 0 && (from[r.prev] || related[r.prev])
		}
		if c.counts {
			at = t.places[i]
		}
		set[i] = related[i] && c.matches(r.n, at)
	}
	return set
}

func (c *compound) matches(n *html.Node, at place) bool {
	for _, t := range c.tests {
		if !t(n, at) {
			return false
		}
	}
	return true
}

// parseSelector reports Invalid for unknown selectors, which include all that depend on
// actions of the user, on the state of fields or on the document around the page.
func parseSelector(s string) (selector, error) {
	if len(s) > maxSelector {
		return nil, fmt.Errorf("it is longer than %d bytes", maxSelector)
	}
	p := &selectorParser{rest: strings.Trim(s, space)}
	var sel selector
	for {
		steps, err := p.complex()
		if err != nil {
			return nil, err
		}
		sel = append(sel, steps)
		if !p.eat(",") {
			break
		}
		p.skip()
	}
	if p.rest != "" {
		return nil, fmt.Errorf("%q is not understood", p.rest)
	}
	return sel, nil
}

const space = " \t\r\n\f"

type selectorParser struct {
	rest  string
	count int // number of compounds
}

func (p *selectorParser) eat(prefix string) bool {
	rest, ok := strings.CutPrefix(p.rest, prefix)
	if ok {
		p.rest = rest
	}
	return ok
}

func (p *selectorParser) skip() bool {
	before := len(p.rest)
	p.rest = strings.TrimLeft(p.rest, space)
	return len(p.rest) < before
}

func (p *selectorParser) complex() ([]compound, error) {
	var steps []compound
	var relation byte
	for {
		if p.count++; p.count > maxCompounds {
			return nil, fmt.Errorf("it has more than %d parts", maxCompounds)
		}
		c, err := p.compound(true)
		if err != nil {
			return nil, err
		}
		c.relation = relation
		steps = append(steps, c)
		relation = 0
		if p.skip() {
			relation = ' '
		}
		switch {
		case p.rest == "" || p.rest[0] == ',':
			return steps, nil
		case strings.IndexByte(">+~", p.rest[0]) >= 0:
			relation = p.rest[0]
			p.rest = p.rest[1:]
			p.skip()
		case relation == 0:
			return nil, fmt.Errorf("%q is not understood", p.rest)
		}
	}
}

func (p *selectorParser) compound(nested bool) (compound, error) {
	var c compound
	if p.eat("*") {
		c.tests = append(c.tests, func(*html.Node, place) bool { return true })
	} else if name, ok := p.ident(); ok {
		lower := strings.ToLower(name)
		c.tests = append(c.tests, func(n *html.Node, _ place) bool {
			return n.Data == lower && n.Namespace == "" || n.Data == name && n.Namespace != ""
		})
	}
	for p.rest != "" {
		var t test
		var err error
		switch {
		case p.eat("#"):
			t, err = p.named(func(n *html.Node, name string) bool { v, ok := attr(n, "id"); return ok && v == name })
		case p.eat("."):
			t, err = p.named(hasClass)
		case p.eat("["):
			t, err = p.attribute()
		case p.eat(":"):
			t, err = p.pseudo(&c, nested)
		default:
			if len(c.tests) == 0 {
				return c, fmt.Errorf("%q is not understood", p.rest)
			}
			return c, nil
		}
		if err != nil {
			return c, err
		}
		c.tests = append(c.tests, t)
	}
	if len(c.tests) == 0 {
		return c, fmt.Errorf("it ends too early")
	}
	return c, nil
}

func (p *selectorParser) named(is func(*html.Node, string) bool) (test, error) {
	name, ok := p.ident()
	if !ok {
		return nil, fmt.Errorf("there is no name before %q", p.rest)
	}
	return func(n *html.Node, _ place) bool { return is(n, name) }, nil
}

// folded lists attributes whose values browsers compare case-insensitively.
const folded = " align checked color dir disabled hreflang lang method multiple readonly rel scope selected target type valign "

func (p *selectorParser) attribute() (test, error) {
	p.skip()
	name, ok := p.ident()
	if !ok {
		return nil, fmt.Errorf("there is no attribute before %q", p.rest)
	}
	lower := strings.ToLower(name)
	value := func(n *html.Node) (string, bool) {
		if n.Namespace == "" {
			return attr(n, lower)
		}
		return attr(n, name)
	}
	p.skip()
	if p.eat("]") {
		return func(n *html.Node, _ place) bool { _, ok := value(n); return ok }, nil
	}
	op := ""
	for _, o := range []string{"=", "~=", "|=", "^=", "$=", "*="} {
		if p.eat(o) {
			op = o
			break
		}
	}
	p.skip()
	want, ok := p.text()
	if op == "" || !ok {
		return nil, fmt.Errorf("[%s%s is not followed by a value", name, op)
	}
	fold, exact := false, false
	if p.skip(); p.eat("i") || p.eat("I") {
		fold = true
	} else if p.eat("s") || p.eat("S") {
		exact = true
	}
	if p.skip(); !p.eat("]") {
		return nil, fmt.Errorf("a bracket is not closed")
	}
	known := strings.Contains(folded, " "+lower+" ")
	return func(n *html.Node, _ place) bool {
		have, ok := value(n)
		want := want
		if fold || known && !exact && n.Namespace == "" {
			have, want = lowerASCII(have), lowerASCII(want)
		}
		if !ok || want == "" && op != "=" && op != "|=" {
			return false
		}
		switch op {
		case "=":
			return have == want
		case "~=":
			return !strings.ContainsAny(want, space) && hasWord(have, want)
		case "|=":
			return have == want || strings.HasPrefix(have, want+"-")
		case "^=":
			return strings.HasPrefix(have, want)
		case "$=":
			return strings.HasSuffix(have, want)
		}
		return strings.Contains(have, want)
	}, nil
}

func (p *selectorParser) pseudo(c *compound, nested bool) (test, error) {
	name, _ := p.ident()
	name = strings.ToLower(name)
	plain := map[string]test{
		"first-child":   func(_ *html.Node, at place) bool { return at.first == 1 },
		"last-child":    func(_ *html.Node, at place) bool { return at.last == 1 },
		"only-child":    func(_ *html.Node, at place) bool { return at.first == 1 && at.last == 1 },
		"first-of-type": func(_ *html.Node, at place) bool { return at.firstOf == 1 },
		"last-of-type":  func(_ *html.Node, at place) bool { return at.lastOf == 1 },
		"only-of-type":  func(_ *html.Node, at place) bool { return at.firstOf == 1 && at.lastOf == 1 },
		"empty": func(n *html.Node, _ place) bool {
			for k := n.FirstChild; k != nil; k = k.NextSibling {
				if k.Type == html.ElementNode || k.Type == html.TextNode && k.Data != "" {
					return false
				}
			}
			return true
		},
	}
	if t, ok := plain[name]; ok {
		c.counts = true
		return t, nil
	}
	if !p.eat("(") {
		return nil, fmt.Errorf(":%s is not a supported pseudo-class", name)
	}
	p.skip()
	var t test
	switch name {
	case "not", "is", "where":
		if !nested {
			return nil, fmt.Errorf(":%s is inside another one", name)
		}
		var any []compound
		for {
			in, err := p.compound(false)
			if err != nil {
				return nil, err
			}
			if p.count++; p.count > maxCompounds {
				return nil, fmt.Errorf("it has more than %d parts", maxCompounds)
			}
			c.counts = c.counts || in.counts
			any = append(any, in)
			if p.skip(); !p.eat(",") {
				break
			}
			p.skip()
		}
		t = func(n *html.Node, at place) bool {
			for i := range any {
				if any[i].matches(n, at) {
					return name != "not"
				}
			}
			return name == "not"
		}
	case "nth-child", "nth-last-child", "nth-of-type", "nth-last-of-type":
		end := strings.IndexByte(p.rest, ')')
		if end < 0 {
			end = len(p.rest)
		}
		a, b, ok := nth(p.rest[:end])
		if !ok {
			return nil, fmt.Errorf(":%s(%s) is not understood", name, p.rest[:end])
		}
		p.rest = p.rest[end:]
		c.counts = true
		t = func(_ *html.Node, at place) bool {
			i := map[string]int{"nth-child": at.first, "nth-last-child": at.last, "nth-of-type": at.firstOf, "nth-last-of-type": at.lastOf}[name] - b
			return a == 0 && i == 0 || a != 0 && i%a == 0 && i/a >= 0
		}
	default:
		return nil, fmt.Errorf(":%s is not a supported pseudo-class", name)
	}
	if p.skip(); !p.eat(")") {
		return nil, fmt.Errorf(":%s is not closed", name)
	}
	return t, nil
}

// nth parses the form an+b.
func nth(s string) (a, b int, ok bool) {
	s = strings.ToLower(strings.Trim(s, space))
	switch s {
	case "odd":
		return 2, 1, true
	case "even":
		return 2, 0, true
	}
	number := func(s string) (int, bool) {
		s = strings.TrimPrefix(s, "+")
		n, err := strconv.Atoi(s)
		return n, err == nil && len(s) < 8 && !strings.HasPrefix(s, "+")
	}
	head, tail, linear := strings.Cut(s, "n")
	if !linear {
		b, ok = number(s)
		return 0, b, ok
	}
	switch head {
	case "", "+":
		a = 1
	case "-":
		a = -1
	default:
		if a, ok = number(head); !ok {
			return 0, 0, false
		}
	}
	if tail = strings.Trim(tail, space); tail == "" {
		return a, 0, true
	}
	if tail[0] != '+' && tail[0] != '-' {
		return 0, 0, false
	}
	b, ok = number(tail[:1] + strings.TrimLeft(tail[1:], space))
	return a, b, ok && tail[len(tail)-1] >= '0'
}

// ident reads an identifier: letters, digits, -, _, characters beyond ASCII, and escapes of other
// characters. It does not begin with a digit.
func (p *selectorParser) ident() (string, bool) {
	s := strings.TrimPrefix(p.rest, "-")
	if s == "" || s[0] < 0x80 && s[0] != '-' && s[0] != '_' && s[0] != '\\' && (!alnum(s[0]) || s[0] <= '9') {
		return "", false
	}
	var b strings.Builder
	i := 0
	for ; i < len(p.rest); i++ {
		c := p.rest[i]
		if c == '\\' {
			n, ok := unescapeCSS(p.rest[i:], &b)
			if !ok {
				break
			}
			i += n - 1
			continue
		}
		if c != '-' && c != '_' && c < 0x80 && !alnum(c) {
			break
		}
		b.WriteByte(c)
	}
	p.rest = p.rest[i:]
	return b.String(), b.Len() > 0
}

// text reads an identifier or a quoted string.
func (p *selectorParser) text() (string, bool) {
	if p.rest == "" || p.rest[0] != '"' && p.rest[0] != '\'' {
		return p.ident()
	}
	quote := p.rest[0]
	var b strings.Builder
	for i := 1; i < len(p.rest); i++ {
		switch c := p.rest[i]; c {
		case quote:
			p.rest = p.rest[i+1:]
			return b.String(), true
		case '\n', '\r', '\f':
			return "", false
		case '\\':
			n, ok := unescapeCSS(p.rest[i:], &b)
			if !ok {
				return "", false
			}
			i += n - 1
		default:
			b.WriteByte(c)
		}
	}
	return "", false
}

// unescapeCSS decodes an escape and returns its length.
func unescapeCSS(s string, to *strings.Builder) (int, bool) {
	i := 1
	for i < len(s) && i < 7 && strings.IndexByte("0123456789abcdefABCDEF", s[i]) >= 0 {
		i++
	}
	if i > 1 {
		r, err := strconv.ParseUint(s[1:i], 16, 32)
		if err != nil {
			return 0, false
		}
		if r == 0 || r > 0x10FFFF || r >= 0xD800 && r < 0xE000 {
			r = 0xFFFD
		}
		to.WriteRune(rune(r))
		if i < len(s) && strings.IndexByte(space, s[i]) >= 0 {
			i++
		}
		return i, true
	}
	if len(s) < 2 || strings.IndexByte("\n\r\f", s[1]) >= 0 {
		return 0, false
	}
	to.WriteByte(s[1]) // the rest of the character is copied unchanged
	return 2, true
}

func alnum(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

func lowerASCII(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}, s)
}

func attr(n *html.Node, name string) (string, bool) {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val, true
		}
	}
	return "", false
}

func hasClass(n *html.Node, name string) bool {
	v, ok := attr(n, "class")
	return ok && hasWord(v, name)
}

func hasWord(list, word string) bool {
	for w := range strings.FieldsFuncSeq(list, isSpace) {
		if w == word {
			return true
		}
	}
	return false
}

func isSpace(r rune) bool { return r < 0x80 && strings.IndexByte(space, byte(r)) >= 0 }
