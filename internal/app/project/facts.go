package project

import (
	"path"
	"strings"
)

// facts are the exports, components and routes of a script.
type facts struct {
	exports    []string // names of exports, including "default" and *
	components []Component
	routes     []Route
}

// A Component is a React component.
type Component struct {
	Name string
	File string
	Line int      // from 1
	Uses []string // names of components that it renders
}

// A Route is a path that an app serves.
type Route struct {
	Path      string
	Method    string // HTTP method, in capitals; empty for a page
	Component string // component that the route shows; empty if it cannot be determined
	File      string
	Line      int // line, from 1; 0 if unknown, or if the file itself is the route
}

const (
	maxFacts = 500 // maximum number of facts of one kind in a file
	maxName  = 200 // bytes
)

// routers lists packages whose objects with a path are routes of pages, and servers
// packages whose methods define routes.
var (
	routers = words("react-router react-router-dom @remix-run/router vue-router @solidjs/router @tanstack/react-router preact-router")
	servers = words("express hono fastify @koa/router koa-router polka find-my-way itty-router h3 restify")
	methods = words("get post put patch delete all options head")
)

// factsOf analyses compiled code; the source has the line numbers.
func factsOf(code, source string, jsx bool) facts {
	var ts []token
	l := &lexer{src: code, token: func(t token) { ts = append(ts, t) }}
	l.run()
	lines, texts := map[string]int{}, places{} // lines of declarations, and of strings
	s := &lexer{src: source, jsx: jsx}
	var prev token
	s.token = func(t token) {
		if t.kind == 'a' && prev.kind == 'a' && t.deep == 1 {
			if _, ok := lines[t.text]; !ok && declares[prev.text] {
				lines[t.text] = t.line
			}
		}
		if t.kind == '"' && len(t.text) <= maxName {
			texts[t.text] = append(texts[t.text], t.line)
		}
		prev = t
	}
	s.run()
	f := facts{exports: exportsOf(ts), components: componentsOf(ts, lines)}
	imports, _ := scanImports(code, false, false)
	pages, serves := false, false
	for _, im := range imports {
		name := PackageOf(im.Path)
		pages = pages || routers[name]
		serves = serves || servers[name]
	}
	f.routes = routesOf(ts, texts, pages)
	if serves {
		f.routes = append(f.routes, served(ts, texts)...)
	}
	f.routes = f.routes[:min(len(f.routes), maxFacts)]
	return f
}

// places holds the lines of the strings in a source.
type places map[string][]int

// next returns the line of the next occurrence of a string, or 0.
func (p places) next(s string) int {
	at := p[s]
	if len(at) == 0 {
		return 0
	}
	p[s] = at[1:]
	return at[0]
}

var declares = words("function class const let var")

// is reports whether the token at i has the kind and, unless it is empty, the text.
func is(ts []token, i int, kind byte, text string) bool {
	return i >= 0 && i < len(ts) && ts[i].kind == kind && (text == "" || ts[i].text == text)
}

func exportsOf(ts []token) (names []string) {
	seen := map[string]bool{}
	add := func(n string) {
		if n != "" && !seen[n] && len(names) < maxFacts && len(n) <= maxName {
			seen[n] = true
			names = append(names, n)
		}
	}
	for i := range ts {
		if !is(ts, i, 'a', "export") || ts[i].deep != 1 || is(ts, i-1, '.', "") {
			continue
		}
		switch {
		case is(ts, i+1, 'a', "default"):
			add("default")
		case is(ts, i+1, '*', ""):
			if is(ts, i+2, 'a', "as") && is(ts, i+3, 'a', "") {
				add(ts[i+3].text)
			} else {
				add("*")
			}
		case is(ts, i+1, '{', ""):
			for j := i + 2; j < len(ts) && ts[j].kind != '}'; j++ {
				if ts[j].kind == 'a' && (is(ts, j+1, ',', "") || is(ts, j+1, '}', "")) {
					add(ts[j].text)
				}
			}
		case is(ts, i+1, 'a', "async") && is(ts, i+2, 'a', "function") && is(ts, i+3, 'a', ""):
			add(ts[i+3].text)
		case is(ts, i+1, 'a', "function"), is(ts, i+1, 'a', "class"):
			if is(ts, i+2, '*', "") {
				i++
			}
			if is(ts, i+2, 'a', "") {
				add(ts[i+2].text)
			}
		case is(ts, i+1, 'a', "const"), is(ts, i+1, 'a', "let"), is(ts, i+1, 'a', "var"):
			for j := i + 2; j < len(ts) && ts[j].kind != ';'; j++ {
				if ts[j].deep == 1 && ts[j].kind == 'a' && (j == i+2 || is(ts, j-1, ',', "")) {
					add(ts[j].text)
				}
			}
		}
	}
	return names
}

// titled reports whether a name can be a component's: capitalized, and not all capitals.
func titled(n string) bool {
	return n != "" && len(n) <= maxName && n[0] >= 'A' && n[0] <= 'Z' && (len(n) == 1 || strings.ToUpper(n) != n)
}

func isJSX(ts []token, i int) bool {
	return is(ts, i, 'a', "jsx") || is(ts, i, 'a', "jsxs") || is(ts, i, 'a', "jsxDEV")
}

