package project

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/engi-dev/engi/internal/clip"
)

// A Manifest describes the structure of an app. Callers must not change it.
type Manifest struct {
	Entry      string // entry file; empty if none is known
	Files      []FileInfo
	Components []Component // ordered by file and position
	Routes     []Route     // ordered by path
	Styles     []string    // style sheets
	Packages   map[string]string
	Problems   []Problem // syntax errors, at most 100
}

// A FileInfo describes a file of an app.
type FileInfo struct {
	Path    string
	Type    string // one of component, script, style, config, data, document, asset, test, page, python
	Lines   int
	Imports []Import
	Uses    []string // files of the app that it imports, without duplicates
	UsedBy  []string // files of the app that import it, ordered by path
	Exports []string // names of exports, including "default" and *
}

// A Builder keeps the readings of an app's files, so that a change costs no more
// than reading the changed file. It is used by one goroutine.
type Builder struct {
	files map[string]string // contents of files that the resolver reads; empty for other files
	infos map[string]FileInfo
	facts map[string]reading
}

// NewBuilder returns a Builder without files.
func NewBuilder() *Builder {
	return &Builder{files: map[string]string{}, infos: map[string]FileInfo{}, facts: map[string]reading{}}
}

// Update adds a file, or replaces its content.
func (b *Builder) Update(p, content string) {
	r := read(p, content)
	b.facts[p] = r
	info := FileInfo{Path: p, Imports: r.imports, Exports: r.facts.exports, Lines: strings.Count(content, "\n")}
	if content != "" && !strings.HasSuffix(content, "\n") {
		info.Lines++
	}
	info.Type = typeOf(p, r)
	b.infos[p] = info
	b.files[p] = ""
	if configuration[path.Base(p)] || strings.HasPrefix(p, "vite.config.") || p == "index.html" {
		b.files[p] = content
	}
}

var configuration = words("tsconfig.json tsconfig.app.json jsconfig.json package.json requirements.txt")

// Remove removes a file.
func (b *Builder) Remove(p string) {
	delete(b.files, p)
	delete(b.infos, p)
	delete(b.facts, p)
}

// Weight returns the approximate memory use of the Builder, in bytes.
func (b *Builder) Weight() (n int) {
	for p, info := range b.infos {
		n += 500 + len(b.files[p]) + 200*(len(info.Imports)+len(info.Exports)+len(b.facts[p].facts.components)+len(b.facts[p].facts.routes))
	}
	return n
}

// Manifest returns the manifest of the app.
func (b *Builder) Manifest() Manifest {
	r := newResolver(b.files)
	m := Manifest{Packages: map[string]string{}}
	pkg, err := ParsePackage(b.files["package.json"])
	if err != nil && b.files["package.json"] != "" {
		m.Problems = append(m.Problems, Problem{File: "package.json", Text: clip.Text(err.Error(), 500)})
	}
	maps.Copy(m.Packages, pkg.DevDependencies)
	maps.Copy(m.Packages, pkg.Dependencies)
	for l := range strings.SplitSeq(b.files["requirements.txt"], "\n") {
		if name := pyRequire.FindStringSubmatch(l); name != nil {
			m.Packages[name[1]] = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(l), name[1]))
		}
	}
	usedBy := map[string][]string{}
	for _, p := range slices.Sorted(maps.Keys(b.infos)) {
		info, known := b.infos[p], b.facts[p]
		seen := map[string]bool{}
		for _, im := range info.Imports {
			if to, kind := r.resolve(p, im); kind == isFile && !seen[to] {
				seen[to] = true
				info.Uses, usedBy[to] = append(info.Uses, to), append(usedBy[to], p)
			}
		}
		m.Files = append(m.Files, info)
		for _, c := range known.facts.components {
			c.File = p
			m.Components = append(m.Components, c)
		}
		for _, route := range known.facts.routes {
			route.File = p
			m.Routes = append(m.Routes, route)
		}
		if route, ok := fileRoute(p, pkg, known.facts.exports); ok {
			m.Routes = append(m.Routes, route)
		}
		if info.Type == "style" {
			m.Styles = append(m.Styles, p)
		}
		if n := 100 - len(m.Problems); n > 0 {
			m.Problems = append(m.Problems, known.problems[:min(n, len(known.problems))]...)
		}
	}
	for i := range m.Files {
		m.Files[i].UsedBy = usedBy[m.Files[i].Path]
	}
	slices.SortStableFunc(m.Routes, func(x, y Route) int {
		if c := strings.Compare(x.Path, y.Path); c != 0 {
			return c
		}
		return strings.Compare(x.Method, y.Method)
	})
	m.Entry = b.entry(r)
	return m
}

