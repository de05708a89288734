package script

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// hostile holds programs that exceed limits or try to break out, by topic. They need
// not fail, but must end in time and not affect other programs.
var hostile = map[string][]string{
	"loops": {
		"for (;;);",
		"for (;;) try { for (;;); } catch {} finally { continue }",
		"while (true) { try { throw 1 } catch {} }",
		"function* g() { for (;;) yield 1 } for (const x of g());",
		"[...(function* () { for (;;) yield 1 })()]",
		"const f = () => f; let g = f; for (;;) g = g()",
		"new Proxy({}, {get(t, k, r) { return r[k] }}).x",
		"({valueOf() { for (;;); }}) + 1",
	},
	"native loops": { // loops that QuickJS does not interrupt
		"Array.prototype.indexOf.call({length: 2 ** 50}, 1)",
		"Array.prototype.join.call({length: 2 ** 31 - 1}, '')",
		"Array.prototype.reverse.call({length: 2 ** 50})",
		"Array.prototype.fill.call({length: 2 ** 50}, 1)",
		"Array.prototype.lastIndexOf.call({length: 2 ** 52}, 1)",
		"Array.prototype.includes.call({length: 2 ** 52}, 1)",
		"Array.prototype.copyWithin.call({length: 2 ** 52}, 1, 2)",
		"Array.prototype.splice.call({length: 2 ** 52}, 1, 1)",
		"new Array(2 ** 27).fill(0).sort()",
		"Array.from({length: 2 ** 40})",
		"Array(2 ** 32 - 1).toString()",
		"Object.keys(new Uint8Array(1.2e7))",
		"'x'.repeat(2 ** 28).replace(/x/g, 'yy')",
		"'ab'.repeat(4e6).split('')",
		"'x'.padEnd(2 ** 29)",
		"'a'.repeat(7e6).lastIndexOf('b'.repeat(100) + 'a')",
		"'a'.repeat(5e6).localeCompare('a'.repeat(5e6) + 'b')",
		"'a'.repeat(3e6).normalize('NFKD')",
		"new Intl.Segmenter().segment('a'.repeat(1e6))",
		"String.raw({raw: {length: 2 ** 52}})",
		"Reflect.apply(Math.max, null, {length: 2 ** 52})",
		"String.fromCharCode.apply(null, {length: 2 ** 31})",
		"new Uint8Array({length: 2 ** 40})",
		"Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)",
		"Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, Infinity)",
		"Atomics.waitAsync(new Int32Array(new SharedArrayBuffer(4)), 0, 0).value",
	},
	"regular expressions": {
		"/(a+)+$/.test('a'.repeat(40) + 'b')",
		"/^(([a-z])+.)+[A-Z]([a-z])+$/.test('a'.repeat(60))",
		"/(.*)*x/.test('y'.repeat(50))",
		"/(?=(a+))a*b\\1/.test('a'.repeat(30000))",
		"new RegExp('(' .repeat(1e5) + ')'.repeat(1e5))",
		"new RegExp('a{1,65535}'.repeat(1000)).test('a')",
		"/(?:a?){50}a{50}/.test('a'.repeat(49))",
		"'a'.repeat(1e6).match(/./gu).length; for (;;) 'a'.repeat(1e6).match(/./gu)",
		"const r = /x/y; r.exec = () => ({index: 0, 0: ''}); 'xxx'.replaceAll(/x/g, () => { for (;;); })",
	},
	"memory": {
		"const a = []; for (;;) a.push(new Uint8Array(1e6))",
		"const m = new Map(); for (let i = 0;; i++) m.set({}, i)",
		"let s = 'x'; for (;;) s += s",
		"let s = 'x'; for (;;) s = s + s + s.length",
		"const a = []; for (;;) a.push([...a, a])",
		"const a = []; for (;;) a.push(() => a)",
		"new ArrayBuffer(2 ** 40)",
		"new ArrayBuffer(8, {maxByteLength: 2 ** 40}).resize(2 ** 39)",
		"const b = new SharedArrayBuffer(8, {maxByteLength: 2 ** 32}); b.grow(2 ** 31)",
		"const o = {}; for (let i = 0;; i++) o['k' + i] = i",
		"for (let i = 0;; i++) globalThis['g' + i] = new Array(1000)",
		"const s = []; for (;;) s.push(Symbol('x'.repeat(1e5)))",
		"for (let i = 0;; i++) Symbol.for('k' + i)",
		"const c = []; for (;;) c.push(structuredClone?.(c) ?? new Array(1e5).fill(c))",
		"let f = x => x; for (;;) { const g = f; f = x => g(x) }",
		"const w = []; for (;;) w.push(new WeakRef(new Array(1e4).fill({})))",
		"const r = new FinalizationRegistry(() => { for (;;); }); for (let i = 0;; i++) r.register({}, i)",
		"try { const a = []; for (;;) a.push(new Array(1e5)) } catch { const b = []; for (;;) b.push(b) }",
		"const k = []; try { for (;;) k.push('y'.repeat(1e5)) } catch {} k",
		"const e = []; for (;;) e.push(new Error('x'.repeat(1e4)))",
	},
	"numbers": {
		"BigInt(2) ** 100000000n",
		"2n ** (2n ** 40n)",
		"let x = 3n; for (;;) x *= x",
		"1n << (2n ** 31n)",
		"(3n ** 2000000n).toString()",
		"BigInt('9'.repeat(5e6))",
		"BigInt.asUintN(2 ** 53 - 1, -1n)",
		"(123.456).toString(36).repeat(2 ** 29)",
		"(1).toFixed(100).padEnd(2 ** 29)",
	},
	"depth": {
		"(function f() { f() })()",
		"(function f() { try { f() } finally { f() } })()",
		"class A { get x() { return this.x } } new A().x",
		"const o = {toString() { return '' + o }}; '' + o",
		"let a = []; for (let i = 0; i < 1e6; i++) a = [a]; JSON.stringify(a)",
		"let a = []; for (let i = 0; i < 1e6; i++) a = [a]; a.flat(Infinity)",
		"let a = []; for (let i = 0; i < 1e6; i++) a = [a]; a",
		"let f = () => 1; for (let i = 0; i < 1e5; i++) { const g = f; f = () => g() } f()",
		"eval('('.repeat(1e5))",
		"eval('['.repeat(1e6))",
		"eval('1' + '+1'.repeat(1e6))",
		"eval('!'.repeat(1e6) + 1)",
		"eval('a=>'.repeat(1e5) + 1)",
		"eval('{'.repeat(1e5) + '}'.repeat(1e5))",
		"eval('`${'.repeat(1e5))",
		"new Function('return ' + 'f('.repeat(1e5))",
		"new Function(...Array(1e5).fill('a'), '')",
		"const p = new Proxy({}, {get: (t, k, r) => Reflect.get(r, k)}); p.x",
		"let p = {}; for (let i = 0; i < 1e6; i++) p = Object.create(p); p.x",
		"let p = {}; for (let i = 0; i < 1e6; i++) p = new Proxy(p, {}); p.x",
		"const b = (f => f.bind(null)); let f = () => 1; for (let i = 0; i < 1e6; i++) f = b(f); f()",
		"let p = Promise.resolve(); for (let i = 0; i < 1e6; i++) p = Promise.resolve(p).then(() => p); await p",
	},
	"JSON": {
		"JSON.parse('['.repeat(1e6))",
		"JSON.parse('{\"a\":'.repeat(1e6))",
		"JSON.parse('[' + '1,'.repeat(5e6) + '1]')",
		"JSON.parse('\"' + '\\\\u0000'.repeat(2e6) + '\"')",
		"JSON.stringify({toJSON() { return this }})",
		"JSON.stringify(new Proxy([], {get: (t, k) => k === 'length' ? 2 ** 50 : 1}))",
		"JSON.stringify({a: 1}, null, ' '.repeat(1e9))",
		"JSON.parse('[1]', function (k, v) { for (;;); })",
		"JSON.parse('[1, 2]', function (k, v) { this[1] = this; return v })",
	},
	"promises": {
		"await api.slow()",
		"for (;;) api.slow()",
		"for (;;) api.add(1, 2)",
		"for (;;) await api.add(1, 2)",
		"for (;;) await null",
		"for (;;) Promise.resolve().then(() => {})",
		"const f = () => queueMicrotask(f); f(); await new Promise(() => {})",
		"const f = () => Promise.resolve().then(f); f(); await new Promise(() => {})",
		"const f = () => setTimeout(f); f(); await new Promise(() => {})",
		"for (;;) setTimeout(() => {}, 1e9)",
		"setInterval(() => { for (let i = 0; i < 1e5; i++) setTimeout(() => {}) }); await new Promise(() => {})",
		"await {then(r) { r(this) }}",
		"await {then() {}}",
		"await {get then() { for (;;); }}",
		"await new Proxy({}, {get() { return () => {} }})",
		"Promise.all(Array(1e6).fill(api.slow()))",
		"await Promise.all(Array.from({length: 1e6}, () => api.slow()))",
		"const p = new Promise(r => setTimeout(r, 1)); await p.then(() => p.then(() => new Promise(() => {})))",
		"async function f() { await f() } await f()",
		"async function* g() { for (;;) yield api.add(1, 1) } for await (const x of g());",
		"for await (const x of {[Symbol.asyncIterator]() { return {next: () => ({done: false})} }});",
		"return new Promise(() => {})",
		"return {then(r) { setInterval(r, 1) }}",
	},
	"the bridge": {
		"await api.add({toJSON() { for (;;); }})",
		"await api.add('x'.repeat(9e6))",
		"await Promise.all(Array.from({length: 16}, () => api.add('x'.repeat(9e5))))",
		"await api.add(...Array(1e6).fill(1))",
		"let a = []; for (let i = 0; i < 1e5; i++) a = [a]; await api.add(a)",
		"await api.add(1n)", "await api.add(api)", "await api.add(new Proxy([], {}))",
		"const a = []; a.push(a); await api.add(a)",
		"Array.prototype.toJSON = () => undefined; await api.add(1, 2)",
		"Array.prototype.toJSON = () => ({}); await api.add(1, 2)",
		"Object.prototype.toJSON = () => 'x'; await api.add({}, {})",
		"Array.prototype[Symbol.iterator] = function* () { yield 1 }; await api.add(1, 2)",
		"Promise.prototype.then = () => { throw 1 }; await api.add(1, 2)",
		"globalThis.Promise = class {}; await api.add(1, 2)",
		"Map.prototype.get = Map.prototype.set = Map.prototype.delete = () => ({resolve() { throw 1 }}); await api.add(1, 2)",
		"JSON.parse = JSON.stringify = () => { throw 1 }; await api.add(1, 2)",
		"Reflect.apply = Function.prototype.call = () => { throw 1 }; await api.add(1, 2)",
		"Object.defineProperty(Object.prototype, 'resolve', {get() { throw 1 }}); await api.add(1, 2)",
		"Object.defineProperty(Object.prototype, 'then', {get() { throw 1 }}); await api.who.am(); await api.add(1, 2)",
		"api.add = () => 'mine'; api.add.call = 1; await api.add(1, 2)",
		"api.__proto__.x = 1; api.add.__proto__.y = 1; await api.add(1, 2)",
		"await api.add.constructor('return globalThis')().api.broken()",
		"api.broken(); api.broken(); await api.broken()",
		"await Promise.allSettled(Array.from({length: 100}, () => api.broken()))",
		"api.slow(); throw 1", "api.slow(); 1",
		"new api.add(1, 2)", "await Reflect.construct(api.add, [1, 2])", "await api.add.apply(null, {length: 2 ** 30})",
		"await api.add`${1}${2}`",
		"await new Proxy(api.add, {apply() { for (;;); }})(1)",
	},
	"what is returned": {
		"({get a() { for (;;); }})",
		"({toJSON() { for (;;); }, toString() { for (;;); }})",
		"new Proxy({}, {ownKeys() { for (;;); }})",
		"new Proxy({}, {ownKeys: () => Array.from({length: 1e6}, (_, i) => 'k' + i), getOwnPropertyDescriptor: () => ({enumerable: true, configurable: true, value: 1})})",
		"new Proxy([], {get: (t, k) => k === 'length' ? 2 ** 53 : 'x'.repeat(1e4)})",
		"const p = Proxy.revocable([], {}); p.revoke(); p.proxy",
		"const p = Proxy.revocable({}, {}); p.revoke(); [p.proxy, {a: p.proxy}]",
		"new Proxy({}, {getPrototypeOf() { throw 1 }, get() { throw 1 }, has() { throw 1 }})",
		"const o = {}; for (let i = 0; i < 1000; i++) o['x'.repeat(60000) + i] = 1; o",
		"Array.from({length: 10000}, (_, i) => Symbol('x'.repeat(1e4)))",
		"Array.from({length: 5000}, (_, i) => '\\u0001'.repeat(5000))",
		"for (let i = 0; i < 200; i++) console.log('\\u0001'.repeat(65000))",
		"for (;;) console.log('x'.repeat(1e6))",
		"console.log(new Proxy({}, {get() { for (;;); }}))",
		"console.log({get a() { console.log(this); return 1 }})",
		"const m = new Map(); m.set(m, m); m.set({get a() { for (let i = 0; i < 1e6; i++) m.set({}, i) }}, 1); m",
		"class A extends Array { static get [Symbol.species]() { for (;;); } } new A(1, 2).map(x => x)",
		"class A extends Map { forEach() { for (;;); } get size() { for (;;); } } new A([[1, 2]])",
		"class D extends Date { toISOString() { for (;;); } } new D()",
		"Object.defineProperty(Promise, Symbol.hasInstance, {value() { throw 1 }}); ({a: 1})",
		"Object.defineProperty(Error, Symbol.hasInstance, {value() { for (;;); }}); ({a: 1})",
		"Object.assign(() => {}, {get name() { for (;;); }})",
		"Object.defineProperty(() => {}, 'name', {get() { for (;;); }})",
		"[3n ** 500000n]",
		"const a = Array(100).fill(0).map(() => []); a.forEach(x => a.forEach(y => x.push(y))); a",
		"let a = {}; const top = a; for (let i = 0; i < 1000; i++) a = a.a = {b: a}; top",
		"throw new Proxy({}, {get() { for (;;); }})",
		"throw {get name() { throw 1 }, get message() { throw 2 }, get stack() { throw 3 }}",
		"throw Object.assign(new Error('x'.repeat(1e6)), {stack: 'y'.repeat(1e6), name: 'z'.repeat(1e6)})",
		"throw Symbol('x')", "throw null", "throw undefined", "throw 1n", "throw () => {}",
		"throw Object.assign(new Error('<eval>:1:1'), {stack: '<eval>:99999999999999999999:1\\n<eval>:-1:-1\\n' + '<eval>:1\\n'.repeat(1e5)})",
		"class InternalError extends Error {} const e = new InternalError('interrupted'); e.name = 'InternalError'; throw e",
		"const e = new Error('out of memory'); e.name = 'InternalError'; throw e",
		"Error.stackTraceLimit = 1e9; Error.prepareStackTrace = () => { for (;;); }; throw new Error('x')",
		"new Date(8.64e15 + 1)", "new Uint8Array(1e7)", "new Float64Array(1e5).fill(NaN)", "Array(4294967295)", "[,,,1]",
		"new DataView(new ArrayBuffer(8))", "new SharedArrayBuffer(8)", "new WeakMap()", "new WeakRef({})", "(function () { return arguments })(1, 2)",
		"Object.create(null, {a: {value: 1, enumerable: true}})", "Object(1n)", "Object(Symbol('x'))", "globalThis", "api", "console", "new (class extends null { constructor() { return Object.create(null) } })",
	},
	"ways out": {
		"import('fs')", "await import('os')", "import fs from 'fs'", "export default 1", "import.meta.url", "await import('data:text/javascript,1')", "await import('/etc/passwd')",
		"require('fs')", "process.exit(1)", "std.exit(1)", "os.exec(['sh'])", "Deno.exit(1)", "print(1)", "load('/etc/passwd')", "std.loadFile('/etc/passwd')",
		"[].constructor.constructor('return this')().process.exit()", "(async () => {}).constructor('return process')()", "(function* () {}).constructor('return this')().next().value.std",
		"new Worker('x')", "new WebAssembly.Memory({initial: 65536})", "fetch('http://127.0.0.1')", "new XMLHttpRequest()", "new WebSocket('ws://127.0.0.1')",
		"globalThis.__send('x')", "__clock()", "arguments.callee.caller", "(function f() { return f.caller })()", "new Error().stack",
		"with (globalThis) { x = 1 }", "Function('return this')().constructor.constructor('return process')()",
		"new ShadowRealm().evaluate('1')", "gc()", "debugger; 1", "new Function('/*', '*/){')", "throw new (class extends Error { get [Symbol.toStringTag]() { throw 1 } })",
	},
	"those who come later": {
		"globalThis.leak = 'seen'; Object.prototype.leak = 'seen'; Array.prototype.leak = 'seen'; 1",
		"globalThis.api = {}; globalThis.console = {}; globalThis.setTimeout = null; delete globalThis.Promise; 1",
		"Object.freeze(globalThis); Object.freeze(Object.prototype); 1",
		"JSON.stringify = () => 'spoilt'; Promise.prototype.then = null; 1",
		"setTimeout(() => { globalThis.leak = 'seen' }, 100); setInterval(() => { globalThis.leak = 'seen' }, 1); 1",
		"queueMicrotask(function f() { globalThis.leak = 'seen'; queueMicrotask(f) }); 1",
		"new FinalizationRegistry(() => { globalThis.leak = 'seen' }).register({}); 1",
		"api.slow().finally(() => { globalThis.leak = 'seen' }); 1",
		"Symbol.for('leak').description; Object.prototype[Symbol.for('leak')] = 'seen'; 1",
		"Math.random = () => 4; Date.now = () => 0; parseInt = null; 1",
	},
}

