package pagestream

import (
	"encoding/json"
	"fmt"
	"hash/maphash"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/page/markup"
)

// a2UI sends the messages of A2UI 0.9: a surface with components of the basic
// catalogue, which every client can show, and the values of fields as its data.
// Components keep their IDs like elements of json-render. Elements without an
// equivalent in the catalogue, such as drawings and styles, are left out.
type a2UI struct {
	Start
	shown
	root *element       // the last one sent; nil before the first
	data map[string]any // values of fields as sent, by path
	keys int
	free []string // IDs of removed components
	out  []any    // components to send
}

func newA2UI(s Start) Encoder {
	return &a2UI{Start: s, shown: shown{page: markup.NewPage("")}, data: map[string]any{}}
}

const (
	a2Version = "v0.9"
	a2Catalog = "https://a2ui.org/specification/v0_9/catalogs/basic/catalog.json"
)

type record map[string]any

// Encode implements Encoder.
func (a *a2UI) Encode(u engi.PageUpdate) (events []Event, last bool) {
	page := a.after(u)
	if page == nil {
		return nil, false
	}
	root, values := componentsOf(page)
	send := func(kind string, m record) {
		m["surfaceId"] = a.Session
		events = append(events, Event{Data: record{"version": a2Version, kind: m}})
	}
	a.out = nil
	var gone []string
	if a.root == nil {
		if a.Resumed || a.Answer { // the client may have the surface, with IDs of an earlier stream
			send("deleteSurface", record{})
		}
		send("createSurface", record{"catalogId": a2Catalog})
		a.name(root, "root")
	} else {
		gone = a.become(a.root, root)
	}
	a.root = root
	for _, path := range slices.Sorted(maps.Keys(a.data)) {
		if _, ok := values[path]; !ok {
			send("updateDataModel", record{"path": path})
		}
	}
	for _, path := range slices.Sorted(maps.Keys(values)) {
		if old, ok := a.data[path]; !ok || !reflect.DeepEqual(old, values[path]) {
			send("updateDataModel", record{"path": path, "value": values[path]})
		}
	}
	a.data = values
	if len(a.out) > 0 {
		send("updateComponents", record{"components": a.out})
	}
	a.free = append(a.free, gone...)
	return events, false
}

// Fail implements Encoder.
func (*a2UI) Fail(p *v1.Problem) Event { return engiEncoder{}.Fail(p) }

// name gives e an ID, or a new one if id is empty, does the same for its descendants, and sends them.
func (a *a2UI) name(e *element, id string) {
	if id == "" {
		if n := len(a.free); n > 0 {
			id, a.free = a.free[n-1], a.free[:n-1]
		} else {
			id = "c" + strconv.Itoa(a.keys)
			a.keys++
		}
	}
	e.key = id
	for _, c := range e.children {
		a.name(c, "")
	}
	a.send(e)
}

func (a *a2UI) send(e *element) {
	c := record{}
	if err := json.Unmarshal([]byte(e.props["json"]), &c); err != nil {
		return // unreachable: this package encoded it
	}
	c["id"], c["component"] = e.key, e.kind
	switch {
	case e.kind == "Button":
		c["child"] = e.children[0].key
	case holds(e.kind):
		c["children"] = keysOf(e.children)
	}
	a.out = append(a.out, c)
}

func holds(kind string) bool { return kind == "Column" || kind == "Row" || kind == "List" }

// become gives e the ID of old, sends the differences, and returns the IDs of
// removed components.
func (a *a2UI) become(old, e *element) (gone []string) {
	e.key = old.key
	if old.same == e.same {
		e.children = old.children
		return nil
	}
	var drop func(*element)
	drop = func(x *element) {
		gone = append(gone, x.key)
		for _, c := range x.children {
			drop(c)
		}
	}
	for _, c := range pair(old.children, e.children) {
		drop(c)
	}
	for _, c := range e.children {
		if c.old != nil {
			gone = append(gone, a.become(c.old, c)...)
			c.old = nil // otherwise all earlier pages would stay in memory
		} else {
			a.name(c, "")
		}
	}
	if e.props["json"] != old.props["json"] || !slices.Equal(keysOf(old.children), keysOf(e.children)) {
		a.send(e)
	}
	return gone
}

// An a2Form is a form, or the part of a page outside of forms.
type a2Form struct {
	name   string
	action *html.Node              // element with the form's data-action; nil for none
	fields map[string]any          // by name: a path, or the value of a hidden field
	groups map[string][]*html.Node // radio buttons and check boxes, by type and name; nil once they are shown
}

