// Opens a page, counts to three on it, and waits until its heading changes.
// Prints one line of JSON per step; the test edits the page in between.
import { chromium } from 'playwright-core'

const [url, first, second] = process.argv.slice(2)
const say = (o) => console.log(JSON.stringify(o))
const browser = await chromium.launch({
  executablePath: process.env.ENGI_TEST_CHROMIUM ?? '/usr/bin/chromium',
  headless: true,
  args: [
    '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync', '--disable-dev-shm-usage',
  ],
})
try {
  const page = await browser.newPage()
  const sockets = [], problems = []
  page.on('websocket', (s) => {
    const seen = { url: s.url(), frames: 0 }
    sockets.push(seen)
    s.on('framereceived', () => seen.frames++)
  })
  page.on('pageerror', (e) => problems.push(String(e)))
  page.on('requestfailed', (r) => problems.push(`${r.url()}: ${r.failure()?.errorText}`))
  page.on('response', (r) => { if (r.status() >= 400) problems.push(`${r.url()}: ${r.status()}`) })
  const load = (text) => page.waitForFunction((t) => document.querySelector('h1')?.textContent === t, text, { timeout: 120_000 })
  await page.goto(url, { timeout: 120_000, waitUntil: 'domcontentloaded' })
  await load(first)
  for (let i = 0; i < 3; i++) await page.click('button')
  await page.evaluate(() => { globalThis.mark = 'not loaded again' })
  say({ step: 'shown', heading: await page.textContent('h1'), count: await page.textContent('button'), sockets, problems })
  await load(second)
  say({
    step: 'changed', heading: await page.textContent('h1'), count: await page.textContent('button'),
    mark: await page.evaluate(() => globalThis.mark ?? ''), sockets, problems,
  })
} finally {
  await browser.close()
}
