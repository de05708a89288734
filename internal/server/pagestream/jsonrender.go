package pagestream

import (
	"hash/maphash"
	"maps"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/page/markup"
)

// jsonRender sends json-render's stream: RFC 6902 patches of a spec, whose catalogue
// is HTML. An element's type is its tag and its props are its attributes; a text is
// an element of type text. Elements keep their keys as long as they can be identified,
// so that only changes are sent. A client that resumes has keys of
// an earlier stream, and gets all elements again.
type jsonRender struct {
	shown
	root *element // the last one sent; nil before the first
	keys int
	ops  []Event
}

// A shown is the page that a client shows.
type shown struct {
	page *markup.Page
	part bool // a partial page was sent instead of page
}

// after returns the page after an update; nil if the update does not change it.
func (s *shown) after(u engi.PageUpdate) *markup.Page {
	part := s.part
	s.part = u.Partial
	switch {
	case u.Partial:
		return markup.NewPage(u.HTML)
	case u.Kind == engi.PageReplaced:
		if s.page.Set(u.HTML) != nil { // the page exceeds a limit; the next one replaces it
			return nil
		}
	case u.Kind == engi.PagePatched:
		s.page.Apply(u.Patches) // patches without effect were reported when they were written
	case !part:
		return nil
	}
	return s.page
}

// An element is an element of the page or a text.
type element struct {
	key      string
	kind     string
	props    map[string]string
	children []*element
	same     uint64 // hash of the element and its descendants
	alike    string // equal for elements that are probably the same one
	old      *element
}

var seed = maphash.MakeSeed()

func newJSONRender(Start) Encoder { return &jsonRender{shown: shown{page: markup.NewPage("")}} }

// Encode implements Encoder.
func (j *jsonRender) Encode(u engi.PageUpdate) ([]Event, bool) {
	j.ops = nil
	page := j.after(u)
	if page == nil {
		return nil, false
	}
	body := &html.Node{Type: html.ElementNode, Data: "body", DataAtom: atom.Body}
	nodes, err := html.ParseFragment(strings.NewReader(page.HTML()), body)
	if err != nil {
		return nil, false // unreachable: the page was parsed before
	}
	root := elementOf(body, nodes)
	if j.root == nil {
		all := map[string]any{}
		j.name(root, func(e *element) { all[e.key] = e.value() })
		j.op("add", "/root", root.key)
		j.op("add", "/elements", all)
	} else {
		j.become(j.root, root)
	}
	j.root = root
	return j.ops, false
}

// Fail implements Encoder.
func (*jsonRender) Fail(p *v1.Problem) Event { return engiEncoder{}.Fail(p) }

// elementOf returns n as an element, with the given children, or with its own if children is nil.
func elementOf(n *html.Node, children []*html.Node) *element {
	e := &element{kind: n.Data, props: map[string]string{}}
	var h maphash.Hash
	h.SetSeed(seed)
	if n.Type == html.TextNode {
		e.kind, e.props["text"], e.alike = "text", n.Data, "text"
		h.WriteString("text\x00" + n.Data)
		e.same = h.Sum64()
		return e
	}
	h.WriteString(n.Data)
	e.alike = n.Data
	for _, a := range n.Attr {
		name := a.Key
		if a.Namespace != "" {
			name = a.Namespace + ":" + name
		}
		e.props[name] = a.Val
		h.WriteString("\x00" + name + "\x00" + a.Val)
		if name == "id" {
			e.alike += "#" + a.Val
		}
	}
	if children == nil {
		children = slices.Collect(n.ChildNodes())
	}
	h.WriteString("\x00\x00")
	for _, c := range children {
		if c.Type != html.TextNode && c.Type != html.ElementNode {
			continue
		}
		child := elementOf(c, nil)
		e.children = append(e.children, child)
		maphash.WriteComparable(&h, child.same)
	}
	e.same = h.Sum64()
	return e
}

// value returns the form of e in the spec.
func (e *element) value() map[string]any {
	return map[string]any{"type": e.kind, "props": e.props, "children": keysOf(e.children)}
}

