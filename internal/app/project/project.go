// Package project analyses the files of an app: their imports, the packages that these
// need, their definitions, and their dependency graph. Scripts are parsed by
// esbuild's parser if their tokens show that it will be quick;
// for other scripts only the imports are known. Its input is hostile: it takes
// time linear in the input, and bounded memory.
//
// It reads no directories and installs no packages, and does not know which packages exist.
package project

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/engi-dev/engi/internal/clip"
)

// A Package holds the relevant parts of a package.json.
type Package struct {
	Name                 string            `json:"name"`
	Dependencies         map[string]string `json:"dependencies"`
	DevDependencies      map[string]string `json:"devDependencies"`
	PeerDependencies     map[string]string `json:"peerDependencies"`
	OptionalDependencies map[string]string `json:"optionalDependencies"`
}

// ParsePackage parses a package.json.
func ParsePackage(content string) (Package, error) {
	var p Package
	if err := json.Unmarshal([]byte(content), &p, jsontext.AllowDuplicateNames(true)); err != nil {
		return Package{}, fmt.Errorf("read package.json: %v", err)
	}
	return p, nil
}

func (p Package) has(name string) bool {
	for _, m := range []map[string]string{p.Dependencies, p.DevDependencies, p.PeerDependencies, p.OptionalDependencies} {
		if _, ok := m[name]; ok {
			return true
		}
	}
	return name == p.Name
}

// Missing returns the npm packages that files import and package.json lacks,
// and the imports of files that do not exist. files are all files of the app by path;
// files that are not source code may be empty.
func Missing(files map[string]string, pkg Package) (packages []string, unresolved []Problem) {
	r := newResolver(files)
	want := map[string]bool{}
	for _, p := range slices.Sorted(maps.Keys(files)) {
		if ext := extension(p); !scripts[ext] && ext != "css" && ext != "scss" && ext != "less" {
			continue
		}
		for _, im := range read(p, files[p]).imports {
			if im.Type == "type" || im.Type == "jsx" && !r.react(pkg) {
				continue
			}
			to, kind := r.resolve(p, im)
			switch {
			case kind == isFile:
				if need := compilers[extension(to)]; need != "" && !pkg.has(need) && !pkg.has(need+"-embedded") {
					want[need] = true
				}
			case kind == isPackage && !pkg.has(im.Package):
				want[im.Package] = true
			case kind == isNothing && len(unresolved) < maxProblems:
				unresolved = append(unresolved, Problem{File: p, Line: im.Line, Text: fmt.Sprintf("%s is imported, and there is no such file", clip.Text(im.Path, 200))})
			}
		}
	}
	return slices.Sorted(maps.Keys(want)), unresolved
}

// compilers maps file extensions to the packages that a bundler needs for them.
var compilers = map[string]string{"scss": "sass", "sass": "sass", "less": "less", "styl": "stylus"}

// Restarts reports whether a server must be restarted after files have changed,
// because it reads them only when it starts.
func Restarts(changed []string) bool {
	return slices.ContainsFunc(changed, func(p string) bool { return restarts.MatchString(path.Base(p)) })
}

var restarts = regexp.MustCompile(`^(?:(?:vite|vitest|tailwind|postcss|svelte|astro|next|nuxt|webpack|babel|uno|windi)\.config\.[cm]?[jt]s` +
	`|package\.json|package-lock\.json|yarn\.lock|pnpm-lock\.yaml|bun\.lockb?|(?:ts|js)config(?:\.\w+)?\.json` +
	`|\.env(?:\..+)?|\.npmrc|\.babelrc|\.postcssrc(?:\.\w+)?|requirements\.txt|pyproject\.toml|uv\.lock|poetry\.lock)$`)

// A resolver resolves the imports of an app.
type resolver struct {
	files map[string]string
	dirs  map[string]bool
	alias []alias
	base  string // base directory of imports that are not relative, from tsconfig.json; empty for none
	jsx   string // package of jsxImportSource
}

// An alias is a prefix of imports that stands for a directory or a file.
type alias struct{ prefix, to string }

// A meaning is the kind of an import's target.
type meaning int

const (
	isOther   meaning = iota // a URL, a module of Node.js, or a virtual module of a plugin
	isFile                   // a file of the app
	isPackage                // a package of npm
	isNothing                // a file that does not exist
)

func newResolver(files map[string]string) *resolver {
	r := &resolver{files: files, dirs: map[string]bool{}}
	for p := range files {
		for d := path.Dir(p); d != "." && !r.dirs[d]; d = path.Dir(d) {
			r.dirs[d] = true
		}
	}
	for _, name := range []string{"tsconfig.json", "tsconfig.app.json", "jsconfig.json"} {
		r.tsconfig(files[name])
	}
	for _, ext := range []string{"ts", "js", "mts", "mjs"} {
		r.viteConfig(files["vite.config."+ext])
	}
	return r
}

// tsconfig reads the aliases in a tsconfig.json, which may have comments.
func (r *resolver) tsconfig(content string) {
	if content == "" || len(content) > maxParse {
		return
	}
	var c struct {
		CompilerOptions struct {
			BaseURL         string              `json:"baseUrl"`
			Paths           map[string][]string `json:"paths"`
			JSXImportSource string              `json:"jsxImportSource"`
		} `json:"compilerOptions"`
	}
	if json.Unmarshal(plainJSON(content), &c, jsontext.AllowDuplicateNames(true)) != nil {
		return // the compiler reports its errors
	}
	o := c.CompilerOptions
	if o.BaseURL != "" {
		r.base = path.Clean(o.BaseURL)
	}
	if o.JSXImportSource != "" {
		r.jsx = o.JSXImportSource
	}
	for _, from := range slices.Sorted(maps.Keys(o.Paths)) {
		if to := o.Paths[from]; len(to) > 0 && len(r.alias) < 100 {
			r.alias = append(r.alias, alias{strings.TrimSuffix(from, "*"), strings.TrimSuffix(path.Join(o.BaseURL, to[0]), "*")})
		}
	}
}