// An a2Page builds the components of a page.
type a2Page struct {
	values map[string]any        // values of fields, by path
	labels map[string]string     // labels by ID of their field
	used   map[*html.Node]bool   // interactive elements and all their ancestors
	around map[*html.Node]string // texts of labels around fields
	forms  int
	bound  int // number of fields that buttons send
}

// maxBound limits the result of a form with many buttons: buttons beyond it send only their own
// data.
const maxBound = 20_000

// componentsOf returns the components of a page and the values of its fields.
func componentsOf(page *markup.Page) (*element, map[string]any) {
	p := &a2Page{values: map[string]any{}, labels: map[string]string{}, used: map[*html.Node]bool{}, around: map[*html.Node]string{}}
	body := &html.Node{Type: html.ElementNode, Data: "body", DataAtom: atom.Body}
	nodes, err := html.ParseFragment(strings.NewReader(page.HTML()), body)
	if err != nil {
		return component("Column", nil), nil // unreachable: the page was parsed before
	}
	for _, n := range nodes {
		body.AppendChild(n)
	}
	for n := range body.Descendants() {
		if to := attrOf(n, "for"); n.DataAtom == atom.Label && to != "" {
			p.labels[to] = short(textOf(n))
		}
		if acts(n) {
			for x := n; x != nil && !p.used[x]; x = x.Parent {
				p.used[x] = true
			}
		}
	}
	return component("Column", nil, p.list(body, p.form(body))...), p.values
}

// component returns a component, whose children are separate from its properties.
func component(kind string, props record, children ...*element) *element {
	raw, err := json.Marshal(props)
	if err != nil || props == nil {
		raw = []byte("{}") // unreachable: props has only strings, numbers, lists and maps
	}
	e := &element{kind: kind, alike: kind, props: map[string]string{"json": string(raw)}, children: children}
	var h maphash.Hash
	h.SetSeed(seed)
	h.WriteString(kind + "\x00" + string(raw))
	for _, c := range children {
		maphash.WriteComparable(&h, c.same)
	}
	e.same = h.Sum64()
	return e
}

func words(s string) string { return strings.Join(strings.Fields(s), " ") }

// short returns a prefix of a text that several fields may have.
func short(s string) string {
	return clip.Text(s, 256)
}

// plain changes a text so that Markdown does not show it as a link or a picture.
var plain = strings.NewReplacer("](", "]\u2060(").Replace

func textComponent(text, variant string) *element {
	props := record{"text": plain(text)}
	if variant != "" {
		props["variant"] = variant
	}
	return component("Text", props)
}

func attrOf(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name && a.Namespace == "" {
			return a.Val
		}
	}
	return ""
}

func hasAttr(n *html.Node, name string) bool {
	return slices.ContainsFunc(n.Attr, func(a html.Attribute) bool { return a.Key == name && a.Namespace == "" })
}

func textOf(n *html.Node) string {
	var b strings.Builder
	for c := range n.Descendants() {
		if c.Type == html.TextNode {
			b.WriteString(c.Data)
		}
	}
	return words(b.String())
}

// acts reports whether n is an element to use or to look at, and not just text.
func acts(n *html.Node) bool {
	switch n.DataAtom {
	case atom.A, atom.Button, atom.Input, atom.Select, atom.Textarea, atom.Img, atom.Svg:
		return true
	}
	return n.Type == html.ElementNode && attrOf(n, "data-action") != ""
}

// inline holds the elements that stand in a line of text.
var inline = func() map[atom.Atom]bool {
	all := map[atom.Atom]bool{}
	for _, a := range []atom.Atom{
		atom.A, atom.Abbr, atom.B, atom.Bdi, atom.Bdo, atom.Button, atom.Cite, atom.Code, atom.Data, atom.Del, atom.Dfn, atom.Em, atom.I, atom.Img, atom.Input, atom.Ins, atom.Kbd,
		atom.Label, atom.Mark, atom.Meter, atom.Output, atom.Progress, atom.Q, atom.S, atom.Samp, atom.Select, atom.Small, atom.Span, atom.Strong, atom.Sub, atom.Sup, atom.Svg, atom.Textarea,
		atom.Time, atom.U, atom.Var, atom.Wbr,
	} {
		all[a] = true
	}
	return all
}()

