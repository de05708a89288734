package markup

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
	"golang.org/x/net/html"
)

// A change is a patch that is being applied.
type change struct {
	page    *Page
	patch   engi.PagePatch
	out     engi.PagePatch // sanitized patch
	targets []*html.Node   // targets in document order
	faults  []error        // errors of parts that are left out
}

func (c *change) apply() error {
	var err error
	if c.targets, err = c.page.find(c.patch.Selector); err != nil {
		return err
	}
	var act func() error
	ways := 0
	way := func(has bool, f func() error) {
		if has {
			ways++
			act = f
		}
	}
	q := &c.patch
	way(q.Text != nil, c.text)
	way(q.HTML != nil, func() error { return c.insert(q.HTML, &c.out.HTML, "html") })
	way(q.Attr != nil, c.attr)
	way(q.Class != nil, c.class)
	way(q.Style != nil, c.style)
	way(q.Value != nil, c.value)
	way(q.Append != nil, func() error { return c.insert(q.Append, &c.out.Append, "append") })
	way(q.Prepend != nil, func() error { return c.insert(q.Prepend, &c.out.Prepend, "prepend") })
	way(q.Before != nil, func() error { return c.insert(q.Before, &c.out.Before, "before") })
	way(q.After != nil, func() error { return c.insert(q.After, &c.out.After, "after") })
	way(q.Replace != nil, func() error { return c.insert(q.Replace, &c.out.Replace, "replace") })
	way(q.Remove, c.remove)
	way(q.Move != nil, c.move)
	if ways != 1 {
		return invalid("write one patch for each change", "a patch has one change, but this patch has %d", ways)
	}
	if len(q.Attr)+len(q.Class)+len(q.Style) > maxParts {
		return invalid("write several patches", "the patch has more than %d parts", maxParts)
	}
	if c.targets[0] == c.page.root && q.Text == nil && q.HTML == nil && q.Append == nil && q.Prepend == nil {
		return invalid("change an element in it", "the body itself has only text, html, append and prepend")
	}
	if err := act(); err != nil {
		return err
	}
	if q.Attr == nil && q.Class == nil && q.Style == nil && q.Value == nil {
		c.page.table = nil
	}
	return nil
}

// find returns the elements that a selector matches, at least one.
func (p *Page) find(s string) ([]*html.Node, error) {
	sel, err := parseSelector(s)
	if err != nil {
		return nil, invalid("use names, #id, .class, [attribute=\"value\"], :not(), :is(), :nth-child() and the like, and combinations", "read the selector: %v", err)
	}
	if p.table == nil {
		p.table = &table{rows: make([]row, 0, p.size.nodes+1)}
		p.table.add(p.root, -1, -1)
	}
	found := p.table.find(sel)
	if len(found) == 0 {
		return nil, engi.Errorf(engi.NotFound, "no element is selected").WithRemedy("look at the page as it is now and select an element of it")
	}
	return found, nil
}

// grow changes the size of the page, unless it would exceed a limit.
func (c *change) grow(by size) error {
	after := c.page.size.plus(by)
	if by.nodes > 0 || by.bytes > 0 || by.json > 0 {
		if err := after.check(); err != nil {
			return err
		}
	}
	c.page.size = after
	return nil
}

// outermost removes targets within other targets, which are removed with them.
func (c *change) outermost() {
	kept := c.targets[:0]
	for _, n := range c.targets {
		up := n
		for up != nil && (len(kept) == 0 || up != kept[len(kept)-1]) {
			up = up.Parent
		}
		if up == nil {
			kept = append(kept, n)
		}
	}
	c.targets = kept
}

func contents(n *html.Node) size {
	var s size
	for k := n.FirstChild; k != nil; k = k.NextSibling {
		s = s.plus(weigh(k))
	}
	return s
}

func empty(n *html.Node) {
	for n.FirstChild != nil {
		n.RemoveChild(n.FirstChild)
	}
}

