package markup

import (
	"fmt"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

// A Page is the sanitized body of a page. It must be used by one goroutine at a time.
type Page struct {
	root   *html.Node // body element
	size   size
	cached string // result of HTML, valid unless stale
	stale  bool
	table  *table // set while patches are applied; nil after elements were added or removed
}

// A size holds the measures of a page that have limits.
type size struct{ nodes, bytes, json int }

func (s size) plus(t size) size { return size{s.nodes + t.nodes, s.bytes + t.bytes, s.json + t.json} }

func (s size) minus(t size) size { return size{s.nodes - t.nodes, s.bytes - t.bytes, s.json - t.json} }

func (s size) times(n int) size { return size{s.nodes * n, s.bytes * n, s.json * n} }

func (s size) check() error {
	remedy := "show less at once, or remove something first"
	switch {
	case s.nodes > maxNodes:
		return invalid(remedy, "the page would have more than %d elements and texts", maxNodes)
	case s.bytes > maxHTML, s.json > MaxJSON:
		return invalid(remedy, "the page would have more than %d bytes", maxHTML)
	}
	return nil
}

// NewPage returns a page with the safe parts of the HTML; an empty page if they exceed
// the limits of pages.
func NewPage(html string) *Page {
	p := &Page{root: body()}
	if err := p.Set(html); err != nil {
		return &Page{root: body()}
	}
	return p
}

func body() *html.Node {
	return &html.Node{Type: html.ElementNode, Data: "body", DataAtom: atom.Body}
}

// Set replaces the page with the safe parts of the HTML. It reports Invalid, and changes
// nothing, if they exceed the limits of pages.
func (p *Page) Set(text string) error {
	if len(text) > maxLine {
		return size{bytes: len(text)}.check()
	}
	text = valid(text)
	if err := tangled(text); err != nil {
		return err
	}
	root := body()
	s := scope{parent: "body"}
	// Sanitized markup may be parsed differently again; repeating this soon gives a stable result.
	for range 5 {
		nodes, err := parse(text, root)
		if err != nil {
			return err
		}
		root = body()
		for _, n := range nodes {
			root.AppendChild(n)
		}
		s.sanitize(root)
		var b strings.Builder
		render(&b, root)
		if b.String() == text {
			sz := measure(text, root)
			if err := sz.check(); err != nil {
				return err
			}
			if depth(root) > maxDepth {
				return tooDeep()
			}
			p.root, p.size, p.cached, p.stale = root, sz, text, false
			return nil
		}
		text = b.String()
	}
	return invalid("write simpler markup, and end every element", "the page changes when it is parsed again")
}

// HTML returns the page as HTML. NewPage of the result gives the same page.
func (p *Page) HTML() string {
	if p.stale {
		var b strings.Builder
		render(&b, p.root)
		p.cached, p.stale = b.String(), false
		p.size.bytes, p.size.json = len(p.cached), jsonLen(p.cached)
	}
	return p.cached
}

// Clone returns a copy of the page.
func (p *Page) Clone() *Page {
	c := *p
	c.root, c.table = clone(p.root), nil
	return &c
}

func clone(n *html.Node) *html.Node {
	c := &html.Node{Type: n.Type, Data: n.Data, DataAtom: n.DataAtom, Namespace: n.Namespace, Attr: append([]html.Attribute(nil), n.Attr...)}
	for k := n.FirstChild; k != nil; k = k.NextSibling {
		c.AppendChild(clone(k))
	}
	return c
}

// parse parses HTML like a browser, as the content of context.
func parse(text string, context *html.Node) ([]*html.Node, error) {
	nodes, err := html.ParseFragment(strings.NewReader(text), context)
	if err != nil {
		return nil, invalid("nest less deep, and end every element", "read the markup: %v", err)
	}
	return nodes, nil
}

// tangled reports Invalid for text whose parsing may cost far more than its length: parsers
// reopen all formatting elements that were not ended in order, such as <b>, again and
// again.
func tangled(text string) error {
	const limit = 4 * maxNodes
	var open []string // open elements
	count := map[string]int{}
	left, cost := 0, 0 // left: number of formatting elements not ended in order
	z := html.NewTokenizer(strings.NewReader(text))
	for {
		switch z.Next() {
		case html.ErrorToken:
			return nil
		case html.StartTagToken:
			z.NextIsNotRawText()
			raw, _ := z.TagName()
			name := string(raw)
			if !void[name] {
				open = append(open, name)
				count[name]++
			}
			if formatting[name] {
				left++
			}
		case html.EndTagToken:
			raw, _ := z.TagName()
			name := string(raw)
			if count[name] == 0 {
				break
			}
			if open[len(open)-1] == name && formatting[name] {
				left--
			}
			for ended := ""; ended != name; {
				ended = open[len(open)-1]
				open = open[:len(open)-1]
				count[ended]--
			}
		}
		if cost += left; cost > limit {
			return invalid("end every element before the one around it ends", "the markup is too tangled")
		}
	}
}

var formatting = words("a b big code em font i nobr s small strike strong tt u")

func measure(text string, root *html.Node) size {
	n := 0
	for range root.Descendants() {
		n++
	}
	return size{n, len(text), jsonLen(text)}
}

// weigh returns the size of n with its content.
func weigh(n *html.Node) size {
	var b strings.Builder
	if n.Type == html.TextNode {
		escape(&b, n.Data)
	} else {
		tag(&b, n)
		render(&b, n)
		if !(n.Namespace == "" && void[n.Data]) {
			b.WriteString("</" + n.Data + ">")
		}
	}
	s := measure(b.String(), n)
	s.nodes++
	return s
}

// jsonLen returns the length of s as a JSON string without escaped HTML.
func jsonLen(s string) int {
	n := len(s) + 2
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"' || c == '\\' || c == '\n' || c == '\t':
			n++
		case c == 0xE2 && i+2 < len(s) && s[i+1] == 0x80 && s[i+2]&^1 == 0xA8: // line separators
			n += 3
		}
	}
	return n
}

// depth returns the maximum nesting depth of elements in n.
func depth(n *html.Node) int {
	d := 0
	for k := n.FirstChild; k != nil; k = k.NextSibling {
		if k.Type == html.ElementNode {
			d = max(d, 1+depth(k))
		}
	}
	return d
}

func level(n *html.Node) int {
	d := 0
	for ; n.Parent != nil; n = n.Parent {
		d++
	}
	return d
}

func tooDeep() error {
	return invalid("nest less deep", "elements would be nested more than %d deep", maxDepth)
}

// Apply applies patches in order. Selectors match in a document that consists of the
// body alone. It returns the applied patches, in a form with which a browser gets
// the same page, and the errors of other patches or of parts of them:
// Invalid, or NotFound if a selector matches nothing.
func (p *Page) Apply(patches []engi.PagePatch) (applied []engi.PagePatch, errs []error) {
	for i, patch := range patches {
		if i == maxPatches {
			errs = append(errs, invalid("write them in several lines", "the line has more than %d patches", maxPatches))
			break
		}
		c := change{page: p, patch: patch, out: engi.PagePatch{Selector: patch.Selector}}
		err := c.apply()
		if err != nil {
			c.faults = append(c.faults, err)
		} else {
			applied = append(applied, c.out)
			p.stale = true
		}
		for _, err := range c.faults {
			errs = append(errs, fmt.Errorf("patch %d, %.80q: %w", i+1, patch.Selector, err))
		}
	}
	p.table = nil
	return applied, errs
}