// harmless returns a program that runs at the same time or afterwards, and its
// result.
func harmless(n int) (code, want string) {
	s := strconv.Itoa(n)
	switch n % 4 {
	case 0:
		return "await api.add(" + s + ", 1)", strconv.Itoa(n + 1)
	case 1:
		return "[typeof leak, ({}).leak === undefined, [].leak === undefined, ({})[Symbol.for('leak')] === undefined, " + s + "]", `["undefined",true,true,true,` + s + `]`
	case 2:
		return "await new Promise(r => setTimeout(r, 1, JSON.stringify({n: " + s + "})))", `"{\"n\":` + s + `}"`
	default:
		return "console.log(" + s + "); [Math.random() < 1, Object.isFrozen(Object.prototype), typeof setTimeout, Date.now() > 1, await api.who.am()].join()", `"true,false,function,true,OWNER"`
	}
}

func checkHarmless(r *Runner, owner engi.Owner, n int) error {
	code, want := harmless(n)
	want = strings.ReplaceAll(want, "OWNER", string(owner))
	for try := 0; ; try++ {
		x, err := r.Scripts().Run(context.Background(), engi.ScriptSpec{Owner: owner, Code: code, Timeout: 30 * time.Second})
		if engi.Is(err, engi.Exhausted) && try < 200 {
			continue // too many scripts wait for a helper, so a refusal is correct
		}
		if err != nil {
			return fmt.Errorf("%s: %w", code, err)
		}
		if !x.OK || string(x.Value) != want || n%4 == 3 && (len(x.Stdout) != 1 || x.Stdout[0] != strconv.Itoa(n)) {
			return fmt.Errorf("%s: got %s, %q, %+v, want %s", code, x.Value, x.Stdout, x.Error, want)
		}
		return nil
	}
}

