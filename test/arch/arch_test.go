// Package arch tests the architecture: the allowed imports, the names of
// packages, and the package comments. The table of imports is
// the architecture; changing it is a decision that belongs in docs/decisions.
package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const (
	root   = "../.."
	module = "github.com/engi-dev/engi"
)

// A rule lists the allowed imports of one package, or of a tree ("x/..."): own lists
// packages of this module, without "internal/" (package engi is "engi"), ext
// lists other modules. The standard library is always allowed, tests are not read, and
// the first rule that matches decides.
type rule struct{ pkg, own, ext string }

// everywhere lists packages that all others below internal and cmd may import, like
// the standard library.
const everywhere = "atomicfile clip clock idempotency undo"

var rules = []rule{
	{"engi", "", ""},
	{"atomicfile", "", ""},
	{"clip", "", ""},
	{"clock", "engi", ""},
	{"undo", "", ""},
	{"idempotency", "engi", ""},
	{"spelling", "", ""},
	{"patch", "engi", "github.com/rogpeppe/go-internal/diff"},
	{"sandbox/priority", "", "golang.org/x/sys/..."},
	{"sandbox/mounts", "", ""},

	{"sandbox/guest/wire", "engi", ""},
	{"sandbox/guest/guestd/...", "engi sandbox/guest/wire sandbox/guest/guestd/...", "golang.org/x/sys/..."},
	{"sandbox/guest/worktree", "engi", ""},
	{"sandbox/guest/fileops", "engi", "github.com/bmatcuk/doublestar/v4"},
	{"sandbox/guest/...", "engi sandbox/guest/wire", ""},

	{"sandbox/provider/memory", "engi sandbox/provider sandbox/guest/guestd", ""},
	{"sandbox/provider/providertest", "engi sandbox/provider sandbox/guest sandbox/guest/wire", ""},
	{"sandbox/provider/gvisor/...", "engi sandbox/mounts sandbox/priority sandbox/provider sandbox/provider/gvisor/... sandbox/guest/wire", "github.com/opencontainers/runtime-spec/... golang.org/x/sys/..."},
	{"sandbox/provider", "engi", ""},

	{"sandbox/disk/blob", "engi", "github.com/minio/minio-go/v7/... golang.org/x/sys/unix"},
	{"sandbox/disk/registry", "engi", ""},
	{"sandbox/disk/...", "engi sandbox/disk/... sandbox/mounts sandbox/priority spelling", "github.com/google/go-containerregistry/... github.com/goccy/go-yaml/... github.com/klauspost/compress/... golang.org/x/sys/..."},
	{"network/egress/request", "engi", "github.com/go-json-experiment/json/jsontext golang.org/x/text/unicode/norm"},
	{"network/egress/policy", "engi network/egress/request", "golang.org/x/net/..."},
	{"network/egress/...", "engi network/egress/... network/mask", "gvisor.dev/gvisor/pkg/... golang.org/x/net/... golang.org/x/time/... golang.org/x/sys/... github.com/vishvananda/netlink github.com/prometheus/client_golang/..."},
	{"network/mask", "", ""},
	{"network/fetch", "engi network/egress/policy", ""},
	{"network/mirror", "engi network/fetch", "golang.org/x/mod/... golang.org/x/net/html"},
	{"access/secret", "engi network/egress/policy", ""},
	{"terminal", "engi sandbox/place", "github.com/charmbracelet/ultraviolet github.com/charmbracelet/x/ansi github.com/charmbracelet/x/vt"},
	{"access/ssh", "engi sandbox/place", "golang.org/x/crypto/ssh"},
	{"network/preview", "engi access/strip", "golang.org/x/net/html golang.org/x/time/..."},
	{"network/...", "engi", "github.com/caddyserver/certmagic go.uber.org/zap"},
	{"access/strip", "", ""},
	{"access/...", "engi", "golang.org/x/time/..."},

	{"sandbox/script/wire", "engi", ""},
	{"sandbox/script/engine", "engi sandbox/script/wire", "modernc.org/quickjs github.com/evanw/esbuild/..."},
	{"sandbox/script", "engi sandbox/priority sandbox/script/wire", "golang.org/x/sys/..."},

	{"sandbox/holder", "engi", ""},
	{"sandbox/place", "engi", ""},
	{"session", "engi sandbox/holder sandbox/place session/...", ""},
	{"session/...", "engi", ""},
	{"agent/llm/scripted", "", ""},
	{"agent/budget", "engi agent/llm", ""},
	{"page/markup", "engi", "github.com/go-json-experiment/json/... golang.org/x/net/html/..."},
	{"page", "engi agent/tool page/markup", ""},
	{"agent/tool", "engi agent/llm sandbox/guest/fileops sandbox/place", ""},
	{"agent/remote", "engi agent/llm agent/tool sandbox/place", "github.com/modelcontextprotocol/go-sdk/..."},
	{"agent", "engi agent/llm agent/tool sandbox/outputlog", ""},
	{"agent/llm", "engi network/mask", "github.com/google/jsonschema-go/..."},

	{"docs/...", "engi", "github.com/yuin/goldmark/..."},

	{"function/dbos", "engi function", "github.com/dbos-inc/dbos-transact-golang/dbos/..."},
	{"function/functiontest", "engi function store", ""},
	{"function", "engi", "github.com/google/jsonschema-go/... github.com/robfig/cron/v3"},
	{"function/...", "engi function", ""},

	{"webhook", "engi function", ""},

	{"app/edit", "engi", ""},
	{"app/output", "engi app/edit", ""},
	{"app/problems", "", ""},
	{"app/project", "", "github.com/evanw/esbuild/pkg/api github.com/go-json-experiment/json/..."},
	{"app/author", "engi app/problems app/project", ""},
	{"app", "engi patch sandbox/guest/worktree sandbox/holder app/author app/edit app/output app/problems app/project", "github.com/prometheus/client_golang/..."},

	{"workspace/repo", "engi", "github.com/go-git/go-git/v5/..."},
	{"workspace/transfer", "engi workspace/repo", ""},
	{"workspace/server", "engi", ""},
	{"workspace/database", "engi", "github.com/jackc/pgx/v5/pgconn github.com/jackc/pgx/v5/pgproto3 github.com/jackc/pgx/v5/pgtype go.mongodb.org/mongo-driver/v2/bson"},
	{"workspace", "engi patch sandbox/guest/worktree sandbox/holder workspace/database workspace/repo workspace/server workspace/transfer", ""},

	{"workflow", "clip engi", ""},
	{"workflow/template", "engi workspace", "github.com/goccy/go-yaml/..."},

	{"sandbox/outputlog", "engi", ""},
	{"operation", "engi sandbox/outputlog", ""},

	{"sandbox/fleet/...", "engi sandbox/fleet/... sandbox/outputlog sandbox/provider sandbox/guest sandbox/guest/wire", "github.com/prometheus/client_golang/..."},
	{"store/...", "engi store/... terminal function webhook operation sandbox/fleet sandbox/disk/... access/... network/... session agent page app docs workflow workspace/...", "modernc.org/sqlite/... github.com/pressly/goose/v3/..."},

	{"api/v1", "", ""},
	{"server/pagestream", "engi page/markup server/httpio api/v1", "golang.org/x/net/html/..."},
	{"server/mcp", "engi agent/tool server/httpio server/pagestream", "github.com/modelcontextprotocol/go-sdk/..."},
	{"server/compat/e2b", "engi access/strip sandbox/disk/registry server/httpio", ""},
	{"server/compat/dialect", "engi api/v1 server/httpio server/rest", ""},
	{"server/compat/...", "engi api/v1 server/compat/dialect server/httpio server/rest", ""},
	{"server/rest", "engi api/v1 access/... network/... sandbox/place server/guesthttp server/httpio server/pagestream server/strict spelling terminal", "github.com/danielgtaylor/huma/v2/... github.com/prometheus/client_golang/... github.com/coder/websocket"},
	{"server/...", "engi api/v1 server/... access/... terminal spelling", "github.com/go-json-experiment/json/... github.com/coder/websocket"},
	{"client", "api/v1", "github.com/coder/websocket"},
	{"attack", "api/v1 client", ""},

	{"node/bundle/...", "engi node/bundle", "github.com/klauspost/compress/... golang.org/x/sys/..."},
	{"node/...", "...", "github.com/prometheus/client_golang/... github.com/pelletier/go-toml/v2 github.com/caarlos0/env/v11 golang.org/x/sys/..."},
	{"cmd/engi-js", "engi sandbox/script/engine sandbox/script/wire", "golang.org/x/sys/unix"},
	{"cmd/engi-guest", "engi sandbox/guest/guestd sandbox/guest/guestd/listen sandbox/guest/guestd/sftp", "golang.org/x/sys/unix"},
	{"cmd/engi/bench", "engi sandbox/priority client api/v1 agent/llm/scripted", "golang.org/x/sys/... github.com/coder/websocket github.com/creack/pty"},
	{"cmd/...", "engi node node/... sandbox/priority client attack api/v1 cmd/engi/...", "github.com/alecthomas/kong github.com/vbauerster/mpb/v8/... golang.org/x/term golang.org/x/crypto/ssh"},
	{"test/...", "...", "..."},
}

