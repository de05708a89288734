package script

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// TestInvalidScriptsAreRefused: the language must be JavaScript or TypeScript, and the
// code at most 12,000 characters. Each refusal has a remedy.
func TestInvalidScriptsAreRefused(t *testing.T) {
	r := runner(t, nil)
	for name, c := range map[string]struct {
		spec engi.ScriptSpec
		text string
	}{
		"python":     {engi.ScriptSpec{Code: "1", Language: engi.Python}, "JavaScript or TypeScript"},
		"no code":    {engi.ScriptSpec{}, "no code"},
		"blank code": {engi.ScriptSpec{Code: " \t\n"}, "no code"},
		"long code":  {engi.ScriptSpec{Code: strings.Repeat("1", 12_001)}, "12001 characters, 12000 at most"},
		"long TS":    {engi.ScriptSpec{Code: strings.Repeat("1", 12_001), Language: engi.TypeScript}, "12001 characters"},
		"no UTF-8":   {engi.ScriptSpec{Code: "'\xff'"}, "UTF-8"},
		"NUL":        {engi.ScriptSpec{Code: "'\x00'"}, "NUL"},
		"negative":   {engi.ScriptSpec{Code: "1", Timeout: -time.Second}, "negative"},
		"many hints": {engi.ScriptSpec{Code: "1", Hints: hints(17)}, "17 hints"},
		"long hint":  {engi.ScriptSpec{Code: "1", Hints: map[string]string{"city": strings.Repeat("x", 257)}}, "too long"},
		"session":    {engi.ScriptSpec{Code: "1", Session: "s"}, "no sessions"},
	} {
		_, err := r.Scripts().Run(t.Context(), c.spec)
		if !engi.Is(err, engi.Invalid, engi.Unsupported) || !strings.Contains(err.Error(), c.text) || engi.RemedyOf(err) == "" {
			t.Errorf("%s: %s: %v (%s)", name, engi.KindOf(err), err, engi.RemedyOf(err))
		}
	}
	for _, code := range []string{strings.Repeat("1", 12_000), "'" + strings.Repeat("é", 11_990) + "'.length"} {
		if x := mustRun(t, r, "", code); !x.OK {
			t.Errorf("%.20s…: %+v", code, x.Error)
		}
	}
}

func hints(n int) map[string]string {
	m := map[string]string{}
	for i := range n {
		m[fmt.Sprint("h", i)] = "x"
	}
	return m
}

