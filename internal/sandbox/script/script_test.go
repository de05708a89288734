package script

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
	jswire "github.com/engi-dev/engi/internal/sandbox/script/wire"
)

// helperPath builds engi-js once per test binary.
var helperPath = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "engi-js")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "engi-js")
	cmd := exec.Command("go", "build", "-o", path, "github.com/engi-dev/engi/cmd/engi-js")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", engi.Errorf(engi.Internal, "build engi-js: %v\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := helperPath(); err == nil {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// runner starts a Runner that ends with the test.
func runner(t testing.TB, change func(*Options)) *Runner {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux")
	}
	path, err := helperPath()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	// Helpers change their user, who must be able to reach the directory.
	for d := dir; d != "/"; d = filepath.Dir(d) {
		if fi, err := os.Stat(d); err == nil && fi.Mode().Perm()&0o001 == 0 {
			os.Chmod(d, fi.Mode().Perm()|0o011)
		}
	}
	o := Options{Helper: path, Dir: dir, Warm: 1, APIs: []API{
		{ScriptAPI: engi.ScriptAPI{Name: "add", Signature: "(a: number, b: number) => Promise<number>", Description: "Adds."},
			Call: func(_ context.Context, c Call) (any, error) {
				var a, b float64
				if err := c.Into(&a, &b); err != nil {
					return nil, err
				}
				return a + b, nil
			}},
		{ScriptAPI: engi.ScriptAPI{Name: "who.am", Signature: "() => Promise<string>", Description: "Names the owner."},
			Call: func(_ context.Context, c Call) (any, error) { return c.Owner, nil }},
		{ScriptAPI: engi.ScriptAPI{Name: "slow", Signature: "() => Promise<void>", Description: "Waits."},
			Call: func(ctx context.Context, c Call) (any, error) { <-ctx.Done(); return nil, ctx.Err() }},
		{ScriptAPI: engi.ScriptAPI{Name: "broken", Signature: "() => Promise<void>", Description: "Panics."},
			Call: func(context.Context, Call) (any, error) { panic("secret") }},
	}}
	if change != nil {
		change(&o)
	}
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended, ready := make(chan error, 1), make(chan struct{})
	go func() { ended <- r.Run(ctx, func() { close(ready) }) }()
	<-ready
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	h, err := start(t.Context(), path, r.pool.empty, jswire.MaxFrame)
	if err != nil {
		if os.Getenv("ENGI_TEST_REQUIRE") == "1" {
			t.Fatal(err)
		}
		t.Skipf("no helper can be started here: %v", err)
	}
	h.kill()
	return r
}

func mustRun(t testing.TB, r *Runner, owner engi.Owner, code string) engi.ScriptResult {
	t.Helper()
	res, err := r.Scripts().Run(t.Context(), engi.ScriptSpec{Owner: owner, Code: code})
	if err != nil {
		t.Fatalf("%s: %v", code, err)
	}
	return res
}

func TestRun(t *testing.T) {
	r := runner(t, nil)
	for code, want := range map[string]string{
		"1 + 1":                                    "2",
		"await api.add(40, 2)":                     "42",
		"await api.who.am()":                       `"ann"`,
		"await api.add('x').catch(e => e.name)":    `"TypeError"`,
		"await api.broken().catch(e => e.message)": `"the function failed"`,
	} {
		if res := mustRun(t, r, "ann", code); !res.OK || string(res.Value) != want || res.Environment.Tier != engi.TierScript {
			t.Errorf("%s: got %s, %+v", code, res.Value, res.Error)
		}
	}
	res, err := r.Scripts().Run(t.Context(), engi.ScriptSpec{Language: engi.TypeScript, Code: "let a: number = 1; a", Timeout: time.Hour})
	if err != nil || string(res.Value) != "1" || res.Environment.Timeout != 5*time.Second || len(res.Warnings) != 1 {
		t.Errorf("got %+v, %v", res, err)
	}
}