// list returns the components of the children of n: adjacent text is one component, and
// text with other elements in the same line is a row.
func (p *a2Page) list(n *html.Node, f *a2Form) (out []*element) {
	var line []*element
	var text strings.Builder
	endText := func() {
		if t := words(text.String()); t != "" {
			line = append(line, textComponent(t, ""))
		}
		text.Reset()
	}
	endLine := func() {
		endText()
		if len(line) > 1 {
			line = []*element{component("Row", record{"align": "center"}, line...)}
		}
		out, line = append(out, line...), nil
	}
	for c := range n.ChildNodes() {
		switch {
		case c.Type == html.TextNode:
			text.WriteString(c.Data)
		case c.Type != html.ElementNode || hasAttr(c, "hidden"):
		case c.DataAtom == atom.Br:
			endLine()
		case !inline[c.DataAtom]:
			endLine()
			out = append(out, p.of(c, f)...)
		case p.used[c]:
			endText()
			line = append(line, p.of(c, f)...)
		case c.DataAtom != atom.Label || attrOf(c, "for") == "": // the field shows such a label
			text.WriteString(textOf(c))
		}
	}
	endLine()
	return out
}

// group returns children as one component, identified by the ID of n.
func group(kind string, n *html.Node, children []*element) []*element {
	if len(children) == 0 {
		return nil
	}
	e := children[0]
	if kind != "Column" || len(children) > 1 {
		e = component(kind, nil, children...)
	}
	if id := attrOf(n, "id"); id != "" {
		e.alike = e.kind + "#" + id
	}
	return []*element{e}
}

// of returns the components of n, usually one.
func (p *a2Page) of(n *html.Node, f *a2Form) []*element {
	if hasAttr(n, "hidden") {
		return nil
	}
	switch n.DataAtom {
	case atom.H1, atom.H2, atom.H3, atom.H4, atom.H5, atom.H6, atom.Figcaption, atom.Caption:
		if !p.used[n] {
			variant := map[string]string{"h6": "h5", "figcaption": "caption"}[n.Data]
			if variant == "" {
				variant = n.Data
			}
			if t := textOf(n); t != "" {
				return group("Column", n, []*element{textComponent(t, variant)})
			}
			return nil
		}
	case atom.Hr:
		return []*element{component("Divider", nil)}
	case atom.Img:
		props := record{"url": attrOf(n, "src"), "fit": "contain"}
		if alt := attrOf(n, "alt"); alt != "" {
			props["accessibility"] = record{"label": alt}
		}
		return group("Column", n, []*element{component("Image", props)})
	case atom.Svg:
		if alt := attrOf(n, "aria-label"); alt != "" {
			return []*element{textComponent(alt, "caption")}
		}
		return nil
	case atom.Form:
		f = p.form(n)
	case atom.Input, atom.Select, atom.Textarea:
		return p.field(n, f, "")
	case atom.Label:
		var fields []*html.Node
		for c := range n.Descendants() {
			if c.DataAtom == atom.Input || c.DataAtom == atom.Select || c.DataAtom == atom.Textarea {
				fields = append(fields, c)
			}
		}
		if len(fields) == 1 {
			return p.field(fields[0], f, p.labelOf(n))
		}
	case atom.Ul, atom.Ol, atom.Menu:
		return group("List", n, p.list(n, f))
	case atom.Tr:
		return group("Row", n, p.list(n, f))
	case atom.Button:
		if attrOf(n, "data-action") != "" {
			return p.button(n, f, n)
		}
		if kind := attrOf(n, "type"); f.action != nil && kind != "button" && kind != "reset" {
			return p.button(n, f, f.action)
		}
	case atom.A:
		if u, err := url.Parse(attrOf(n, "href")); err == nil && u.IsAbs() && attrOf(n, "data-action") == "" {
			return p.pressed(n, record{"functionCall": record{"call": "openUrl", "args": record{"url": u.String()}}}, "borderless", textOf(n))
		}
	}
	if attrOf(n, "data-action") != "" && n.DataAtom != atom.Form {
		return p.button(n, f, n)
	}
	return group("Column", n, p.list(n, f))
}

// labelOf returns the text around a field, without the text of its options.
func (p *a2Page) labelOf(n *html.Node) string {
	if text, ok := p.around[n]; ok {
		return text
	}
	var b strings.Builder
	for c := range n.ChildNodes() {
		switch {
		case c.Type == html.TextNode:
			b.WriteString(c.Data)
		case inline[c.DataAtom] && !acts(c):
			b.WriteString(textOf(c))
		}
	}
	p.around[n] = short(words(b.String()))
	return p.around[n]
}