// TestLimitsAndTimeouts: the timeout is clamped to 250–5000 ms, by default 3000, with
// 16 MB of memory, 512 KB of stack, 100 lines and depth 10. An operator may choose
// others within limits.
func TestLimitsAndTimeouts(t *testing.T) {
	d := DefaultLimits()
	if d.Code != 12_000 || d.Timeout != 3*time.Second || d.MinTimeout != 250*time.Millisecond || d.MaxTimeout != 5*time.Second ||
		d.Memory != 16<<20 || d.Lines != 100 || d.Depth != 10 {
		t.Errorf("defaults %+v", d)
	}
	r := runner(t, nil)
	for asked, want := range map[time.Duration]time.Duration{
		0: 3 * time.Second, time.Nanosecond: 250 * time.Millisecond, 249 * time.Millisecond: 250 * time.Millisecond, 250 * time.Millisecond: 250 * time.Millisecond,
		time.Second: time.Second, 5 * time.Second: 5 * time.Second, 5001 * time.Millisecond: 5 * time.Second, time.Hour: 5 * time.Second,
	} {
		x, err := r.Scripts().Run(t.Context(), engi.ScriptSpec{Code: "1", Timeout: asked})
		if err != nil || x.Environment.Timeout != want {
			t.Errorf("%v: %v, %v, want %v", asked, x.Environment.Timeout, err, want)
		}
		if warned := len(x.Warnings) == 1 && strings.Contains(x.Warnings[0], "timeout was set to "+want.String()); warned != (asked != 0 && asked != want) {
			t.Errorf("%v: warnings %q", asked, x.Warnings)
		}
	}
	x := mustRun(t, r, "", "for (let i = 0; i < 150; i++) console.log(i)")
	if len(x.Stdout) != 100 || !slices.ContainsFunc(x.Warnings, func(w string) bool { return strings.Contains(w, "more than 100 lines") }) {
		t.Errorf("%d lines, %q", len(x.Stdout), x.Warnings)
	}
	x = mustRun(t, r, "", "for (let i = 0; i < 75; i++) { console.log(i); console.error(i) }")
	if len(x.Stdout)+len(x.Stderr) != 100 {
		t.Errorf("%d and %d lines", len(x.Stdout), len(x.Stderr))
	}
	x = mustRun(t, r, "", "let v = 'deep'; for (let i = 0; i < 11; i++) v = {v}; v")
	if n := strings.Count(string(x.Value), `{"v"`); n != 10 || len(x.Warnings) != 1 || strings.Contains(string(x.Value), "deep") {
		t.Errorf("depth: %s, %q", x.Value, x.Warnings)
	}
	if x = mustRun(t, r, "", "const a = []; for (;;) a.push('x'.repeat(1e5) + a.length)"); x.OK || x.Error.Kind != engi.ScriptMemory {
		t.Errorf("memory: %+v", x.Error)
	}
	if x = mustRun(t, r, "", "const a = new Uint8Array(12e6); a.length"); !x.OK {
		t.Errorf("12 of 16 MB: %+v", x.Error)
	}
	if x = mustRun(t, r, "", "let n = 0; const f = () => { n++; f() }; try { f() } catch (e) { [e.name, n > 500, n < 20000] }"); string(x.Value) != `["InternalError",true,true]` {
		t.Errorf("stack: %s, %+v", x.Value, x.Error)
	}
	for _, l := range []Limits{
		{Code: -1}, {Code: 300_000}, {Memory: 1}, {Memory: 1 << 40}, {MinTimeout: time.Minute}, {Timeout: time.Minute}, {Lines: 1 << 20}, {Text: 1 << 30}, {Depth: 1000}, {Calls: 65}, {Nodes: 1 << 30}, {Stack: 1 << 20},
	} {
		if _, err := New(Options{Helper: "/x", Dir: t.TempDir(), Limits: l}); !engi.Is(err, engi.Invalid) {
			t.Errorf("%+v: %v", l, err)
		}
	}
	more := runner(t, func(o *Options) {
		o.Limits = Limits{Code: 100_000, MaxTimeout: time.Minute, Memory: 64 << 20, Lines: 500, Depth: 20}
	})
	x = mustRun(t, more, "", "for (let i = 0; i < 450; i++) console.log(i); const a = new Uint8Array(5e7); a.length //"+strings.Repeat("x", 50_000))
	if !x.OK || len(x.Stdout) != 450 {
		t.Errorf("%d lines, %+v", len(x.Stdout), x.Error)
	}
}

// TestRunsAreIsolated: programs have no host globals, no require, no file system and
// no network, and do not see changes to globals by earlier runs.
func TestRunsAreIsolated(t *testing.T) {
	r := runner(t, nil)
	absent := []string{"process", "require", "module", "exports", "__dirname", "__filename", "Buffer", "global", "fetch", "XMLHttpRequest", "WebSocket", "Worker",
		"Deno", "Bun", "std", "os", "bjson", "print", "scriptArgs", "load", "loadScript", "window", "self", "document", "navigator", "localStorage", "WebAssembly", "importScripts", "__send", "__clock"}
	names, err := json.Marshal(absent)
	if err != nil {
		t.Fatal(err)
	}
	x := mustRun(t, r, "", string(names)+".filter(n => n in globalThis)")
	if string(x.Value) != "[]" {
		t.Errorf("there are %s", x.Value)
	}
	x = mustRun(t, r, "", "Object.getOwnPropertyNames(globalThis).filter(n => typeof globalThis[n] === 'function' && /^[a-z]/.test(n)).sort()")
	if want := `["clearInterval","clearTimeout","decodeURI","decodeURIComponent","encodeURI","encodeURIComponent","escape","eval","isFinite","isNaN","parseFloat","parseInt","queueMicrotask","setInterval","setTimeout","unescape"]`; string(x.Value) != want {
		t.Errorf("functions of the realm: %s", x.Value)
	}
	for _, code := range []string{"import('fs')", "await import('node:fs')", "import fs from 'fs'; 1", "require('fs')", "await import('data:text/javascript,export default 1')"} {
		if x := mustRun(t, r, "", "await (async () => "+strings.TrimPrefix(code, "await ")+")()"); x.OK {
			t.Errorf("%s: %s", code, x.Value)
		}
	}
	mustRun(t, r, "ann", "globalThis.left = 1; var alsoLeft = 2; Array.prototype.left = 3")
	if x := mustRun(t, r, "ann", "[typeof left, typeof alsoLeft, typeof [].left]"); string(x.Value) != `["undefined","undefined","undefined"]` {
		t.Errorf("left behind: %s", x.Value)
	}
}

