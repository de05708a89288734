package project

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// An Import is a use of another file or package.
type Import struct {
	Path    string // import path, as written
	Package string // package of npm or PyPI that provides the import; empty if there is none
	Line    int    // from 1
	Type    string // static, dynamic, require, css, url, jsx or python; type if the import disappears when it is compiled
}

// A Problem is an error in a file.
type Problem struct {
	File         string
	Line, Column int // from 1; 0 for unknown
	Text         string
}

const (
	maxImports  = 1000 // of a file
	maxPath     = 1000 // bytes of an import path; longer ones are skipped
	maxProblems = 20
)

// scripts are the extensions of files that esbuild's parser reads.
var scripts = words("js jsx ts tsx mjs cjs mts cts")

func extension(p string) string { return strings.TrimPrefix(strings.ToLower(path.Ext(p)), ".") }

// Imports returns what a file of JavaScript, TypeScript, CSS or Python imports, in the
// order of the file, and the syntax errors in it. Other files import nothing.
func Imports(path, content string) ([]Import, []Problem) {
	f := read(path, content)
	return slices.Clone(f.imports), slices.Clone(f.problems)
}

// scanImports returns the imports in a source, including imports of types. It
// also finds them in code that does not parse.
func scanImports(src string, jsx, types bool) (found []Import, l *lexer) {
	l = &lexer{src: src, jsx: jsx, types: types}
	const none, afterImport, from, afterCall = 0, 1, 2, 3
	state, kind, line, deep := none, "", 0, 0
	clause := 0 // tokens since import
	var prev token
	l.token = func(t token) {
		defer func() { prev = t }()
		if len(found) >= maxImports {
			return
		}
		add := func(p string) { found = append(found, Import{Path: p, Line: line, Type: kind}) }
		switch state {
		case afterImport:
			switch {
			case t.kind == '"':
				add(t.text)
				state = none
			case t.kind == '(':
				kind, state = "dynamic", afterCall
			case t.kind == '.':
				state = none // import.meta
			default:
				if t.kind == 'a' && t.text == "type" {
					kind = "type?"
				}
				state, clause = from, 0
			}
			return
		case from:
			clause++
			if kind == "type?" {
				// "import type, { a } from" and "import type from" import a value of that name.
				if clause == 1 {
					if t.kind == ',' || t.kind == 'a' && t.text == "from" || t.kind == '=' {
						kind = "static"
					} else {
						kind = "type"
					}
				}
			}
			switch {
			case t.kind == '"' && prev.kind == 'a' && prev.text == "from" && t.deep == deep:
				add(t.text)
				state = none
				return
			case t.kind == ';', clause > 4000, t.deep < deep, t.kind == '"' && t.deep == deep, t.kind == '=' && t.deep == deep:
				state = none
			default:
				return
			}
		case afterCall:
			if t.kind == '"' || t.kind == '`' {
				add(t.text)
			}
			state = none
			return
		}
		if t.kind == '(' && prev.kind == 'a' && prev.text == "require" && kind != "." {
			kind, line, state = "require", prev.line, afterCall
			return
		}
		if t.kind != 'a' || prev.kind == '.' {
			if t.kind == 'a' && t.text == "require" {
				kind = "." // a.require
			}
			return
		}
		kind = "static"
		switch t.text {
		case "import":
			state, line, deep = afterImport, t.line, t.deep
		case "export":
			state, line, deep, clause = none, t.line, t.deep, 0
			// Only "export *", "export {" and "export type {" have a from.
			rest := strings.TrimLeft(src[t.at+len("export"):], " \t\r\n")
			if after, ok := strings.CutPrefix(rest, "type"); ok {
				if after = strings.TrimLeft(after, " \t\r\n"); strings.HasPrefix(after, "{") || strings.HasPrefix(after, "*") {
					state, kind = from, "type"
				}
			} else if strings.HasPrefix(rest, "{") || strings.HasPrefix(rest, "*") {
				state = from
			}
		}
	}
	l.run()
	return found, l
}

// PackageOf returns the npm package of an import specifier, or the empty string for
// files, URLs, modules of Node.js and invalid names.
func PackageOf(specifier string) string {
	s, _, _ := strings.Cut(specifier, "?")
	if s == "" || len(s) > 512 || strings.HasPrefix(s, ".") || strings.HasPrefix(s, "/") || strings.HasPrefix(s, "#") || strings.HasPrefix(s, "~") || strings.ContainsAny(s, ":\\\x00 ") {
		return ""
	}
	name, rest, _ := strings.Cut(s, "/")
	if strings.HasPrefix(name, "@") {
		var second string
		if second, _, _ = strings.Cut(rest, "/"); second == "" || len(name) == 1 {
			return ""
		}
		name += "/" + second
	}
	if builtin[name] || !packageName.MatchString(name) || len(name) > 214 {
		return ""
	}
	return name
}

// packageName is the syntax of names of npm packages. Old ones may have capital
// letters; none is installed for an import.
var packageName = regexp.MustCompile(`^(?:@[a-z0-9][a-z0-9._~-]*/)?[a-z0-9][a-z0-9._~-]*$`)

// builtin lists the modules of Node.js, which need no prefix.
var builtin = words(`assert async_hooks buffer child_process cluster console constants crypto dgram diagnostics_channel dns
	domain events fs http http2 https inspector module net os path perf_hooks process punycode querystring readline repl
	stream string_decoder sys timers tls trace_events tty url util v8 vm wasi worker_threads zlib`)

var (
	cssComment = regexp.MustCompile(`(?s)/\*.*?(?:\*/|$)`)
	cssImport  = regexp.MustCompile(`@(import|use|forward|plugin|config|reference|source)\s+(?:url\(\s*)?(?:"([^"\n]*)"|'([^'\n]*)'|([^\s"'();{}]+)\s*\))`)
	cssURL     = regexp.MustCompile(`\burl\(\s*(?:"([^"\n]*)"|'([^'\n]*)'|([^\s"'()]+))\s*\)`)
)

// cssImports returns the imports of a style sheet, and the files in its url().
func cssImports(src string) (found []Import) {
	src = cssComment.ReplaceAllStringFunc(src, func(c string) string { return strings.Repeat("\n", strings.Count(c, "\n")) })
	line, counted := 1, 0
	lineAt := func(at int) int {
		line += strings.Count(src[counted:at], "\n")
		counted = at
		return line
	}
	type place struct {
		at   int
		kind string
		path string
	}
	var places []place
	text := func(m []int, groups ...int) string {
		for _, g := range groups {
			if m[2*g] >= 0 {
				return src[m[2*g]:m[2*g+1]]
			}
		}
		return ""
	}
	for _, m := range cssImport.FindAllStringSubmatchIndex(src, maxImports) {
		if kind := text(m, 1); kind != "source" {
			places = append(places, place{m[0], "css", text(m, 2, 3, 4)})
		}
	}
	for _, m := range cssURL.FindAllStringSubmatchIndex(src, maxImports) {
		p := text(m, 1, 2, 3)
		// Paths of @import were found before.
		head := strings.TrimRight(src[max(0, m[0]-40):m[0]], " \t")
		if p == "" || strings.HasSuffix(head, "@import") || strings.HasPrefix(p, "#") || strings.HasPrefix(p, "data:") {
			continue
		}
		places = append(places, place{m[0], "url", p})
	}
	slices.SortStableFunc(places, func(a, b place) int { return a.at - b.at })
	for _, p := range places {
		if p.path != "" {
			found = append(found, Import{Path: p.path, Line: lineAt(p.at), Type: p.kind})
		}
	}
	return found[:min(len(found), maxImports)]
}