// junk lists names that do not describe the purpose of a package.
const junk = " util utils common helper helpers misc shared base types models core lib pkg impl "

func TestImports(t *testing.T) {
	for pkg, p := range packages(t) {
		r := ruleFor(pkg)
		if r == nil {
			t.Errorf("%s matches no rule: move it, or add a rule and a decision record that says why", pkg)
			continue
		}
		for imp, file := range p.imports {
			if !allowed(r, imp) {
				t.Errorf("%s: %s must not import %s", file, pkg, imp)
			}
		}
	}
}

// TestServerIsOnTop fails when a package below the server's interfaces imports one
// of them: the names of a protocol must not reach features and records.
func TestServerIsOnTop(t *testing.T) {
	for pkg, p := range packages(t) {
		if matchAny("server/... node/... cmd/... test/...", pkg) {
			continue
		}
		for imp, file := range p.imports {
			if match(module+"/internal/server/...", imp) {
				t.Errorf("%s: %s must not import %s: declare the types that both need in the package of the feature", file, pkg, imp)
			}
		}
	}
}

func TestNamesAndComments(t *testing.T) {
	for pkg, p := range packages(t) {
		if strings.Contains(junk, " "+path.Base(pkg)+" ") {
			t.Errorf("%s: name a package for what it provides", pkg)
		}
		if len(p.docs) != 1 {
			t.Errorf("%s: package comment in %d files %v, want 1", pkg, len(p.docs), p.docs)
			continue
		}
		want := "Package " + p.name + " "
		if p.name == "main" {
			want = "Command " + path.Base(pkg) + " "
		}
		if !strings.HasPrefix(p.doc, want) {
			t.Errorf("%s: package comment begins %.40q, want %q", pkg, p.doc, want)
		}
	}
}

