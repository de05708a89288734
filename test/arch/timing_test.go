package arch

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	minCompared = 30 * time.Second // minimum of a limit with which an elapsed time is compared
	minCeiling  = time.Minute      // minimum of a wait that ends in a failure
)

// A timing is one place where a test depends on the clock on purpose.
type timing struct {
	file, fn, code string // file, function and code, as TestTiming prints them
	why            string
}

var timings = []timing{
	{"internal/sandbox/guest/promises_run_test.go", "port", "time.Now().Add(20*time.Millisecond)",
		"the deadline is what the test is about"},
	{"internal/sandbox/guest/promises_test.go", "slow", "time.Sleep(50 * time.Millisecond)",
		"reads more slowly than the program writes"},
	{"test/chaos/services_test.go", "answer", "context.WithTimeout(s.t.Context(), 5*time.Second)",
		"callers repeat it until all services answer"},
	{"internal/workspace/database/hostile_test.go", "TestHostileServers", "context.WithTimeout(t.Context(), 300*time.Millisecond)",
		"the end of the context is what the test is about"},
	{"internal/workspace/database/hostile_test.go", "says", "time.Sleep(100 * time.Millisecond)",
		"keeps the connection for a while"},
	{"internal/workspace/database/postgres_test.go", "TestPostgresTimeout", "time.AfterFunc(200*time.Millisecond, cancel)",
		"the caller may go at any moment"},
	{"internal/workspace/database/redis_test.go", "TestRedisLimits", "context.WithTimeout(t.Context(), 300*time.Millisecond)",
		"the end of the context is what the test is about"},
	{"internal/workspace/server/server_test.go", "TestServersThatEnd", "context.WithTimeout(t.Context(), 50*time.Millisecond)",
		"the end of the context is what the test is about"},
	{"internal/workspace/server/server_test.go", "TestStartWaitStop", "time.Sleep(30 * time.Millisecond)",
		"the server may begin to answer at any moment"},
	{"internal/workspace/services_test.go", "TestServicesAreStartedAgain", "time.Sleep(7 * time.Second)",
		"runs in a bubble of synctest"},
	{"internal/workspace/services_test.go", "TestServicesSurvivePowerCuts", "time.Sleep(20 * time.Second)",
		"runs in a bubble of synctest"},
	{"internal/workspace/workspace_test.go", "TestSandbox", "time.Sleep(time.Millisecond)",
		"gives files different times"},
	{"internal/server/compat/e2b/token_test.go", "TestTokensEndWithTheirKey", "time.Sleep(5 * lookAgain)",
		"nothing may end meanwhile, however long it is"},
	{"internal/server/rest/openapi_test.go", "answersOfApps", "context.WithTimeout(t.Context(), 100*time.Millisecond)",
		"the end of the context ends a stream that has none"},
	{"internal/server/rest/openapi_test.go", "insideSandboxes", "context.WithTimeout(t.Context(), 200*time.Millisecond)",
		"the end of the context ends a stream that has none"},
	{"internal/app/fresh_test.go", "step", "time.Sleep(5 * time.Second)",
		"runs in bubbles of synctest"},
	{"internal/app/fresh_test.go", "step", "time.Sleep(time.Duration(h.rng.IntN(3000)) * time.Millisecond)",
		"runs in bubbles of synctest"},
	{"internal/app/snapshot_test.go", "TestRestoreThatFails", "context.WithTimeout(t.Context(), 2*time.Second)",
		"the end of the context is what the test is about"},
	{"internal/app/fixture_test.go", "Snapshot", "context.WithTimeout(ctx, 10*time.Second)",
		"the limit of the real one"},
	{"internal/app/fixture_test.go", "Pack", "time.Sleep(d - time.Second)",
		"runs in bubbles of synctest"},
	{"internal/page/kill_test.go", "TestKill", "time.AfterFunc(time.Duration(60+random.IntN(200))*time.Millisecond, func() { c.Process.Kill() })",
		"the process may be killed at any moment"},
	{"internal/page/sessions_test.go", "TestPageThatComesAgain", "time.Sleep(150 * time.Millisecond)",
		"the model takes longer than parts of a page are held back"},
	{"internal/agent/kill_test.go", "TestKill", "time.AfterFunc(time.Duration(40+random.IntN(160))*time.Millisecond, func() { c.Process.Kill() })",
		"the process may be killed at any moment"},
	{"internal/server/compat/e2b/e2b_test.go", "TestAnswersBeforeTheEndOfTheBody", "time.Sleep(5 * time.Millisecond)",
		"a guest that is slow"},
	{"internal/server/compat/e2b/e2b_test.go", "TestAnswersBeforeTheEndOfTheBody", "time.Sleep(time.Millisecond)",
		"a client that is slow"},
	{"internal/server/compat/e2b/e2b_test.go", "uploadsAreBounded", "time.Sleep(5 * time.Millisecond)",
		"gives files different times"},
	{"internal/server/mcp/restart_test.go", "TestSessionsOutliveTheServer", "time.Sleep(5 * time.Millisecond)",
		"lets the session live longer than 1 ms"},
	{"internal/server/rest/hostile_test.go", "TestTerminals", "time.Sleep(50 * time.Millisecond)",
		"nothing may come, whenever it would"},
	{"internal/server/rest/page_test.go", "TestRepeatedActionShowsItsAnswer", "time.After(200 * time.Millisecond)",
		"nothing may come before the cancellation, which is repeated"},
	{"client/client_test.go", "TestLeavingCancels", "context.WithTimeout(ctx, time.Second)",
		"runs in a bubble of synctest, by way of a table"},
	{"cmd/engi/bench/bench_linux_test.go", "TestWaitFullGivesUp", "context.WithTimeout(t.Context(), 10*time.Millisecond)",
		"the end of the context is what the test is about"},
	{"cmd/engi/bench/sustain_linux_test.go", "TestCapacityIsPerSecond", "time.Sleep(10 * time.Millisecond)",
		"what is measured takes 10 ms or more"},
	{"internal/sandbox/disk/steps_test.go", "TestAnOverlayThatIsStillInUse", "time.AfterFunc(50*time.Millisecond, func() { f.Close() })",
		"the file may be closed at any moment"},
	{"internal/sandbox/disk/volume/volume_test.go", "TestUnusedVolumesExpire", "time.Sleep(5 * time.Millisecond)",
		"lets volumes live longer than 1 ms"},
	{"internal/sandbox/fleet/real_test.go", "said", "context.WithTimeout(ctx, 150*time.Millisecond)",
		"callers repeat it until they have heard enough"},
	{"internal/sandbox/fleet/real_test.go", "TestRealHibernation", "time.Sleep(3 * time.Second)",
		"how long the sandbox sleeps"},
	{"internal/network/egress/intercept/request_test.go", "TestHeldRequests", "time.Sleep(after)",
		"takes longer than a connection may be idle"},
	{"internal/network/egress/journal/journal_test.go", "TestWaitsForEvents", "context.WithTimeout(t.Context(), 10*time.Millisecond)",
		"the end of the context is what the test is about"},
	{"internal/network/fetch/fetch_test.go", "TestAddressesThatAreNotPublicAreDenied", "context.WithTimeout(t.Context(), 2*time.Second)",
		"any error is right, that of the context too"},
	{"internal/sandbox/guest/fileops/fileops_test.go", "TestGlob", "time.Sleep(15 * time.Millisecond)",
		"gives files different times"},
	{"internal/sandbox/guest/guest_test.go", "TestGuestThatDoesNotRead", "time.AfterFunc(100*time.Millisecond, cancel)",
		"the call may be ended at any moment"},
	{"internal/sandbox/guest/guestd/kernels_test.go", "TestInterpreterChildLivesOn", "time.Sleep(100 * time.Millisecond)",
		"the child must live on, however long"},
	{"internal/sandbox/guest/guestd/pid1_test.go", "TestDaemonDies", "time.Sleep(50 * time.Millisecond)",
		"the guest may dial in vain for any time"},
	{"internal/sandbox/guest/guestd/pid1_test.go", "contextFor", "contextFor(t, 100*time.Millisecond)",
		"any error is right, that of the context too"},
	{"internal/sandbox/guest/guestd/pid1_test.go", "TestQuiesce", "time.Now().Add(200 * time.Millisecond)",
		"nothing may come, whenever it would"},
	{"internal/sandbox/guest/guestd/pump_test.go", "TestWhatWasWrittenIsRead", "time.Sleep(20 * time.Millisecond)",
		"a reader that is slow"},
	{"internal/sandbox/guest/guestd/tree/tree_test.go", "TestCollect", "time.Sleep(20 * time.Millisecond)",
		"gives files different times"},
	{"internal/node/bundle/bundle_test.go", "TestUnpackGivesUpWithItsContext", "context.WithTimeout(t.Context(), 50*time.Millisecond)",
		"the end of the context is what the test is about"},
	{"internal/node/canary_test.go", "TestNobodyIsToldSecrets", "context.WithTimeout(t.Context(), 100*time.Millisecond)",
		"how long a client listens to each route; 4 of 1500 answers are enough"},
	{"internal/node/stall_test.go", "stall", "time.Since(began) > 10*time.Second",
		"at least: a stream is one that is still there then"},
	{"internal/sandbox/provider/gvisor/limit_test.go", "TestWeight", "time.AfterFunc(20*time.Millisecond, func() { close(wanted) })",
		"the sandbox may be wanted at any moment"},
	{"internal/sandbox/script/hostile_test.go", "TestHostileAmongHarmless", "context.WithTimeout(t.Context(), 3*time.Second)",
		"how long the attack lasts"},
	{"internal/sandbox/script/script_test.go", "TestOwnersShareNoHelper", "time.Sleep(time.Millisecond)",
		"keeps the helper for a while"},
	{"internal/sandbox/script/script_test.go", "TestBusyIsRefused", "context.WithTimeout(t.Context(), 20*time.Millisecond)",
		"the end of the context is what the test is about"},
	{"internal/sandbox/script/script_test.go", "TestCancel", "context.WithTimeout(t.Context(), 30*time.Millisecond)",
		"the end of the context is what the test is about"},
	{"internal/session/backup/backup_test.go", "TestKilledCopies", "time.Sleep(after)",
		"the process may be killed at any moment"},
	{"internal/session/fixture_test.go", "Create", "time.Sleep(100 * time.Millisecond)",
		"runs in bubbles of synctest"},
	{"internal/session/fixture_test.go", "Start", "time.Sleep(20 * time.Millisecond)",
		"runs in bubbles of synctest"},
	{"test/e2e/preview/node_test.go", "background", "context.WithTimeout(context.Background(), 3*time.Second)",
		"how much of the output a failed test shows"},
	{"test/e2e/session/failure_test.go", "TestDormancy", "time.Sleep(3 * time.Second)",
		"the session is in use for longer than its dormancy"},
	{"test/e2e/session/fixture_test.go", "code", "time.Sleep(time.Second)",
		"how much of the network log a failed test shows"},
	{"test/e2e/session/overlay_test.go", "TestOverlayOnANewTemplate", "time.Sleep(60 * time.Millisecond)",
		"the node may be killed at any moment"},
	{"test/e2e/session/workspace_test.go", "TestWorkspaceOutlivesTheDisk", "time.Sleep(after)",
		"the node may be killed at any moment"},
	{"test/e2e/tenants/tenants_test.go", "TestTwoTenants", "context.WithTimeout(t.Context(), lasts+10*time.Second)",
		"how long the load lasts"},
	{"test/e2e/terminal/terminal_test.go", "wakeups", "time.Sleep(during)",
		"how long is measured"},
	{"test/e2e/terminal/terminal_test.go", "TestDetachedTerminalsSleep", "time.Sleep(during)",
		"how long is measured"},
	{"test/e2e/terminal/terminal_test.go", "TestSlowReader", "time.Sleep(100 * time.Millisecond)",
		"a reader that is slow"},
	{"test/e2e/terminal/terminal_test.go", "TestScreens", "time.Sleep(200 * time.Millisecond)",
		"the viewer may see some of the answer, or all"},
	{"test/e2e/web/react_test.go", "ServeHTTP", "time.Sleep(5 * time.Millisecond)",
		"the pace of a model"},
	{"test/e2e/web/react_test.go", "ServeHTTP", "time.Sleep(25 * time.Millisecond)",
		"the pace of a model"},
	{"test/e2e/web/runtime_test.go", "TestRuntime", "time.Sleep(300 * time.Millisecond)",
		"the pace of a model"},
	{"internal/function/dbos/kill_test.go", "work", "time.Sleep(time.Duration(i*5%8) * time.Millisecond)",
		"steps take different times"},
	{"internal/function/function_test.go", "TestWait", "context.WithTimeout(t.Context(), 50*time.Millisecond)",
		"the end of the context is what the test is about"},
}

