package markup_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/page/markup"
)

func patches(t testing.TB, s string) []engi.PagePatch {
	t.Helper()
	var ps []engi.PagePatch
	if err := json.Unmarshal([]byte(s), &ps); err != nil {
		t.Fatal(err)
	}
	return ps
}

func TestApply(t *testing.T) {
	for _, tt := range []struct{ start, patches, want string }{
		{`<p id="a">x</p>`, `[{"selector":"#a","text":"<b>"}]`, `<p id="a">&lt;b&gt;</p>`},
		{`<ul><li>1</li></ul>`, `[{"selector":"ul","append":"<li>2"},{"selector":"ul","prepend":"<li>0"}]`, `<ul><li>0</li><li>1</li><li>2</li></ul>`},
		{`<p>1</p>`, `[{"selector":"p","before":"<i>0</i>"},{"selector":"p","after":"<i>2</i>"}]`, `<i>0</i><p>1</p><i>2</i>`},
		{`<p>1</p>`, `[{"selector":"p","replace":"<h1>2</h1><hr>"}]`, `<h1>2</h1><hr>`},
		{`<p>1</p><p>2</p>`, `[{"selector":"p:last-child","remove":true}]`, `<p>1</p>`},
		{`<p id="a">1</p><p id="b">2</p>`, `[{"selector":"#a","move":{"to":"#b","place":"after"}}]`, `<p id="b">2</p><p id="a">1</p>`},
		{`<p class="a b">1</p>`, `[{"selector":"p","class":{"a":false,"c":true}}]`, `<p class="b c">1</p>`},
		{`<p style="color:red">1</p>`, `[{"selector":"p","style":{"color":"blue","width":"10px"}},{"selector":"p","style":{"color":null}}]`, `<p style="width: 10px;">1</p>`},
		{`<input name="q"><textarea></textarea><select><option>a</option><option selected>b</option></select>`,
			`[{"selector":"input","value":"1"},{"selector":"textarea","value":"\n2"},{"selector":"select","value":"a"}]`,
			"<input name=\"q\" value=\"1\"><textarea>\n\n2</textarea><select><option selected=\"\">a</option><option>b</option></select>"},
		{`<p>1</p>`, `[{"selector":"p","attr":{"title":"x","hidden":""}},{"selector":"p","attr":{"hidden":null}}]`, `<p title="x">1</p>`},
		{`<table></table>`, `[{"selector":"table","html":"<tr><td>1"}]`, `<table><tbody><tr><td>1</td></tr></tbody></table>`},
		{`<p>1</p>`, `[{"selector":"body","html":"<h1>x"},{"selector":"body","append":"y"}]`, `<h1>x</h1>y`},
	} {
		p := markup.NewPage(tt.start)
		before := p.Clone()
		applied, errs := p.Apply(patches(t, tt.patches))
		if len(errs) > 0 || p.HTML() != tt.want {
			t.Errorf("%s on %s:\n%s\nwant\n%s\n%v", tt.patches, tt.start, p.HTML(), tt.want, errs)
		}
		if again, errs := before.Apply(applied); len(errs) > 0 || len(again) != len(applied) || before.HTML() != tt.want {
			t.Errorf("what was applied, %+v, makes\n%s\nwant\n%s\n%v", applied, before.HTML(), tt.want, errs)
		}
		if got := markup.NewPage(tt.want).HTML(); got != tt.want {
			t.Errorf("read again:\n%s\nwant\n%s", got, tt.want)
		}
	}
}