func (c *change) text() error {
	text := clean(valid(*c.patch.Text))
	c.outermost()
	node := &html.Node{Type: html.TextNode, Data: text}
	var by size
	for _, n := range c.targets {
		s, err := scopeOf(n)
		if err == nil {
			err = s.text(text)
		}
		if err != nil {
			return refused(err)
		}
		by = by.minus(contents(n))
		if text != "" {
			by = by.plus(weigh(node))
		}
	}
	if err := c.grow(by); err != nil {
		return err
	}
	for _, n := range c.targets {
		empty(n)
		if text != "" {
			n.AppendChild(clone(node))
		}
	}
	c.out.Text = &text
	return nil
}

func refused(err error) error {
	return invalid("choose another place or other elements", "%v", err)
}

// insert parses markup for each target's scope, and inserts it.
func (c *change) insert(text *string, out **string, how string) error {
	replaces := how == "html" || how == "replace"
	inside := how == "html" || how == "append" || how == "prepend"
	if replaces {
		c.outermost()
	}
	if len(*text) > maxLine {
		return size{bytes: len(*text)}.check()
	}
	markup, first := *text, true
	parsed := map[scope]*html.Node{} // bodies with the markup as parsed in a scope
	holders := make([]*html.Node, len(c.targets))
	var by, one size
	var tall int
	for i, n := range c.targets {
		context := n
		if !inside {
			context = n.Parent
		}
		s, err := scopeOf(context)
		if err != nil {
			return refused(err)
		}
		holder := parsed[s]
		if holder == nil {
			var canonical string
			if holder, canonical, err = fragment(markup, context, s); err != nil {
				return err
			}
			if !first && canonical != markup {
				return invalid("select elements of one kind", "the markup would be parsed differently in each of the selected elements")
			}
			parsed[s] = holder
			if first {
				markup, first = canonical, false
				one, tall = contents(holder), depth(holder)
			}
		}
		holders[i] = holder
		if level(context)+tall > maxDepth {
			return tooDeep()
		}
		switch {
		case how == "html":
			by = by.minus(contents(n))
		case how == "replace":
			by = by.minus(weigh(n))
		}
	}
	if err := c.grow(by.plus(one.times(len(c.targets)))); err != nil {
		return err
	}
	for i, n := range c.targets {
		put(clone(holders[i]), n, how)
	}
	*out = &markup
	return nil
}

// put moves the content of holder to its place at n.
func put(holder, n *html.Node, how string) {
	parent, before := n.Parent, n
	switch how {
	case "html":
		empty(n)
		parent, before = n, nil
	case "append":
		parent, before = n, nil
	case "prepend":
		parent, before = n, n.FirstChild
	case "after":
		before = n.NextSibling
	}
	for k := holder.FirstChild; k != nil; k = holder.FirstChild {
		holder.RemoveChild(k)
		parent.InsertBefore(k, before)
	}
	if how == "replace" {
		parent.RemoveChild(n)
	}
}

// fragment parses markup in context, and also returns its normal form.
func fragment(markup string, context *html.Node, s scope) (*html.Node, string, error) {
	if s.parent == "textarea" || void[s.parent] {
		return nil, "", invalid("use value or text, or another element", "<%s> has no elements in it", s.parent)
	}
	markup = valid(markup)
	if err := tangled(markup); err != nil {
		return nil, "", err
	}
	for range 5 {
		nodes, err := parse(markup, context)
		if err != nil {
			return nil, "", err
		}
		holder := body()
		for _, n := range nodes {
			holder.AppendChild(n)
		}
		if err := s.sanitize(holder); err != nil {
			return nil, "", refused(err)
		}
		var b strings.Builder
		render(&b, holder)
		if b.String() == markup {
			return holder, markup, nil
		}
		markup = b.String()
	}
	return nil, "", invalid("write simpler markup, and end every element", "the markup changes when it is parsed again")
}

func (c *change) remove() error {
	c.outermost()
	var by size
	for _, n := range c.targets {
		by = by.minus(weigh(n))
		n.Parent.RemoveChild(n)
	}
	c.out.Remove = true
	return c.grow(by)
}