// checkSane checks the properties that every result must have.
func checkSane(x engi.ScriptResult) error {
	b, err := json.Marshal(x.Value)
	switch {
	case err != nil || len(x.Value) > 0 && !json.Valid(x.Value):
		return fmt.Errorf("the value is no JSON: %v: %.100s", err, b)
	case len(x.Value) > 2<<20, len(x.Stdout)+len(x.Stderr) > 100, len(x.Warnings) > 20:
		return fmt.Errorf("%d bytes, %d lines, %d warnings", len(x.Value), len(x.Stdout)+len(x.Stderr), len(x.Warnings))
	case x.OK != (x.Error == nil), !x.OK && x.Value != nil:
		return fmt.Errorf("ok is %t with %+v and %.100s", x.OK, x.Error, x.Value)
	case x.Error != nil && x.Error.Kind == engi.ScriptLost:
		return fmt.Errorf("the interpreter was lost: %+v", x.Error)
	case strings.Contains(fmt.Sprintf("%s %q %q %+v", x.Value, x.Stdout, x.Stderr, x.Error), "secret"):
		return fmt.Errorf("it learned a secret")
	}
	return nil
}

// TestHostileScripts runs each hostile program separately. Its result must be sane
// and in time, and must not affect the next program, which may run on the same
// helper.
func TestHostileScripts(t *testing.T) {
	r := runner(t, func(o *Options) {
		o.Limits.MinTimeout, o.Limits.Timeout, o.Limits.MaxTimeout = 20*time.Millisecond, 60*time.Millisecond, 30*time.Second
	})
	try := func(t *testing.T, owner engi.Owner, language engi.Language, code string, n int) {
		began := time.Now()
		x, err := r.Scripts().Run(t.Context(), engi.ScriptSpec{Owner: owner, Code: code, Language: language})
		if err != nil {
			t.Errorf("%s: %v", code, err)
			return
		}
		if err := checkSane(x); err != nil {
			t.Errorf("%s: %v", code, err)
		}
		if took := time.Since(began); took > 30*time.Second { // 0.2 s on an idle machine
			t.Errorf("%s: took %v", code, took)
		}
		if err := checkHarmless(r, owner, n); err != nil {
			t.Errorf("after %s: %v", code, err)
		}
	}
	for kind, codes := range hostile {
		t.Run(kind, func(t *testing.T) {
			var lanes sync.WaitGroup
			next := make(chan int)
			for i := range 3 {
				owner := engi.Owner("eve" + strconv.Itoa(i))
				lanes.Go(func() {
					for n := range next {
						try(t, owner, engi.JavaScript, codes[n], n)
						if n%8 == 0 { // the same after one more step
							try(t, owner, engi.TypeScript, codes[n], n+1)
						}
					}
				})
			}
			for n := range codes {
				next <- n
			}
			close(next)
			lanes.Wait()
		})
	}
}

