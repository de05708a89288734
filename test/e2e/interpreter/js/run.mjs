// Scenarios of the code interpreter with the package that applications use.
// Each prints one line of JSON; the sandbox of the environment's server is
// shared by all of them, so what one defines has names of its own.
import assert from 'node:assert/strict'
import { NotFoundError, Sandbox, SandboxError, TimeoutError, InvalidArgumentError } from '@e2b/code-interpreter'

// With SCENARIO_TEMPLATE, those of the languages that it has beside the usual ones.
const template = process.env.SCENARIO_TEMPLATE
const all = []
const scenario = (name, f) => template || all.push({ name, f })
const special = (name, f) => template && all.push({ name, f })
const sleep = (ms) => new Promise((r) => setTimeout(r, ms))
const out = (x) => x.logs.stdout.join('')
const err = (x) => x.logs.stderr.join('')
let s

async function fails(f, type, text) {
  try {
    await f()
  } catch (e) {
    assert.ok(e instanceof type, `${e?.name}: ${e?.message}`)
    if (text) assert.match(e.message, text)
    return e
  }
  assert.fail('no error')
}

// ---- Python

scenario('a result and what stays defined', async () => {
  await s.runCode('basic = 1')
  const x = await s.runCode('basic += 1; basic')
  assert.equal(x.text, '2')
  assert.equal(x.error, undefined)
  assert.equal(x.results.length, 1)
  assert.ok(x.results[0].isMainResult)
})

scenario('standard output and error', async () => {
  const x = await s.runCode('import sys\nprint("out"); print("err", file=sys.stderr)')
  assert.deepEqual([x.logs.stdout, x.logs.stderr, x.text], [['out\n'], ['err\n'], undefined])
})

scenario('output in one piece, not one per line', async () => {
  const x = await s.runCode('for i in range(100): print(i)')
  assert.equal(x.logs.stdout.length, 1)
  assert.equal(out(x), Array.from({ length: 100 }, (_, i) => `${i}\n`).join(''))
})

scenario('output while it runs, to callbacks', async () => {
  const seen = [], results = [], errors = []
  const begun = Date.now()
  const x = await s.runCode('import time\nfor i in range(3): print(i); time.sleep(0.6)\ndisplay("d")\n1/0', {
    onStdout: (m) => seen.push([m.line, m.error, Date.now() - begun]), onStderr: (m) => assert.ok(m.error),
    onResult: (r) => results.push(r.text), onError: (e) => errors.push(e.name),
  })
  assert.deepEqual(seen.map(([l]) => l), ['0\n', '1\n', '2\n'])
  assert.ok(seen[2][2] - seen[0][2] > 600 && seen.every(([, e]) => !e), JSON.stringify(seen))
  assert.deepEqual([results, errors, x.error.name], [['d'], ['ZeroDivisionError'], 'ZeroDivisionError'])
})

scenario('characters of every length arrive whole', async () => {
  const text = 'aé€😀'.repeat(30_000)
  const x = await s.runCode('print("aé€😀" * 30_000); "é😀"')
  assert.equal(out(x), text + '\n')
  assert.equal(x.text, 'é😀')
})

scenario('strings without quotes', async () => {
  assert.equal((await s.runCode('"it" + "em"')).text, 'item')
})

scenario('indented code', async () => {
  assert.equal((await s.runCode('  a1 = 5\n  if a1:\n    a1 += 1\n  a1')).text, '6')
})

scenario('await at the top level', async () => {
  const x = await s.runCode('import asyncio\nasync def f():\n  await asyncio.sleep(0.05)\n  return 7\nawait f()')
  assert.equal(x.text, '7')
})

scenario('tasks go on while others await', async () => {
  await s.runCode('import asyncio\nticks = []\nasync def tick():\n  for i in range(3):\n    ticks.append(i); await asyncio.sleep(0.01)\njob = asyncio.create_task(tick())')
  assert.equal((await s.runCode('await job; ticks')).text, '[0, 1, 2]')
})

