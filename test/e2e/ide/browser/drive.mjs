// Opens JupyterLab by a link, makes a notebook, runs a cell, and prints what it saw
// as one line of JSON.
import { chromium } from 'playwright-core'

const [url, executablePath, shot] = process.argv.slice(2)
const browser = await chromium.launch({
  executablePath, headless: true,
  args: [
    '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync', '--disable-dev-shm-usage',
  ],
})
try {
  const page = await browser.newPage({ viewport: { width: 1200, height: 760 }, reducedMotion: 'reduce' })
  page.setDefaultTimeout(60_000)
  const sockets = [], problems = [], foreign = []
  const host = new URL(url).host
  page.on('websocket', (s) => {
    const seen = { url: s.url(), frames: 0 }
    sockets.push(seen)
    s.on('framereceived', () => seen.frames++)
  })
  page.on('pageerror', (e) => problems.push(String(e)))
  page.on('request', (r) => {
    const u = new URL(r.url())
    if (!['blob:', 'data:'].includes(u.protocol) && u.host !== host) foreign.push(r.url())
  })
  page.on('response', (r) => { if (r.status() >= 400) problems.push(`${r.request().method()} ${r.url()}: ${r.status()}`) })
  await page.goto(url, { waitUntil: 'domcontentloaded' })
  await page.click('.jp-LauncherCard[data-category="Notebook"]')
  await page.getByText('Python 3 (ipykernel) | Idle').waitFor() // what is typed before may get lost
  const cell = page.locator('.jp-NotebookPanel .jp-Cell .cm-content').first()
  await cell.click()
  await page.keyboard.type('print(6*7)')
  await page.waitForFunction((e) => e.textContent === 'print(6*7)', await cell.elementHandle())
  await page.keyboard.press('Shift+Enter')
  const output = page.locator('.jp-NotebookPanel .jp-OutputArea-output pre').first()
  await output.waitFor()
  await page.keyboard.press('Control+s')
  await page.waitForFunction(() => !document.querySelector('.jp-mod-dirty'))
  console.log(JSON.stringify({ output: (await output.textContent()).trim(), path: new URL(page.url()).pathname, sockets, problems, foreign }))
} finally {
  await browser.contexts()[0]?.pages()[0]?.screenshot({ path: shot })
  await browser.close()
}