// button returns n as a button that performs the action of another element.
func (p *a2Page) button(n *html.Node, f *a2Form, of *html.Node) []*element {
	variant := "default"
	if of != n {
		variant = "primary"
	}
	var fields map[string]any
	if n.DataAtom == atom.Button || n.DataAtom == atom.Input {
		if p.bound += len(f.fields); p.bound <= maxBound {
			fields = f.fields
		}
	}
	return p.pressed(n, actionOf(of, fields), variant, textOf(n))
}

func (p *a2Page) pressed(n *html.Node, action record, variant, text string) []*element {
	for _, other := range []string{attrOf(n, "value"), attrOf(n, "aria-label"), attrOf(n, "title"), attrOf(n, "data-action"), "OK"} {
		if text == "" {
			text = words(other)
		}
	}
	return group("Column", n, []*element{component("Button", record{"action": action, "variant": variant}, textComponent(text, ""))})
}

// actionOf returns the action of an element: its data, and the values of fields.
func actionOf(n *html.Node, fields map[string]any) record {
	context := record{}
	for _, a := range n.Attr {
		if name, ok := strings.CutPrefix(a.Key, "data-"); ok && name != "action" {
			parts := strings.Split(name, "-")
			for i, part := range parts[1:] {
				if part != "" {
					parts[i+1] = strings.ToUpper(part[:1]) + part[1:]
				}
			}
			context[strings.Join(parts, "")] = a.Val
		}
	}
	maps.Copy(context, fields)
	return record{"event": record{"name": attrOf(n, "data-action"), "context": context}}
}

// segment returns s as a part of a path: never a number, and without the characters that separate parts.
func segment(s string) string {
	var b strings.Builder
	b.WriteByte('_')
	for i := range len(s) {
		if c := s[i]; c == '-' || '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "_%02x", c)
		}
	}
	return b.String()
}

// form returns the fields of a form; for the body, the fields outside of forms.
func (p *a2Page) form(n *html.Node) *a2Form {
	f := &a2Form{fields: map[string]any{}, groups: map[string][]*html.Node{}}
	if n.DataAtom == atom.Form {
		p.forms++
		if f.name = "#" + attrOf(n, "id"); f.name == "#" {
			f.name = "form" + strconv.Itoa(p.forms)
		}
		if attrOf(n, "data-action") != "" {
			f.action = n
		}
	}
	p.find(n, f)
	return f
}

// find collects the fields of a form in n, but not those of nested forms.
func (p *a2Page) find(n *html.Node, f *a2Form) {
	for c := range n.ChildNodes() {
		name, kind := attrOf(c, "name"), strings.ToLower(attrOf(c, "type"))
		switch c.DataAtom {
		case atom.Input, atom.Select, atom.Textarea:
		case atom.Form:
			continue
		default:
			p.find(c, f)
			continue
		}
		if kind == "radio" || kind == "checkbox" {
			f.groups[kind+" "+name] = append(f.groups[kind+" "+name], c)
		}
		switch {
		case name == "" || f.name == "" || slices.Contains([]string{"submit", "button", "reset", "image", "file"}, kind):
		case kind == "hidden":
			f.fields[name] = attrOf(c, "value")
		default:
			f.fields[name] = record{"path": f.path(name)}
		}
	}
}

func (f *a2Form) path(name string) string { return "/" + segment(f.name) + "/" + segment(name) }