func (c *change) move() error {
	m := *c.patch.Move
	found, err := c.page.find(m.To)
	if err != nil {
		return err
	}
	n, to := c.targets[0], found[0]
	context := to
	switch m.Place {
	case "append", "prepend":
	case "before", "after":
		context = to.Parent
	default:
		return invalid("use append, prepend, before or after", "%.40q is no place", m.Place)
	}
	if context == nil {
		return invalid("use append or prepend", "no element can be beside the body")
	}
	for up := to; up != nil; up = up.Parent {
		if up == n {
			return invalid("move it elsewhere", "an element can not move into or beside itself")
		}
	}
	s, err := scopeOf(context)
	if err == nil {
		err = s.check(n)
	}
	if err != nil {
		return refused(err)
	}
	if level(context)+1+depth(n) > maxDepth {
		return tooDeep()
	}
	holder := body()
	n.Parent.RemoveChild(n)
	holder.AppendChild(n)
	put(holder, to, m.Place)
	c.out.Move = &m
	return nil
}

// check returns the reason why n and its content cannot be in s.
func (s scope) check(n *html.Node) error {
	if n.Type == html.TextNode {
		return s.text(n.Data)
	}
	s, err := s.enter(n)
	for k := n.FirstChild; k != nil && err == nil; k = k.NextSibling {
		err = s.check(k)
	}
	return err
}

// edit gives each target the attributes that f returns.
func (c *change) edit(f func(n *html.Node) []html.Attribute) error {
	attrs := make([][]html.Attribute, len(c.targets))
	var by size
	for i, n := range c.targets {
		attrs[i] = f(n)
		after := *n
		after.Attr = attrs[i]
		by = by.plus(start(&after)).minus(start(n))
	}
	if err := c.grow(by); err != nil {
		return err
	}
	for i, n := range c.targets {
		n.Attr = attrs[i]
	}
	return nil
}

func start(n *html.Node) size {
	var b strings.Builder
	tag(&b, n)
	return size{bytes: b.Len(), json: jsonLen(b.String())}
}

// with returns attributes with one attribute set, or removed if value is nil.
func with(attrs []html.Attribute, name string, value *string) []html.Attribute {
	attrs = slices.Clone(attrs)
	i, found := slices.BinarySearchFunc(attrs, html.Attribute{Key: name}, byName)
	switch {
	case value == nil && found:
		return slices.Delete(attrs, i, i+1)
	case value == nil:
		return attrs
	case found:
		attrs[i].Val = *value
		return attrs
	}
	return slices.Insert(attrs, i, html.Attribute{Key: name, Val: *value})
}