// TestConsoleIsCaptured: log, info and debug print to stdout, warn and error to
// stderr, and every kind of value can be printed.
func TestConsoleIsCaptured(t *testing.T) {
	r := runner(t, nil)
	x := mustRun(t, r, "", `console.log("a", 1, true, null, undefined); console.info({a: [1, {b: 2}]}); console.debug("two\nlines");
		console.warn(new Error("e")); console.error(1n, Symbol("s"), () => 1, NaN, new Date(0), [new Map([[1, 2]])]); const c = {}; c.c = c; console.log(c); console.log()`)
	if got, want := strings.Join(x.Stdout, "|"), `a 1 true null undefined|{"a":[1,{"b":2}]}|two|lines|{"c":"[Circular]"}|`; got != want {
		t.Errorf("stdout %s", got)
	}
	if got, want := strings.Join(x.Stderr, "|"), `Error: e|1n Symbol(s) [Function: anonymous] NaN "1970-01-01T00:00:00.000Z" [[[1,2]]]`; got != want {
		t.Errorf("stderr %s", got)
	}
	if !x.OK || x.Value != nil || len(x.Warnings) != 0 {
		t.Errorf("%s, %q, %+v", x.Value, x.Warnings, x.Error)
	}
	if x = mustRun(t, r, "", "console.log('before'); null.x"); x.OK || len(x.Stdout) != 1 {
		t.Errorf("what a failing program printed: %q", x.Stdout)
	}
	if x = mustRun(t, r, "", "console.log('before'); for (;;);"); x.OK || len(x.Stdout) != 1 {
		t.Errorf("what a late program printed: %q, %+v", x.Stdout, x.Error)
	}
}