func TestBadSpecs(t *testing.T) {
	r := runner(t, nil)
	for _, s := range []engi.ScriptSpec{
		{}, {Code: " \n"}, {Code: "1", Language: engi.Python}, {Code: strings.Repeat("x", 12_001)}, {Code: "1\x00"}, {Code: "\xff"},
		{Code: "1", Timeout: -1}, {Code: "1", Hints: map[string]string{"city": strings.Repeat("x", 300)}},
	} {
		if _, err := r.Scripts().Run(t.Context(), s); !engi.Is(err, engi.Invalid) {
			t.Errorf("%.40q: %v", s.Code, err)
		}
	}
	if res := mustRun(t, r, "", strings.Repeat("é", 5990)+"= 1; 2"); string(res.Value) != "2" {
		t.Errorf("12,000 characters are not bytes: %+v", res)
	}
}

// TestContained runs programs that the interpreter cannot interrupt, or that exceed
// limits. Each must end in time and not affect the next one.
func TestContained(t *testing.T) {
	r := runner(t, func(o *Options) { o.Limits.MaxTimeout, o.Limits.Timeout = 400*time.Millisecond, 400*time.Millisecond })
	for _, code := range []string{
		"for (;;);",
		"Array.prototype.indexOf.call({length: 2 ** 40}, 1)",
		"Array.prototype.join.call({length: 2 ** 31}, '')",
		"Array.prototype.reverse.call({length: 2 ** 50})",
		"new Array(2 ** 27).fill(0).sort()",
		"/(a+)+$/.test('a'.repeat(40) + 'b')",
		"'x'.repeat(2 ** 28).replace(/x/g, 'yy')",
		"const a = []; for (;;) a.push(new Uint8Array(1e6))",
		"const m = new Map(); for (let i = 0;; i++) m.set({}, i)",
		"await api.slow()",
		"for (;;) api.slow()",
		"globalThis.x = 1; Object.prototype.y = 2; for (;;);",
		"JSON.parse('['.repeat(1e6))",
		"(function f() { f() })()",
		"let s = 'x'; for (;;) s += s",
		"BigInt(2) ** 100000000n",
		"structuredClone",
	} {
		began := time.Now()
		res := mustRun(t, r, "eve", code)
		if res.OK || res.Error == nil {
			t.Errorf("%s: came to its end: %s", code, res.Value)
		}
		if took := time.Since(began); took > 30*time.Second { // 0.5 s on an idle machine
			t.Errorf("%s: took %v", code, took)
		}
		if res := mustRun(t, r, "eve", "typeof x + typeof ({}).y"); string(res.Value) != `"undefinedundefined"` {
			t.Errorf("after %s: %s %+v", code, res.Value, res.Error)
		}
	}
}

// TestHelperIsConfined checks in /proc the rights that a helper would have if it were taken over.
func TestHelperIsConfined(t *testing.T) {
	r := runner(t, nil)
	h, err := start(t.Context(), r.o.Helper, r.pool.empty, jswire.MaxFrame)
	if err != nil {
		t.Fatal(err)
	}
	defer h.kill()
	proc := "/proc/" + jsonNumber(h.cmd.Process.Pid)
	status, err := os.ReadFile(proc + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Seccomp:\t2", "NoNewPrivs:\t1", "Groups:\t\n"} {
		if os.Geteuid() == 0 && !strings.Contains(strings.ReplaceAll(string(status), "Groups:\t \n", "Groups:\t\n"), want) {
			t.Errorf("status lacks %q:\n%s", want, status)
		}
	}
	if os.Geteuid() == 0 {
		if !strings.Contains(string(status), "Uid:\t65534\t65534\t65534\t65534") || !strings.Contains(string(status), "CapEff:\t0000000000000000") {
			t.Errorf("it has privileges:\n%s", status)
		}
		if root, err := os.Readlink(proc + "/root"); err != nil || root != r.pool.empty {
			t.Errorf("root %q, %v", root, err)
		}
		for _, ns := range []string{"net", "mnt", "pid", "ipc", "uts"} {
			ours, err1 := os.Readlink("/proc/self/ns/" + ns)
			its, err2 := os.Readlink(proc + "/ns/" + ns)
			if err1 != nil || err2 != nil || ours == its {
				t.Errorf("%s namespace: ours %s, its %s, %v %v", ns, ours, its, err1, err2)
			}
		}
		env, err := os.ReadFile(proc + "/environ")
		if err != nil || strings.Contains(string(env), "PATH=") {
			t.Errorf("environment %q, %v", env, err)
		}
	}
}

