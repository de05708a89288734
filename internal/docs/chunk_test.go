package docs

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
)

func TestChunk(t *testing.T) {
	long := strings.Repeat("A sentence of some words. ", 200)
	code := "```go\n" + strings.Repeat("x := f(y)\n", 250) + "```"
	src := "---\ntitle: \"The guide\"\n---\nIntro.\n\n# Top `x`\n\nText.\n\n```sh\n# no heading\n```\n\n## Same\n\n" + long + "\n\n" + code + "\n\n## Same\n\nSetext\n------\n\n- a [link](http://x)\n"
	title, _, ps := split(src)
	if title != "The guide" {
		t.Errorf("title %q", title)
	}
	type got struct {
		Headings string
		Anchor   string
		Text     string
	}
	var list []got
	for _, p := range ps {
		list = append(list, got{strings.Join(p.Headings, ">"), p.Anchor, p.Text[:min(len(p.Text), 12)]})
		if len(p.Text) > maxCodeChunk {
			t.Errorf("a chunk of %d bytes", len(p.Text))
		}
	}
	want := []got{
		{"", "", "Intro."}, {"Top x", "top-x", "Text.\n\n```sh"}, {"Top x>Same", "same", "A sentence o"}, {"Top x>Same", "same", "words. A sen"},
		{"Top x>Same", "same", "some words. "}, {"Top x>Same", "same", "```go\nx := f"}, {"Top x>Setext", "setext", "- a [link](h"},
	}
	if diff := cmp.Diff(want, list); diff != "" {
		t.Error(diff)
	}
	if ps[5].Text != code {
		t.Errorf("a block of code was split: %q", ps[5].Text[len(ps[5].Text)-30:])
	}
}

func TestTitles(t *testing.T) {
	for src, want := range map[string]struct {
		title string
		sure  bool
	}{
		"# zod\n\ntext":           {"zod", true},
		"text\n\n## Install\n\nx": {"Install", false},
		"<p align=\"center\">\n<h1 align=\"center\">Zod <b>4</b></h1>\n</p>\n\n### [Read the docs →](https://zod.dev)\n\n## Install\n": {"Zod 4", true},
		"<img src=\"logo.svg\">\n\n### [Read the docs →](https://zod.dev)\n\n## Install\n\nx":                                          {"Install", false},
		"# [qs](https://qs.example) parser\n\nx": {"qs parser", true},
		"### [Docs](https://x.example)\n\nx":     {"", false},
	} {
		if title, sure, _ := split(src); title != want.title || sure != want.sure {
			t.Errorf("%q: %q, %v, want %q, %v", src, title, sure, want.title, want.sure)
		}
	}
}

// TestHostileNesting splits text that takes minutes to parse as Markdown.
func TestHostileNesting(t *testing.T) {
	for _, s := range []string{">", "> ", "- ", "1. ", "> - ", "# a\n", "***\n", "a\n=\n", "[a]: b\n", "<div>\n", "```\n"} {
		split(strings.Repeat(s, (1<<18)/len(s)))
	}
	if _, _, ps := split("# A\n\n- one\n- # two\n---\n\n> # three\n\n1. x\n===\n"); len(ps) != 1 || ps[0].Anchor != "a" {
		t.Errorf("%+v", ps)
	}
}

func TestTerms(t *testing.T) {
	for query, want := range map[string][]string{
		"How do I create an issue?":        {"create", "issue"},
		"linear.createIssue()":             {"linear.createissue", "linear", "create", "issue"},
		"snake_case-name @scope/pkg":       {"snake_case-name", "snake", "case", "name", "scope/pkg", "scope", "pkg"},
		"what is it":                       {"what", "is", "it"},
		"HTTPServer parseJSON2 Größe ünïx": {"httpserver", "http", "server", "parsejson2", "parse", "json2", "größe", "ünïx"},
		"?!":                               nil,
	} {
		if diff := cmp.Diff(want, queryTerms(query)); diff != "" {
			t.Errorf("%q: %s", query, diff)
		}
	}
	if n := len(queryTerms(strings.Repeat("a1 b2 c3 d4 e5 f6 g7 h8 ", 1) + long(100))); n != maxTerms {
		t.Errorf("%d terms", n)
	}
}