// TestTiming fails where the result of a test depends on the speed of the machine:
//
//   - an elapsed time is compared with less than 30 s, and a greater one fails;
//   - a wait fails after less than 60 s: time.After, a context with a timeout, a
//     deadline, a timer, a loop with a number of sleeps;
//   - a time.Sleep outside of a loop, which assumes that an event has happened.
//
// Instead, wait for the event, the log line or the state for a minute or more, count,
// or use testing/synctest. Code in a bubble of synctest and tests that begin with a
// skip for testing.Short are exempt, with the functions that only they call. A place
// that cannot be changed is listed in timings, with the reason.
func TestTiming(t *testing.T) {
	there, found := map[timing]bool{}, map[timing]string{}
	for _, p := range testPackages(t) {
		p.exemptions()
		for _, f := range p.files {
			p.look(f, func(fn string, at ast.Node, why string) {
				pos := p.fset.Position(at.Pos())
				x := timing{file: f.name, fn: fn, code: p.code(f, at)}
				if there[x] = true; p.exempt[fn] {
					return
				}
				found[x] = fmt.Sprintf("%s:%d: %s: %s: %s", f.name, pos.Line, fn, why, x.code)
			})
		}
	}
	for _, known := range timings {
		if known.why == "" {
			t.Errorf("%s %s: say why %q is allowed", known.file, known.fn, known.code)
		}
		known.why = ""
		if !there[known] {
			t.Errorf("%s: %s has no %q any more: remove it from timings", known.file, known.fn, known.code)
		}
		delete(found, known)
	}
	for _, s := range slices.Sorted(maps.Values(found)) {
		t.Error(s)
	}
}