scenario('shell lines and magics', async () => {
  const x = await s.runCode('!echo shell; id -un\n%env HOME')
  assert.match(out(x), /^shell\nuser\n/)
  assert.equal(x.text, '/home/user')
  assert.match(out(await s.runCode('%timeit -n1 -r1 1')), /per loop/)
})

scenario('errors with a traceback', async () => {
  const x = await s.runCode('def broken():\n  raise ValueError("why")\nbroken()')
  assert.deepEqual([x.error.name, x.error.value], ['ValueError', 'why'])
  assert.match(x.error.traceback, /in broken/)
  assert.doesNotMatch(x.error.traceback, /\x1b/)
  assert.equal((await s.runCode('x = = 1')).error.name, 'SyntaxError')
  assert.equal((await s.runCode('raise SystemExit(2)')).error.name, 'SystemExit')
})

scenario('input fails instead of waiting', async () => {
  assert.equal((await s.runCode('input("name? ")')).error.name, 'StdinNotImplementedError')
})

scenario('rich results of every kind', async () => {
  const x = await s.runCode(`
from IPython.display import HTML, Markdown, SVG, Latex, JSON, Javascript, Image, display
display(HTML("<b>é</b>")); display(Markdown("# m")); display(Latex("$x$")); display(JSON({"a": [1]})); display(Javascript("1"))
display(SVG("<svg xmlns='http://www.w3.org/2000/svg'></svg>"))
display({"text/plain": "p", "application/x-odd": {"a": 1}}, raw=True)
5`)
  const [html, md, latex, json, js, svg, odd, main] = x.results
  assert.equal(html.html, '<b>é</b>')
  assert.equal(md.markdown, '# m')
  assert.equal(latex.latex, '$x$')
  assert.deepEqual(json.json, { a: [1] })
  assert.equal(js.javascript, '1')
  assert.match(svg.svg, /^<svg/)
  assert.deepEqual(odd.extra['application/x-odd'], { a: 1 })
  assert.deepEqual([main.text, main.isMainResult, html.isMainResult], ['5', true, false])
})

scenario('pictures of PIL', async () => {
  const x = await s.runCode('from PIL import Image\nim = Image.new("RGB", (4, 4), "red")\nim.save("/tmp/im.png")\nim.show()\nim')
  assert.equal(x.results.length, 3)
  for (const r of x.results) assert.match(r.png, /^iVBOR/)
})

scenario('sympy as latex', async () => {
  const x = await s.runCode('import sympy\nsympy.init_printing(use_latex="mathjax")\nsympy.Symbol("x") ** 2')
  assert.match(x.results[0].latex, /x\^\{2\}/)
})

scenario('data frames as text, html and data', async () => {
  const x = await s.runCode('import pandas as pd, numpy as np\npd.DataFrame({"n": [1, 2], "t": ["a", "é"], "f": [0.5, np.nan], "d": pd.to_datetime(["2024-01-02", "2024-01-03"])})')
  const r = x.results[0]
  assert.match(r.html, /<table/)
  assert.match(r.text, /2024-01-02/)
  assert.deepEqual([r.data.n, r.data.t, r.data.f], [[1, 2], ['a', 'é'], [0.5, null]])
  assert.match(r.data.d[0], /^2024-01-02T00:00:00/)
})

async function chart(code) {
  const x = await s.runCode(`import matplotlib.pyplot as plt, numpy as np, datetime\nplt.close("all")\n${code}\nplt.show()`)
  assert.equal(x.error, undefined, x.error?.traceback)
  const r = x.results.at(-1)
  assert.match(r.png, /^iVBOR/)
  return r.chart
}

scenario('chart: lines', async () => {
  const c = await chart(`x = np.linspace(0, 10, 100)
plt.plot(x, np.sin(x), label="sin"); plt.plot(x, np.cos(x), label="cos")
plt.title("Waves"); plt.xlabel("Time (s)"); plt.ylabel("Amplitude (V)"); plt.legend()`)
  assert.deepEqual([c.type, c.title, c.x_label, c.x_unit, c.y_unit, c.x_scale, c.y_scale], ['line', 'Waves', 'Time (s)', 's', 'V', 'linear', 'linear'])
  assert.deepEqual(c.elements.map((e) => [e.label, e.points.length]), [['sin', 100], ['cos', 100]])
  assert.ok(c.elements[0].points.every(([a, b]) => typeof a === 'number' && typeof b === 'number'))
  assert.ok(c.x_ticks.length === c.x_tick_labels.length && c.x_ticks.length > 3)
})