// TestRandomPatches builds pages of every element within every other.
func TestRandomPatches(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	pick := func(list string) string { f := strings.Fields(list); return f[r.IntN(len(f))] }
	const names = "a abbr address article b blockquote br button caption code col colgroup datalist dd details div dl dt em fieldset figure footer form h1 h2 " +
		"header hr i img input label legend li main mark menu meter nav ol optgroup option output p pre progress rp rt ruby s section select small span " +
		"strong sub summary sup table tbody td textarea tfoot th thead time tr u ul var wbr svg g path rect text tspan linearGradient stop title desc defs " +
		"script style template math mtext noscript foreignObject nobr font center x-y"
	const marks = "class=a class=b id=c id=d title=x style=color:red data-action=go href=#x name=n value=v onclick=x"
	var tree func(depth int) string
	tree = func(depth int) string {
		var b strings.Builder
		for range 1 + r.IntN(3) {
			switch name := pick(names); {
			case r.IntN(4) == 0:
				b.WriteString(pick("x \n &lt; & 1&nbsp;2 ' \" é"))
			case depth == 0 || r.IntN(12) == 0:
				b.WriteString("<" + name + ">") // not ended
			default:
				b.WriteString("<" + name + " " + pick(marks) + ">" + tree(depth-1) + "</" + name + ">")
			}
		}
		return b.String()
	}
	tags := regexp.MustCompile("<[a-zA-Z0-9]+")
	selector := func(page string) string {
		if there := tags.FindAllString(page, -1); r.IntN(5) > 0 && len(there) > 0 {
			name := there[r.IntN(len(there))][1:]
			if r.IntN(2) == 0 {
				name += pick(":not(a) :last-child :nth-child(2n) :nth-of-type(odd) .a [class] #c")
			}
			return name
		}
		return pick(".a .b #c #d *:last-child :nth-child(2) .a>* .b~* *:empty body")
	}
	width := "1px"
	counts := map[string]int{}
	for range 150 {
		page := markup.NewPage(tree(4))
		stable(t, page)
		for range 40 {
			text, old := tree(2), page.HTML()
			p := engi.PagePatch{Selector: selector(old)}
			what := pick("text html append prepend before after replace remove move class attr style value")
			switch what {
			case "text":
				p.Text = &text
			case "html":
				p.HTML = &text
			case "append":
				p.Append = &text
			case "prepend":
				p.Prepend = &text
			case "before":
				p.Before = &text
			case "after":
				p.After = &text
			case "replace":
				p.Replace = &text
			case "remove":
				p.Remove = r.IntN(3) == 0
			case "move":
				p.Move = &engi.PageMove{To: selector(old), Place: pick("append prepend before after")}
			case "class":
				p.Class = map[string]bool{pick("a b c"): r.IntN(2) == 0, pick("a b c"): true}
			case "attr":
				name, v, _ := strings.Cut(pick(marks), "=")
				p.Attr = map[string]*string{name: &v, pick("id class title"): nil}
			case "style":
				p.Style = map[string]*string{pick("color width behavior"): &text, "margin": &width}
			case "value":
				p.Value = &text
			}
			before := page.Clone()
			applied, _ := page.Apply([]engi.PagePatch{p})
			counts[what] += len(applied)
			want := stable(t, page)
			if _, errs := before.Apply(applied); len(errs) > 0 || before.HTML() != want {
				t.Fatalf("%s makes\n%s\nwant\n%s\n%v", encode(t, applied), before.HTML(), want, errs)
			}
		}
	}
	for what, n := range counts {
		if n < 10 {
			t.Errorf("%s was applied %d times", what, n)
		}
	}
	t.Log(counts)
}

func TestWhatIsRefused(t *testing.T) {
	big := strings.Repeat("x", 200<<10)
	for _, tt := range []struct{ start, patch, want string }{
		{`<p>1</p>`, `{"selector":"#none","text":"x"}`, "no element is selected"},
		{`<p>1</p>`, `{"selector":"p:hover","text":"x"}`, ":hover is not a supported pseudo-class"},
		{`<p>1</p>`, `{"selector":"p","text":"x","html":"y"}`, "this patch has 2"},
		{`<p>1</p>`, `{"selector":"p"}`, "this patch has 0"},
		{`<p>1</p>`, `{"selector":"body","remove":true}`, "the body itself"},
		{`<p>1</p>`, `{"selector":"p","html":"<div>x</div>"}`, "<div> can not be in <p>"},
		{`<p><b>1</b></p>`, `{"selector":"b","append":"<ul></ul>"}`, "<ul> can not be in <p>"},
		{`<table><tbody></tbody></table>`, `{"selector":"tbody","text":"x"}`, "text can not be in <tbody>"},
		{`<img alt="x">`, `{"selector":"img","append":"x"}`, "<img> has no elements in it"},
		{`<a href="#">1</a>`, `{"selector":"a","attr":{"href":"javascript:alert(1)"}}`, `attribute "href": it may not be there`},
		{`<p>1</p>`, `{"selector":"p","attr":{"onclick":"x"}}`, `attribute "onclick"`},
		{`<p>1</p>`, `{"selector":"p","style":{"background":"url(/x)"}}`, `style "background"`},
		{`<p>1</p>`, `{"selector":"p","class":{"a b":true}}`, `"a b" is no class`},
		{`<p>1</p>`, `{"selector":"p","value":"x"}`, "no value that is typed"},
		{`<select><option>a</option></select>`, `{"selector":"select","value":"b"}`, "no option with this value"},
		{`<div><p>1</p></div>`, `{"selector":"div","move":{"to":"p","place":"append"}}`, "into or beside itself"},
		{`<div><p>1</p></div>`, `{"selector":"p","move":{"to":"div","place":"on"}}`, "is no place"},
		{`<p>1</p>`, `{"selector":"p","text":"` + big + `"}`, "more than 196608 bytes"},
		{`<p>1</p>`, `{"selector":"p","append":"` + strings.Repeat("<br>", 30_000) + `"}`, "more than 20000 elements"},
		{strings.Repeat("<div>", 250), `{"selector":"div:empty","append":"` + strings.Repeat("<div>", 9) + `"}`, "more than 256 deep"},
		{`<p>1</p>`, `{"selector":"` + strings.Repeat("p,", 300) + `p","text":"x"}`, "longer than 512 bytes"},
		{`<p>1</p>`, `{"selector":"` + strings.Repeat("p ", 20) + `p","text":"x"}`, "more than 16 parts"},
		{`<table></table><p></p>`, `{"selector":"table,p","html":"<tr></tr>"}`, "would be parsed differently"},
	} {
		p := markup.NewPage(tt.start)
		before := p.HTML()
		applied, errs := p.Apply(patches(t, "["+tt.patch+"]"))
		if len(applied) > 0 || p.HTML() != before {
			t.Errorf("%.100s is applied to %.100s", tt.patch, tt.start)
		}
		if len(errs) != 1 || !strings.Contains(errs[0].Error(), tt.want) {
			t.Errorf("%.100s on %.100s: %v, want %q", tt.patch, tt.start, errs, tt.want)
			continue
		}
		if kind := engi.KindOf(errs[0]); kind != engi.Invalid && kind != engi.NotFound || engi.RemedyOf(errs[0]) == "" {
			t.Errorf("%v is %s, remedy %q", errs[0], kind, engi.RemedyOf(errs[0]))
		}
	}
}