// TestResultsBecomeJSON: cycles, deep values, functions, symbols, big integers, dates,
// typed arrays and huge strings become JSON, with warnings about what was changed.
func TestResultsBecomeJSON(t *testing.T) {
	r := runner(t, nil)
	for _, c := range []struct{ code, want, warning string }{
		{"({a: 1, b: 'x', c: [true, null], d: undefined})", `{"a":1,"b":"x","c":[true,null]}`, ""},
		{"const o = {}; o.me = o; o.list = [o]; o", `{"me":"[Circular]","list":["[Circular]"]}`, "cycle"},
		{"const s = {x: 1}; [s, s]", `[{"x":1},{"x":1}]`, ""},
		{"({f() {}, g: x => x, h: class H {}})", `{"f":"[Function: f]","g":"[Function: g]","h":"[Function: H]"}`, "function"},
		{"Symbol('s')", `"Symbol(s)"`, "symbol"},
		{"({[Symbol('hidden')]: 1, a: 2})", `{"a":2}`, "symbols"},
		{"2n ** 70n", `"1180591620717411303424"`, "BigInt"},
		{"new Date(Date.UTC(2020, 1, 2))", `"2020-02-02T00:00:00.000Z"`, ""},
		{"new Date(NaN)", `"Invalid Date"`, ""},
		{"[NaN, Infinity, -Infinity, -0]", `["NaN","Infinity","-Infinity",0]`, "not a number"},
		{"new Float32Array([1.5, 2])", `[1.5,2]`, ""},
		{"new BigUint64Array([1n])", `["1"]`, "BigInt"},
		{"new Uint8Array(3).buffer", `{"byteLength":3}`, "ArrayBuffer"},
		{"new Map([['a', {b: 1}]])", `[["a",{"b":1}]]`, "Map"},
		{"new Set(['a'])", `["a"]`, "Set"},
		{"/re/g", `"/re/g"`, ""},
		{"new RangeError('m')", `{"name":"RangeError","message":"m"}`, ""},
		{"[new String('s'), new Boolean(false), Object(1n)]", `["s",false,{}]`, ""},
		{"[Promise.resolve(1)]", `["[Promise]"]`, "promise"},
		{"({get a() { throw new Error('no') }})", `{"a":"[Throws]"}`, ""},
		{"Object.create({inherited: 1}, {own: {value: 2, enumerable: true}, hidden: {value: 3}})", `{"own":2}`, ""},
		{"[, 1]", `[null,1]`, ""},
		{"({'__proto__': 1, ['__proto__']: 2})", `{"__proto__":2}`, ""},
		{"(function () { return arguments })(1)", `{"0":1}`, ""},
		{"'\\ud800'", `"\ud800"`, ""},
	} {
		x := mustRun(t, r, "", c.code)
		if string(x.Value) != c.want {
			t.Errorf("%s: got %s, %+v, want %s", c.code, x.Value, x.Error, c.want)
		}
		if warned := strings.Join(x.Warnings, "; "); c.warning == "" && warned != "" || !strings.Contains(warned, c.warning) {
			t.Errorf("%s: warnings %q, want %q", c.code, warned, c.warning)
		}
	}
	for code, most := range map[string]int{
		"'x'.repeat(5e6)": 65 << 10, "Array.from({length: 100}, () => 'x'.repeat(1e4))": 140 << 10, "Array.from({length: 1e6}, (_, i) => i)": 80_000,
		"Object.fromEntries(Array.from({length: 2e4}, (_, i) => ['key' + i, i]))": 250_000, "({['k'.repeat(1e6)]: 1})": 65 << 10,
	} {
		if x := mustRun(t, r, "", code); len(x.Value) > most || len(x.Warnings) == 0 || !json.Valid(x.Value) {
			t.Errorf("%s: %d bytes, %q, %+v", code, len(x.Value), x.Warnings, x.Error)
		}
	}
}

// TestEnvironmentIsReported: the result has the engine, the limits and the functions.
func TestEnvironmentIsReported(t *testing.T) {
	r := runner(t, nil)
	x := mustRun(t, r, "", "1")
	e := x.Environment
	if e.Engine == "" || e.Tier != engi.TierScript || e.Timeout != 3*time.Second || e.Memory != 16<<20 || !slices.Equal(e.APIs, []string{"add", "broken", "slow", "who.am"}) {
		t.Errorf("got %+v", e)
	}
	if x.Duration <= 0 {
		t.Errorf("it took %v", x.Duration)
	}
}

