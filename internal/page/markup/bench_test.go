package markup_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/page/markup"
)

func BenchmarkParser(b *testing.B) {
	patches := strings.Repeat(`{"type":"patches","patches":[{"selector":"#count","text":"5"},{"selector":"ul","append":"<li class=\"item\">x</li>"}]}`+"\n", 1000)
	full := `{"type":"full","html":"` + strings.Repeat(`<li class=\"item\">some text of an item</li>\n`, 4700) + `"}`
	for _, bench := range []struct {
		name, text string
		piece      int
		partial    bool
	}{
		{"patches", patches, len(patches), false},
		{"patches in pieces", patches, 4, false},
		{"full", full, len(full), false},
		{"full in pieces", full, 4, true},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.SetBytes(int64(len(bench.text)))
			b.ReportAllocs()
			for b.Loop() {
				var p markup.Parser
				n := 0
				for i := 0; i < len(bench.text); i += bench.piece {
					for _, l := range p.Write(bench.text[i:min(i+bench.piece, len(bench.text))]) {
						if n++; l.Err != nil {
							b.Fatal(l.Err)
						}
					}
					if bench.partial {
						p.Partial()
					}
				}
				if n += len(p.Close()); n == 0 {
					b.Fatal("no line")
				}
			}
		})
	}
}

func BenchmarkApply(b *testing.B) {
	var source strings.Builder
	for i := range 250 {
		fmt.Fprintf(&source, `<div id="r%d" class="row"><span>%d</span><b>x</b></div>`, i, i)
	}
	text := func(s string) *string { return &s }
	for _, bench := range []struct {
		name  string
		patch engi.PagePatch
	}{
		{"text", engi.PagePatch{Selector: "#r200 > span", Text: text("5")}},
		{"html", engi.PagePatch{Selector: "#r200", HTML: text("<span>1</span><b>x</b>")}},
		{"class of all", engi.PagePatch{Selector: ".row:nth-child(odd)", Class: map[string]bool{"odd": true}}},
		{"replace", engi.PagePatch{Selector: "div#r200", Replace: text(`<div id="r200" class="row"><span>1</span><b>x</b></div>`)}},
		{"move", engi.PagePatch{Selector: ".row", Move: &engi.PageMove{To: "body", Place: "append"}}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			p := markup.NewPage(source.String())
			b.ReportAllocs()
			for b.Loop() {
				if _, errs := p.Apply([]engi.PagePatch{bench.patch}); len(errs) > 0 {
					b.Fatal(errs)
				}
			}
		})
	}
	b.Run("HTML", func(b *testing.B) {
		p := markup.NewPage(source.String())
		for b.Loop() {
			if _, errs := p.Apply([]engi.PagePatch{{Selector: "#r0 > span", Text: text("5")}}); len(errs) > 0 || p.HTML() == "" {
				b.Fatal(errs)
			}
		}
	})
	b.Run("NewPage", func(b *testing.B) {
		for b.Loop() {
			markup.NewPage(source.String())
		}
	})
}