// TestRulesAreAlive fails when a rule names a package that does not exist.
func TestRulesAreAlive(t *testing.T) {
	ps := packages(t)
	for _, r := range rules {
		alive := r.pkg == "test/..."
		for pkg := range ps {
			if ruleFor(pkg).pkg == r.pkg {
				alive = true
			}
		}
		if !alive {
			t.Errorf("rule %q matches no package: remove it", r.pkg)
		}
	}
}

// TestAllowancesAreUsed fails when a rule allows an import that no package makes.
func TestAllowancesAreUsed(t *testing.T) {
	used := map[[2]string]bool{} // used allowances, by rule and pattern
	for pkg, p := range packages(t) {
		r := ruleFor(pkg)
		if r == nil {
			continue // TestImports reports it
		}
		for imp := range p.imports {
			patterns, name := r.ext, imp
			if in, ours := strings.CutPrefix(imp, module+"/"); ours {
				patterns, name = r.own, strings.TrimPrefix(in, "internal/")
			}
			for pattern := range strings.FieldsSeq(patterns) {
				if match(pattern, name) {
					used[[2]string{r.pkg, pattern}] = true
				}
			}
		}
	}
	for _, r := range rules {
		for pattern := range strings.FieldsSeq(r.own + " " + r.ext) {
			if !used[[2]string{r.pkg, pattern}] && pattern != "..." {
				t.Errorf("rule %q allows %s, which nothing there imports: remove it", r.pkg, pattern)
			}
		}
	}
}

