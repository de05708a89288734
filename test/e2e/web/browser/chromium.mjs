// What all scripts here begin with: the browser, and lines of JSON for each thing
// that they looked at: {name, ok, detail}.
import { readFileSync } from 'node:fs'
import { chromium } from 'playwright-core'

export const input = JSON.parse(readFileSync(0, 'utf8'))

/** Runs steps; what they throw is what was found, what they return is said. */
export async function step(name, steps) {
  const began = performance.now()
  let line
  try {
    const late = new Promise((_, fail) => setTimeout(() => fail(new Error('it takes longer than three minutes')), 180_000).unref())
    line = { name, ok: true, detail: await Promise.race([steps(), late]) ?? '' }
    line.detail += ` (${Math.round(performance.now() - began)} ms)`
  } catch (err) {
    line = { name, ok: false, detail: err.stack }
  }
  console.log(JSON.stringify(line))
}

export function equal(got, want, what) {
  got = JSON.stringify(got)
  want = JSON.stringify(want)
  if (got !== want) throw new Error(`${what}: got ${got}, want ${want}`)
}

/** Looks until something is as it should be, for a while: pages follow what they hear of. */
export async function becomes(look, want, what) {
  for (const end = Date.now() + 10_000; ; await new Promise((next) => setTimeout(next, 50))) {
    const got = await look()
    if (JSON.stringify(got) === JSON.stringify(want) || Date.now() > end) return equal(got, want, what)
  }
}

export const browser = await chromium.launch({
  executablePath: input.chromium, headless: true,
  args: ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync', '--disable-dev-shm-usage'],
})
