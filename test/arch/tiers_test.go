package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// gated lists the end-to-end tests that belong to the gate, "make test". Each
// feature has one here; the others begin with env.Slow and run in
// "make test-all". A test in the gate needs no third-party package or program,
// takes less than a minute, and ends the same way every time.
var gated = map[string]string{
	"test/e2e":          "TestLanguages TestPictureComesBack TestOutputIsLive TestIsolation TestRunsShareNothing TestHostileInputs TestGauntlet",
	"test/e2e/agent":    "TestTheLoop",
	"test/e2e/e2b":      "TestTable",
	"test/e2e/preview":  "TestEverythingHTTPCarries TestPrivatePorts TestRequestsWakeSleepers",
	"test/e2e/session":  "TestFlow TestTerminalsAttach",
	"test/e2e/smoke":    "TestFeatures",
	"test/e2e/terminal": "TestTerminalsSurvive",
	"test/e2e/egress":   "TestEgress TestRequestRules",
	"test/quality":      "TestQuestionsHaveSections",
}

// TestTiers fails when an end-to-end test neither belongs to the gate nor
// begins with env.Slow, and when the list names a test that is gone or that skips.
func TestTiers(t *testing.T) {
	missing := map[string]bool{}
	for dir, names := range gated {
		for name := range strings.FieldsSeq(names) {
			missing[dir+" "+name] = true
		}
	}
	for _, dir := range []string{"test/e2e", "test/e2e/*", "test/chaos", "test/quality"} {
		files, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			rel, err := filepath.Rel(root, file)
			if err != nil {
				t.Fatal(err)
			}
			in := path.Dir(filepath.ToSlash(rel))
			for _, d := range f.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Test") || fn.Name.Name == "TestMain" {
					continue
				}
				listed := slices.Contains(strings.Fields(gated[in]), fn.Name.Name)
				delete(missing, in+" "+fn.Name.Name)
				switch slow := beginsSlow(fn); {
				case listed && slow:
					t.Errorf("%s: %s is in the list of the gate and begins with env.Slow: choose one", rel, fn.Name.Name)
				case !listed && !slow:
					t.Errorf("%s: %s must begin with env.Slow(t), or be listed as a test of the gate in test/arch/tiers_test.go", rel, fn.Name.Name)
				}
			}
		}
	}
	for name := range missing {
		t.Errorf("the list of the gate names %s, which does not exist", name)
	}
}

// beginsSlow reports whether the first statement of a test is env.Slow(t).
func beginsSlow(fn *ast.FuncDecl) bool {
	if len(fn.Body.List) == 0 {
		return false
	}
	s, ok := fn.Body.List[0].(*ast.ExprStmt)
	if !ok {
		return false
	}
	call, ok := s.X.(*ast.CallExpr)
	if !ok {
		return false
	}
	name, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	pkg, ok := name.X.(*ast.Ident)
	return ok && pkg.Name == "env" && name.Sel.Name == "Slow"
}