// TestTimingFinds runs the checks of TestTiming on code with and without faults.
func TestTimingFinds(t *testing.T) {
	const head = "package x\nimport (\"context\"; \"testing\"; \"testing/synctest\"; \"time\")\nconst limit = 5 * time.Second\n"
	for name, c := range map[string]struct {
		code string
		want int
	}{
		"elapsed":             {"func TestA(t *testing.T) { began := time.Now(); if time.Since(began) > limit { t.Error() } }", 1},
		"elapsed, named":      {"func TestA(t *testing.T) { took := time.Since(began); if x || took > time.Second+2*limit { t.Error() } }", 1},
		"elapsed, of two":     {"func TestA(t *testing.T) { if d := b.Sub(a); d >= limit { t.Error() } }", 1},
		"elapsed, in seconds": {"func TestA(t *testing.T) { if s := b.Sub(a).Seconds(); s > 2 { t.Error() } }", 1},
		"elapsed, a field":    {"func TestA(t *testing.T) { if x.Result.Duration > y+2*time.Second { t.Error() } }", 1},
		"at least":            {"func TestA(t *testing.T) { if time.Since(began) < limit { t.Error() } }", 0},
		"not at least":        {"func TestA(t *testing.T) { if ok := time.Since(began) < limit; !ok { t.Error() } }", 1},
		"half a minute":       {"func TestA(t *testing.T) { if time.Since(began) > 6*limit { t.Error() } }", 0},
		"a ratio":             {"func TestA(t *testing.T) { if time.Since(began) > 3*other { t.Error() } }", 0},
		"after":               {"func TestA(t *testing.T) { select { case <-c: case <-time.After(limit): t.Fatal() } }", 1},
		"after, an error":     {"func wait() error { select { case <-c: return nil; case <-time.After(limit): return errSlow } }", 1},
		"after, long":         {"func TestA(t *testing.T) { select { case <-c: case <-time.After(time.Minute): t.Fatal() } }", 0},
		"after, a pace":       {"func TestA(t *testing.T) { for { select { case <-c: case <-time.After(limit): } } }", 0},
		"a context":           {"func TestA(t *testing.T) { ctx, cancel := context.WithTimeout(t.Context(), limit) }", 1},
		"a deadline":          {"func TestA(t *testing.T) { for end := time.Now().Add(limit); !ok(); { if time.Now().After(end) { t.Fatal() } } }", 1},
		"a deadline, set":     {"func TestA(t *testing.T) { c.SetReadDeadline(time.Now().Add(limit)) }", 1},
		"a parameter":         {"func wait(d time.Duration) { for end := time.Now().Add(d); time.Now().Before(end); { } }\nfunc TestA(t *testing.T) { wait(limit); wait(time.Minute) }", 1},
		"a count":             {"func TestA(t *testing.T) { for range 100 { if ok() { return }; time.Sleep(10*time.Millisecond) }; t.Fatal() }", 1},
		"a count, long":       {"func TestA(t *testing.T) { for range 1000 { if ok() { return }; time.Sleep(100*time.Millisecond) }; t.Fatal() }", 0},
		"a sleep":             {"func TestA(t *testing.T) { time.Sleep(limit) }", 1},
		"a sleep, hidden":     {"func TestA(t *testing.T) { <-time.After(limit) }", 1},
		"a sleep, cases":      {"func TestA(t *testing.T) { for _, c := range cases { time.Sleep(limit) } }", 1},
		"a sleep, for ever":   {"func TestA(t *testing.T) { time.Sleep(time.Hour) }", 0},
		"until a moment":      {"func TestA(t *testing.T) { time.Sleep(time.Until(k.Expires)) }", 0},
		"a pace":              {"func TestA(t *testing.T) { for range 10 { io.WriteString(w, x); time.Sleep(limit) } }", 0},
		"a timer":             {"func TestA(t *testing.T) { time.AfterFunc(limit, cancel) }", 1},
		"a poll":              {"func TestA(t *testing.T) { for !ok() { time.Sleep(limit) } }", 0},
		"a loop around":       {"func TestA(t *testing.T) { for range 3 { t.Run(\"\", func(t *testing.T) { time.Sleep(limit) }) } }", 1},
		"synctest":            {"func TestA(t *testing.T) { synctest.Test(t, func(t *testing.T) { time.Sleep(limit); nap() }) }\nfunc nap() { time.Sleep(limit) }", 0},
		"synctest, and not":   {"func TestA(t *testing.T) { synctest.Test(t, func(t *testing.T) { nap() }) }\nfunc TestB(t *testing.T) { nap() }\nfunc nap() { time.Sleep(limit) }", 1},
		"short":               {"func TestA(t *testing.T) { if testing.Short() { t.Skip() }; nap() }\nfunc nap() { time.Sleep(limit) }", 0},
		"short, in a helper":  {"func TestA(t *testing.T) { slow(t); time.Sleep(limit) }\nfunc slow(t *testing.T) { t.Helper(); if testing.Short() { t.Skip() } }", 0},
		"short, in test/env":  {"func TestA(t *testing.T) { env.Slow(t); time.Sleep(limit) }", 0},
		"short, too late":     {"func TestA(t *testing.T) { nap(); if testing.Short() { t.Skip() } }\nfunc nap() { time.Sleep(limit) }", 1},
		"a benchmark":         {"func BenchmarkA(b *testing.B) { time.Sleep(limit) }", 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := &testPackage{fset: token.NewFileSet()}
			if err := p.add("x_test.go", []byte(head+c.code), true); err != nil {
				t.Fatal(err)
			}
			p.exemptions()
			var got []string
			p.look(p.files[0], func(fn string, at ast.Node, why string) {
				if !p.exempt[fn] {
					got = append(got, why+": "+p.code(p.files[0], at))
				}
			})
			if len(got) != c.want {
				t.Errorf("found %q, want %d", got, c.want)
			}
		})
	}
}