scenario('chart: lines over dates, with a logarithmic axis', async () => {
  const c = await chart('plt.plot([datetime.date(2023, 9, 1) + datetime.timedelta(days=i) for i in range(5)], [1, 10, 100, 5, 7]); plt.yscale("log")')
  assert.deepEqual([c.type, c.x_scale, c.y_scale], ['line', 'datetime', 'log'])
  assert.match(c.elements[0].points[0][0], /^2023-09-01T/)
})

scenario('chart: scatter', async () => {
  const c = await chart('for k in "AB": plt.scatter(np.arange(50), np.arange(50) ** 2, label=k)')
  assert.equal(c.type, 'scatter')
  assert.deepEqual(c.elements.map((e) => [e.label, e.points.length]), [['A', 50], ['B', 50]])
})

scenario('chart: bars', async () => {
  const c = await chart('plt.bar(["Ann", "Bob"], [100, 200], label="Books"); plt.xlabel("Authors")')
  assert.deepEqual([c.type, c.x_label], ['bar', 'Authors'])
  assert.deepEqual(c.elements, [{ label: 'Ann', group: 'Books', value: 100 }, { label: 'Bob', group: 'Books', value: 200 }])
  const groups = await chart('for i, k in enumerate("mn"): plt.bar(np.arange(2) + i * 0.25, (1 + i, 2), 0.25, label=k)\nplt.xticks(np.arange(2) + 0.125, ["A", "B"])')
  assert.deepEqual(groups.elements.map((e) => [e.label, e.group, e.value]), [['A', 'm', 1], ['B', 'm', 2], ['A', 'n', 2], ['B', 'n', 2]])
  const flat = await chart('plt.barh(["Ann", "Bob"], [1, 2])')
  assert.deepEqual(flat.elements.map((e) => [e.label, e.value]), [['Ann', 1], ['Bob', 2]])
})

scenario('chart: pie', async () => {
  const c = await chart('plt.pie([1, 3], labels=["a", "b"], autopct="%1.0f%%"); plt.title("Parts")')
  assert.deepEqual([c.type, c.title, c.elements.map((e) => [e.label, Math.round(e.angle), e.radius])], ['pie', 'Parts', [['a', 90, 1], ['b', 270, 1]]])
})

scenario('chart: boxes and whiskers', async () => {
  const c = await chart('plt.boxplot([[1, 2, 3, 4, 5, 20], [2, 3, 4]], labels=["A", "B"]); plt.title("Boxes")')
  assert.deepEqual([c.type, c.title], ['box_and_whisker', 'Boxes'])
  assert.deepEqual(c.elements[0], { label: 'A', min: 1, first_quartile: 2.25, median: 3.5, third_quartile: 4.75, max: 5, outliers: [20] })
  assert.deepEqual(c.elements[1].outliers, [])
})

scenario('chart: several in one figure', async () => {
  const c = await chart('fig, (a, b) = plt.subplots(1, 2); fig.suptitle("Both"); a.scatter([1], [2]); b.bar(["x"], [1]); b.set_title("Right")')
  assert.deepEqual([c.type, c.title, c.elements.map((e) => [e.type, e.title])], ['superchart', 'Both', [['scatter', null], ['bar', 'Right']]])
})

scenario('chart: one that is none of these', async () => {
  assert.equal((await chart('plt.imshow(np.eye(3))')).type, 'unknown')
})