// TestHelpersOfOrdinaryUsers starts a helper in the way of an engi that an ordinary user has
// started: as root of a namespace with one user, where no process may drop groups.
func TestHelpersOfOrdinaryUsers(t *testing.T) {
	if os.Getenv("ENGI_TEST_NAMESPACE") != "" {
		h, err := start(t.Context(), os.Getenv("ENGI_TEST_NAMESPACE"), t.TempDir(), jswire.MaxFrame)
		if err != nil {
			t.Fatal(err)
		}
		h.kill()
		return
	}
	helper := runner(t, nil).o.Helper
	cmd := exec.Command(os.Args[0], "-test.run=^TestHelpersOfOrdinaryUsers$", "-test.v")
	cmd.Env = append(os.Environ(), "ENGI_TEST_NAMESPACE="+helper)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) && os.Getenv("ENGI_TEST_REQUIRE") == "" {
		t.Skip("this machine allows no namespaces")
	}
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func jsonNumber(n int) string { b, _ := json.Marshal(n); return string(b) }

// TestOwnersShareNoHelper has more owners than helpers.
func TestOwnersShareNoHelper(t *testing.T) {
	r := runner(t, func(o *Options) { o.Max = 4 })
	var mu sync.Mutex
	served := map[*helper]engi.Owner{}
	var wg sync.WaitGroup
	for i := range 60 {
		owner := engi.Owner(rune('a' + i%7))
		wg.Go(func() {
			h, err := r.pool.acquire(t.Context(), owner)
			for engi.Is(err, engi.Exhausted) && t.Context().Err() == nil { // possible on a slow machine
				h, err = r.pool.acquire(t.Context(), owner)
			}
			if err != nil {
				t.Errorf("take: %v", err)
				return
			}
			mu.Lock()
			if before, ok := served[h]; ok && before != owner {
				t.Errorf("a helper of %s came to %s", before, owner)
			}
			served[h] = owner
			mu.Unlock()
			h.runs++
			time.Sleep(time.Millisecond)
			r.pool.giveBack(h, i%5 != 0)
		})
	}
	wg.Wait()
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	if r.pool.alive > 4 {
		t.Errorf("%d helpers, 4 at most", r.pool.alive)
	}
}

func TestBusyIsRefused(t *testing.T) {
	r := runner(t, func(o *Options) { o.Max, o.Warm = 1, 1 })
	h, err := r.pool.acquire(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := r.pool.acquire(ctx, "b"); !engi.Is(err, engi.Expired) {
		t.Errorf("got %v", err)
	}
	r.pool.giveBack(h, true)
	if h, err = r.pool.acquire(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	r.pool.giveBack(h, true)
}

func TestCancel(t *testing.T) {
	r := runner(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := r.Scripts().Run(ctx, engi.ScriptSpec{Code: "for (;;);"}); !engi.Is(err, engi.Expired) {
		t.Errorf("got %v", err)
	}
}

func TestDeclarations(t *testing.T) {
	r := runner(t, nil)
	want := `declare const api: {
  /** Adds. */
  add: (a: number, b: number) => Promise<number>;
  /** Panics. */
  broken: () => Promise<void>;
  /** Waits. */
  slow: () => Promise<void>;
  who: {
    /** Names the owner. */
    am: () => Promise<string>;
  };
};
`
	if got := Declarations(r.Scripts().APIs()); got != want {
		t.Errorf("got\n%s", got)
	}
}

func BenchmarkRun(b *testing.B) {
	r := runner(b, nil)
	for b.Loop() {
		if res := mustRun(b, r, "ann", "1+1"); string(res.Value) != "2" {
			b.Fatal(res.Error)
		}
	}
}