// TestHostFunctionsAreNativePromises: host functions return promises of the realm,
// which can be awaited, combined, raced and caught, and run concurrently.
func TestHostFunctionsAreNativePromises(t *testing.T) {
	var mu sync.Mutex
	inside, most := 0, 0
	r := runner(t, func(o *Options) {
		o.APIs = append(o.APIs, API{ScriptAPI: engi.ScriptAPI{Name: "meet", Signature: "() => Promise<void>", Description: "Waits for others."},
			Call: func(ctx context.Context, _ Call) (any, error) {
				mu.Lock()
				inside++
				most = max(most, inside)
				mu.Unlock()
				defer func() { mu.Lock(); inside--; mu.Unlock() }()
				select {
				case <-time.After(20 * time.Millisecond):
				case <-ctx.Done():
				}
				return nil, nil
			}})
	})
	for _, c := range []struct{ code, want string }{
		{"const p = api.add(1, 2); [p instanceof Promise, Object.getPrototypeOf(p) === Promise.prototype, await p]", "[true,true,3]"},
		{"await Promise.all([api.add(1, 2), api.add(3, 4), 5])", "[3,7,5]"},
		{"await Promise.race([api.slow(), api.add(1, 1)])", "2"},
		{"await Promise.any([api.broken(), api.add(1, 1)])", "2"},
		{"(await Promise.allSettled([api.broken(), api.add(1, 1)])).map(r => r.status)", `["rejected","fulfilled"]`},
		{"await api.add(1, 2).then(n => n * 2).finally(() => {})", "6"},
		{"try { await api.add('x') } catch (e) { [e instanceof TypeError, e.message] }", `[true,"argument 1 has the wrong type"]`},
		{"await api.add(1, 2, 3).catch(e => e.message)", `"3 arguments, 2 at most"`},
		{"let n = 0; for (let i = 0; i < 20; i++) n = await api.add(n, i); n", "190"},
		{"const log = []; const p = api.add(1, 1).then(() => log.push('host')); log.push('now'); await null; log.push('soon'); await p; log", `["now","soon","host"]`},
		{"await (async function* () { yield await api.add(1, 1) })().next()", `{"value":2,"done":false}`},
		{"await Promise.all([1, 2, 3, 4].map(() => api.meet())); 'met'", `"met"`},
		{"await Promise.all(Array.from({length: 17}, () => api.meet())).catch(e => e.name)", `"RangeError"`},
		{"api.add = 1; api.more = 1; delete api.who; [typeof api.add, typeof api.more, typeof api.who.am]", `["function","undefined","function"]`},
	} {
		if x := mustRun(t, r, "ann", c.code); string(x.Value) != c.want {
			t.Errorf("%s: got %s, %+v, want %s", c.code, x.Value, x.Error, c.want)
		}
	}
	if most < 2 || most > 16 {
		t.Errorf("%d calls at once", most)
	}
	// Calls have the deadline of the run.
	x, err := r.Scripts().Run(t.Context(), engi.ScriptSpec{Code: "await api.slow()", Timeout: 250 * time.Millisecond})
	if err != nil || x.OK || x.Error.Kind != engi.ScriptTimeout {
		t.Errorf("%+v, %v", x.Error, err)
	}
}

// TestOneRegistrationDocumentsAFunction: a registration has the function, its
// documentation and its declaration.
func TestOneRegistrationDocumentsAFunction(t *testing.T) {
	r := runner(t, func(o *Options) {
		o.APIs = append(KV(), API{
			ScriptAPI: engi.ScriptAPI{Name: "fetchHttp", Signature: "(url: string) => Promise<string>", Description: "Fetches data from HTTP endpoints.", Schema: schema(`{"type":"string"}`)},
			Call:      func(_ context.Context, c Call) (any, error) { return "data", nil },
		})
	})
	if x := mustRun(t, r, "", "await api.fetchHttp('x')"); string(x.Value) != `"data"` || !slices.Contains(x.Environment.APIs, "fetchHttp") {
		t.Errorf("%s, %v", x.Value, x.Environment.APIs)
	}
	all := r.Scripts().APIs()
	i := slices.IndexFunc(all, func(a engi.ScriptAPI) bool { return a.Name == "fetchHttp" })
	if i < 0 || all[i].Description == "" || all[i].Signature == "" || !json.Valid(all[i].Schema) {
		t.Errorf("got %+v", all)
	}
	if d := r.Scripts().Declarations(); !strings.Contains(d, "/** Fetches data from HTTP endpoints. */\n  fetchHttp: (url: string) => Promise<string>;") {
		t.Errorf("declarations:\n%s", d)
	}
	// The declarations are valid TypeScript, with which a script may begin.
	for _, apis := range [][]API{KV(), Sandbox()} {
		var list []engi.ScriptAPI
		for _, a := range apis {
			list = append(list, a.ScriptAPI)
		}
		x, err := r.Scripts().Run(t.Context(), engi.ScriptSpec{Language: engi.TypeScript, Code: Declarations(list) + "\n1"})
		if err != nil || string(x.Value) != "1" {
			t.Errorf("declarations are no TypeScript: %+v, %v", x.Error, err)
		}
	}
	for _, a := range []API{
		{ScriptAPI: engi.ScriptAPI{Name: "no handler", Signature: "s", Description: "d"}},
		{ScriptAPI: engi.ScriptAPI{Name: "constructor", Signature: "s", Description: "d"}, Call: KV()[0].Call},
		{ScriptAPI: engi.ScriptAPI{Name: "a.__proto__", Signature: "s", Description: "d"}, Call: KV()[0].Call},
		{ScriptAPI: engi.ScriptAPI{Name: "a", Description: "d"}, Call: KV()[0].Call},
		{ScriptAPI: engi.ScriptAPI{Name: "a", Signature: "s"}, Call: KV()[0].Call},
		{ScriptAPI: engi.ScriptAPI{Name: "a", Signature: "s", Description: "d", Schema: []byte("{")}, Call: KV()[0].Call},
		{ScriptAPI: engi.ScriptAPI{Name: "a", Signature: "s", Description: "d"}, Call: KV()[0].Call, Most: -1},
	} {
		if _, err := New(Options{Helper: "/x", Dir: t.TempDir(), APIs: []API{a}}); !engi.Is(err, engi.Invalid) {
			t.Errorf("%+v: %v", a.ScriptAPI, err)
		}
	}
}

