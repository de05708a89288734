package arch

import (
	"go/ast"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestSeeds fails where a test uses the generator that math/rand seeds by itself:
// a failure of such a test cannot be reproduced. test/seed has generators with a known seed.
func TestSeeds(t *testing.T) {
	for _, p := range testPackages(t) {
		for _, f := range p.files {
			for _, at := range unseeded(f.tree) {
				t.Errorf("%s: %s draws other numbers each time: use seed.New of test/seed", p.fset.Position(at.Pos()), p.code(f, at))
			}
		}
	}
}

func TestSeedsFinds(t *testing.T) {
	for code, want := range map[string]int{
		`import "math/rand/v2"; var x = rand.IntN(2)`:                      1,
		`import "math/rand"; var x = rand.Intn`:                            1,
		`import r "math/rand/v2"; func f() { go r.N(2) }`:                  1,
		`import "math/rand/v2"; var x = rand.New(rand.NewPCG(1, 2)).Int()`: 0,
		`import "math/rand/v2"; var x rand.Source`:                         0,
		`import "crypto/rand"; var x = rand.Text()`:                        0,
	} {
		p := &testPackage{fset: token.NewFileSet()}
		if err := p.add("x_test.go", []byte("package x; "+code), true); err != nil {
			t.Fatal(err)
		}
		if got := unseeded(p.files[0].tree); len(got) != want {
			t.Errorf("%s: found %d, want %d", code, len(got), want)
		}
	}
}

// unseeded returns the uses of functions of math/rand in a file that need no generator.
func unseeded(f *ast.File) (found []ast.Node) {
	names := map[string]bool{}
	for _, i := range f.Imports {
		file, _ := strconv.Unquote(i.Path.Value)
		if file != "math/rand" && file != "math/rand/v2" {
			continue
		}
		names["rand"] = names["rand"] || i.Name == nil
		if i.Name != nil {
			names[i.Name.Name] = true
		}
	}
	types := []string{"Rand", "Source", "Source64", "PCG", "ChaCha8", "Zipf"}
	ast.Inspect(f, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Obj == nil && names[pkg.Name] &&
			!strings.HasPrefix(sel.Sel.Name, "New") && !slices.Contains(types, sel.Sel.Name) {
			found = append(found, sel)
		}
		return true
	})
	return found
}