func keysOf(all []*element) []string {
	keys := make([]string, len(all))
	for i, e := range all {
		keys[i] = e.key
	}
	return keys
}

func (j *jsonRender) op(op, path string, value any) {
	patch := map[string]any{"op": op, "path": path}
	if value != nil {
		patch["value"] = value
	}
	j.ops = append(j.ops, Event{Name: "patch", Data: patch})
}

// name gives e and its descendants new keys, and calls each for descendants first.
func (j *jsonRender) name(e *element, each func(*element)) {
	e.key = "e" + strconv.Itoa(j.keys)
	j.keys++
	for _, c := range e.children {
		j.name(c, each)
	}
	each(e)
}

// become gives e the key of old, and sends the differences.
func (j *jsonRender) become(old, e *element) {
	e.key = old.key
	path := "/elements/" + e.key
	if old.same == e.same {
		e.children = old.children
		return
	}
	for _, name := range slices.Sorted(maps.Keys(old.props)) {
		if _, ok := e.props[name]; !ok {
			j.op("remove", path+"/props/"+pointer(name), nil)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.props)) {
		if was, ok := old.props[name]; !ok || was != e.props[name] {
			j.op("add", path+"/props/"+pointer(name), e.props[name])
		}
	}
	gone := pair(old.children, e.children)
	for _, c := range e.children {
		if c.old != nil {
			j.become(c.old, c)
			c.old = nil // otherwise all earlier pages would stay in memory
		} else {
			j.name(c, func(x *element) { j.op("add", "/elements/"+x.key, x.value()) })
		}
	}
	j.list(path+"/children", keysOf(old.children), keysOf(e.children))
	for _, c := range gone {
		j.remove(c)
	}
}

func (j *jsonRender) remove(e *element) {
	for _, c := range e.children {
		j.remove(c)
	}
	j.op("remove", "/elements/"+e.key, nil)
}

// pair matches elements of a list with those of the old list, and returns
// the unmatched old ones. It matches equal elements at both ends, then equal ones
// anywhere, then similar ones, in their order.
func pair(old, all []*element) (gone []*element) {
	i, m, n := 0, len(old), len(all)
	for ; i < min(m, n) && old[i].same == all[i].same; i++ {
		all[i].old = old[i]
	}
	for ; m > i && n > i && old[m-1].same == all[n-1].same; m, n = m-1, n-1 {
		all[n-1].old = old[m-1]
	}
	old, all = old[i:m], all[i:n]
	taken := map[*element]bool{}
	match(old, all, taken, func(e *element) any { return e.same })
	match(old, all, taken, func(e *element) any { return e.alike })
	for _, e := range old {
		if !taken[e] {
			gone = append(gone, e)
		}
	}
	return gone
}

func match(old, all []*element, taken map[*element]bool, by func(*element) any) {
	queues := map[any][]*element{}
	for _, e := range old {
		if !taken[e] {
			queues[by(e)] = append(queues[by(e)], e)
		}
	}
	for _, e := range all {
		if q := queues[by(e)]; e.old == nil && len(q) > 0 {
			e.old, queues[by(e)] = q[0], q[1:]
			taken[q[0]] = true
		}
	}
}

// list sends the change of a list of keys: the part between the equal
// ends, or the whole list if that is shorter.
func (j *jsonRender) list(path string, old, keys []string) {
	i, m, n := 0, len(old), len(keys)
	for i < min(m, n) && old[i] == keys[i] {
		i++
	}
	for m > i && n > i && old[m-1] == keys[n-1] {
		m, n = m-1, n-1
	}
	if i == m && i == n {
		return
	}
	if 2*(m-i+n-i) > len(keys) {
		j.op("replace", path, keys)
		return
	}
	for k := m - 1; k >= i; k-- {
		j.op("remove", path+"/"+strconv.Itoa(k), nil)
	}
	for k := i; k < n; k++ {
		j.op("add", path+"/"+strconv.Itoa(k), keys[k])
	}
}

var pointer = strings.NewReplacer("~", "~0", "/", "~1").Replace
