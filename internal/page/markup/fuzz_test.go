package markup_test

import (
	"encoding/json"
	"strings"
	"testing"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/page/markup"
)

func FuzzParser(f *testing.F) {
	f.Add(answer, uint8(7))
	f.Add(`{"type":"full","html":"\ud83d\ud83d\ude00\u00`, uint8(1))
	for _, patch := range []string{`"text":"","html":"x"`, `"append":"\ud83d\n\"x","selector":"b"`, `"value":null`, `"text":7`, `"before":"x","replace":"y"`, `"te\u0078t":"x"`, `"after":"x","attr":{"a":null}`, `"text":"x"},{"selector":"b","prepend":"größer"`} {
		f.Add(`{"type":"patches","x":[[],{}],"patches":[{"selector":"a",`+patch+`}]}`, uint8(5))
	}
	f.Add(`{"type":"patches","patches":[{"selector":"a","text":"b"}],"p\u0061tches":[]}`, uint8(9))
	f.Add(`{"type":"patches","patches":[{"selector":"a","text":"b"}],"patches":[{"selector":"c","text":"d"}]}`, uint8(9))
	f.Add("{\"type\":\"full\",\"html\":\"a\x00\\\n{\"type\":\"full\" b\"}", uint8(3))
	f.Fuzz(func(t *testing.T, text string, size uint8) {
		want := show(read(text))
		var p markup.Parser
		var lines []markup.Line
		last, partial := "", false
		step := int(size)%16 + 1
		for rest := text; rest != ""; {
			n := min(step, len(rest))
			got := p.Write(rest[:n])
			rest = rest[n:]
			for _, l := range got {
				if l.HTML != nil && partial && len(got) == 1 && !strings.HasPrefix(*l.HTML, last) {
					t.Errorf("%q does not begin with what was there, %q", *l.HTML, last)
				}
			}
			lines = append(lines, got...)
			part, ok := p.Partial()
			if len(got) == 0 && partial && ok && !strings.HasPrefix(part, last) && !strings.Contains(text, `"html"`) {
				t.Errorf("%q is followed by %q", last, part)
			}
			last, partial = part, ok
		}
		lines = append(lines, p.Close()...)
		if got := show(lines); got != want {
			t.Errorf("in pieces of %d:\n%s\nwant\n%s", step, got, want)
		}
		if len(lines) > len(text) {
			t.Errorf("%d lines in %d bytes", len(lines), len(text))
		}
		for _, l := range lines {
			if len(l.Patches) > 1000 || len(l.Raw) > 256<<10+8 || l.Stats != nil && !json.Valid(l.Stats) {
				t.Errorf("%.200q is out of bounds", l.Raw)
			}
			var o struct {
				Patches []engi.PagePatch `json:"patches"`
			}
			err := jsonv2.Unmarshal([]byte(l.Raw), &o, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
			if diff := cmp.Diff(o.Patches, l.Patches); l.Patches != nil && err == nil && diff != "" {
				t.Errorf("%q\n%s", l.Raw, diff)
			}
		}
	})
}

func FuzzPage(f *testing.F) {
	for _, v := range vectors(f) {
		if v.Patches == nil {
			f.Add(v.HTML, `[{"selector":"body","append":"x"}]`)
			continue
		}
		raw, err := json.Marshal(v.Patches)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(v.Start, string(raw))
	}
	f.Fuzz(func(t *testing.T, start, list string) {
		var ps []engi.PagePatch
		if json.Unmarshal([]byte(list), &ps) != nil {
			return
		}
		page := markup.NewPage(start)
		stable(t, page)
		for _, p := range ps {
			before, old := page.Clone(), page.HTML()
			applied, errs := page.Apply([]engi.PagePatch{p})
			if raw := encode(t, applied); len(raw) > 250<<10 {
				t.Fatalf("a patch of %d bytes of JSON", len(raw))
			}
			got := stable(t, page)
			if len(applied) == 0 && (got != old || len(errs) == 0) {
				t.Fatalf("nothing was applied, but\n%s\nbecame\n%s\nwith %v", old, got, errs)
			}
			again, errs := before.Apply(applied)
			if len(errs) > 0 || before.HTML() != got {
				t.Fatalf("%+v makes of\n%s\n\n%s\nwant\n%s\n%v", applied, old, before.HTML(), got, errs)
			}
			if a, b := encode(t, applied), encode(t, again); a != b {
				t.Fatalf("%s is applied as %s", a, b)
			}
		}
	})
}

func encode(t testing.TB, v any) string {
	t.Helper()
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// stable returns the page, which must be harmless and stay the same when it is parsed again.
func stable(t testing.TB, p *markup.Page) string {
	t.Helper()
	got := p.HTML()
	if err := harmless(got); err != nil {
		t.Fatalf("%v\n%s", err, got)
	}
	if again := markup.NewPage(got).HTML(); again != got {
		t.Fatalf("read again:\n%s\nwant\n%s", again, got)
	}
	if raw := encode(t, got); len(got) > 192<<10 || len(raw) > 240<<10 {
		t.Fatalf("a page of %d bytes, %d in JSON", len(got), len(raw))
	}
	return got
}