// TestHostileAmongHarmless runs hostile and harmless programs of several owners at the
// same time, on fewer helpers than callers, and checks the results of the harmless
// ones.
func TestHostileAmongHarmless(t *testing.T) {
	r := runner(t, func(o *Options) {
		o.Max, o.Warm = 5, 2
		o.Limits.MinTimeout, o.Limits.Timeout, o.Limits.MaxTimeout = 20*time.Millisecond, 40*time.Millisecond, 30*time.Second
	})
	var codes []string
	for _, list := range hostile {
		codes = append(codes, list...)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	var attackers, victims sync.WaitGroup
	var attacks, answers atomic.Int64
	for i := range 3 {
		attackers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 1))
			for ctx.Err() == nil {
				code := codes[random.IntN(len(codes))]
				if x, err := r.Scripts().Run(ctx, engi.ScriptSpec{Owner: engi.Owner("eve" + strconv.Itoa(i%2)), Code: code}); err == nil {
					if err := checkSane(x); err != nil {
						t.Errorf("%s: %v", code, err)
					}
				} else if ctx.Err() == nil && !engi.Is(err, engi.Exhausted) {
					t.Errorf("%s: %v", code, err)
				}
				attacks.Add(1)
			}
		})
	}
	for i := range 4 {
		owner := []engi.Owner{"ann", "bob", "eve0", "eve1"}[i] // two of them share owner with an attacker
		victims.Go(func() {
			for n := i * 1_000_000; ctx.Err() == nil; n++ {
				if err := checkHarmless(r, owner, n); err != nil {
					t.Errorf("%s: %v", owner, err)
					return
				}
				answers.Add(1)
			}
		})
	}
	attackers.Wait()
	victims.Wait()
	t.Logf("%d hostile programs, %d innocent ones", attacks.Load(), answers.Load())
	if attacks.Load() < 10 || answers.Load() < 10 {
		t.Errorf("%d hostile programs, %d innocent ones", attacks.Load(), answers.Load())
	}
}