// A testPackage holds all Go files of one directory. Its tests are checked; its other
// files only provide the values of names.
type testPackage struct {
	fset   *token.FileSet
	files  []*testFile
	values map[string]ast.Expr        // values of constants and variables of the package
	funcs  map[string][]*ast.FuncDecl // functions and methods in tests, by name
	uses   map[string][]use           // uses of the names in funcs
	exempt map[string]bool            // names of functions that only exempt code uses
}

type testFile struct {
	name string // path relative to the root
	src  []byte
	tree *ast.File
}

// A use is one place where a function is used.
type use struct {
	in     string // enclosing function; "" outside of all functions
	bubble bool   // the use is in a bubble of synctest
	call   *ast.CallExpr
}

func testPackages(t *testing.T) []*testPackage {
	t.Helper()
	all := map[string]*testPackage{}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, file)
		if d.IsDir() {
			hidden := rel != "." && strings.HasPrefix(d.Name(), ".")
			if hidden || d.Name() == "testdata" || d.Name() == "node_modules" || rel == "bin" || rel == "dist" {
				return filepath.SkipDir
			}
			return nil
		}
		if path.Ext(file) != ".go" {
			return nil
		}
		src, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		dir := filepath.Dir(rel)
		if all[dir] == nil {
			all[dir] = &testPackage{fset: token.NewFileSet()}
		}
		return all[dir].add(filepath.ToSlash(rel), src, strings.HasSuffix(file, "_test.go"))
	})
	if err != nil {
		t.Fatal(err)
	}
	return slices.Collect(maps.Values(all))
}