// TestWeatherTakesHints: api.getWeather takes missing coordinates from the hints of
// the request.
func TestWeatherTakesHints(t *testing.T) {
	r, _ := fetchRunner(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		json.NewEncoder(w).Encode(map[string]any{"at": r.URL.Query().Get("latitude") + "," + r.URL.Query().Get("longitude")})
	}))
	for _, c := range []struct {
		hints map[string]string
		args  string
		want  string
	}{
		{nil, "{latitude: 48.2, longitude: 16.4}", `"48.2,16.4"`},
		{map[string]string{"latitude": "1", "longitude": "2"}, "{latitude: 48.2, longitude: 16.4}", `"48.2,16.4"`},
		{map[string]string{"latitude": "1", "longitude": "2", "city": "Vienna"}, "", `"1,2"`},
		{map[string]string{"latitude": "1", "longitude": "2"}, "{latitude: 0}", `"0,2"`},
		{map[string]string{"latitude": "1"}, "", `"longitude is missing: pass it, or send it as a hint"`},
		{map[string]string{"latitude": "north", "longitude": "2"}, "", `"the hint latitude is not a number"`},
		{map[string]string{"latitude": "NaN", "longitude": "2"}, "", `"latitude must be between -90 and 90"`},
		{nil, "{latitude: 91, longitude: 0}", `"latitude must be between -90 and 90"`},
		{nil, "{latitude: 0, longitude: '&x=1'}", `"argument 1 has the wrong type"`},
	} {
		x, err := r.Scripts().Run(t.Context(), engi.ScriptSpec{Hints: c.hints, Code: "await api.getWeather(" + c.args + ").then(w => w.at, e => e.message)"})
		if err != nil || string(x.Value) != c.want {
			t.Errorf("%v %s: got %s, %+v, %v, want %s", c.hints, c.args, x.Value, x.Error, err, c.want)
		}
	}
}

