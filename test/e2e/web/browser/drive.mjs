// Uses the dashboard in Chromium and prints a line of JSON for each thing that
// it looked at: {name, ok, detail}.
import { readFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { createRequire } from 'node:module'
import { chromium } from 'playwright-core'
import { pages, use } from './pages.mjs'

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8')
const input = JSON.parse(readFileSync(0, 'utf8'))
const { port, host } = new URL(input.url)

function check(name, ok, detail = '') {
  console.log(JSON.stringify({ name, ok: Boolean(ok), detail: String(detail) }))
}

/** Runs steps; what they throw is what was found. */
async function step(name, steps) {
  try {
    await steps()
    check(name, true)
  } catch (err) {
    check(name, false, `${err.stack}\nat ${globalThis.where?.url()}`)
  }
}

function equal(got, want, what) {
  if (got !== want) throw new Error(`${what}: got ${JSON.stringify(got)}, want ${JSON.stringify(want)}`)
}

/** Asks the API without the browser. */
async function api(method, path, body, key = input.admin) {
  const resp = await fetch(input.url + path, {
    method, body: body && JSON.stringify(body), headers: { Accept: 'application/json', Authorization: `Bearer ${key}`, ...(body ? { 'Content-Type': 'application/json' } : {}) },
  })
  const text = await resp.text()
  if (!resp.ok) throw new Error(`${method} ${path}: ${resp.status} ${text}`)
  return text ? JSON.parse(text) : undefined
}

/** Has axe look at a page. */
async function accessible(page, look) {
  if (!await page.evaluate(() => Boolean(globalThis.axe))) await page.evaluate(axe)
  const { violations } = await page.evaluate(() => {
    const own = document.querySelector('engi-ui') ? ['landmark-main-is-top-level', 'landmark-no-duplicate-main', 'landmark-unique'] : [] // a page of a model has landmarks of its own
    return globalThis.axe.run(document, { resultTypes: ['violations'], rules: Object.fromEntries(own.map((id) => [id, { enabled: false }])) })
  })
  if (violations.length) throw new Error(`${look}: ` + violations.map((v) => `${v.id}: ${v.nodes.map((n) => `${n.html} ${n.any.map((a) => a.message)}`).join('; ')}`).join('\n'))
}

const browser = await chromium.launch({
  executablePath: input.chromium, headless: true,
  args: [
    '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update',
    '--disable-sync', '--disable-dev-shm-usage', '--host-resolver-rules=MAP rebound.test 127.0.0.1, MAP evil.localhost 127.0.0.1',
  ],
})

// Whatever a page complains of, or asks others for, is a fault.
const faults = []
const expected = []
async function visitor(options) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, reducedMotion: 'reduce', ...options })
  const page = await context.newPage()
  page.setDefaultTimeout(60_000)
  page.on('console', (m) => { if ((m.type() === 'error' || m.type() === 'warning') && !expected.some((e) => e.test(m.text()))) faults.push(`${page.url()}: ${m.text()}`) })
  page.on('pageerror', (e) => faults.push(`${page.url()}: ${e.stack}`))
  page.on('request', (r) => {
    const u = new URL(r.url())
    if (!['blob:', 'data:', 'about:'].includes(u.protocol) && u.host !== host && !u.host.endsWith(`.localhost:${port}`)) faults.push(`${page.url()} asked ${r.url()}`)
  })
  return page
}
const settled = (page) => page.waitForFunction(() => document.querySelector('h1') && !document.querySelector('.loading'))
const open = async (page, address) => {
  await page.goto(`${input.url}/#/${address}`)
  await settled(page)
}