func (p *testPackage) add(name string, src []byte, test bool) error {
	tree, err := parser.ParseFile(p.fset, name, src, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	if p.values == nil {
		p.values, p.funcs = map[string]ast.Expr{}, map[string][]*ast.FuncDecl{}
	}
	for _, d := range tree.Decls {
		switch d := d.(type) {
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if s, ok := s.(*ast.ValueSpec); ok && len(s.Names) == len(s.Values) {
					for i, n := range s.Names {
						p.values[n.Name] = s.Values[i]
					}
				}
			}
		case *ast.FuncDecl:
			if test {
				p.funcs[d.Name.Name] = append(p.funcs[d.Name.Name], d)
			}
		}
	}
	if test {
		p.files = append(p.files, &testFile{name, src, tree})
	}
	return nil
}

// code returns the source of a node on one line.
func (p *testPackage) code(f *testFile, n ast.Node) string {
	src := f.src[p.fset.Position(n.Pos()).Offset:p.fset.Position(n.End()).Offset]
	if i := bytes.IndexByte(src, '\n'); i >= 0 {
		src = src[:i]
	}
	return string(src)
}

// exemptions finds the functions that only exempt code uses: it begins with all
// functions and removes those with another use, until nothing changes.
func (p *testPackage) exemptions() {
	p.uses, p.exempt = map[string][]use{}, map[string]bool{}
	for _, f := range p.files {
		for _, d := range f.tree.Decls {
			in := ""
			var declared *ast.Ident
			if fn, ok := d.(*ast.FuncDecl); ok {
				in, declared = fn.Name.Name, fn.Name
			}
			walk(d, func(n ast.Node, stack []ast.Node) {
				id, ok := n.(*ast.Ident)
				if !ok || id == declared || p.funcs[id.Name] == nil {
					return
				}
				u := use{in: in, bubble: inBubble(n, stack)}
				for i := len(stack) - 1; i >= 0 && u.call == nil; i-- {
					if _, ok := stack[i].(*ast.SelectorExpr); !ok {
						u.call, _ = stack[i].(*ast.CallExpr)
						break
					}
				}
				p.uses[id.Name] = append(p.uses[id.Name], u)
			})
		}
	}
	for name, fns := range p.funcs {
		switch {
		case strings.HasPrefix(name, "Benchmark") && isTest(fns[0]):
			p.exempt[name] = true
		case isTest(fns[0]):
			p.exempt[name] = p.skips(fns[0], true)
		default:
			p.exempt[name] = len(p.uses[name]) > 0 && name != "init"
		}
	}
	for changed := true; changed; {
		changed = false
		for name, fns := range p.funcs {
			if !p.exempt[name] || isTest(fns[0]) {
				continue
			}
			if slices.ContainsFunc(p.uses[name], func(u use) bool { return !u.bubble && !p.exempt[u.in] }) {
				p.exempt[name], changed = false, true
			}
		}
	}
}

func isTest(fn *ast.FuncDecl) bool {
	if fn.Recv != nil {
		return false
	}
	for _, prefix := range []string{"Test", "Benchmark", "Fuzz", "Example"} {
		if strings.HasPrefix(fn.Name.Name, prefix) {
			return true
		}
	}
	return false
}