// componentsOf returns the top-level functions and classes of a file that create
// elements, or that are wrapped so that they do.
func componentsOf(ts []token, lines map[string]int) (all []Component) {
	usesReact := false
	var c *Component
	found := map[string]bool{}
	finish := func() {
		if c != nil && len(all) < maxFacts && (len(c.Uses) > 0 || usesReact) && !found[c.Name] {
			found[c.Name] = true
			all = append(all, *c)
		}
		c = nil
	}
	seen := map[string]bool{}
	for i := range ts {
		if ts[i].deep == 1 && ts[i].kind == 'a' && (ts[i].text == "import" || ts[i].text == "export" || declares[ts[i].text]) && !is(ts, i-1, '.', "") {
			at := i
			for is(ts, at, 'a', "export") || is(ts, at, 'a', "default") || is(ts, at, 'a', "async") {
				at++
			}
			if at == i || ts[i].text != "export" {
				finish()
				seen, usesReact = map[string]bool{}, false
				if at < len(ts) && declares[ts[at].text] && is(ts, at+1, 'a', "") && titled(ts[at+1].text) && makes(ts, at) {
					c = &Component{Name: ts[at+1].text, Line: lines[ts[at+1].text]}
				}
			}
		}
		if c == nil {
			continue
		}
		if isJSX(ts, i) && is(ts, i+1, '(', "") {
			usesReact = true
			if is(ts, i+2, 'a', "") && titled(ts[i+2].text) && ts[i+2].text != "Fragment" && !seen[ts[i+2].text] && len(c.Uses) < maxFacts {
				name := ts[i+2].text
				seen[name] = true
				c.Uses = append(c.Uses, name)
			}
		}
		if ts[i].kind == 'a' && (ts[i].text == "memo" || ts[i].text == "forwardRef" || ts[i].text == "lazy" || ts[i].text == "createElement") {
			usesReact = true
		}
	}
	finish()
	return all
}

// makes reports whether the declaration at index at can define a component.
func makes(ts []token, at int) bool {
	if ts[at].text == "function" || ts[at].text == "class" {
		return true
	}
	return is(ts, at+2, '=', "") && (is(ts, at+3, '(', "") || is(ts, at+3, 'a', ""))
}

// A node is an object literal in code, possibly a route.
type node struct {
	parent    *node
	deep      int
	jsx       bool // holds the properties of a <Route> element
	path      string
	hasPath   bool
	index     bool
	shows     bool
	component string
	nested    bool // has children
	order     int
}

// routesOf returns the routes of pages: <Route> elements and, if the file imports a
// router, objects with a path and an element or component.
func routesOf(ts []token, lines places, pages bool) (all []Route) {
	var stack, done []*node
	for i, t := range ts {
		switch t.kind {
		case '{':
			n := &node{deep: t.deep + 1, order: len(done)}
			if len(stack) > 0 {
				n.parent = stack[len(stack)-1]
			}
			n.jsx = is(ts, i-1, ',', "") && is(ts, i-2, 'a', "Route") && is(ts, i-3, '(', "") && isJSX(ts, i-4)
			stack = append(stack, n)
			done = append(done, n)
		case '}':
			// The end of a template literal has no token of its own.
			if len(stack) > 0 && stack[len(stack)-1].deep == t.deep+1 {
				stack = stack[:len(stack)-1]
			}
		case 'a':
			if len(stack) == 0 {
				continue
			}
			n := stack[len(stack)-1]
			if t.deep != n.deep || !is(ts, i+1, ':', "") || !is(ts, i-1, '{', "") && !is(ts, i-1, ',', "") {
				continue
			}
			switch t.text {
			case "path":
				if is(ts, i+2, '"', "") && len(ts[i+2].text) <= maxName {
					n.path, n.hasPath = ts[i+2].text, true
				}
			case "index":
				n.index = is(ts, i+2, 'a', "true") || is(ts, i+2, '!', "")
			case "element", "Component", "component":
				n.shows = true
				switch {
				case isJSX(ts, i+2) && is(ts, i+4, 'a', ""):
					n.component = ts[i+4].text
				case is(ts, i+2, 'a', "") && titled(ts[i+2].text):
					n.component = ts[i+2].text
				}
			case "lazy", "loader":
				n.shows = true
			case "children":
				n.nested = true
			}
		}
	}
	for _, n := range done {
		if len(all) == maxFacts {
			break
		}
		if !n.route(pages) || !n.hasPath && !n.index {
			continue
		}
		full := n.path
		if n.index {
			full = ""
		}
		for up, steps := n.parent, 0; up != nil && steps < maxDepth && !strings.HasPrefix(full, "/"); up, steps = up.parent, steps+1 {
			if up.route(pages) && up.hasPath {
				full = strings.TrimSuffix(up.path, "*") + "/" + full
			}
		}
		all = append(all, Route{Path: path.Clean("/" + full), Component: n.component, Line: lines.next(n.path)})
	}
	return all
}

func (n *node) route(pages bool) bool {
	return n.jsx || pages && n.hasPath && (n.shows || n.nested) || pages && n.index && n.shows
}

// served returns the routes that method calls on a server define.
func served(ts []token, lines places) (all []Route) {
	for i := range ts {
		if ts[i].kind == 'a' && methods[ts[i].text] && is(ts, i-1, '.', "") && is(ts, i+1, '(', "") && is(ts, i+2, '"', "") &&
			strings.HasPrefix(ts[i+2].text, "/") && len(ts[i+2].text) <= maxName && is(ts, i+3, ',', "") && len(all) < maxFacts {
			method := strings.ToUpper(ts[i].text)
			if method == "ALL" {
				method = "*"
			}
			all = append(all, Route{Path: ts[i+2].text, Method: method, Line: lines.next(ts[i+2].text)})
		}
	}
	return all
}