// TestNodeStaysSmall limits the size of node and all packages below it, so that logic cannot
// be hidden in a separate package there. Nearly half of the lines are
// settings, in node/config.
func TestNodeStaysSmall(t *testing.T) {
	const limit = 5500
	lines := 0
	err := filepath.WalkDir(filepath.Join(root, "internal/node"), func(file string, d fs.DirEntry, err error) error {
		if err != nil || path.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
			return err
		}
		src, err := os.ReadFile(file)
		lines += strings.Count(string(src), "\n")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if lines > limit {
		t.Errorf("node/... has %d lines, more than %d: node only assembles, logic belongs in the packages it uses", lines, limit)
	}
	t.Logf("node/... has %d lines", lines)
}

// TestInterfacesStaySmall fails for interfaces with more than eight methods, except for listed ones.
func TestInterfacesStaySmall(t *testing.T) {
	wide := map[string]string{
		"engi.Guest":       "everything that the host can do in a sandbox; splitting it would only add names",
		"engi.VolumeFiles": "the files of a volume; a disk has as many verbs",
		"engi.Process":     "a handle: its methods are what one can do to a program",
		"envd.Sandbox":     "what E2B's protocol needs of a sandbox, no more",
		"envd.Process":     "the same of a process",
	}
	for pkg, p := range packages(t) {
		for name, n := range p.interfaces {
			full := p.name + "." + name
			if _, ok := wide[full]; n > 8 && !ok {
				t.Errorf("%s: interface %s has %d methods; split it or say here why not", pkg, full, n)
			}
		}
	}
}

// maxUnkeyed is the maximum number of fields without names in a literal of a struct.
const maxUnkeyed = 4

// TestLiteralsHaveKeys fails when a literal of a named struct type sets more
// than maxUnkeyed fields by position: such literals are unreadable.
func TestLiteralsHaveKeys(t *testing.T) {
	ps := packages(t)
	for dir, p := range ps {
		for file, f := range p.files {
			names := map[string]string{} // names of imported packages of this module, to their directories
			for _, i := range f.Imports {
				in, ours := strings.CutPrefix(strings.Trim(i.Path.Value, `"`), module+"/")
				imported := ps[strings.TrimPrefix(in, "internal/")]
				switch {
				case !ours || imported == nil:
				case i.Name != nil:
					names[i.Name.Name] = strings.TrimPrefix(in, "internal/")
				default:
					names[imported.name] = strings.TrimPrefix(in, "internal/")
				}
			}
			isStruct := func(typ ast.Expr) bool {
				switch x := typ.(type) {
				case *ast.Ident:
					return p.structs[x.Name]
				case *ast.SelectorExpr:
					pkg, ok := x.X.(*ast.Ident)
					return ok && names[pkg.Name] != "" && ps[names[pkg.Name]].structs[x.Sel.Name]
				}
				return false
			}
			var check func(c *ast.CompositeLit, typ ast.Expr)
			check = func(c *ast.CompositeLit, typ ast.Expr) {
				if len(c.Elts) > maxUnkeyed && isStruct(typ) {
					if _, keyed := c.Elts[0].(*ast.KeyValueExpr); !keyed {
						t.Errorf("%s: a literal of %s.%v has %d fields without their names, %d at most: write field: value", file, dir, typ, len(c.Elts), maxUnkeyed)
					}
				}
				var of ast.Expr // type of elements without an explicit one
				switch x := typ.(type) {
				case *ast.ArrayType:
					of = x.Elt
				case *ast.MapType:
					of = x.Value
				}
				if star, ok := of.(*ast.StarExpr); ok {
					of = star.X
				}
				for _, e := range c.Elts {
					if kv, ok := e.(*ast.KeyValueExpr); ok {
						e = kv.Value
					}
					if inner, ok := e.(*ast.CompositeLit); ok && inner.Type == nil {
						check(inner, of)
					}
				}
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if c, ok := n.(*ast.CompositeLit); ok && c.Type != nil {
					check(c, c.Type)
				}
				return true
			})
		}
	}
}