var attrName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,79}$`)

func (c *change) attr() error {
	out := map[string]*string{}
	for _, given := range slices.Sorted(maps.Keys(c.patch.Attr)) {
		name, value, err := c.attribute(given, c.patch.Attr[given])
		if err != nil {
			c.faults = append(c.faults, invalid("leave it out", "attribute %.80q: %v", given, err))
			continue
		}
		out[name] = value
	}
	if len(out) == 0 {
		return c.nothing("attributes")
	}
	c.out.Attr = out
	return c.edit(func(n *html.Node) []html.Attribute {
		attrs := n.Attr
		for _, name := range slices.Sorted(maps.Keys(out)) {
			attrs = with(attrs, name, out[name])
		}
		return attrs
	})
}

// nothing returns the error of a patch without any valid part.
func (c *change) nothing(what string) error {
	if len(c.faults) > 0 {
		err := c.faults[len(c.faults)-1]
		c.faults = c.faults[:len(c.faults)-1]
		return err
	}
	return invalid("leave the patch out", "the patch has no %s", what)
}

// attribute returns an attribute in a form that all targets may have.
func (c *change) attribute(name string, value *string) (string, *string, error) {
	if !attrName.MatchString(name) {
		return "", nil, fmt.Errorf("it is no name")
	}
	as := ""
	var v string
	for i, n := range c.targets {
		own := lowerASCII(name)
		if n.Namespace != "" {
			for known := range allowed(n) {
				if strings.EqualFold(known, own) {
					own = known
				}
			}
		}
		if as == "" {
			as = own
		}
		if own != as {
			return "", nil, fmt.Errorf("it is written differently in SVG and HTML")
		}
		if value == nil {
			continue
		}
		kept, ok := attribute(n, own, valid(*value))
		if !ok {
			return "", nil, fmt.Errorf("it may not be there, or not have this value, in <%s>", n.Data)
		}
		if i > 0 && kept != v {
			return "", nil, fmt.Errorf("the patch would change the selected elements in different ways")
		}
		v = kept
	}
	if value == nil {
		return as, nil, nil
	}
	return as, &v, nil
}

func (c *change) class() error {
	out := map[string]bool{}
	for name, on := range c.patch.Class {
		if name == "" || len(name) > 256 || clean(valid(name)) != name || strings.ContainsAny(name, space) {
			c.faults = append(c.faults, invalid("use one name without spaces for each", "%.80q is no class", name))
			continue
		}
		out[name] = on
	}
	if len(out) == 0 {
		return c.nothing("classes")
	}
	c.out.Class = out
	return c.edit(func(n *html.Node) []html.Attribute {
		have, ok := attr(n, "class")
		var list []string
		for name := range strings.FieldsFuncSeq(have, isSpace) {
			if on, named := out[name]; (on || !named) && !slices.Contains(list, name) {
				list = append(list, name)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(out)) {
			if out[name] && !slices.Contains(list, name) {
				list = append(list, name)
			}
		}
		if !ok && len(list) == 0 {
			return n.Attr
		}
		text := strings.Join(list, " ")
		return with(n.Attr, "class", &text)
	})
}

func (c *change) style() error {
	out := map[string]*string{}
	for name, value := range c.patch.Style {
		given := "inherit"
		if value != nil {
			given = valid(*value)
		}
		as, v, ok := property(name, given)
		if !ok {
			c.faults = append(c.faults, invalid("leave it out", "style %.80q is not allowed, or not with this value", name))
			continue
		}
		if out[as] = nil; value != nil {
			out[as] = &v
		}
	}
	if len(out) == 0 {
		return c.nothing("styles")
	}
	c.out.Style = out
	return c.edit(func(n *html.Node) []html.Attribute {
		have, ok := attr(n, "style")
		st := parseStyle(have)
		for _, name := range slices.Sorted(maps.Keys(out)) {
			if v := out[name]; v != nil {
				st.set(name, *v)
			} else {
				st.remove(name)
			}
		}
		if !ok && len(st) == 0 {
			return n.Attr
		}
		text := st.String()
		return with(n.Attr, "style", &text)
	})
}

// value sets the values of fields, with the same result as if a user entered them.
func (c *change) value() error {
	v := clean(valid(*c.patch.Value))
	c.out.Value = &v
	attrs := map[*html.Node][]html.Attribute{}
	texts := map[*html.Node]bool{}
	all := c.targets
	c.targets = nil
	var by size
	for _, n := range all {
		kind, _ := attr(n, "type")
		switch {
		case n.Namespace != "":
			return refusedValue(n)
		case n.Data == "input" && kind != "checkbox" && kind != "radio", n.Data == "progress", n.Data == "meter":
			attrs[n] = with(n.Attr, "value", &v)
			c.targets = append(c.targets, n)
		case n.Data == "textarea":
			texts[n] = true
			by = by.minus(contents(n)).plus(weigh(&html.Node{Type: html.TextNode, Data: v}))
		case n.Data == "select":
			found := false
			for o := range n.Descendants() {
				if o.Type != html.ElementNode || o.Data != "option" {
					continue
				}
				var set *string
				if optionValue(o) == v && !found {
					found, set = true, new(string)
				}
				attrs[o] = with(o.Attr, "selected", set)
				c.targets = append(c.targets, o)
			}
			if !found {
				return invalid("use the value of an option", "<select> has no option with this value")
			}
		default:
			return refusedValue(n)
		}
	}
	if err := c.grow(by); err != nil {
		return err
	}
	if err := c.edit(func(n *html.Node) []html.Attribute { return attrs[n] }); err != nil {
		c.page.size = c.page.size.minus(by)
		return err
	}
	for n := range texts {
		empty(n)
		if v != "" {
			n.AppendChild(&html.Node{Type: html.TextNode, Data: v})
		}
	}
	return nil
}

func refusedValue(n *html.Node) error {
	return invalid("use text, or attr with checked or selected", "<%s> has no value that is typed", n.Data)
}

func optionValue(n *html.Node) string {
	if v, ok := attr(n, "value"); ok {
		return v
	}
	var b strings.Builder
	for k := range n.Descendants() {
		if k.Type == html.TextNode {
			b.WriteString(k.Data)
		}
	}
	return strings.Join(strings.FieldsFunc(b.String(), isSpace), " ")
}