func long(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.Repeat(string(rune('a'+i%26)), i/26+3) + " ")
	}
	return b.String()
}

func TestModulesIn(t *testing.T) {
	said := "I saved it.\n" +
		`{"type":"code_modules","modules":[{"path":"lib/linear.ts","description":"issues","exports":["fn1"],"usage":"import { fn1 } from './lib/linear.ts'"},{"path":"../x"},{"path":3},7]}` + "\n```\n" +
		`  {"type":"code_modules","modules":[{"path":"/workspace/lib/all.ts","scope":"user"},{"path":"./lib/linear.ts","description":"again"}]}` + "\n```\n" +
		`{"type":"code_modules","modules":` + "\n" + `{"type":"patches","modules":[{"path":"a.ts"}]}`
	want := []engi.CodeModule{
		{Path: "lib/all.ts", Scope: engi.ModuleUser}, {Path: "lib/linear.ts", Description: "again", Scope: engi.ModuleSession},
	}
	if diff := cmp.Diff(want, ModulesIn(said)); diff != "" {
		t.Error(diff)
	}
}

func TestImports(t *testing.T) {
	src := `import { LinearClient } from "@linear/sdk";
import fs from "node:fs"; import './local.ts'
const z = await import('npm:zod@3.2/v4'), y = require("lodash/get")
from pandas import x
`
	if diff := cmp.Diff([]string{"@linear/sdk", "zod", "lodash", "pandas"}, imports(src)); diff != "" {
		t.Error(diff)
	}
}

func FuzzChunk(f *testing.F) {
	for _, s := range []string{"# A\n\ntext\n\n## B\n\n- x\n  - y\n", "```\n# x\n", "> > > a\n\n***\n\nSet\n===\n", "---\ntitle: x\n---\n", "\ufeff# x\r\n\r\ny", "| a |\n|---|\n", "<div>\n\n# x\n", "\x00#\t\t\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, src string) {
		src = strings.ToValidUTF8(src, "")
		title, _, ps := split(src)
		if !utf8.ValidString(title) || len(title) > maxHeading {
			t.Errorf("title %q", title)
		}
		for _, p := range ps {
			if strings.TrimSpace(p.Text) == "" || !utf8.ValidString(p.Text) || len(p.Text) > 2*maxCodeChunk {
				t.Errorf("chunk %q", p.Text)
			}
			for _, h := range p.Headings {
				if !utf8.ValidString(h) || len(h) > maxHeading || strings.ContainsRune(h, '\n') {
					t.Errorf("heading %q", h)
				}
			}
		}
		queryTerms(src)
		identifierParts(src)
		var sum float64
		for _, x := range embedWords(src) {
			sum += float64(x) * float64(x)
		}
		if sum < 0.999 || sum > 1.001 {
			t.Errorf("a vector of length %g", sum)
		}
	})
}

func FuzzModulesIn(f *testing.F) {
	f.Add(`{"type":"code_modules","modules":[{"path":"a/b.ts","exports":["x"],"scope":"user"}]}`)
	f.Add("{\"type\":\"code_modules\",\"modules\":[null]}\n{\"type\":\"code_modules\"}")
	f.Fuzz(func(t *testing.T, said string) {
		ms := ModulesIn(said)
		if len(ms) > maxSaved {
			t.Errorf("%d modules", len(ms))
		}
		for _, m := range ms {
			if again, err := validateModule(m); err != nil || again.Path != m.Path {
				t.Errorf("%+v: %v", m, err)
			}
		}
		imports(said)
	})
}
