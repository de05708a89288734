package web

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/page/markup"

	"github.com/engi-dev/engi/test/env"
	"github.com/engi-dev/engi/test/seed"
)

// A vector is an attempt to run a script.
type vector struct {
	Name    string           `json:"name"`
	HTML    string           `json:"html"`
	Start   string           `json:"start"`
	Patches []engi.PagePatch `json:"patches"`
	Clean   *vector          `json:"clean,omitempty"` // result of the server's sanitizer
}

func vectors(t *testing.T) []vector {
	t.Helper()
	f, err := os.Open("../../../internal/page/markup/testdata/xss.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []vector
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var v vector
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		v.Clean = &vector{HTML: markup.NewPage(v.HTML).HTML(), Start: markup.NewPage(v.Start).HTML()}
		v.Clean.Patches, _ = markup.NewPage(v.Start).Apply(v.Patches) // Apply refuses most patches
		all = append(all, v)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	if len(all) < 200 {
		t.Fatalf("%d vectors, want 200", len(all))
	}
	return all
}

// A sequence is a page with the changes to it.
type sequence struct {
	Number int    `json:"number"`
	Start  string `json:"start"`
	Steps  []step `json:"steps"`
}

type step struct {
	Patches []engi.PagePatch `json:"patches"` // patches as applied
	HTML    *string          `json:"html"`    // the whole page, instead of patches
	Want    string           `json:"want"`
}

// sequences returns random sequences, and the number of their patches of each kind.
func sequences(seed uint64, n int) ([]sequence, map[string]int) {
	all := make([]sequence, n)
	kinds := map[string]int{}
	for i := range all {
		r := author{rand.New(rand.NewPCG(seed, uint64(i)))}
		shown := markup.NewPage(r.markup(4))
		all[i] = sequence{Number: i, Start: shown.HTML()}
		for range 2 + r.IntN(6) {
			var s step
			if r.IntN(8) == 0 {
				html := markup.NewPage(r.markup(4)).HTML()
				if shown.Set(html) == nil {
					s.HTML = &html
				}
			} else {
				patches := make([]engi.PagePatch, 1+r.IntN(6))
				for j := range patches {
					patches[j] = r.patch()
				}
				s.Patches, _ = shown.Apply(patches) // Apply refuses some patches
				for _, p := range s.Patches {
					text, err := json.Marshal(p)
					if err != nil {
						panic(err) // unreachable: patches can be marshalled
					}
					var members map[string]json.RawMessage
					if err := json.Unmarshal(text, &members); err != nil {
						panic(err) // unreachable: the text is an object
					}
					for kind := range members {
						kinds[kind]++
					}
				}
			}
			s.Want = shown.HTML()
			all[i].Steps = append(all[i].Steps, s)
		}
	}
	return all, kinds
}

// An author writes pages and patches at random.
type author struct{ *rand.Rand }

func (r author) one(of ...string) string { return of[r.IntN(len(of))] }

func (r author) text() string {
	return r.one("a", "some text", " ", "\n", "x &amp; y", "&lt;b>", "größer 𝒳", "1 < 2", "\ttab  s", "&nbsp;", "style=\"x\"", "")
}

func (r author) attrs(name string) string {
	var b strings.Builder
	for range r.IntN(3) {
		switch r.IntN(9) {
		case 0, 1:
			fmt.Fprintf(&b, ` id="%s"`, r.one("a", "b", "c", "d", "e"))
		case 2, 3:
			fmt.Fprintf(&b, ` class="%s"`, r.one("x", "y", "x y", " z  x ", "", "z z"))
		case 4:
			fmt.Fprintf(&b, ` data-k=%s`, r.one("1", "2", `"q&quot;"`, "''"))
		case 5:
			fmt.Fprintf(&b, ` style="%s"`, r.one("color: red", "margin: 1px; margin-left: 2px", "COLOR:Blue;;", "width: 12%", "background: linear-gradient(red, blue)", "--x: 1; color: var(--x)", "nonsense", "font: 12px serif"))
		case 6:
			b.WriteString(" " + r.one("hidden", "title=t", "role=list", "lang=en", "tabindex=0", "aria-label='l'", "dir=rtl", "onclick=alert(1)"))
		case 7:
			switch name {
			case "input":
				b.WriteString(" " + r.one("type=text value=v", "type=checkbox checked", "type=radio name=n", "name=q", "disabled", "type=range min=1 value=4", "value='&lt;'", "placeholder=p"))
			case "option":
				b.WriteString(" " + r.one("selected", "value=1", "value=2"))
			case "details":
				b.WriteString(" open")
			case "a":
				b.WriteString(" href=" + r.one("/x", "https://example.com/", "'javascript:alert(1)'", "#a"))
			case "td":
				b.WriteString(" colspan=2")
			}
		}
	}
	return b.String()
}

// markup returns HTML, which is not always well formed.
func (r author) markup(depth int) string {
	var b strings.Builder
	for range 1 + r.IntN(4) {
		if depth == 0 || r.IntN(4) == 0 {
			b.WriteString(r.text())
			continue
		}
		name := r.one("div", "p", "ul", "table", "form", "input", "select", "textarea", "details", "svg", "span", "b", "i", "a", "button", "h1", "section", "br", "pre", "ol", "dl", "script", "li", "tr", "option", "label")
		inner := ""
		switch name {
		case "input", "br":
			fmt.Fprintf(&b, "<%s%s>", name, r.attrs(name))
			continue
		case "ul", "ol":
			for range r.IntN(4) {
				inner += "<li" + r.attrs("li") + ">" + r.markup(depth-1) + r.one("</li>", "")
			}
		case "dl":
			inner = "<dt>" + r.text() + "<dd" + r.attrs("dd") + ">" + r.markup(depth-1)
		case "table":
			for range r.IntN(3) {
				inner += "<tr" + r.attrs("tr") + "><td" + r.attrs("td") + ">" + r.markup(depth-1) + "</td><td>" + r.text()
			}
		case "select":
			for range r.IntN(4) {
				inner += "<option" + r.attrs("option") + ">" + r.text() + r.one("</option>", "")
			}
		case "textarea":
			inner = r.one("", "\n\nlines", "text", "a &amp; b")
		case "details":
			inner = "<summary>" + r.text() + "</summary>" + r.markup(depth-1)
		case "svg":
			inner = r.one(`<circle r="2" fill="red"/>`, `<g><path d="M0 0"/><text x=1>t</text></g>`, `<linearGradient id="a"><stop offset="1"/></linearGradient>`, "")
		default:
			inner = r.markup(depth - 1)
		}
		fmt.Fprintf(&b, "<%s%s>%s", name, r.attrs(name), inner)
		if r.IntN(12) > 0 {
			b.WriteString("</" + name + ">")
		}
	}
	return b.String()
}

func (r author) selector() string {
	return r.one("body", "#a", "#b", "#c", ".x", ".y", "div", "p", "ul", "li", "form", "input", "select", "textarea", "table", "td", "tr", "svg", "circle", "details", "span", "b", "section", "option",
		"ul > li", "li:nth-child(2)", "li:last-child", "div p", "body > *", "p + p", "p ~ *", "[data-k]", `[data-k="1"]`, "div:not(.x)", ":is(p, b)", "li:first-child", ".x.z", "td > *", "a, button", "tr:nth-child(odd) td", "h1", "label")
}

func (r author) patch() engi.PagePatch {
	p := engi.PagePatch{Selector: r.selector()}
	html := func() *string { return ptr(r.markup(2)) }
	switch r.IntN(14) {
	case 0:
		p.Text = ptr(r.text())
	case 1:
		p.HTML = html()
	case 2:
		name := r.one("title", "data-k", "hidden", "class", "id", "style", "value", "checked", "open", "selected", "href", "onclick", "fill", "viewbox", "disabled", "type")
		p.Attr = map[string]*string{name: ptr(r.one("1", "x y", "color: green", "/u", "javascript:alert(1)", "", "text", "d"))}
		if r.IntN(3) == 0 {
			p.Attr[name] = nil
		}
	case 3:
		p.Class = map[string]bool{r.one("x", "y", "z"): r.IntN(2) == 0, r.one("w", "v"): true}
	case 4:
		p.Style = map[string]*string{r.one("color", "margin", "margin-left", "width", "--x"): ptr(r.one("red", "3px", "50%", "url(x)", "calc(1px + 2%)"))}
		if r.IntN(3) == 0 {
			p.Style = map[string]*string{r.one("color", "margin", "margin-left", "font"): nil}
		}
	case 5:
		p.Selector = r.one("input", "textarea", "select", "#a", "input:first-child", ".x")
		p.Value = ptr(r.one("", "v", "1", "2", "a", "some text", "a\nb"))
	case 6:
		p.Append = html()
	case 7:
		p.Prepend = html()
	case 8:
		p.Before = html()
	case 9:
		p.After = html()
	case 10:
		p.Replace = html()
	case 11:
		p.Remove = true
	default:
		p.Move = &engi.PageMove{To: r.selector(), Place: r.one("append", "prepend", "before", "after")}
	}
	return p
}

// TestSanitizedPages tries the vectors in a browser, as they come from the server and
// unchanged, and applies random patches as a page of the server does.
func TestSanitizedPages(t *testing.T) {
	env.Slow(t)
	chromium := browser(t)
	seed, n := seed.Of(t, "ENGI_UI_SEED", 334393579081202113), 300 // this seed found a details element whose attribute open had a value
	if v := os.Getenv("ENGI_UI_SEQUENCES"); v != "" {
		var err error
		if n, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("ENGI_UI_SEQUENCES=%d", n)
	all, kinds := sequences(seed, n)
	for _, kind := range []string{"text", "html", "attr", "class", "style", "value", "append", "prepend", "before", "after", "replace", "remove", "move"} {
		if kinds[kind] < n/20 {
			t.Errorf("there are just %d patches with %s", kinds[kind], kind)
		}
	}
	t.Logf("patches: %v", kinds)
	s := servePages(t)
	for path, v := range map[string]any{"/vectors": vectors(t), "/sequences": all} {
		body, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		s.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(body) // the browser may have left
		})
	}
	drive(t, "sanitized.mjs", map[string]any{"url": s.URL, "chromium": chromium}, 3)
}