// field returns the component of a field, with a button if its change is an action.
func (p *a2Page) field(n *html.Node, f *a2Form, label string) []*element {
	name, kind := attrOf(n, "name"), "select"
	switch n.DataAtom {
	case atom.Textarea:
		kind = "textarea"
	case atom.Input:
		kind = strings.ToLower(attrOf(n, "type"))
	}
	for _, other := range []string{p.labels[attrOf(n, "id")], attrOf(n, "aria-label"), attrOf(n, "placeholder"), name} {
		if label == "" {
			label = words(other)
		}
	}
	own := attrOf(n, "data-action") != ""
	key := name
	if key == "" {
		key = "#" + attrOf(n, "id")
	}
	path := f.path(key)
	bound := record{"path": path}
	value := attrOf(n, "value")
	set := func(v any) {
		if _, ok := p.values[path]; !ok {
			p.values[path] = v
		}
	}
	var e *element
	switch kind {
	case "hidden", "file":
		return nil
	case "submit", "image", "button":
		if own {
			return p.button(n, f, n)
		}
		if kind != "button" && f.action != nil {
			return p.button(n, f, f.action)
		}
		return nil
	case "checkbox":
		checked := hasAttr(n, "checked")
		if own { // the data that a change of the field sends
			box := map[bool]string{false: "☐ ", true: "☑ "}[checked]
			if name == "" {
				name = "value"
			}
			return p.pressed(n, actionOf(n, map[string]any{name: !checked}), "borderless", strings.TrimSpace(box+label))
		}
		if name != "" && len(f.groups["checkbox "+name]) != 1 {
			e = p.choice(n, f, kind, path)
			break
		}
		set(checked)
		e = component("CheckBox", record{"label": label, "value": bound})
	case "radio":
		e = p.choice(n, f, kind, path)
	case "select":
		e = p.choice(n, f, kind, path)
	case "range":
		number := func(name string, or float64) float64 {
			if v, err := strconv.ParseFloat(attrOf(n, name), 64); err == nil && v-v == 0 {
				return v
			}
			return or
		}
		least, most := number("min", 0), number("max", 100)
		set(number("value", (least+most)/2))
		e = component("Slider", record{"label": label, "min": least, "max": most, "value": bound})
	case "date", "time", "datetime-local":
		set(value)
		e = component("DateTimeInput", record{"label": label, "enableDate": kind != "time", "enableTime": kind != "date", "value": bound})
	default:
		variant := map[string]string{"number": "number", "password": "obscured", "textarea": "longText"}[kind]
		if kind == "textarea" {
			value = rawText(n)
		}
		if variant == "" {
			variant = "shortText"
		}
		set(value)
		e = component("TextField", record{"label": label, "value": bound, "variant": variant})
	}
	if e == nil {
		return nil
	}
	if id := attrOf(n, "id"); id != "" {
		e.alike += "#" + id
	}
	if own {
		if name == "" {
			name = "value"
		}
		e = component("Row", record{"align": "center"}, append([]*element{e}, p.pressed(&html.Node{Type: html.ElementNode}, actionOf(n, map[string]any{name: bound}), "default", "")...)...)
	}
	return []*element{e}
}

func rawText(n *html.Node) string {
	var b strings.Builder
	for c := range n.ChildNodes() {
		b.WriteString(c.Data)
	}
	return b.String()
}

// choice returns the component of a select. For buttons with a common name it returns one component
// for the first button, and nil for the others.
func (p *a2Page) choice(n *html.Node, f *a2Form, kind, path string) *element {
	several, name := kind == "checkbox" || hasAttr(n, "multiple"), attrOf(n, "name")
	options, chosen := []any{}, []string{}
	add := func(label, value string, is bool) {
		if label == "" {
			label = value
		}
		options = append(options, record{"label": label, "value": value})
		if is && (several || len(chosen) == 0) {
			chosen = append(chosen, value)
		}
	}
	if kind == "select" {
		for c := range n.Descendants() {
			if c.DataAtom != atom.Option {
				continue
			}
			text := textOf(c)
			value := attrOf(c, "value")
			if !hasAttr(c, "value") {
				value = text
			}
			add(text, value, hasAttr(c, "selected"))
		}
	} else {
		for _, c := range f.groups[kind+" "+name] {
			label, value := p.labels[attrOf(c, "id")], attrOf(c, "value")
			if label == "" && c.Parent != nil && c.Parent.DataAtom == atom.Label {
				label = p.labelOf(c.Parent)
			}
			if value == "" {
				value = "on"
			}
			add(label, value, hasAttr(c, "checked"))
		}
		f.groups[kind+" "+name] = nil
		if len(options) == 0 {
			return nil
		}
	}
	if kind == "select" && !several && len(chosen) == 0 && len(options) > 0 {
		chosen = append(chosen, options[0].(record)["value"].(string))
	}
	if _, ok := p.values[path]; !ok {
		p.values[path] = chosen
	}
	variant := "mutuallyExclusive"
	if several {
		variant = "multipleSelection"
	}
	props := record{"options": options, "value": record{"path": path}, "variant": variant}
	if label := words(p.labels[attrOf(n, "id")] + " " + attrOf(n, "aria-label")); kind == "select" && label != "" {
		props["label"] = label
	} else if name != "" {
		props["label"] = name
	}
	return component("ChoicePicker", props)
}