try {
  const page = await visitor()
  globalThis.where = page

  await step('the link signs in', async () => {
    await page.goto(input.link)
    await page.getByRole('heading', { name: 'Home', level: 1 }).waitFor()
    equal(page.url(), input.url + '/', 'the address')
    const [cookie, ...more] = await page.context().cookies()
    equal(`${cookie.httpOnly} ${cookie.sameSite} ${more.length}`, 'true Strict 0', 'the cookie')
    equal(await page.evaluate(() => document.cookie), '', 'what scripts see of the cookie')
    await page.locator('.side .state.good').waitFor()
  })
  await step('the link works once', async () => {
    const other = await visitor()
    const seen = faults.length
    const resp = await other.goto(input.link)
    equal(resp.status(), 401, 'the status')
    await other.getByText('This link was already used').waitFor()
    faults.splice(seen) // Chromium reports the status
    equal((await other.context().cookies()).length, 0, 'cookies')
    await other.context().close()
  })

  const shared = { input, faults, accessible, expect: (e) => expected.push(e), step, equal, api, visitor, open, settled, page }
  await use(shared)

  // Every page, as one sees it.
  for (const { name, address, ready } of pages(shared)) {
    await step(`look at ${name}`, async () => {
      await page.goto('about:blank') // nothing stays open
      await open(page, address)
      if (ready) await page.locator(ready).first().waitFor()
      for (const look of ['light', 'dark', 'phone']) {
        await page.emulateMedia({ colorScheme: look === 'dark' ? 'dark' : 'light', reducedMotion: 'reduce' })
        await page.setViewportSize(look === 'phone' ? { width: 390, height: 844 } : { width: 1280, height: 800 })
        await page.waitForTimeout(60)
        await page.screenshot({ path: `${input.shots}/${name}-${look}.png` })
        const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)
        if (wide > 0) throw new Error(`${look}: ${wide} pixels too wide`)
        if (look === 'phone') continue
        await accessible(page, look)
      }
      await page.emulateMedia({ colorScheme: 'light', reducedMotion: 'reduce' })
      await page.setViewportSize({ width: 1280, height: 800 })
    })
  }
  check('no page complains, and none asks others', faults.length === 0, faults.join('\n'))

  await step('a page of another origin cannot use the cookie', async () => {
    // On the same host, so that the browser does send the cookie.
    const evil = createServer((req, resp) => {
      resp.setHeader('Content-Type', 'text/html')
      resp.end('<!doctype html><title>evil</title>')
    }).listen(0)
    try {
      for (const name of ['127.0.0.1', 'evil.localhost']) {
        const there = await page.context().newPage()
        await there.goto(`http://${name}:${evil.address().port}/`)
        const found = await there.evaluate(async (target) => {
          const found = []
          const attempt = async (what, f) => { try { if (await f()) found.push(what) } catch { /* refused, as it should be */ } }
          await attempt('read', async () => (await fetch(`${target}/v1/keys`, { credentials: 'include' })).ok)
          await attempt('read the session', async () => (await fetch(`${target}/dashboard/session`, { credentials: 'include' })).ok)
          await attempt('write', async () => (await fetch(`${target}/v1/secrets`, { method: 'POST', mode: 'no-cors', credentials: 'include', body: '{"name":"stolen","value":"x"}' })).ok)
          await attempt('ask first', async () => (await fetch(`${target}/v1/secrets`, { method: 'POST', credentials: 'include', headers: { 'Engi-Dashboard': '1', 'Content-Type': 'application/json' }, body: '{"name":"stolen","value":"x"}' })).ok)
          await attempt('sign out', async () => (await fetch(`${target}/dashboard/session`, { method: 'DELETE', credentials: 'include' })).ok)
          await attempt('open a socket', () => new Promise((done) => {
            const s = new WebSocket(`${target.replace('http', 'ws')}/v1/sandboxes/x/processes/y/terminal`)
            s.onopen = () => done(true)
            s.onerror = () => done(false)
          }))
          await attempt('show it in a frame', () => new Promise((done) => {
            const f = document.createElement('iframe')
            f.src = target + '/'
            f.onload = () => { try { done(f.contentDocument === null && f.contentWindow.length > 0) } catch { done(false) } }
            document.body.append(f)
          }))
          return found
        }, input.url)
        equal(found.join(), '', `a page of ${name} could`)
        const frame = there.frames().find((f) => f !== there.mainFrame())
        for (let i = 0; i < 100 && !frame.url(); i++) await new Promise((r) => setTimeout(r, 50)) // it is told later
        equal(frame.url(), 'chrome-error://chromewebdata/', 'what the frame shows')
        await there.close()
      }
    } finally {
      evil.close()
    }
    const names = (await api('GET', '/v1/secrets')).items.map((s) => s.name)
    equal(names.includes('stolen'), false, 'a secret was stored')
    equal((await page.evaluate(async () => (await (await fetch('/dashboard/session')).json()).signed_in)), true, 'still signed in')
  })
  await step('another name of the node is refused', async () => {
    const other = await visitor()
    const resp = await other.goto(`http://rebound.test:${port}/`)
    equal(resp.status(), 403, 'the status')
    await other.context().close()
  })

  const ann = await visitor()
  await step('a key signs in', async () => {
    await ann.goto(input.url)
    await ann.getByLabel('API key').fill('engi_nonsense')
    const seen = faults.length
    await ann.getByRole('button', { name: 'Sign in' }).click()
    await ann.getByRole('alert').getByText('not an engi key').waitFor()
    faults.splice(seen) // Chromium reports the status
    await ann.getByLabel('API key').fill(input.key.secret)
    await ann.getByRole('button', { name: 'Sign in' }).click()
    await ann.getByRole('heading', { name: 'Home', level: 1 }).waitFor()
  })
  await step('a revoked key ends the session', async () => {
    await api('DELETE', `/v1/keys/${input.key.id}`)
    await ann.getByRole('heading', { name: 'Sign in' }).waitFor()
    equal(await ann.evaluate(async () => (await fetch('/v1/keys', { headers: { 'Engi-Dashboard': '1' } })).status), 401, 'a request after that')
    await ann.context().close()
  })
  await step('signing out', async () => {
    await page.goto(input.url)
    await page.getByRole('button', { name: 'Sign out' }).click()
    await page.getByRole('heading', { name: 'Sign in' }).waitFor()
    equal((await page.context().cookies()).length, 0, 'cookies')
  })
} finally {
  await browser.close()
}