// skips reports whether a function begins with a skip for testing.Short, possibly in
// a function that it calls, as env.Slow of test/env.
func (p *testPackage) skips(fn *ast.FuncDecl, deeper bool) bool {
	for _, s := range fn.Body.List {
		switch s := s.(type) {
		case *ast.IfStmt:
			call, ok := s.Cond.(*ast.CallExpr)
			return ok && name(call.Fun) == "testing.Short" && contains(s.Body, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				return ok && strings.HasPrefix(last(call.Fun), "Skip")
			})
		case *ast.ExprStmt:
			call, ok := s.X.(*ast.CallExpr)
			if !ok {
				return false
			}
			if name(call.Fun) == "env.Slow" {
				return true
			}
			if called := last(call.Fun); called != "Helper" && called != "Parallel" {
				_, plain := call.Fun.(*ast.Ident)
				return plain && deeper && len(p.funcs[called]) == 1 && p.skips(p.funcs[called][0], false)
			}
		default:
			return false
		}
	}
	return false
}

// inBubble reports whether a node is below a call of synctest.Test.
func inBubble(n ast.Node, stack []ast.Node) bool {
	return slices.ContainsFunc(stack, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		return ok && name(call.Fun) == "synctest.Test"
	})
}

// look calls found for every place in a file that depends on the clock.
func (p *testPackage) look(f *testFile, found func(fn string, at ast.Node, why string)) {
	for _, d := range f.tree.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		s := p.scope(fn)
		s.found = func(at ast.Node, why string) { found(fn.Name.Name, at, why) }
		walk(fn.Body, func(n ast.Node, stack []ast.Node) {
			if !inBubble(n, stack) {
				s.node(n, stack)
			}
		})
	}
}

// A scope is one function. Each name in it is assumed to have one meaning, which is true for
// typical tests.
type scope struct {
	p      *testPackage
	fn     *ast.FuncDecl
	values map[string]ast.Expr // values of names that are set once
	often  map[string]bool     // names that are set more than once
	params map[string]int      // position of each parameter, by name
	found  func(at ast.Node, why string)
}

func (p *testPackage) scope(fn *ast.FuncDecl) *scope {
	s := &scope{p: p, fn: fn, values: map[string]ast.Expr{}, often: map[string]bool{}, params: map[string]int{}}
	i := 0
	for _, field := range fn.Type.Params.List {
		for _, n := range field.Names {
			s.params[n.Name] = i
			i++
		}
	}
	set := func(n ast.Expr, v ast.Expr) {
		if id, ok := n.(*ast.Ident); ok {
			if s.values[id.Name] != nil {
				s.often[id.Name] = true
			}
			s.values[id.Name] = v
		}
	}
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if len(n.Lhs) == len(n.Rhs) {
				for i := range n.Lhs {
					set(n.Lhs[i], n.Rhs[i])
				}
			}
		case *ast.ValueSpec:
			if len(n.Names) == len(n.Values) {
				for i := range n.Names {
					set(n.Names[i], n.Values[i])
				}
			}
		}
		return true
	})
	return s
}

func (s *scope) node(n ast.Node, stack []ast.Node) {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		s.comparison(n, stack)
	case *ast.CallExpr:
		s.call(n, stack)
	case *ast.CompositeLit:
		if name(n.Type) != "http.Client" {
			return
		}
		for _, e := range n.Elts {
			if kv, ok := e.(*ast.KeyValueExpr); ok && name(kv.Key) == "Timeout" {
				s.ceiling(kv, kv.Value)
			}
		}
	case *ast.ForStmt:
		if n.Cond == nil {
			return
		}
		if _, counts := n.Post.(*ast.IncDecStmt); !counts {
			return
		}
		if c, ok := n.Cond.(*ast.BinaryExpr); ok && (c.Op == token.LSS || c.Op == token.LEQ) {
			s.count(n, c.Y, n.Body, n.Post)
		}
	case *ast.RangeStmt:
		s.count(n, n.X, n.Body, nil)
	}
}

// comparison checks whether an elapsed time must stay below a limit.
func (s *scope) comparison(n *ast.BinaryExpr, stack []ast.Node) {
	op, x, y := n.Op, n.X, n.Y
	if s.elapsed(y) && !s.elapsed(x) {
		x, y = y, x
		op = map[token.Token]token.Token{token.LSS: token.GTR, token.LEQ: token.GEQ, token.GTR: token.LSS, token.GEQ: token.LEQ}[op]
	}
	if !s.elapsed(x) {
		return
	}
	v, ok := s.value(y)
	if last(s.meaning(x)) == "Seconds" {
		v *= float64(time.Second)
	} else if _, bare := y.(*ast.BasicLit); bare {
		return // zero, or not a duration
	}
	if !ok || v <= 0 || v >= float64(minCompared) {
		return
	}
	switch op {
	case token.GTR, token.GEQ:
	case token.LSS, token.LEQ:
		// A slow machine never fails an "at least". The failure is below an if statement
		// with this comparison as its condition.
		for i := len(stack) - 1; i >= 0; i-- {
			switch above := stack[i].(type) {
			case *ast.BinaryExpr, *ast.ParenExpr:
				continue
			case *ast.IfStmt:
				if fails(above.Body) {
					return
				}
			}
			break
		}
	default:
		return
	}
	s.found(n, "an elapsed time must be shorter than a machine may need")
}

