// Keeps pages of one app open, by the ways in its first argument: {name: address}. Each line
// {"text"} that it reads is what all must show then; it prints {name, origin, ms, typed, loaded,
// problems} for each. {"text", "back": true} waits until each has been loaded again, too.
import { createInterface } from 'node:readline'
import { chromium } from 'playwright-core'

const browser = await chromium.launch({
  executablePath: process.env.ENGI_TEST_CHROMIUM ?? '/usr/bin/chromium', headless: true,
  args: ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync', '--disable-dev-shm-usage', '--ignore-certificate-errors'],
})
try {
  const pages = await Promise.all(Object.entries(JSON.parse(process.argv[2])).map(async ([name, address]) => {
    const context = await browser.newContext({ ignoreHTTPSErrors: true }) // of its own, so that each page is in front
    const page = await context.newPage()
    page.setDefaultTimeout(60_000)
    const of = { name, page, loads: 0, loaded: 0, problems: [], said: [] }
    page.on('console', (m) => { of.said.push(`${new Date().toISOString()} ${m.text()}`); if (m.type() === 'error' && !m.text().startsWith('Failed to load resource')) of.problems.push(m.text()) })
    page.on('pageerror', (e) => of.problems.push(String(e)))
    page.on('websocket', (s) => s.on('framereceived', ({ payload }) => { if (String(payload).includes('"connected"')) of.loads++ }))
    page.on('response', (r) => { if (r.status() >= 400) of.problems.push(`${r.url()}: ${r.status()}`) })
    await page.goto(address, { timeout: 60_000 })
    return of
  }))
  const seen = async ({ page, loads, problems, said }) =>
    `${await page.locator('body').innerText({ timeout: 1000 }).catch(String)}, loads ${loads}, ${problems.join('; ')}\n${said.slice(-20).join('\n')}`
  const shows = async (of, { text, back }, began) => {
    const { page } = of
    for (const end = Date.now() + 60_000; back && of.loads === of.loaded; await new Promise((done) => setTimeout(done, 20))) {
      if (Date.now() > end) throw new Error(`${of.name} does not come back, it shows ${await seen(of)}`)
    }
    await page.getByText(text, { exact: true }).waitFor().catch(async (e) => {
      throw new Error(`${of.name} shows ${await seen(of)}`, { cause: e })
    })
    const ms = Math.round(performance.now() - began)
    const input = page.locator('input')
    const typed = await input.inputValue()
    await input.fill('typed')
    for (const end = Date.now() + 60_000; of.loads === 0; await new Promise((done) => setTimeout(done, 20))) {
      if (Date.now() > end) throw new Error(`${of.name} has no socket`)
    }
    const loaded = of.loads - of.loaded
    of.loaded = of.loads
    return { name: of.name, origin: await page.evaluate(() => origin), ms, typed, loaded, problems: of.problems.splice(0) }
  }
  for await (const line of createInterface({ input: process.stdin })) {
    const began = performance.now()
    console.log(JSON.stringify(await Promise.all(pages.map((of) => shows(of, JSON.parse(line), began)))))
  }
} finally {
  await browser.close()
}
