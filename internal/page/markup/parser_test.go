package markup_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/page/markup"
)

// answer contains all kinds of text that models write around and within lines.
const answer = "Sure! Here {is} the page:\r\n```jsonl\r\n" +
	`{"type":"full","html":"<main>\u00e9 \ud83d\ude00 <b class=\"x\">\/&amp;\n\ud800</b> héé 😀</main>"}` + "\r\n" +
	`{"type":"patches","patches":[{"selector":"#a","text":"}{ \"] x","later":[1,{"a":2}]},{"selector":"#b","attr":{"title":"t","hidden":null}}]} {"type":"stats","tokens":5,"n":{"type":"full","html":"<no>"}}` + "\n" +
	"{\n  \"type\": \"patches\",\n  \"patches\": [\n    {\"selector\": \"p\", \"text\": 5}\n  ]\n}\n" +
	`{"type":"patches","patches":[{"selector":"#a","text":"unfinished` + "\n" +
	`{"type":"patches","patches":[{"selector":"#c","html":"broken
over lines"}]}` + "\n" +
	`{"type":"full","html":"<p class="x">"}` + "\n" +
	`{"type":"other"} {"type": "full", "html":5} {"no":1}` + "\n" +
	`{"type":"code_modules","modules":[{"path":"lib/a.ts","description":"d","exports":["f"],"usage":"u"}]}` + "\n```\nDone \xff \xe2\x82 {} {{" +
	`{"type":"stats"}`

func show(lines []markup.Line) string {
	var b strings.Builder
	for _, l := range lines {
		switch {
		case l.Err != nil:
			fmt.Fprintf(&b, "error %v | %s\n", l.Err, l.Raw)
		case l.HTML != nil:
			fmt.Fprintf(&b, "full %q\n", *l.HTML)
		case l.Patches != nil:
			raw, err := json.Marshal(l.Patches)
			fmt.Fprintf(&b, "patches %s %v\n", raw, err)
		case l.Modules != nil:
			fmt.Fprintf(&b, "modules %+v\n", l.Modules)
		default:
			fmt.Fprintf(&b, "stats %s\n", l.Stats)
		}
	}
	return b.String()
}

func read(pieces ...string) []markup.Line {
	var p markup.Parser
	var lines []markup.Line
	for _, s := range pieces {
		lines = append(lines, p.Write(s)...)
	}
	return append(lines, p.Close()...)
}

func TestLinesDoNotDependOnCuts(t *testing.T) {
	want := show(read(answer))
	t.Log(want)
	for i := range len(answer) {
		if got := show(read(answer[:i], answer[i:])); got != want {
			t.Fatalf("cut at %d:\n%s\nwant\n%s", i, got, want)
		}
	}
	if got := show(read(strings.Split(answer, "")...)); got != want {
		t.Errorf("in characters:\n%s\nwant\n%s", got, want)
	}
}