var viteAlias = regexp.MustCompile(`(?:find\s*:\s*)?["']?([@~#$\w][\w@/.-]*)["']?\s*(?:,\s*replacement\s*)?:\s*(?:path\.)?(?:(?:resolve|join)\(\s*(?:__dirname|import\.meta\.dirname|process\.cwd\(\)|\w+)\s*,\s*|fileURLToPath\(\s*new URL\(\s*|new URL\(\s*)?["'](\.{0,2}/?[\w@./-]*)["']`)

// viteConfig reads the aliases that a Vite configuration has as literals.
func (r *resolver) viteConfig(content string) {
	_, rest, ok := strings.Cut(content, "alias")
	if !ok || len(content) > maxParse {
		return
	}
	for _, m := range viteAlias.FindAllStringSubmatch(rest, 100) {
		to := path.Clean(strings.TrimPrefix(m[2], "/"))
		if !r.dirs[to] && !strings.Contains(m[2], "/") {
			continue
		}
		r.alias = append(r.alias, alias{m[1], to})
	}
}

// plainJSON removes the comments and trailing commas of a configuration file.
func plainJSON(s string) []byte {
	out := make([]byte, 0, len(s))
	comma := -1 // position in out of a comma that may be a trailing one
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			from := i
			for i++; i < len(s) && s[i] != '"'; i++ {
				if s[i] == '\\' {
					i++
				}
			}
			out = append(out, s[from:min(i+1, len(s))]...)
			comma = -1
		case c == '/' && strings.HasPrefix(s[i:], "//"):
			for i+1 < len(s) && s[i+1] != '\n' {
				i++
			}
		case c == '/' && strings.HasPrefix(s[i:], "/*"):
			n := strings.Index(s[i+2:], "*/")
			if n < 0 {
				return out
			}
			i += n + 3
		case c == ',':
			comma = len(out)
			out = append(out, c)
		case (c == '}' || c == ']') && comma >= 0:
			out[comma] = ' '
			comma = -1
			out = append(out, c)
		default:
			if c != ' ' && c != '\t' && c != '\n' && c != '\r' {
				comma = -1
			}
			out = append(out, c)
		}
	}
	return out
}

// react reports whether elements need React, which is so unless another package creates them.
func (r *resolver) react(pkg Package) bool {
	if r.jsx != "" && r.jsx != "react" {
		return false
	}
	for _, other := range []string{"preact", "solid-js", "vue", "hono", "@builder.io/qwik"} {
		if pkg.has(other) {
			return false
		}
	}
	return true
}

// resolve returns the target of an import in a file, and the path if it is a file.
func (r *resolver) resolve(from string, im Import) (string, meaning) {
	s, _, _ := strings.Cut(im.Path, "?")
	s, _, _ = strings.Cut(s, "#")
	switch {
	case s == "" || strings.ContainsAny(s, ":\x00\\"):
		return "", isOther
	case strings.HasPrefix(s, "."):
		return r.file(path.Join(path.Dir(from), s))
	case strings.HasPrefix(s, "/"):
		if p, kind := r.file(s[1:]); kind == isFile {
			return p, kind
		}
		return r.file("public" + s)
	}
	for _, a := range r.alias {
		if rest, ok := strings.CutPrefix(s, a.prefix); ok && (rest == "" || strings.HasSuffix(a.prefix, "/") || rest[0] == '/') {
			return r.file(path.Join(a.to, rest))
		}
	}
	sheet := im.Type == "css" || im.Type == "url"
	if sheet || r.base != "" {
		dir := r.base
		if sheet {
			dir = path.Dir(from)
		}
		if p, kind := r.file(path.Join(dir, s)); kind == isFile {
			return p, kind
		}
	}
	switch first, _, _ := strings.Cut(s, "/"); {
	case im.Type == "url":
		return "", isNothing
	case first == "@" || first == "~" || first == "src" && r.dirs["src"]:
		return "", isNothing // an undefined alias
	case im.Package != "":
		return "", isPackage
	}
	return "", isOther
}

var (
	tries   = []string{"", ".tsx", ".ts", ".jsx", ".js", ".mjs", ".cjs", ".mts", ".cts", ".json", ".css", ".scss", ".less", ".vue", ".svelte", "/index.tsx", "/index.ts", "/index.jsx", "/index.js", "/index.mjs", "/_index.scss"}
	rewrite = map[string][]string{".js": {".ts", ".tsx"}, ".jsx": {".tsx"}, ".mjs": {".mts"}, ".cjs": {".cts"}}
)

// file finds a file as bundlers do: with an extension, or in a directory.
func (r *resolver) file(p string) (string, meaning) {
	p = path.Clean(p)
	if strings.HasPrefix(p, "../") || p == ".." {
		return "", isNothing
	}
	for _, t := range tries {
		if q := strings.TrimPrefix(p+t, "./"); r.has(q) {
			return q, isFile
		}
	}
	ext := path.Ext(p)
	for _, e := range rewrite[ext] { // TypeScript files are imported by the names of their output
		if q := strings.TrimSuffix(p, ext) + e; r.has(q) {
			return q, isFile
		}
	}
	if q := path.Join(path.Dir(p), "_"+path.Base(p)+".scss"); r.has(q) {
		return q, isFile
	}
	return "", isNothing
}

func (r *resolver) has(p string) bool {
	_, ok := r.files[p]
	return ok
}