var moduleScript = regexp.MustCompile(`(?i)<script\b[^>]{0,500}\bsrc\s*=\s*["']([^"'\n]{1,300})["']`)

// entry returns the entry file of the app: the script of the page, or a file with a usual
// name of a server.
func (b *Builder) entry(r *resolver) string {
	for _, m := range moduleScript.FindAllStringSubmatch(b.files["index.html"], 20) {
		if p, kind := r.resolve("index.html", Import{Path: m[1]}); kind == isFile && scripts[extension(p)] {
			return p
		}
	}
	for _, p := range []string{"src/main.tsx", "src/main.jsx", "src/main.ts", "src/main.js", "src/index.tsx", "src/index.jsx", "src/index.ts", "src/index.js", "server/index.ts", "server/index.js", "src/server.ts", "src/server.js", "server.ts", "server.js", "server.mjs", "index.ts", "index.js", "index.mjs", "app.js", "main.py", "app/main.py", "src/main.py", "app.py", "index.html"} {
		if _, ok := b.infos[p]; ok {
			return p
		}
	}
	return ""
}

var (
	testFile   = regexp.MustCompile(`(?:\.(?:test|spec)\.[cm]?[jt]sx?|(?:^|/)__tests__/.*|(?:^|/)test_\w+\.py|_test\.py)$`)
	configFile = regexp.MustCompile(`(?:^|/)(?:[\w.-]+\.config\.[cm]?[jt]s|(?:ts|js)config[\w.]*\.json|package(?:-lock)?\.json|\.[a-z]+rc(?:\.\w+)?|\.env[\w.]*|\.gitignore|\.npmrc|requirements\.txt|pyproject\.toml|Dockerfile)$`)
)

func typeOf(p string, r reading) string {
	ext := extension(p)
	switch {
	case testFile.MatchString(p):
		return "test"
	case configFile.MatchString(p):
		return "config"
	case len(r.facts.components) > 0 || ext == "vue" || ext == "svelte":
		return "component"
	case scripts[ext]:
		return "script"
	}
	switch ext {
	case "css", "scss", "sass", "less", "styl":
		return "style"
	case "html", "htm":
		return "page"
	case "py":
		return "python"
	case "json", "csv", "sql", "xml", "yaml", "yml", "toml", "graphql", "prisma":
		return "data"
	case "md", "mdx", "txt":
		return "document"
	}
	return "asset"
}

// fileRoute returns the route of a file in frameworks that derive routes from paths of files.
func fileRoute(p string, pkg Package, exports []string) (Route, bool) {
	ext := extension(p)
	if !scripts[ext] || testFile.MatchString(p) || strings.HasSuffix(p, ".d.ts") {
		return Route{}, false
	}
	bare := strings.TrimSuffix(strings.TrimPrefix(p, "src/"), "."+ext)
	dir, name := path.Dir(bare), path.Base(bare)
	route := Route{File: p}
	switch {
	case pkg.has("next") && (dir == "app" || strings.HasPrefix(dir, "app/")) && (name == "page" || name == "route"):
		if name == "route" {
			route.Method = "*"
			for _, e := range exports {
				if methods[strings.ToLower(e)] {
					route.Method = e
				}
			}
		}
		bare = strings.TrimPrefix(dir, "app")
	case pkg.has("next") && strings.HasPrefix(bare, "pages/"):
		if strings.HasPrefix(name, "_") {
			return Route{}, false
		}
		bare = strings.TrimPrefix(bare, "pages")
		if strings.HasPrefix(bare, "/api/") {
			route.Method = "*"
		}
	case pkg.has("vite-plugin-pages") && strings.HasPrefix(bare, "pages/"):
		bare = strings.TrimPrefix(bare, "pages")
	case pkg.has("@tanstack/react-router") && strings.HasPrefix(bare, "routes/"):
		if strings.HasPrefix(name, "__") || strings.HasPrefix(name, "-") {
			return Route{}, false
		}
		bare = strings.ReplaceAll(strings.TrimPrefix(bare, "routes"), ".", "/")
	default:
		return Route{}, false
	}
	var parts []string
	for part := range strings.SplitSeq(bare, "/") {
		switch {
		case part == "" || part == "index" || strings.HasPrefix(part, "(") && strings.HasSuffix(part, ")") || strings.HasPrefix(part, "@"):
		case strings.HasPrefix(part, "[...") || strings.HasPrefix(part, "[[..."):
			parts = append(parts, "*")
		case strings.HasPrefix(part, "[") && strings.HasSuffix(part, "]"):
			parts = append(parts, ":"+strings.Trim(part, "[]"))
		case strings.HasPrefix(part, "$"):
			parts = append(parts, ":"+part[1:])
		default:
			parts = append(parts, part)
		}
	}
	route.Path = "/" + strings.Join(parts, "/")
	return route, true
}
