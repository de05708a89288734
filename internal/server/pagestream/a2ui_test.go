package pagestream

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/page/markup"
	testseed "github.com/engi-dev/engi/test/seed"
)

// A surface is what a client makes of messages, by the rules of the specification.
type surface struct {
	components map[string]map[string]any
	data       map[string]any
	sent       int // components
}

// take takes the messages of an update.
func (s *surface) take(t testing.TB, events []Event) {
	t.Helper()
	for _, line := range wire(t, events) {
		var m struct {
			Version       string
			CreateSurface *struct{ SurfaceID, CatalogID string }
			DeleteSurface *struct{ SurfaceID string }
			Components    *struct{ Components []map[string]any } `json:"updateComponents"`
			Data          *struct {
				Path  string
				Value *any
			} `json:"updateDataModel"`
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil || m.Version != "v0.9" {
			t.Fatalf("%v in %s", err, line)
		}
		switch {
		case m.CreateSurface != nil:
			if s.components != nil {
				t.Fatal("the surface is there already")
			}
			*s = surface{components: map[string]map[string]any{}, data: map[string]any{}}
		case m.DeleteSurface != nil:
			s.components = nil
		case m.Components != nil:
			if len(m.Components.Components) == 0 {
				t.Error("an empty list")
			}
			for _, c := range m.Components.Components {
				s.components[c["id"].(string)] = c
				s.sent++
			}
		case m.Data != nil && m.Data.Value == nil:
			if _, ok := s.data[m.Data.Path]; !ok {
				t.Errorf("%s is not there", m.Data.Path)
			}
			delete(s.data, m.Data.Path)
		case m.Data != nil:
			s.data[m.Data.Path] = *m.Data.Value
		default:
			t.Fatalf("a message of no kind: %s", line)
		}
	}
}

// tree is what is seen from the root, without IDs.
func (s *surface) tree(t testing.TB, id string, seen map[string]bool) map[string]any {
	t.Helper()
	c, ok := s.components[id]
	if !ok || seen[id] {
		t.Fatalf("component %s is there: %v, twice: %v", id, ok, seen[id])
	}
	seen[id] = true
	out := map[string]any{}
	for k, v := range c {
		switch k {
		case "id":
		case "child":
			out[k] = s.tree(t, v.(string), seen)
		case "children":
			all := []any{}
			for _, child := range v.([]any) {
				all = append(all, s.tree(t, child.(string), seen))
			}
			out[k] = all
		default:
			out[k] = v
		}
	}
	return out
}

// outline says it in few words.
func outline(tree map[string]any) string {
	var b strings.Builder
	b.WriteString(tree["component"].(string))
	for _, k := range []string{"variant", "text", "label", "url", "min", "max", "enableDate", "enableTime", "options", "value", "action"} {
		v, ok := tree[k]
		if !ok || v == "default" || v == "shortText" {
			continue
		}
		raw, err := json.Marshal(v)
		if err != nil {
			panic(err) // unreachable: it was read from JSON
		}
		fmt.Fprintf(&b, " %s", strings.NewReplacer(`{"event":{"context":`, "", `{"path":"`, "<", `"}`, ">").Replace(string(raw)))
	}
	children, _ := tree["children"].([]any)
	if c, ok := tree["child"]; ok {
		children = []any{c}
	}
	if len(children) > 0 {
		b.WriteString("(")
		for i, c := range children {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(outline(c.(map[string]any)))
		}
		b.WriteString(")")
	}
	return b.String()
}

func TestA2UIDrawsWithTheBasicCatalogue(t *testing.T) {
	for in, want := range map[string]string{
		``: `Column`,
		`<main><h1>Hello <b>you</b></h1><p>one<br>two</p><hr><ul><li>a</li><li>b <i>c</i></li></ul></main>`:              `Column(Column(Text "h1" "Hello you", Column(Text "one", Text "two"), Divider, List(Text "a", Text "b c")))`,
		`<p>n: <button data-action="add" data-item-id="7" data-by="1">+</button></p>`:                                    `Column(Row(Text "n:", Button {"by":"1","itemId":"7>,"name":"add>}(Text "+")))`,
		`<table><tr><th>a<th>b<tr><td>1<td>2</table><h6>x</h6><p hidden>no</p>`:                                          `Column(Column(Row(Text "a", Text "b"), Row(Text "1", Text "2")), Text "h5" "x")`,
		`<a href="https://example.com/x">out</a> <a href="#y">here</a>`:                                                  `Column(Row(Button "borderless" {"functionCall":{"args":{"url":"https://example.com/x>,"call":"openUrl>}(Text "out"), Text "here"))`,
		`<img src="data:image/png;base64,AA" alt="a dot"><svg aria-label="a chart"><path d="M0 0"/></svg><p>![x](y)</p>`: "Column(Row(Image \"data:image/png;base64,AA\", Text \"caption\" \"a chart\"), Text \"![x]\u2060(y)\")",
	} {
		var s surface
		events, _ := newA2UI(Start{Session: "ses_a"}).Encode(engi.PageUpdate{Kind: engi.PageReplaced, HTML: markup.NewPage(in).HTML()})
		s.take(t, events)
		if got := outline(s.tree(t, "root", map[string]bool{})); got != want {
			t.Errorf("%s\n got %s\nwant %s", in, got, want)
		}
	}
}

func TestA2UIForms(t *testing.T) {
	const form = `<form id="f" data-action="save" data-id="3"><label>Name <input name="name" value="Ann"></label><label for="t">Text</label><textarea id="t" name="text">a
b</textarea><input type="checkbox" name="big" checked aria-label="Big"><input type="hidden" name="h" value="1"><select name="size" aria-label="Size"><option>s<option selected value="M">m</select>` +
		`<label><input type="radio" name="r" value="1"> one</label><label><input type="radio" name="r" value="2" checked> two</label><input type="range" name="n" max="9" value="4"><input type="date" name="d" value="2026-11-23">` +
		`<input type="password" name="0"><button>Save</button><button data-action="other">Other</button></form><input type="checkbox" data-action="toggle" data-id="9" aria-label="done"><select id="pick" data-action="pick"><option>x</select>`
	var s surface
	enc := newA2UI(Start{Session: "ses_a"})
	events, _ := enc.Encode(engi.PageUpdate{Kind: engi.PageReplaced, HTML: markup.NewPage(form).HTML()})
	s.take(t, events)
	wantData := map[string]any{
		"/__23f/_name": "Ann", "/__23f/_text": "a\nb", "/__23f/_big": true, "/__23f/_size": []any{"M"}, "/__23f/_r": []any{"2"}, "/__23f/_n": 4., "/__23f/_d": "2026-11-23", "/__23f/_0": "", "/_/__23pick": []any{"x"},
	}
	if diff := cmp.Diff(wantData, s.data); diff != "" {
		t.Error(diff)
	}
	var buttons []map[string]any
	var kinds []string
	for _, c := range s.components {
		kinds = append(kinds, c["component"].(string))
		if c["component"] == "Button" {
			buttons = append(buttons, c["action"].(map[string]any)["event"].(map[string]any))
		}
	}
	slices.Sort(kinds)
	kinds = slices.DeleteFunc(kinds, func(k string) bool { return k == "Text" || k == "Row" || k == "Column" })
	if want := []string{"Button", "Button", "Button", "Button", "CheckBox", "ChoicePicker", "ChoicePicker", "ChoicePicker", "DateTimeInput", "Slider", "TextField", "TextField", "TextField"}; !reflect.DeepEqual(kinds, want) {
		t.Errorf("%q", kinds)
	}
	slices.SortFunc(buttons, func(a, b map[string]any) int { return strings.Compare(a["name"].(string), b["name"].(string)) })
	fields := map[string]any{"h": "1"}
	for _, name := range []string{"name", "text", "big", "size", "r", "n", "d", "0"} {
		fields[name] = map[string]any{"path": "/__23f/_" + name}
	}
	saved := map[string]any{"id": "3"}
	for k, v := range fields {
		saved[k] = v
	}
	want := []map[string]any{
		{"name": "other", "context": fields}, {"name": "pick", "context": map[string]any{"value": map[string]any{"path": "/_/__23pick"}}},
		{"name": "save", "context": saved}, {"name": "toggle", "context": map[string]any{"id": "9", "value": true}},
	}
	if diff := cmp.Diff(want, buttons); diff != "" {
		t.Error(diff)
	}

	// What somebody has written is not sent over unless the model writes something else.
	events, _ = enc.Encode(engi.PageUpdate{Kind: engi.PagePatched, Patches: []engi.PagePatch{{Selector: "h1, button", Text: text("Go")}}})
	if got := strings.Join(wire(t, events), ""); strings.Contains(got, "updateDataModel") || strings.Contains(got, "TextField") {
		t.Error(got)
	}
	value := "Bob"
	events, _ = enc.Encode(engi.PageUpdate{Kind: engi.PagePatched, Patches: []engi.PagePatch{{Selector: "[name=name]", Value: &value}}})
	if got := wire(t, events); len(got) != 1 || got[0] != `{"updateDataModel":{"path":"/__23f/_name","surfaceId":"ses_a","value":"Bob"},"version":"v0.9"}` {
		t.Error(got)
	}
	events, _ = enc.Encode(engi.PageUpdate{Kind: engi.PageReplaced, HTML: "<p>thanks</p>"})
	s.take(t, events)
	if len(s.data) != 0 {
		t.Errorf("%v", s.data)
	}
}

// TestA2UIFollows changes pages at random: a client that has seen everything has what
// one has that comes now.
func TestA2UIFollows(t *testing.T) {
	seed := testseed.Of(t, "", 1)
	all, fresh := 0, 0
	for n := range 300 {
		r := rand.New(rand.NewPCG(seed, uint64(n)))
		block := func() string {
			return []string{
				"<p>a</p>", `<p id="x">b <b>c</b></p>`, `<div id="d"><h1>h</h1><p>p</p></div>`, `<button data-action="go" data-n="1">go</button>`, "<ul><li>1</li><li>2</li></ul>", "text",
				`<form id="f" data-action="s"><input name="a" value="1"><button>ok</button></form>`, `<form data-action="t"><select name="q"><option>1<option>2</select></form>`, "<hr>",
				`<img src="data:image/png;base64,AA">`, `<table><tr><td>1</td><td>2</td></tr></table>`, `<label>l <input type="checkbox" name="c"></label>`,
			}[r.IntN(12)]
		}
		blocks := func() (s string) {
			for range r.IntN(6) {
				s += block()
			}
			return s
		}
		enc, whole := newA2UI(Start{Session: "ses_a"}), markup.NewPage("")
		var s surface
		step := func(u engi.PageUpdate) {
			events, _ := enc.Encode(u)
			s.take(t, events)
		}
		for i := range 12 {
			if i == 0 || r.IntN(5) == 0 {
				html := markup.NewPage(blocks()).HTML()
				if r.IntN(2) == 0 {
					step(engi.PageUpdate{Kind: engi.PageReplaced, Partial: true, HTML: html})
				}
				if i == 0 || r.IntN(2) == 0 {
					whole = markup.NewPage(html)
					step(engi.PageUpdate{Kind: engi.PageReplaced, HTML: html})
				} else {
					step(engi.PageUpdate{Kind: engi.PageDone})
				}
				continue
			}
			where := []string{"body", "p", "#x", "#d", "li", "form", "button", "input"}[r.IntN(8)]
			content, value := block(), fmt.Sprint(r.IntN(3))
			patch := []engi.PagePatch{
				{Selector: where, Append: &content}, {Selector: where, Before: &content}, {Selector: where, HTML: &content}, {Selector: where, Text: &content}, {Selector: where, Remove: true},
				{Selector: "input, option", Value: &value}, {Selector: where, Move: &engi.PageMove{To: "body", Place: "prepend"}}, {Selector: "li", Text: &value},
			}[r.IntN(8)]
			patches, _ := whole.Apply([]engi.PagePatch{patch})
			step(engi.PageUpdate{Kind: engi.PagePatched, Patches: patches})
		}
		want := surface{components: map[string]map[string]any{}}
		later := newA2UI(Start{Session: "ses_a", Resumed: true})
		events, _ := later.Encode(engi.PageUpdate{Kind: engi.PageReplaced, HTML: whole.HTML()})
		want.take(t, events)
		if diff := cmp.Diff(want.tree(t, "root", map[string]bool{}), s.tree(t, "root", map[string]bool{})); diff != "" {
			t.Fatalf("sequence %d: %s", n, diff)
		}
		if diff := cmp.Diff(want.data, s.data); diff != "" {
			t.Fatalf("sequence %d: %s", n, diff)
		}
		if most := 3 * 6 * 12; len(s.components) > most {
			t.Errorf("a client has %d components, of which %d are seen", len(s.components), len(want.components))
		}
		all, fresh = all+s.sent, fresh+12*want.sent
	}
	t.Logf("%d components were sent instead of %d", all, fresh)
	if all > fresh {
		t.Error("that is more than the whole each time")
	}
}

// TestA2UIIsLinear draws pages that are as much work as they can be.
func TestA2UIIsLinear(t *testing.T) {
	for name, html := range map[string]string{
		"radio buttons": "<form>" + many(3000, func(i int) string { return fmt.Sprintf(`<input type=radio name=%d>`, i) }) + "</form>",
		"one label":     "<label>" + many(3000, func(i int) string { return fmt.Sprintf(`<input type=radio name=%d>x`, i) }) + "</label>",
		"one ID":        "<label for=a>" + strings.Repeat("x", 50<<10) + "</label>" + many(3000, func(int) string { return "<input id=a>" }),
		"buttons":       "<form data-action=s>" + many(3000, func(i int) string { return fmt.Sprintf(`<input name=%d><button>x</button>`, i) }) + "</form>",
		"nested":        many(250, func(int) string { return "<span>" }) + many(5000, func(int) string { return "a<b>b</b>" }),
	} {
		began := time.Now()
		events, _ := newA2UI(Start{Session: "ses_a"}).Encode(engi.PageUpdate{Kind: engi.PageReplaced, HTML: markup.NewPage(html).HTML()})
		size := len(strings.Join(wire(t, events), ""))
		t.Logf("%s: %v, %d bytes of %d", name, time.Since(began), size, len(html))
		if size > 4<<20 {
			t.Errorf("%s becomes %d bytes", name, size)
		}
		if time.Since(began) > 30*time.Second {
			t.Errorf("%s takes %v", name, time.Since(began))
		}
	}
}

func many(n int, of func(int) string) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(of(i))
	}
	return b.String()
}
