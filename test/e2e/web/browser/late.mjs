// Opens the page in its first argument, but holds back the client of Vite: prints a line
// once the page has the module in its second argument, reads one, lets the client come, and
// prints a line when the page shows the text that it has read.
import { createInterface } from 'node:readline'
import { chromium } from 'playwright-core'

const [, , address, module] = process.argv
const browser = await chromium.launch({
  executablePath: process.env.ENGI_TEST_CHROMIUM ?? '/usr/bin/chromium', headless: true,
  args: ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync', '--disable-dev-shm-usage'],
})
try {
  const page = await browser.newPage({ ignoreHTTPSErrors: true })
  page.setDefaultTimeout(60_000)
  let release
  const held = new Promise((done) => { release = done })
  await page.route('**/@vite/client', async (route) => { await held; await route.continue() })
  const has = page.waitForResponse((r) => new URL(r.url()).pathname === module)
  has.catch(() => {}) // it is told below
  await page.goto(address, { waitUntil: 'commit', timeout: 60_000 })
  await (await has).finished()
  console.log('held')
  for await (const text of createInterface({ input: process.stdin })) {
    release()
    await page.getByText(text, { exact: true }).waitFor().catch(async (e) => {
      throw new Error(`it shows ${await page.locator('body').innerText()}`, { cause: e })
    })
    console.log('shown')
    break
  }
} finally {
  await browser.close()
}