func TestLines(t *testing.T) {
	const good = `{"type":"patches","patches":[{"selector":"p","text":"x"}]}`
	const want = `patches [{"selector":"p","text":"x"}] <nil>` + "\n"
	for name, tt := range map[string]struct{ text, want string }{
		"alone":              {good, want},
		"fenced":             {"```json\n" + good + "\n```", want},
		"in prose":           {"I use {x}, {} and { \"a\" as in " + "f() { } :\n" + good, "error another line begins in the middle of this one | { \"a\" as in f() { } :\n\n" + want},
		"in an array":        {"[" + good + ",\n" + good + "]", want + want},
		"wrapped":            {`{"lines":[` + "\n" + good + "\n" + good + "]}", `error another line begins in the middle of this one | {"lines":[` + "\n\n" + want + want},
		"two in a line":      {good + good, want + want},
		"CRLF":               {good + "\r\n" + good + "\r\n", want + want},
		"cut":                {good + "\n" + good[:30], want + "error the answer ends in the middle of a line | " + good[:30] + "\n"},
		"braces in text":     {strings.Replace(good, `"x"`, `"}{\"{"`, 1), strings.Replace(want, `"x"`, `"}{\"{"`, 1)},
		"a line end in text": {strings.Replace(good, `"x"`, "\"a\n b\"", 1), strings.Replace(want, `"x"`, `"a\n b"`, 1)},
		"a bracket too much": {good[:len(good)-1] + "}]}" + "\n" + good, want + want},
		"a number":           {strings.Replace(good, `"x"`, "1.50", 1), strings.Replace(want, `"x"`, `"1.50"`, 1)},
		"one bad patch": {strings.Replace(good, "[", `[{"selector":"q","text":{}},`, 1),
			want + "error the line is not understood: patch 1: /text can not be an object | " + strings.Replace(good, "[", `[{"selector":"q","text":{}},`, 1) + "\n"},
		"no patches":      {`{"type":"patches"}`, `error the line is not understood: it has no patches | {"type":"patches"}` + "\n"},
		"no html":         {`{"type":"full"}`, `error the line is not understood: it has no html | {"type":"full"}` + "\n"},
		"no modules":      {`{"type":"code_modules"}`, `error the line is not understood: it has no modules | {"type":"code_modules"}` + "\n"},
		"unknown type":    {`{"type":"x"}`, `error the line is not understood: its type is "x" | {"type":"x"}` + "\n"},
		"type at the end": {`{"html":"<p>","type":"full"}`, `full "<p>"` + "\n"},
		"pretty stats":    {"{\n  \"type\": \"stats\",\n  \"a\": [1, 2]\n}", `stats {"type":"stats","a":[1,2]}` + "\n"},
	} {
		if got := show(read(tt.text)); got != tt.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, tt.want)
		}
	}
}

func TestBounds(t *testing.T) {
	const good = `{"type":"patches","patches":[{"selector":"p","text":"x"}]}`
	long := `{"type":"full","html":"` + strings.Repeat("x", 300<<10) + `"}` + "\n"
	many := `{"type":"patches","patches":[` + strings.Repeat(`{"selector":"p","text":"x"},`, 1000) + `{"selector":"p","text":"x"}]}`
	endless := `{"type":"full","html":"` + strings.Repeat("x\n", 300<<10)
	for text, want := range map[string]string{long: "longer than 262144 bytes", many: "more than 1000", endless: "another line begins"} {
		var p markup.Parser
		lines := p.Write(text)
		if html, ok := p.Partial(); ok && len(html) > 256<<10 {
			t.Errorf("%d bytes of HTML", len(html))
		}
		lines = append(lines, p.Write("\n"+good)...)
		var pieces []string
		for piece := range slices.Chunk([]byte(text+"\n"+good), 4093) {
			pieces = append(pieces, string(piece))
		}
		if got, want := show(read(pieces...)), show(lines); got != want {
			t.Errorf("%.30q in pieces: %.300q, want %.300q", text, got, want)
		}
		if len(lines) != 2 || lines[0].Err == nil || !strings.Contains(lines[0].Err.Error(), want) || len(lines[0].Raw) > 256<<10 || len(lines[1].Patches) != 1 {
			t.Errorf("%.30q: %.300q, want %q and a patch", text, show(lines), want)
		}
	}
}

func TestPartial(t *testing.T) {
	const text = `{"type":"full","html":"<p>\u00e9\ud83d\ude00 \"x\"</p>"}`
	const want = `<p>é😀 "x"</p>`
	var p markup.Parser
	shown := map[string]bool{}
	for i := range len(text) - 1 {
		if lines := p.Write(text[i : i+1]); lines != nil {
			t.Fatal(lines)
		}
		html, ok := p.Partial()
		if ok != (i >= len(`{"type":"full","html":`)) || !strings.HasPrefix(want, html) {
			t.Errorf("after %s: %q, %v", text[:i+1], html, ok)
		}
		shown[html] = true
	}
	if lines := p.Write("}"); len(lines) != 1 || *lines[0].HTML != want || !shown[want] || !shown["<p>é"] || shown["<p>é\ufffd"] {
		t.Errorf("%v, %v", shown, show(lines))
	}
	if html, ok := p.Partial(); ok {
		t.Errorf("%q is left", html)
	}
}
