package markup

import (
	"fmt"
	"strings"

	"golang.org/x/net/html"
)

// A scope is the state of an HTML parser at a place that depends on the elements around it.
// The parser changes some elements by this state: a <p> ends
// where a <div> begins, a row can only be in a table. If all elements are allowed in their
// scopes, writing a page and parsing it again changes nothing, neither here
// nor in a browser.
type scope struct {
	parent                      string // name of the element; empty in SVG
	svg                         bool
	p, a, button, form, li, def bool // the element is open, and not hidden by a cell of a table or the like
}

var (
	void    = words("br col hr img input wbr")
	onlyIn  = lists("caption table", "colgroup table", "thead table", "tbody table", "tfoot table", "tr thead tbody tfoot", "td tr", "th tr", "col colgroup", "rt ruby", "rp ruby", "option select optgroup datalist", "optgroup select")
	only    = lists("table caption colgroup thead tbody tfoot", "thead tr", "tbody tr", "tfoot tr", "tr td th", "colgroup col", "select option optgroup", "optgroup option", "option", "textarea")
	endsP   = words("address article aside blockquote dd details div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr li main menu nav ol p pre section summary table ul")
	noText  = words("table thead tbody tfoot tr colgroup select optgroup")
	heading = words("h1 h2 h3 h4 h5 h6")
)

// scopeOf returns the scope in an element of a page. The root is a body.
func scopeOf(n *html.Node) (scope, error) {
	if n.Parent == nil {
		return scope{parent: "body"}, nil
	}
	s, err := scopeOf(n.Parent)
	if err != nil {
		return s, err
	}
	return s.enter(n)
}

// enter returns the scope in n, or the reason why n cannot be in s.
func (s scope) enter(n *html.Node) (scope, error) {
	name := n.Data
	no := func() (scope, error) {
		return s, fmt.Errorf("<%s> can not be there, in <%s>", name, s.parent)
	}
	within := func(outer string) (scope, error) { return s, fmt.Errorf("<%s> can not be in <%s>", name, outer) }
	if void[s.parent] {
		return no()
	}
	if children, ok := only[s.parent]; ok && !children[name] {
		return no()
	}
	if n.Namespace == "svg" {
		if !s.svg && name != "svg" || s.svg && (s.parent == "title" || s.parent == "desc") {
			return no()
		}
		s.svg, s.parent = true, name
		return s, nil
	}
	if s.svg {
		return no()
	}
	if parents, ok := onlyIn[name]; ok && !parents[s.parent] {
		return no()
	}
	switch {
	case s.p && endsP[name]:
		return within("p")
	case heading[s.parent] && heading[name]:
		return no()
	case s.a && name == "a", s.button && name == "button", s.form && name == "form":
		return within(name)
	case s.li && name == "li":
		return within("li")
	case s.def && (name == "dd" || name == "dt"):
		return within("dd")
	}
	s.parent = name
	switch name {
	case "p":
		s.p = true
	case "a":
		s.a = true
	case "button":
		s.button, s.p = true, false
	case "form":
		s.form = true
	case "li":
		s.li = true
	case "dd", "dt":
		s.def = true
	case "ul", "ol", "menu", "dl":
		s.li, s.def = false, false
	case "td", "th", "caption":
		s.p, s.a, s.button, s.li, s.def = false, false, false, false, false
	}
	return s, nil
}

// text returns the reason why text cannot be in s.
func (s scope) text(text string) error {
	if !s.svg && (void[s.parent] || noText[s.parent] && strings.Trim(text, space) != "") {
		return fmt.Errorf("text can not be in <%s>", s.parent)
	}
	return nil
}