// meaning returns the expression to which a name was set.
func (s *scope) meaning(e ast.Expr) ast.Expr {
	for range 10 {
		id, ok := e.(*ast.Ident)
		if !ok || s.values[id.Name] == nil {
			break
		}
		e = s.values[id.Name]
	}
	return e
}

// elapsed reports whether an expression is an elapsed time.
func (s *scope) elapsed(e ast.Expr) bool {
	switch e := s.meaning(e).(type) {
	case *ast.CallExpr:
		switch called := last(e.Fun); {
		case name(e.Fun) == "time.Since":
			return true
		case called == "Sub" && len(e.Args) == 1:
			return true
		case called == "Seconds" || called == "Round" || called == "Truncate" || called == "Abs":
			x, ok := e.Fun.(*ast.SelectorExpr)
			return ok && s.elapsed(x.X)
		}
	case *ast.SelectorExpr:
		return e.Sel.Name == "Duration" && name(e) != "time.Duration"
	}
	return false
}

func (s *scope) call(n *ast.CallExpr, stack []ast.Node) {
	arg := func(i int) ast.Expr {
		if i < len(n.Args) {
			return n.Args[i]
		}
		return nil
	}
	switch called := name(n.Fun); called {
	case "context.WithTimeout", "context.WithTimeoutCause":
		s.ceiling(n, arg(1))
	case "time.NewTimer":
		s.ceiling(n, arg(0))
	case "time.AfterFunc":
		if v, ok := s.value(arg(0)); ok && v < float64(minCeiling) {
			s.found(n, "a timer waits for nothing")
		}
	case "net.DialTimeout", "tls.DialWithDialer":
		s.ceiling(n, arg(2))
	case "time.After":
		recv, ok := stack[len(stack)-1].(*ast.UnaryExpr)
		if !ok || recv.Op != token.ARROW {
			s.ceiling(n, arg(0))
			return
		}
		switch above := stack[len(stack)-3].(type) {
		case *ast.CommClause:
			if fails(above) {
				s.ceiling(n, arg(0))
			}
		default:
			s.sleep(n, stack)
		}
	case "time.Sleep":
		s.sleep(n, stack)
	default:
		// Skip time.Now().Add(d) as a deadline.
		if last(n.Fun) != "Add" || len(n.Args) != 1 || !contains(n.Fun, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			return ok && name(call.Fun) == "time.Now"
		}) {
			return
		}
		switch above := stack[len(stack)-1].(type) {
		case *ast.CallExpr:
			if deadline(above) {
				s.ceiling(n, n.Args[0])
			}
		case *ast.AssignStmt:
			for i, r := range above.Rhs {
				if id, ok := above.Lhs[min(i, len(above.Lhs)-1)].(*ast.Ident); r == ast.Expr(n) && ok && s.deadline(id.Name) {
					s.ceiling(n, n.Args[0])
				}
			}
		case *ast.ValueSpec:
			if len(above.Names) == 1 && s.deadline(above.Names[0].Name) {
				s.ceiling(n, n.Args[0])
			}
		}
	}
}

// sleep checks a call that only waits. A minute or more means for ever: no test
// waits that long. A wait for a point in time is correct on any machine.
func (s *scope) sleep(n *ast.CallExpr, stack []ast.Node) {
	if looped(stack) || len(n.Args) != 1 || last(n.Args[0]) == "Until" {
		return
	}
	if v, ok := s.value(n.Args[0]); !ok || v < float64(minCeiling) {
		s.found(n, "a sleep waits for nothing")
	}
}

// deadline reports whether a call sets a time limit.
func deadline(call *ast.CallExpr) bool {
	switch last(call.Fun) {
	case "After", "Before", "Compare":
		return contains(call, func(n ast.Node) bool {
			c, ok := n.(*ast.CallExpr)
			return ok && name(c.Fun) == "time.Now" && len(c.Args) == 0
		})
	case "Until", "WithDeadline", "WithDeadlineCause", "SetDeadline", "SetReadDeadline", "SetWriteDeadline":
		return true
	}
	return false
}

// deadline reports whether a name is used as a deadline.
func (s *scope) deadline(of string) bool {
	return contains(s.fn.Body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		return ok && deadline(call) && names(call, of)
	})
}

// ceiling checks the maximum time of a wait. If a caller sets it, the
// call is reported.
func (s *scope) ceiling(at ast.Node, d ast.Expr) {
	const why = "a wait gives up before a machine may be ready"
	if d == nil {
		return
	}
	id, ok := d.(*ast.Ident)
	place, param := 0, false
	if ok && s.values[id.Name] == nil {
		place, param = s.params[id.Name]
	}
	if !param {
		if v, ok := s.value(d); ok && v > 0 && v < float64(minCeiling) {
			s.found(at, why)
		}
		return
	}
	for _, u := range s.p.uses[s.fn.Name.Name] {
		if u.call == nil || u.bubble || s.p.exempt[u.in] || place >= len(u.call.Args) {
			continue
		}
		for _, caller := range s.p.funcs[u.in] {
			if u.call.Pos() < caller.Pos() || u.call.End() > caller.End() {
				continue
			}
			if v, ok := s.p.scope(caller).value(u.call.Args[place]); ok && v > 0 && v < float64(minCeiling) {
				s.found(u.call, why)
			}
		}
	}
}