// TestGoodPartsStand applies the valid parts of a patch and of a list of patches.
func TestGoodPartsStand(t *testing.T) {
	p := markup.NewPage(`<p>1</p>`)
	applied, errs := p.Apply(patches(t, `[{"selector":"p","attr":{"title":"x","onclick":"y"}},{"selector":"q","text":"x"},{"selector":"p","style":{"color":"red","position":"fixed"}},{"selector":"p","text":"2"}]`))
	const want = `<p style="color: red;" title="x">2</p>`
	if p.HTML() != want || len(applied) != 3 || len(errs) != 3 {
		t.Errorf("%s\nwant\n%s\n%+v\n%v", p.HTML(), want, applied, errs)
	}
}

func TestSelectors(t *testing.T) {
	const source = `<main id="m" class="a b"><h1 title="x-y">t</h1><ul><li class="a">1</li><li data-n="5 6">2</li><li class="a b">3</li><li></li></ul>` +
		`<input type="TEXT" name="q"><svg viewBox="0 0 9 9"><linearGradient id="g"></linearGradient></svg><i>x</i><i id="1:2">y</i></main>`
	for selector, want := range map[string]int{
		"li": 4, "LI": 4, "main, main *": 12, "#m": 1, ".a": 3, ".a.b": 2, "li.a": 2, "ul > li": 4, "main li": 4, "main > li": 0, "h1 + ul": 1, "h1 ~ i": 2, "ul li + li": 3,
		"li:first-child": 1, "li:last-child": 1, "li:nth-child(2n+1)": 2, "li:nth-child(odd)": 2, "li:nth-child(-n+3)": 3, "li:nth-last-child(1)": 1, "i:nth-of-type(2)": 1,
		"i:first-of-type": 1, "h1:only-of-type": 1, "li:empty": 1, "li:not(.a)": 2, "li:not(.a,:empty)": 1, ":is(h1,i)": 3, "body li": 4, "body > main": 1, "body>li": 0, "body + main": 0, "[title]": 1, "[title=x-y]": 1, "[title|=x]": 1,
		`[data-n~="6"]`: 1, `[data-n^='5']`: 1, `[data-n$="6"]`: 1, `[data-n*=" "]`: 1, `[data-n=""]`: 0, `[data-n*=""]`: 0, `[type="text"]`: 1, `[TITLE="X-Y" i]`: 1, `[title="X-Y"]`: 0,
		"linearGradient": 1, "lineargradient": 0, "[viewBox]": 1, "[viewbox]": 0, "svg > *": 1, `#\31 \:2`: 1, `[id="1:2"]`: 1, "li , h1": 5, "\n.b\t": 2, "main > ul > li.a:first-child": 1,
		"li:nth-child( 2 )": 1, "li:nth-child(n)": 4, "li:nth-child(0n+0)": 0, ".A": 0, "ul>li~li": 3, "q li, li.b": 1,
	} {
		p := markup.NewPage(source)
		mark := "1"
		_, errs := p.Apply([]engi.PagePatch{{Selector: selector, Attr: map[string]*string{"data-mark": &mark}}})
		if got := strings.Count(p.HTML(), "data-mark"); got != want || (want > 0) != (errs == nil) {
			t.Errorf("%s selects %d, want %d: %v", selector, got, want, errs)
		}
	}
	for _, selector := range []string{"", " ", ",", "li,", ">li", "li >", "li > > li", "..a", "#", "a:b", "li:has(a)", "li:hover", "::before", "li::before", "[a=b", "[=b]", "[a!=b]", "[a=5]", "li:nth-child(", "li:nth-child(n+)",
		"li:nth-child(1 of .a)", ":not(:not(a))", ":not(a b)", "svg|a", "a$", "<p>", "5", "#5", ".5", ".- a", "#-1", ":root", ":scope", "li:nth-child(+ 2)", "a{}", "/**/a", `[a="b`, `a\`} {
		p := markup.NewPage(source)
		if _, errs := p.Apply([]engi.PagePatch{{Selector: selector, Remove: true}}); len(errs) != 1 || !engi.Is(errs[0], engi.Invalid) {
			t.Errorf("%q: %v, want Invalid", selector, errs)
		}
	}
}

// TestHostileMarkupIsCheap parses markup for which other parsers need much time or memory.
func TestHostileMarkupIsCheap(t *testing.T) {
	ids := func(format string, n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	for name, source := range map[string]string{
		"formatting begun again": "<p>" + ids("<b id=%d>", 400) + strings.Repeat("<p>y", 10_000),
		"hidden in svg":          "<svg><style><p>" + ids("<b id=%d>", 400) + strings.Repeat("<p>y", 10_000),
		"deep":                   strings.Repeat("<div>", 50_000),
		"ends":                   strings.Repeat("<i>", 100) + strings.Repeat("</x>", 50_000),
		"adopted":                strings.Repeat("<a><b><p></a></b>", 10_000),
		"tables":                 strings.Repeat("<table>x", 30_000),
		"attributes":             "<p " + ids("data-a%d ", 20_000) + ">",
		"entities":               strings.Repeat("&amp", 50_000),
	} {
		start := time.Now()
		p := markup.NewPage(source)
		if d := time.Since(start); d > 30*time.Second {
			t.Errorf("%s: %s", name, d)
		}
		if got := stable(t, p); strings.Contains(got, "y") {
			t.Errorf("%s is a page of %d bytes", name, len(got))
		}
	}
	p := markup.NewPage(strings.Repeat("<p></p>", 10_000))
	start := time.Now()
	text := "x"
	for _, selector := range []string{"* * * * * * * * * * * * * * * q", "*~*~*~*~*~*~*~*~*~*~*~*~*~*~*~q", "q:nth-last-of-type(3n+1)", "* > :not(p)"} {
		if _, errs := p.Apply([]engi.PagePatch{{Selector: selector, Text: &text}}); len(errs) != 1 {
			t.Errorf("%s: %v", selector, errs)
		}
	}
	if d := time.Since(start); d > 30*time.Second {
		t.Errorf("selectors: %s", d)
	}
}

func TestPagesStayInBounds(t *testing.T) {
	for name, item := range map[string]string{"bytes": "<p>" + strings.Repeat("x", 1000) + "</p>", "nodes": strings.Repeat("<br>", 100), "JSON": "<p>" + strings.Repeat(`"`, 1000) + "</p>"} {
		p := markup.NewPage("<main></main>")
		var ps []engi.PagePatch
		for range 300 {
			ps = append(ps, engi.PagePatch{Selector: "main", Append: &item})
		}
		applied, errs := p.Apply(ps)
		if len(applied) < 100 || len(applied)+len(errs) != 300 || len(errs) == 0 {
			t.Errorf("%s: %d patches are applied, %d are not", name, len(applied), len(errs))
		}
		stable(t, p)
		// Removing content frees space.
		if again, _ := p.Apply(append([]engi.PagePatch{{Selector: "main > *", Remove: true}}, ps[:290]...)); len(again) != min(291, len(applied)+1) {
			t.Errorf("%s: then %d are applied, before %d", name, len(again), len(applied))
		}
	}
}
