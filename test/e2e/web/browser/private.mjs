// Sees an app in the dashboard whose preview is private, in two of its sandboxes.
import { becomes, browser, equal, input, step } from './chromium.mjs'

const context = await browser.newContext({ viewport: { width: 1280, height: 960 } })
const page = await context.newPage()
page.setDefaultTimeout(60_000)
const shown = page.frameLocator('iframe[title="The page of shop"]')
const call = (method, path) => page.evaluate(async ([method, path]) => {
  const resp = await fetch(path, { method, headers: { 'Engi-Dashboard': '1' } })
  if (!resp.ok) throw new Error(`${path}: ${resp.status}`)
  return resp.json().catch(() => undefined)
}, [method, path])

try {
  await step('a stranger sees nothing', async () => {
    const stranger = await (await browser.newContext()).newPage()
    const resp = await stranger.goto(input.preview)
    equal(resp.status(), 403, 'the status')
    await stranger.getByText('This app is private').waitFor()
    await stranger.goto(input.signed)
    await stranger.getByText('Nothing here yet').waitFor()
    await becomes(() => stranger.url(), input.preview, 'the address that remains')
    await stranger.context().close()
  })
  await step('in its frame', async () => {
    await page.goto(input.link)
    await page.getByRole('heading', { name: 'Home', level: 1 }).waitFor()
    await page.goto(`${input.url}/#/apps/${input.app}`)
    await shown.getByText('Nothing here yet').waitFor()
    await page.getByRole('button', { name: 'Pick an element' }).waitFor()
  })
  await step('in a tab', async () => {
    const tabs = context.waitForEvent('page')
    await page.getByRole('link', { name: 'Open in a tab' }).click()
    const tab = await tabs
    await tab.getByText('Nothing here yet').waitFor()
    await becomes(async () => [tab.url(), await tab.evaluate(() => opener)], [input.preview, null], 'its address, and who has opened it')
    await tab.close()
  })
  await step('in another sandbox', async () => {
    await call('DELETE', `/v1/sandboxes/${input.sandbox}`)
    const { sandbox_id: now } = await call('POST', `/v1/apps/${input.app}/open`)
    equal(now === input.sandbox, false, 'the sandbox is the same')
    const stranger = await (await browser.newContext()).newPage()
    await stranger.goto(input.signed) // the link of before
    await stranger.getByText('Nothing here yet').waitFor()
    await stranger.context().close()
    await page.reload()
    await shown.getByText('Nothing here yet').waitFor()
  })
} finally {
  await browser.close()
}