// count checks a loop that sleeps a limited number of times, and may end earlier.
func (s *scope) count(loop ast.Node, limit ast.Expr, parts ...ast.Node) {
	n, ok := s.value(limit)
	if !ok || n < 1 || !contains(loop, func(n ast.Node) bool {
		b, ok := n.(*ast.BranchStmt)
		_, returns := n.(*ast.ReturnStmt)
		return returns || ok && b.Tok == token.BREAK
	}) {
		return
	}
	for _, part := range parts {
		if part == nil || part == ast.Node((*ast.BlockStmt)(nil)) {
			continue
		}
		walk(part, func(node ast.Node, stack []ast.Node) {
			call, ok := node.(*ast.CallExpr)
			if !ok || name(call.Fun) != "time.Sleep" && name(call.Fun) != "time.After" || len(call.Args) != 1 || looped(stack) {
				return
			}
			if slices.ContainsFunc(stack, func(n ast.Node) bool { _, ok := n.(*ast.FuncLit); return ok }) {
				return
			}
			if d, ok := s.value(call.Args[0]); ok && d*n < float64(minCeiling) {
				s.found(call, "a loop gives up before a machine may be ready")
			}
		})
	}
}

// value computes a number, or a time in nanoseconds. An unknown term counts as
// zero in a sum with a known one.
func (s *scope) value(e ast.Expr) (float64, bool) { return s.eval(e, 0) }

func (s *scope) eval(e ast.Expr, depth int) (float64, bool) {
	if depth > 10 {
		return 0, false
	}
	switch e := e.(type) {
	case *ast.BasicLit:
		v, err := strconv.ParseFloat(strings.ReplaceAll(e.Value, "_", ""), 64)
		return v, err == nil
	case *ast.ParenExpr:
		return s.eval(e.X, depth+1)
	case *ast.SelectorExpr:
		unit, ok := map[string]time.Duration{"time.Nanosecond": time.Nanosecond, "time.Microsecond": time.Microsecond, "time.Millisecond": time.Millisecond, "time.Second": time.Second, "time.Minute": time.Minute, "time.Hour": time.Hour}[name(e)]
		return float64(unit), ok
	case *ast.Ident:
		if _, param := s.params[e.Name]; param || s.often[e.Name] {
			return 0, false
		}
		if v := s.values[e.Name]; v != nil {
			return s.eval(v, depth+1)
		}
		if v := s.p.values[e.Name]; v != nil {
			return s.eval(v, depth+1)
		}
	case *ast.CallExpr:
		if name(e.Fun) == "time.Duration" && len(e.Args) == 1 {
			return s.eval(e.Args[0], depth+1)
		}
	case *ast.BinaryExpr:
		x, okX := s.eval(e.X, depth+1)
		y, okY := s.eval(e.Y, depth+1)
		switch e.Op {
		case token.ADD:
			return x + y, okX || okY
		case token.SUB:
			return x - y, okX && okY
		case token.MUL:
			return x * y, okX && okY
		case token.QUO:
			return x / y, okX && okY && y != 0
		}
	}
	return 0, false
}

// looped reports whether the innermost function around a node has a loop around it
// that repeats the same work. A loop over a list of cases does not count.
func looped(stack []ast.Node) bool {
	for i := len(stack) - 1; i >= 0; i-- {
		switch n := stack[i].(type) {
		case *ast.ForStmt:
			return true
		case *ast.RangeStmt:
			if _, list := n.X.(*ast.CompositeLit); !list && n.Value == nil {
				return true
			}
		case *ast.FuncLit:
			return false
		}
	}
	return false
}

// fails reports whether statements end a test or report an error.
func fails(n ast.Node) bool {
	return contains(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			switch last(n.Fun) {
			case "Error", "Errorf", "Fatal", "Fatalf", "Fail", "FailNow", "panic", "Exit":
				return true
			}
		case *ast.ReturnStmt:
			return len(n.Results) > 0
		}
		return false
	})
}

func contains(n ast.Node, is func(ast.Node) bool) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		found = found || n != nil && is(n)
		return !found
	})
	return found
}

func names(n ast.Node, ident string) bool {
	return contains(n, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		return ok && id.Name == ident
	})
}

// name returns a name as written, with its package or receiver; "" for other expressions.
func name(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		if x, ok := e.X.(*ast.Ident); ok {
			return x.Name + "." + e.Sel.Name
		}
	}
	return ""
}

// last returns the last part of a name, or of the function of a call.
func last(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.CallExpr:
		return last(e.Fun)
	}
	return ""
}

// walk calls visit for each node, with those above it.
func walk(n ast.Node, visit func(n ast.Node, stack []ast.Node)) {
	var stack []ast.Node
	ast.Inspect(n, func(n ast.Node) bool {
		if n == nil {
			stack = stack[:len(stack)-1]
			return true
		}
		visit(n, stack)
		stack = append(stack, n)
		return true
	})
}
