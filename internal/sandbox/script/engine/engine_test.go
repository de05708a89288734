package engine

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/script/wire"
)

func limits() wire.Limits {
	return wire.Limits{Timeout: int64(20 * time.Second), Memory: 16 << 20, Stack: 512, Lines: 100, Text: 64 << 10, Depth: 10, Nodes: 10_000, Calls: 16, AllCalls: 1000}
}

var newEngine = sync.OnceValues(New)

// run runs a program. Host functions return their arguments after a short time; api.fail
// fails.
func run(t testing.TB, l engi.Language, code string, change ...func(*wire.Run)) wire.Done {
	t.Helper()
	e, err := newEngine()
	if err != nil {
		t.Fatal(err)
	}
	r := wire.Run{Language: l, Code: code, Limits: limits(), APIs: []string{"echo", "fail", "kv.get", "never"}}
	for _, f := range change {
		f(&r)
	}
	answers := make(chan wire.Answer, 100)
	done, err := e.Run(r, Host{Answer: from(answers), Call: func(c wire.Call) error {
		switch c.API {
		case "fail":
			answers <- wire.Answer{Call: c.ID, Name: "RangeError", Error: "it failed"}
		case "never":
		default:
			answers <- wire.Answer{Call: c.ID, Value: c.Args}
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// from returns Host.Answer for the answers in a channel.
func from(answers <-chan wire.Answer) func(time.Time) (wire.Answer, bool, error) {
	return func(until time.Time) (a wire.Answer, ok bool, err error) {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		select {
		case a = <-answers:
			return a, true, nil
		case <-timer.C:
			return a, false, nil
		}
	}
}

func TestValues(t *testing.T) {
	for code, want := range map[string]string{
		"1+1":                 "2",
		"const a = 2; a * 21": "42",
		"await 5; 7":          "7",
		"let x = await Promise.resolve({a:1}); x": `{"a":1}`,
		"return 5":                               "5",
		"if (true) { return [1, 'two', null] }":  `[1,"two",null]`,
		"const f = async () => 'late'; f()":      `"late"`,
		"undefined":                              "",
		"var o = {}":                             "",
		"null":                                   "null",
		"({a: undefined, b: 1})":                 `{"b":1}`,
		"[undefined, 1]":                         `[null,1]`,
		"0/0":                                    `"NaN"`,
		"-0":                                     "0",
		"123n":                                   `"123"`,
		"Symbol('x')":                            `"Symbol(x)"`,
		"(function f() {})":                      `"[Function: f]"`,
		"const o = {a: 1}; o.o = o; o":           `{"a":1,"o":"[Circular]"}`,
		"const s = {}; [s, s]":                   `[{},{}]`,
		"new Date(0)":                            `"1970-01-01T00:00:00.000Z"`,
		"new Map([[1, {a: 2}]])":                 `[[1,{"a":2}]]`,
		"new Set([1, 1, 2])":                     `[1,2]`,
		"new Uint8Array([1, 2])":                 `[1,2]`,
		"new BigInt64Array(1)":                   `["0"]`,
		"new ArrayBuffer(8)":                     `{"byteLength":8}`,
		"/a.c/g":                                 `"/a.c/g"`,
		"new Error('no')":                        `{"name":"Error","message":"no"}`,
		"({get a() { throw 1 }})":                `{"a":"[Throws]"}`,
		"new Number(3)":                          "3",
		"new Proxy({}, {ownKeys() { throw 1 }})": "{}",
		"[Promise.resolve(1)]":                   `["[Promise]"]`,
		"({toJSON() { return 1 }, a: 2})":        `{"toJSON":"[Function: toJSON]","a":2}`,
		"'\\u{1F600} \\n \"'":                    `"😀 \n \""`,
		"'\\uD800'":                              `"\ud800"`,
		"let v = 1; { let v = 2 } v":             "1",
		"switch (3) { case 3: 'three' }":         `"three"`,
		"await api.echo(1, {a: [2]})":            `[1,{"a":[2]}]`,
		"await api.kv.get('k')":                  `["k"]`,
		"await Promise.all([api.echo(1), api.echo(2)])":                                                                                                      `[[1],[2]]`,
		"try { await api.fail() } catch (e) { `${e instanceof RangeError} ${e.message}` }":                                                                   `"true it failed"`,
		"await new Promise(r => setTimeout(r, 5, 'tick'))":                                                                                                   `"tick"`,
		"let n = 0; await new Promise(r => { const i = setInterval(() => { if (++n == 3) { clearInterval(i); r() } }, 1) }); n":                              "3",
		"const log = []; setTimeout(() => log.push('t')); queueMicrotask(() => log.push('m')); log.push('s'); await new Promise(r => setTimeout(r, 2)); log": `["s","m","t"]`,
		"typeof require + typeof process + typeof module + typeof std + typeof os + typeof fetch":                                                            `"undefinedundefinedundefinedundefinedundefinedundefined"`,
		"Object.keys(globalThis)":        "[]",
		"typeof __send + typeof __clock": `"undefinedundefined"`,
		"Object.isFrozen(api) && Object.isFrozen(api.kv) && Object.isFrozen(api.echo)": "true",
	} {
		done := run(t, engi.JavaScript, code)
		if done.Error != nil || string(done.Value) != want {
			t.Errorf("%s: got %s, %+v, want %s", code, done.Value, done.Error, want)
		}
	}
}

func TestTypeScript(t *testing.T) {
	for code, want := range map[string]string{
		"const a: number = 2; a * 21":                                                          "42",
		"enum E { A = 3, B } E.B":                                                              "4",
		"interface I { a: string } const x = {a: 'b'} satisfies I; x":                          `{"a":"b"}`,
		"const f = async <T,>(x: T): Promise<T> => x; await f<number>(7)":                      "7",
		"return (1 as number) + 1":                                                             "2",
		"class P { constructor(private n: number) {} get() { return this.n } } new P(9).get()": "9",
		"const r: number[] = []; for (const x of [1,2]) r.push(x!); r":                         "[1,2]",
	} {
		done := run(t, engi.TypeScript, code)
		if done.Error != nil || string(done.Value) != want {
			t.Errorf("%s: got %s, %+v, want %s", code, done.Value, done.Error, want)
		}
	}
}

func TestConsole(t *testing.T) {
	done := run(t, engi.JavaScript, "console.log('a', 1, {b: [2]}); console.error(new TypeError('x')); console.warn(undefined, null, 1n, () => {}); console.info('two\\nlines')")
	if got := strings.Join(done.Stdout, "|"); got != `a 1 {"b":[2]}|two|lines` {
		t.Errorf("stdout %q", got)
	}
	if got := strings.Join(done.Stderr, "|"); got != "TypeError: x|undefined null 1n [Function: anonymous]" {
		t.Errorf("stderr %q", got)
	}
	if len(done.Warnings) != 0 {
		t.Errorf("warnings %q", done.Warnings)
	}
	done = run(t, engi.JavaScript, "for (let i = 0; i < 1000; i++) console.log(i)")
	if len(done.Stdout) != 100 || len(done.Warnings) != 1 {
		t.Errorf("%d lines, warnings %q", len(done.Stdout), done.Warnings)
	}
}

func TestErrors(t *testing.T) {
	type place struct {
		kind         engi.ScriptErrorKind
		name         string
		line, column int
	}
	for _, c := range []struct {
		language engi.Language
		code     string
		want     place
	}{
		{engi.JavaScript, "foo(", place{engi.ScriptSyntax, "SyntaxError", 1, 5}},
		{engi.JavaScript, "let a = 1;\nlet b = ;", place{engi.ScriptSyntax, "SyntaxError", 2, 9}},
		{engi.JavaScript, "\n\nnull.x", place{engi.ScriptThrown, "TypeError", 3, 5}},
		{engi.JavaScript, "function f() {\n  throw new RangeError('r')\n}\nf()", place{engi.ScriptThrown, "RangeError", 2, 23}},
		{engi.JavaScript, "throw new Error('x'); return", place{engi.ScriptThrown, "Error", 1, 16}},
		{engi.JavaScript, "await Promise.reject(new EvalError('x'))", place{engi.ScriptThrown, "EvalError", 1, 35}},
		{engi.JavaScript, "throw {a: 1}", place{engi.ScriptThrown, "", 0, 0}},
		{engi.JavaScript, "import x from 'y'", place{engi.ScriptSyntax, "SyntaxError", 1, 8}},
		{engi.JavaScript, "await new Promise(() => {})", place{engi.ScriptStalled, "Error", 0, 0}},
		{engi.JavaScript, "await api.never()", place{engi.ScriptTimeout, "TimeoutError", 0, 0}},
		{engi.JavaScript, "for (;;);", place{engi.ScriptTimeout, "TimeoutError", 0, 0}},
		{engi.JavaScript, "for (;;) await null", place{engi.ScriptTimeout, "TimeoutError", 0, 0}},
		{engi.JavaScript, "const f = () => setTimeout(f); f(); await new Promise(() => {})", place{engi.ScriptTimeout, "TimeoutError", 0, 0}},
		{engi.JavaScript, "try { for (;;); } catch { 'caught' } finally { for (;;); }", place{engi.ScriptTimeout, "TimeoutError", 0, 0}},
		{engi.JavaScript, "let s = ['x'.repeat(1e6)]; for (;;) s.push(s[0] + s.length)", place{engi.ScriptMemory, "InternalError", 1, 0}},
		{engi.JavaScript, "function f() { f() } f()", place{engi.ScriptThrown, "InternalError", 1, 0}},
		{engi.TypeScript, "interface A {\n  a: string\n}\n\nconst a: A | null = null as any\na!.a", place{engi.ScriptThrown, "TypeError", 6, 0}},
		{engi.TypeScript, "const a: = 1", place{engi.ScriptSyntax, "SyntaxError", 1, 10}},
		{engi.TypeScript, "type T = {\n  a: 1 }\nthrow new TypeError('t') as T; return 1", place{engi.ScriptThrown, "TypeError", 3, 0}},
	} {
		timeout := time.Minute // long enough for a slow machine
		if c.want.kind == engi.ScriptTimeout {
			timeout = 200 * time.Millisecond
		}
		done := run(t, c.language, c.code, func(r *wire.Run) { r.Limits.Timeout = int64(timeout) })
		if done.Error == nil {
			t.Errorf("%s: no error, value %s", c.code, done.Value)
			continue
		}
		got := place{done.Error.Kind, done.Error.Name, done.Error.Line, done.Error.Column}
		if c.want.column == 0 {
			got.column = 0
		}
		if got != c.want {
			t.Errorf("%s: got %+v (%s), want %+v", c.code, got, done.Error.Message, c.want)
		}
		if strings.Contains(done.Error.Stack, "eval") || strings.Count(done.Error.Stack, "\n") >= maxFrames {
			t.Errorf("%s: stack %q", c.code, done.Error.Stack)
		}
	}
}

// TestHostile runs programs that try to damage their environment. Each must have a
// result, and must not affect the next one.
func TestHostile(t *testing.T) {
	for _, code := range []string{
		"Object.prototype.toJSON = () => 'spoilt'; Array.prototype.toJSON = Object.prototype.toJSON; ({a: [1]})",
		"JSON.stringify = () => 'spoilt'; ({a: [1]})",
		"Promise.prototype.then = () => { throw 1 }; ({a: [1]})",
		"Array.prototype[Symbol.iterator] = () => { throw 1 }; console.log(1); ({a: [1]})",
		"String.prototype.split = () => { throw 1 }; console.log('a'); ({a: [1]})",
		"Map.prototype.get = Map.prototype.forEach = () => { throw 1 }; await new Promise(r => setTimeout(r, 1)); ({a: [1]})",
		"Object.defineProperty(Object.prototype, 'v', {set() { throw 1 }, get() { return 1 }}); ({a: [1]})",
		"Object.prototype.enumerable = Object.prototype.value = 9; ({a: [1]})",
		"Object.prototype.get = Object.prototype.set = () => 1; console.log('a'); ({a: [1]})",
		"globalThis.api = 1; globalThis.console = 1; delete globalThis.api; ({a: [1]})",
		"Reflect.apply = Function.prototype.apply = Function.prototype.call = () => 'spoilt'; ({a: [1]})",
		"Object.setPrototypeOf(globalThis, new Proxy({}, {has() { return true }, get() { return 1 }})); ({a: [1]})",
		"Object.prototype.__proto__; ({}).__proto__.polluted = 1; ({a: [1]})",
		"Error.prepareStackTrace = () => { throw 1 }; ({a: [1]})",
		"Object.freeze(Object.prototype); Object.freeze(Array.prototype); console.log(1); ({a: [1]})",
	} {
		done := run(t, engi.JavaScript, code)
		if done.Error != nil || string(done.Value) != `{"a":[1]}` {
			t.Errorf("%s: got %s, %+v", code, done.Value, done.Error)
		}
		if done := run(t, engi.JavaScript, "await api.echo({a: [({}).polluted]})"); string(done.Value) != `[{"a":[null]}]` && string(done.Value) != `[{}]` {
			t.Errorf("after %s: got %s, %+v", code, done.Value, done.Error)
		}
	}
	for _, code := range []string{
		"Promise.prototype.constructor = class { constructor() { throw 1 } }; 1",
		"Object.defineProperty(Object.prototype, 'then', {get() { throw new Error('then') }}); ({})",
		"const p = new Proxy(() => {}, {get() { throw p }}); throw p",
		"throw new Proxy({}, {get(t, k) { return k == 'message' ? {toString() { for (;;); }} : undefined }})",
		"for (let i = 0; i < 1e6; i++) api.never(i)",
		"for (let i = 0; i < 1e6; i++) setTimeout(() => {})",
		"let a = []; for (let i = 0; i < 1e5; i++) a = [a]; a",
		"let a = ''; for (let i = 0; i < 1e5; i++) a += '['; JSON.parse(a)",
		"new Array(2 ** 32 - 1)",
		"'x'.repeat(2 ** 29)",
		"api.echo('x'.repeat(8e6))",
		"const o = {}; for (let i = 0; i < 1e5; i++) o['k' + i] = i; o",
		"eval('('.repeat(1e5))",
		"new Function('return 1'.repeat(1e4))()",
		"(function f() { try { f() } finally { f() } })()",
	} {
		began := time.Now()
		done := run(t, engi.JavaScript, code, func(r *wire.Run) { r.Limits.Timeout = int64(300 * time.Millisecond) })
		if took := time.Since(began); took > 5*time.Minute { // only the host's clock is certain to end the program
			t.Errorf("%s: took %v", code, took)
		}
		if b, err := json.Marshal(done); err != nil || len(b) > wire.MaxFrame {
			t.Errorf("%s: %d bytes, %v", code, len(b), err)
		}
	}
}

func TestSizesAreBounded(t *testing.T) {
	done := run(t, engi.JavaScript, "Array.from({length: 1e5}, (_, i) => 'item ' + i)")
	if len(done.Value) > 1<<20 || len(done.Warnings) == 0 {
		t.Errorf("%d bytes, warnings %q", len(done.Value), done.Warnings)
	}
	done = run(t, engi.JavaScript, "'x'.repeat(1e6)")
	if len(done.Value) > 70<<10 || len(done.Warnings) != 1 {
		t.Errorf("%d bytes, warnings %q", len(done.Value), done.Warnings)
	}
	done = run(t, engi.JavaScript, "let a = 1; for (let i = 0; i < 20; i++) a = {a}; a")
	if got := strings.Count(string(done.Value), "{"); got != 10 || len(done.Warnings) != 1 {
		t.Errorf("%d levels, warnings %q", got, done.Warnings)
	}
}

func BenchmarkRun(b *testing.B) {
	for b.Loop() {
		if done := run(b, engi.JavaScript, "1+1"); string(done.Value) != "2" {
			b.Fatal(done)
		}
	}
}

func FuzzMappings(f *testing.F) {
	f.Add("AAAA;AACA,CAAC")
	f.Add("gggggggggggggggggggB")
	f.Fuzz(func(t *testing.T, mappings string) {
		raw, err := json.Marshal(map[string]string{"mappings": mappings})
		if err != nil {
			t.Skip()
		}
		s := source{mappings: parseMappings(raw)}
		s.position(1, 1)
		s.position(100, 100)
	})
}

func ExampleEngine() {
	e, err := New()
	if err != nil {
		fmt.Println(err)
		return
	}
	done, err := e.Run(wire.Run{Language: engi.TypeScript, Code: "const n: number = 6; n * 7", Limits: limits()}, Host{})
	fmt.Println(string(done.Value), err)
	// Output: 42 <nil>
}

// FuzzLocate cleans stacks, which programs can set to anything.
func FuzzLocate(f *testing.F) {
	f.Add("    at f (<eval>:1:2)\n    at <eval> (<eval>:3:4)\n", "m")
	f.Add("<eval>:99999999999999999999:1\n<eval>:-1\n<eval>:0:0", "\xff")
	f.Fuzz(func(t *testing.T, stack, message string) {
		p := &program{source: source{code: "1", wrapped: 3, mappings: []mapping{{line: 1, column: 2, fromLine: 0, fromColumn: 1}}}}
		e := &wire.Error{Name: "E", Message: message, Stack: stack}
		p.locate(e)
		if e.Line < 0 || e.Column < 0 || strings.Count(e.Stack, "\n") >= maxFrames || !utf8.ValidString(e.Message) {
			t.Errorf("got %+v", e)
		}
	})
}