// processorTicks returns the processor time of a process, in units of 10 ms.
func processorTicks(t *testing.T, pid int) (ticks int) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Error(err)
		return math.MaxInt
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	for _, field := range strings.Fields(rest)[11:13] { // user time and system time
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Error(err)
		}
		ticks += n
	}
	return ticks
}

// TestHelperKilled kills helpers during and between programs. The result must say so,
// and the next program must get another helper.
func TestHelperKilled(t *testing.T) {
	r := runner(t, func(o *Options) { o.Limits.Timeout, o.Limits.MaxTimeout = 20*time.Second, 20*time.Second })
	for i := range 5 {
		h, err := r.pool.acquire(t.Context(), "ann")
		if err != nil {
			t.Fatal(err)
		}
		r.pool.giveBack(h, true)
		if i%2 == 0 {
			h.cmd.Process.Kill()
			<-h.dead
			x := mustRun(t, r, "ann", "1 + 1")
			if !x.OK || string(x.Value) != "2" {
				t.Errorf("after an idle helper died: %s, %+v", x.Value, x.Error)
			}
			continue
		}
		begun := processorTicks(t, h.cmd.Process.Pid)
		go func() {
			for processorTicks(t, h.cmd.Process.Pid) < begun+5 { // the program runs
				time.Sleep(time.Millisecond)
			}
			h.cmd.Process.Signal(os.Kill)
		}()
		x := mustRun(t, r, "ann", "for (;;);")
		if x.OK || x.Error.Kind != engi.ScriptLost {
			t.Errorf("under a killed helper: %+v", x.Error)
		}
		if x := mustRun(t, r, "ann", "1 + 1"); string(x.Value) != "2" {
			t.Errorf("after a killed helper: %+v", x.Error)
		}
	}
}