scenario('variables of sandbox and execution', async () => {
  const code = 'import os; [os.getenv(k) for k in ("FROM_SANDBOX", "OWN")]'
  assert.equal((await s.runCode(code)).text, "['yes', None]")
  assert.equal((await s.runCode(code, { envs: { OWN: 'é b', FROM_SANDBOX: 'over' } })).text, "['over', 'é b']")
  assert.equal((await s.runCode(code)).text, "['yes', None]")
})

scenario('files of the sandbox and of the code are the same', async () => {
  await s.files.write('data.csv', 'a,b\n1,2\n')
  assert.equal((await s.runCode('open("data.csv").read()')).text, 'a,b\\n1,2\\n')
  await s.runCode('open("made.txt", "w").write("by code")')
  assert.equal(await s.files.read('/home/user/made.txt'), 'by code')
})

// ---- contexts

scenario('contexts: the first ones, made, listed, removed', async () => {
  const before = await s.listCodeContexts()
  assert.ok(['python', 'javascript'].every((l) => before.some((c) => c.language === l && c.cwd === '/home/user')), JSON.stringify(before))
  const c = await s.createCodeContext({ cwd: '/tmp' })
  assert.deepEqual([c.language, c.cwd], ['python', '/tmp'])
  const closed = await s.createCodeContext({ cwd: '/root' })
  assert.deepEqual([closed.cwd, (await s.runCode('import os; os.getcwd()', { context: closed })).text], ['/root', '/root'])
  await s.removeCodeContext(closed)
  assert.equal((await s.runCode('import os; os.getcwd()', { context: c })).text, '/tmp')
  assert.ok((await s.listCodeContexts()).some((d) => d.id === c.id))
  await s.removeCodeContext(c)
  assert.ok(!(await s.listCodeContexts()).some((d) => d.id === c.id))
  await fails(() => s.runCode('1', { context: c }), NotFoundError, /not found/)
  await fails(() => s.removeCodeContext(c.id), NotFoundError)
  await fails(() => s.restartCodeContext(c.id), NotFoundError)
})

scenario('contexts: variables apart, counts of their own, restart', async () => {
  const c = await s.createCodeContext()
  try {
    await s.runCode('apart = "main"')
    assert.equal((await s.runCode('apart = "c"; apart', { context: c })).executionCount, 1)
    assert.equal((await s.runCode('apart')).text, 'main')
    const x = await s.runCode('apart', { context: c })
    assert.deepEqual([x.text, x.executionCount], ['c', 2])
    await s.restartCodeContext(c)
    const y = await s.runCode('apart', { context: c })
    assert.deepEqual([y.error.name, y.executionCount], ['NameError', 1])
  } finally { await s.removeCodeContext(c) }
})

scenario('contexts: several at once', async () => {
  const a = await s.createCodeContext(), b = await s.createCodeContext()
  // Each waits for the other.
  const meet = (mine, other) => `import os, time\nopen('/tmp/${mine}', 'w').close()\nwhile not os.path.exists('/tmp/${other}'): time.sleep(0.05)\n1`
  const [x, y] = await Promise.all([s.runCode(meet('a', 'b'), { context: a }), s.runCode(meet('b', 'a'), { context: b })])
  assert.deepEqual([x.text, y.text], ['1', '1'])
  await Promise.all([s.removeCodeContext(a), s.removeCodeContext(b)])
})

scenario('executions of one context wait for each other', async () => {
  await s.runCode('order = []')
  await Promise.all(Array.from({ length: 4 }, () => s.runCode('import time; order.append(1); time.sleep(0.05); order.append(-1)')))
  assert.equal((await s.runCode('order == [1, -1] * 4')).text, 'True')
})

scenario('a context and a language exclude each other', async () => {
  const [c] = await s.listCodeContexts()
  await fails(() => s.runCode('1', { context: c, language: 'python' }), InvalidArgumentError)
})

scenario('a language and a directory that are not there', async () => {
  await fails(() => s.runCode('1', { language: 'cobol' }), SandboxError, /400/)
  await fails(() => s.createCodeContext({ cwd: '/no/such' }), SandboxError, /400/)
})

// ---- interrupts and crashes

scenario('a timeout interrupts; the next execution has everything', async () => {
  await s.runCode('kept = "kept"')
  for (const code of ['while True: pass', 'import time; time.sleep(100)', 'import asyncio; await asyncio.sleep(100)', '!sleep 100']) {
    await fails(() => s.runCode(code, { timeoutMs: 1000 }), TimeoutError, /timed out/)
    const begun = Date.now()
    assert.equal((await s.runCode('kept')).text, 'kept', code)
    assert.ok(Date.now() - begun < 30_000, `${code}: ${Date.now() - begun} ms`)
  }
})

scenario('a kernel that does not yield is replaced', async () => {
  const c = await s.createCodeContext({ language: 'js' })
  await fails(() => s.runCode('while (true) {}', { context: c, timeoutMs: 1000 }), TimeoutError)
  assert.equal((await s.runCode('1 + 1', { context: c })).text, '2')
  await s.removeCodeContext(c)
})

scenario('a long silence is no end', async () => {
  assert.equal((await s.runCode('import time; time.sleep(7); "awake"')).text, 'awake')
})

scenario('a kernel that dies', async () => {
  const c = await s.createCodeContext()
  const x = await s.runCode('import os; print("last words", flush=True); os._exit(3)', { context: c })
  assert.deepEqual([out(x), x.error.name], ['last words\n', 'KernelDied'])
  assert.equal((await s.runCode('"fresh"', { context: c })).text, 'fresh')
  await s.removeCodeContext(c)
})

scenario('what code starts lives on', async () => {
  const x = await s.runCode('import subprocess\nweb = subprocess.Popen(["python3", "-m", "http.server", "8123"])\nweb.pid')
  await fails(() => s.runCode('import time; time.sleep(100)', { timeoutMs: 500 }), TimeoutError)
  const r = await s.commands.run('curl -s --retry 30 --retry-delay 1 --retry-connrefused -o /dev/null -w "%{http_code}" localhost:8123')
  assert.equal(r.stdout, '200')
  assert.equal((await s.runCode('web.poll() is None, web.pid')).text, `(True, ${x.text})`)
  await s.runCode('web.kill(); web.wait()')
})

scenario('kernels are no processes of the client, and code is in nobody\'s arguments', async () => {
  assert.deepEqual(await s.commands.list(), [])
  const x = await s.runCode('import subprocess\nsubprocess.run(["pkill", "-f", "some-vite-server"]).returncode')
  assert.equal(x.text, '1')
})

// ---- other languages

const js = (code, o) => s.runCode(code, { language: 'js', ...o })

scenario('javascript: results, output, what stays', async () => {
  await js('const first = { a: [1] }; let second = 2')
  const x = await js('console.log("o"); console.error("e"); const first = 3; ({ first, second })')
  assert.deepEqual([x.text, x.logs.stdout, x.logs.stderr], ['{ first: 3, second: 2 }', ['o\n'], ['e\n']])
  assert.equal((await js('"text"')).text, 'text')
})

scenario('javascript: await and modules', async () => {
  const x = await js('import { readFileSync } from "node:fs"\nimport path from "path"\nawait new Promise((r) => setTimeout(r, 20))\npath.join(typeof readFileSync, "x")')
  assert.equal(x.text, 'function/x')
})

scenario('javascript: errors', async () => {
  const x = await js('function broken() { throw new TypeError("why") }\nbroken()')
  assert.deepEqual([x.error.name, x.error.value], ['TypeError', 'why'])
  assert.match(x.error.traceback, /at broken/)
  assert.equal((await js('let = = 1')).error.name, 'SyntaxError')
})

scenario('javascript: displays and variables', async () => {
  const x = await js('display({ [Symbol.for("Jupyter.display")]: () => ({ "text/html": "<i>" }) }); Deno.jupyter.md`# m`')
  assert.deepEqual(x.results.map((r) => r.html ?? r.markdown), ['<i>', '# m'])
  assert.equal((await js('process.env.OWN', { envs: { OWN: 'x' } })).text, 'x')
  assert.equal((await js('process.env.OWN ?? "unset"')).text, 'unset')
})

scenario('javascript: interrupted while it waits', async () => {
  await js('let waiting = "still"')
  await fails(() => js('await new Promise((r) => setTimeout(r, 1e5))', { timeoutMs: 1000 }), TimeoutError)
  assert.equal((await js('waiting')).text, 'still')
})

scenario('typescript', async () => {
  const ts = (code) => s.runCode(code, { language: 'ts' })
  assert.equal((await ts('interface P { x: number }\nenum E { A = 4 }\nconst p: P = { x: E.A }\np.x')).text, '4')
  assert.equal((await ts('const q = <T,>(v: T): T => v; q<string>(`${p.x}`)')).text, '4')
  assert.equal((await ts('let bad: = 1')).error.name, 'SyntaxError')
})

scenario('bash', async () => {
  const bash = (code, o) => s.runCode(code, { language: 'bash', ...o })
  const x = await bash('cd /tmp; n=3; f() { echo "f$n"; }; echo "Hello $FROM_SANDBOX"')
  assert.deepEqual([out(x), x.error], ['Hello yes\n', undefined])
  assert.equal(out(await bash('pwd; f; echo $OWN', { envs: { OWN: "it's" } })), "/tmp\nf3\nit's\n")
  assert.equal((await bash('ls /no/such')).error.value, 'exit status 2')
  await fails(() => bash('sleep 100; echo on', { timeoutMs: 800 }), TimeoutError)
  assert.equal(out(await bash('echo $n')), '3\n')
})

scenario('kernels sleep and wake with their sandbox', async () => {
  const t = await Sandbox.create({ timeoutMs: 120_000 })
  try {
    for (const [language, code] of [['python', 'kept = 5; pid = __import__("os").getpid()'], ['js', 'const kept = 6'], ['bash', 'kept=7']]) await t.runCode(code, { language })
    const { text } = await t.runCode('pid')
    await t.pause()
    await Sandbox.connect(t.sandboxId)
    assert.equal((await t.runCode('import os; kept, os.getpid()')).text, `(5, ${text})`)
    assert.equal((await t.runCode('kept', { language: 'js' })).text, '6')
    assert.equal(out(await t.runCode('echo $kept', { language: 'bash' })), '7\n')
  } finally { await t.kill() }
})

scenario('a sandbox that is killed while code runs', async () => {
  const t = await Sandbox.create({ timeoutMs: 120_000 })
  const run = t.runCode('import time; print("up"); time.sleep(100)', { onStdout: () => void t.kill() })
  await fails(() => run, TimeoutError, /killed while the request was in progress/)
})

scenario('from inside, at its usual port', async () => {
  const t = await Sandbox.create({ timeoutMs: 120_000 })
  try {
    const curl = async (args) => (await t.commands.run(`curl -sS ${args}`)).stdout
    assert.equal(await curl('http://0.0.0.0:49999/health'), 'OK')
    await t.runCode('shared = 42')
    const code = `-d '{"code": "shared"}' http://localhost:49999/execute`
    assert.match(await curl(code), /"text":"42"/)
    assert.match(await curl(`-w '%{http_code}' -H 'Origin: https://example.com' ${code}`), /403$/)
    await t.pause()
    await Sandbox.connect(t.sandboxId)
    assert.match(await curl(code), /"text":"42"/)
  } finally { await t.kill() }
})

scenario('a new context is the last of the list', async () => {
  const t = await Sandbox.create({ timeoutMs: 120_000 })
  try {
    const made = await t.createCodeContext({ language: 'bash' })
    const list = await t.listCodeContexts()
    assert.deepEqual([list.map((c) => c.language), list.at(-1).id], [['python', 'javascript', 'bash'], made.id])
  } finally { await t.kill() }
})

scenario('languages that this template lacks', async () => {
  for (const language of ['r', 'java']) {
    await fails(() => s.runCode('1', { language }), SandboxError, /400/)
    // The package for JavaScript does not show the text; that for Python does.
    const { stdout } = await s.commands.run(`curl -sS -d '{"code": "1", "language": "${language}"}' http://localhost:49999/execute`)
    assert.match(stdout, /no kernel for .* use the template code-interpreter-r-java/)
  }
})

// ---- R

const r = (code, o) => s.runCode(code, { language: 'r', ...o })

special('R: output, results and what stays defined', async () => {
  assert.deepEqual((await r('print("Hello, World!")')).logs.stdout, ['[1] "Hello, World!"\n'])
  await r('basic <- 20\nadd <- function(n) basic + n')
  const x = await r('invisible(3); add(1); "é😀"')
  assert.deepEqual([x.text, x.results.map((v) => v.text), x.results.map((v) => v.isMainResult), x.error], ['[1] "é😀"', ['[1] 21', '[1] "é😀"'], [false, true], undefined])
  const y = await r('message("to stderr"); x <- 1')
  assert.deepEqual([y.text, err(y)], [undefined, 'to stderr\n'])
  assert.match((await r('data.frame(a = 1:2, b = c("x", "y"))')).text, /a b\n1 1 x\n2 2 y/)
})

special('R: variables of sandbox and execution', async () => {
  const code = 'cat(Sys.getenv("FROM_SANDBOX"), Sys.getenv("OWN", "none"), sep = "|")'
  assert.equal(out(await r(code, { envs: { OWN: 'it\'s "é"', FROM_SANDBOX: 'over' } })), 'over|it\'s "é"')
  assert.equal(out(await r(code)), 'yes|none')
  assert.equal((await r('Sys.getenv("FROM_SANDBOX")')).text, '[1] "yes"')
})

special('R: errors', async () => {
  const x = await r('broken <- function(n) stop("why \\"so\\"")\n1\nbroken(2)\nprint(3)')
  assert.deepEqual([x.error.name, x.error.value, out(x)], ['Error', 'why "so"', ''])
  assert.match(x.error.traceback, /^Error: why "so"\n1: broken\(2\)\n2: stop\(.*\)$/)
  assert.deepEqual(x.results.map((v) => v.text), ['[1] 1'])
  assert.match((await r('1 +')).error.value, /unexpected end of input/)
  assert.match((await r('1 + not_there')).error.value, /'not_there' not found/)
  const late = await r('warning("beware"); 5')
  assert.match(err(late), /beware/)
  assert.equal(late.text, '[1] 5')
})

special('R: pictures', async () => {
  const x = await r('plot(1:3)\nhist(c(1, 2, 2))\n7')
  const png = x.results.filter((v) => v.png).map((v) => Buffer.from(v.png, 'base64'))
  assert.equal(png.length, 2)
  for (const p of png) assert.equal(p.subarray(1, 4).toString() + p.subarray(-8, -4).toString(), 'PNGIEND')
  assert.equal((await r('png("/tmp/own.png", type = "cairo"); plot(1); invisible(dev.off()); file.exists("/tmp/own.png")')).text, '[1] TRUE')
})

special('R: interruption and exit', async () => {
  await r('kept <- 5')
  await fails(() => r('cat("up\\n"); repeat Sys.sleep(0.1)', { timeoutMs: 1500 }), TimeoutError)
  assert.equal((await r('kept')).text, '[1] 5')
  const x = await r('quit(status = 3)')
  assert.deepEqual([x.error.name, x.error.value], ['ExitError', 'exit status 3'])
  assert.match((await r('kept')).error.value, /not found/)
})

special('R: contexts', async () => {
  const context = await s.createCodeContext({ language: 'r', cwd: '/tmp' })
  assert.equal((await s.runCode('getwd()', { context })).text, '[1] "/tmp"')
  await s.removeCodeContext(context)
})

// ---- Java

const java = (code, o) => s.runCode(code, { language: 'java', ...o })

special('Java: output, results and what stays defined', async () => {
  assert.equal(out(await java('System.out.println("Hello, World! é😀")')), 'Hello, World! é😀\n')
  await java('int basic = 20;\nint add(int n) {\n  return basic + n;\n}\nrecord Point(int x, int y) {}')
  const x = await java('var list = new ArrayList<Integer>(List.of(3, 1, 2)); Collections.sort(list);\nadd(1)')
  assert.deepEqual([x.text, x.results.length, x.results[0].isMainResult, x.error], ['21', 1, true, undefined])
  assert.equal((await java('list')).text, '[1, 2, 3]')
  assert.equal((await java('new Point(1, 2)')).text, 'Point[x=1, y=2]')
  assert.equal((await java('"a \\"é\\" \\n b"')).text, 'a "é" \n b')
  const y = await java('int z = 3;')
  assert.deepEqual([y.text, y.results], [undefined, []])
  assert.equal(err(await java('System.err.print("to stderr")')), 'to stderr')
})

special('Java: variables of sandbox and execution', async () => {
  const code = 'System.getProperty("FROM_SANDBOX") + "|" + System.getProperty("OWN", "none")'
  assert.equal((await java(code, { envs: { OWN: 'it\'s é', FROM_SANDBOX: 'over' } })).text, 'over|it\'s é')
  assert.equal((await java(code)).text, 'yes|none')
})

special('Java: errors', async () => {
  const x = await java('int broken(int n) {\n  throw new IllegalStateException("why");\n}\nSystem.out.println(1);\nbroken(2);\nSystem.out.println(3);')
  assert.deepEqual([x.error.name, x.error.value, out(x)], ['java.lang.IllegalStateException', 'why', '1\n'])
  assert.match(x.error.traceback, /^java.lang.IllegalStateException: why\n    at broken \(/)
  const y = await java('int a = 1;\nint b = nope + 1;')
  assert.equal(y.error.name, 'CompileError')
  assert.match(y.error.traceback, /cannot find symbol[^]*int b = nope \+ 1;/)
  assert.equal((await java('foo(')).error.name, 'CompileError')
  await java('int uses() { return later(); }')
  assert.match((await java('uses()')).error.value, /later\(\)/)
})

special('Java: interruption and exit', async () => {
  await java('int kept = 5')
  await fails(() => java('System.out.println("up"); while (true) { Thread.sleep(100); }', { timeoutMs: 1500 }), TimeoutError)
  assert.equal((await java('kept')).text, '5')
  await fails(() => java('System.out.println("up"); while (true) { }', { timeoutMs: 1500 }), TimeoutError)
  assert.equal((await java('kept')).text, '5')
  assert.equal((await java('System.exit(3)')).error.name, 'KernelDied')
  assert.equal((await java('1 + 1')).text, '2')
})

special('R and Java: large results, and those that are too large', async () => {
  assert.equal((await r('strrep("x", 3e6)')).text.length, 3e6 + '[1] ""'.length)
  assert.equal((await java('"x".repeat(3000000)')).text.length, 3e6)
  for (const x of [await r('strrep("x", 13e6)'), await java('"x".repeat(13000000)')]) {
    assert.equal(x.results.length, 0)
    assert.match(err(x), /left out/)
  }
})

special('R and Java sleep and wake with their sandbox', async () => {
  await r('kept <- 6')
  await java('int woken = 7')
  await s.pause()
  await Sandbox.connect(s.sandboxId)
  assert.equal((await r('kept')).text, '[1] 6')
  assert.equal((await java('woken')).text, '7')
})

s = await Sandbox.create(template ?? 'code-interpreter-v1', { timeoutMs: 900_000, envs: { FROM_SANDBOX: 'yes' } })
const only = process.env.SCENARIO_ONLY && new RegExp(process.env.SCENARIO_ONLY)
try {
  for (const { name, f } of all) {
    if (only && !only.test(name)) continue
    const begun = Date.now()
    let error = '', timer
    const late = new Promise((_, no) => { timer = setTimeout(() => no(new Error('it takes too long')), 90_000) })
    try {
      await Promise.race([f(), late])
    } catch (e) {
      error = `${e?.stack ?? e}`
    }
    clearTimeout(timer)
    console.log(JSON.stringify({ name, error, ms: Date.now() - begun }))
  }
} finally {
  await s.kill()
}
process.exit(0)
