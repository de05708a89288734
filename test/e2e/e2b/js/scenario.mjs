// A scenario is one thing that an application may rely on. Files register
// theirs; run() performs them, some at the same time, and prints one line of
// JSON each.
import assert from 'node:assert/strict'
import { Sandbox } from 'e2b'

export { assert }

const all = []
let section = ''

/** begins a section of the compatibility table */
export const about = (name) => { section = name }

/** registers a scenario; f gets a place to put clean-up functions */
export const scenario = (name, f) => all.push({ section, name, f })

/** waits until f returns something truthy */
export async function until(f, what = 'it', ms = 20_000) {
  const end = Date.now() + ms
  for (;;) {
    const v = await f()
    if (v) return v
    if (Date.now() > end) throw new Error(`${what} has not happened in ${ms} ms`)
    await sleep(50)
  }
}

export const sleep = (ms) => new Promise((r) => setTimeout(r, ms))

/** a sandbox that goes when the scenario ends */
export async function box(t, opts = {}) {
  const { template = 'base', ...rest } = opts
  const s = await Sandbox.create(template, { timeoutMs: 120_000, ...rest })
  t.after(() => s.kill())
  return s
}

/** a sandbox that scenarios of one file share */
export function shared(opts = {}) {
  let made
  after(async () => made && (await made).kill())
  return () => (made ??= Sandbox.create('base', { timeoutMs: 600_000, ...opts }))
}

const finals = []
export const after = (f) => finals.push(f)

/** asserts that f fails with an error of class E whose message matches */
export async function fails(f, E, text) {
  let got
  try { got = await f() } catch (err) {
    assert.ok(err instanceof E, `${err?.constructor?.name}: ${err?.message}, want ${E.name}`)
    if (text) assert.match(String(err.message), text)
    return err
  }
  assert.fail(`no error, but ${JSON.stringify(got)}`)
}

export async function run(width = Number(process.env.SCENARIO_WIDTH || 3)) {
  const only = process.env.SCENARIO_ONLY && new RegExp(process.env.SCENARIO_ONLY)
  const queue = all.filter((s) => !only || only.test(`${s.section}: ${s.name}`))
  const worker = async () => {
    for (let s; (s = queue.shift()); ) {
      const ends = []
      const begun = Date.now()
      let error = ''
      try {
        let timer
        const late = new Promise((_, no) => { timer = setTimeout(() => no(new Error('the scenario takes too long')), s.limit ?? 90_000) })
        try { await Promise.race([s.f({ after: (f) => ends.push(f) }), late]) } finally { clearTimeout(timer) }
      } catch (err) {
        error = `${err?.name}: ${err?.message}\n${(err?.stack || '').split('\n').slice(1, 4).join('\n')}`
      }
      for (const f of ends.reverse()) {
        try { await f() } catch (err) { error ||= `clean-up: ${err?.message}` }
      }
      console.log(JSON.stringify({ section: s.section, name: s.name, ok: !error, error, ms: Date.now() - begun }))
    }
  }
  await Promise.all(Array.from({ length: width }, worker))
  for (const f of finals) await f()
  process.exit(0)
}