// TestNoReplace keeps the module installable: a replaced module cannot be
// fetched by other users.
func TestNoReplace(t *testing.T) {
	mods, err := filepath.Glob(filepath.Join(root, "tools", "*", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range append(mods, filepath.Join(root, "go.mod")) {
		src, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if regexp.MustCompile(`(?m)^\s*replace\b`).Match(src) {
			t.Errorf("%s has a replace directive", f)
		}
	}
}

// TestSharedVersions keeps tools/runsc on the versions of the main module, so
// that packages that both need are compiled once on a fresh machine.
func TestSharedVersions(t *testing.T) {
	versions := func(file string) map[string]string {
		src, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]string{}
		for _, m := range regexp.MustCompile(`(?m)^(?:require)?\s+(\S+\.\S+) (v\S+)`).FindAllStringSubmatch(string(src), -1) {
			all[m[1]] = m[2]
		}
		return all
	}
	main := versions("go.mod")
	runsc := versions("tools/runsc/go.mod")
	if main["gvisor.dev/gvisor"] == "" || runsc["gvisor.dev/gvisor"] == "" {
		t.Fatal("the go.mod files are not read as they should be")
	}
	for module, version := range runsc {
		if v, ok := main[module]; ok && v != version {
			t.Errorf("tools/runsc/go.mod has %s %s, go.mod %s: run 'go get %s@%s' in tools/runsc", module, version, v, module, v)
		}
	}
}

func ruleFor(pkg string) *rule {
	for i := range rules {
		if match(rules[i].pkg, pkg) {
			return &rules[i]
		}
	}
	return nil
}

func allowed(r *rule, imp string) bool {
	if in, ours := strings.CutPrefix(imp, module+"/"); ours {
		own := strings.TrimPrefix(in, "internal/")
		return matchAny(r.own, own) || matchAny(everywhere, own) && r.pkg != "client" && r.pkg != "api/v1"
	}
	if first, _, _ := strings.Cut(imp, "/"); !strings.Contains(first, ".") {
		return true
	}
	return matchAny(r.ext, imp)
}

type info struct {
	name       string
	imports    map[string]string // import paths, each with a file that imports it
	docs       []string          // names of files with a package comment
	doc        string
	idents     map[string]bool // exported top-level identifiers
	interfaces map[string]int  // number of own methods of exported interfaces, by name
	structs    map[string]bool // names of struct types
	files      map[string]*ast.File
}

// packages reads every Go file itself, so that it sees all build tags, and so
// that the go command knows the inputs of these tests and never shows a
// stale "ok".
func packages(t *testing.T) map[string]*info {
	t.Helper()
	ps := map[string]*info{}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, file)
		if d.IsDir() {
			hidden := rel != "." && strings.HasPrefix(d.Name(), ".")
			if hidden || d.Name() == "testdata" || rel == "tools" || rel == "bin" || rel == "dist" {
				return filepath.SkipDir
			}
			return nil
		}
		if path.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		src, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(rel)), "internal/")
		p := ps[dir]
		if p == nil {
			p = &info{name: f.Name.Name, imports: map[string]string{}, idents: map[string]bool{}, interfaces: map[string]int{}, structs: map[string]bool{}, files: map[string]*ast.File{}}
			ps[dir] = p
		}
		for _, i := range f.Imports {
			imp, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			p.imports[imp] = rel
		}
		if f.Doc != nil {
			p.docs = append(p.docs, rel)
			p.doc = f.Doc.Text()
		}
		p.files[rel] = f
		p.read(f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return ps
}

func (p *info) read(f *ast.File) {
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				p.idents[d.Name.Name] = true
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					p.idents[s.Name.Name] = true
					if _, ok := s.Type.(*ast.StructType); ok {
						p.structs[s.Name.Name] = true
					}
					if it, ok := s.Type.(*ast.InterfaceType); ok && s.Name.IsExported() {
						p.interfaces[s.Name.Name] = methods(it)
					}
				case *ast.ValueSpec:
					for _, n := range s.Names {
						p.idents[n.Name] = true
					}
				}
			}
		}
	}
}

func methods(it *ast.InterfaceType) (n int) {
	for _, m := range it.Methods.List {
		n += len(m.Names)
	}
	return n
}

func match(pattern, name string) bool {
	prefix, tree := strings.CutSuffix(pattern, "...")
	return name == strings.TrimSuffix(prefix, "/") || tree && strings.HasPrefix(name, prefix)
}

func matchAny(patterns, name string) bool {
	for p := range strings.FieldsSeq(patterns) {
		if match(p, name) {
			return true
		}
	}
	return false
}