// TestErrorsHaveKindAndPlace: invalid requests are refused; timeouts and failures of
// programs are part of the result, by kind, with the position in the original source.
func TestErrorsHaveKindAndPlace(t *testing.T) {
	r := runner(t, func(o *Options) { o.Limits.MinTimeout, o.Limits.MaxTimeout = 50*time.Millisecond, 30*time.Second })
	if _, err := r.Scripts().Run(t.Context(), engi.ScriptSpec{Code: ""}); !engi.Is(err, engi.Invalid) {
		t.Errorf("validation: %v", err)
	}
	for _, c := range []struct {
		language     engi.Language
		code         string
		kind         engi.ScriptErrorKind
		name         string
		line, column int
	}{
		{engi.JavaScript, "for (;;);", engi.ScriptTimeout, "TimeoutError", 0, 0},
		{engi.JavaScript, "Array.prototype.indexOf.call({length: 2 ** 50}, 1)", engi.ScriptTimeout, "TimeoutError", 0, 0},
		{engi.JavaScript, "const a = 1;\nconst b = ];", engi.ScriptSyntax, "SyntaxError", 2, 11},
		{engi.JavaScript, "const a = 1;\n\nfoo.bar", engi.ScriptThrown, "ReferenceError", 3, 1},
		{engi.JavaScript, "function f() {\n  return null.x\n}\nf()", engi.ScriptThrown, "TypeError", 2, 14},
		{engi.JavaScript, "class Mine extends Error { name = 'Mine' }\nthrow new Mine('m')", engi.ScriptThrown, "Mine", 0, 0},
		{engi.JavaScript, "await api.add('x')", engi.ScriptThrown, "TypeError", 0, 0},
		{engi.JavaScript, "const a = [];\nfor (;;) a.push(new Array(1e5).fill(a.length))", engi.ScriptMemory, "InternalError", 2, 0},
		{engi.JavaScript, "await new Promise(() => {})", engi.ScriptStalled, "Error", 0, 0},
		{engi.TypeScript, "interface A { b: string }\ntype C = A | null;\n\nconst c = null as C;\nc!.b", engi.ScriptThrown, "TypeError", 5, 0},
		{engi.TypeScript, "const a: number = 1\nconst b: = 2", engi.ScriptSyntax, "SyntaxError", 2, 10},
	} {
		timeout := 20 * time.Second
		if c.kind == engi.ScriptTimeout {
			timeout = 100 * time.Millisecond
		}
		x, err := r.Scripts().Run(t.Context(), engi.ScriptSpec{Language: c.language, Code: c.code, Timeout: timeout})
		if err != nil || x.OK || x.Error == nil {
			t.Errorf("%s: %+v, %v", c.code, x, err)
			continue
		}
		e := x.Error
		if e.Kind != c.kind || e.Name != c.name || e.Message == "" || c.line != 0 && e.Line != c.line || c.column != 0 && e.Column != c.column {
			t.Errorf("%s: got %+v, want %s %s at %d:%d", c.code, e, c.kind, c.name, c.line, c.column)
		}
	}
}

// TestStackOverflowIsShort checks that the many frames of an endless recursion are
// neither in the answer nor in a warning.
func TestStackOverflowIsShort(t *testing.T) {
	x, err := runner(t, nil).Scripts().Run(t.Context(), engi.ScriptSpec{Language: engi.JavaScript, Code: "const f = (n) => f(n + 1) + 1;\nf(0)"})
	if err != nil || x.Error == nil {
		t.Fatalf("%+v, %v", x, err)
	}
	if frames := strings.Count(x.Error.Stack, "\n") + 1; frames < 5 || frames > 20 || len(x.Warnings) > 0 || x.Error.Line != 1 {
		t.Errorf("%d frames from line %d, warnings %.100q", frames, x.Error.Line, x.Warnings)
	}
}

// TestRunsAndCallsAreLogged: each run and each call of a host function has one line in
// the log, without any data of the program.
func TestRunsAndCallsAreLogged(t *testing.T) {
	var mu sync.Mutex
	var out bytes.Buffer
	r := runner(t, func(o *Options) {
		o.Log = slog.New(slog.NewJSONHandler(writer(func(b []byte) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			return out.Write(b)
		}), &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	mustRun(t, r, "ann", "const hush = 'hush'; console.log(hush); await api.add(1, 2); hush")
	mustRun(t, r, "ann", "throw new Error('hush')")
	mustRun(t, r, "ann", "await api.broken('hush').catch(() => {})")
	_, _ = r.Scripts().Run(t.Context(), engi.ScriptSpec{Owner: "ann", Code: "hush", Language: "cobol"})
	mu.Lock()
	defer mu.Unlock()
	if strings.Contains(out.String(), "hush") {
		t.Errorf("the log holds what is the program's:\n%s", out.String())
	}
	for _, want := range []string{
		`"level":"INFO","msg":"script","owner":"ann","language":"","code":65,"outcome":"ok"`,
		`"level":"INFO","msg":"script called","owner":"ann","api":"add","outcome":"ok"`,
		`"outcome":"exception"`, `"level":"INFO","msg":"script called","owner":"ann","api":"broken","outcome":"internal"`,
		`"level":"ERROR","msg":"api function failed","api":"broken"`, `"outcome":"refused: invalid"`, `"calls":1`,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, out.String())
		}
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }
