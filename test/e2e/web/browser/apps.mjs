// Shows pages of a node in programs that know MCP Apps, or A2UI, and prints a line of JSON for
// each thing that it looked at: {name, ok, detail}.
import { browser, equal, input, step } from './chromium.mjs'

const faults = []
/** Hears what goes wrong in a page, but for connections that end with it. */
function listen(page, name) {
  page.setDefaultTimeout(60_000)
  page.on('console', (m) => { if (m.type() === 'error' && !/net::ERR_/.test(m.text())) faults.push(`${name}: ${m.text()}`) })
  page.on('pageerror', (e) => faults.push(`${name}: ${e.stack}`))
}
async function program(name) {
  const page = await (await browser.newContext({ viewport: { width: 900, height: 700 } })).newPage()
  listen(page, name)
  await page.goto(`${input.url}/${name}?sandbox=${encodeURIComponent(input.sandbox)}`)
  await page.waitForFunction(() => globalThis.ready)
  const call = (tool, args) => page.evaluate(([tool, args]) => globalThis.call(tool, args), [tool, args])
  const { structuredContent: { session } } = await call('create_session', {})
  return {
    page, call, session,
    show: (tool, args, more) => page.evaluate(([tool, args, more]) => globalThis.show(tool, args, more), [tool, args, more]),
    view: page.frameLocator('iframe').frameLocator('iframe'),
    // The document itself.
    frame: async () => {
      for (const end = Date.now() + 30_000; Date.now() < end; await page.waitForTimeout(50)) {
        const found = page.frames().find((f) => f.parentFrame()?.parentFrame())
        if (found) return found
      }
      throw new Error('there is no frame in a frame')
    },
    close: () => page.context().close(),
  }
}
async function eventually(get, want, what) {
  let got
  for (const end = Date.now() + 30_000; Date.now() < end; await new Promise((done) => setTimeout(done, 50))) {
    got = await get()
    if (JSON.stringify(got) === JSON.stringify(want)) return
  }
  equal(got, want, what)
}
const count = (p) => p.view.locator('#count').textContent()

try {
  for (const name of ['bridge', 'renderer']) {
    await step(`${name}: a counter`, async () => {
      const p = await program(name)
      equal(await p.page.evaluate(() => globalThis.models.filter((m) => m.endsWith('_page')).sort()), ['act_on_page', 'show_page'], 'tools of models')
      const shown = await p.show('act_on_page', { session: p.session, action: 'demo-counter' })
      if (shown.error || !shown.content[0].text.includes('id="count"')) throw new Error(JSON.stringify(shown))
      if (name === 'bridge') equal([shown.app.name, shown.type, shown.meta.ui.csp.connectDomains], ['engi', 'text/html;profile=mcp-app', []], 'the interface')
      await eventually(() => count(p), '0', 'the page')
      const button = p.view.getByRole('button', { name: 'More' })
      for (const n of ['1', '2', '3']) {
        const began = performance.now()
        await button.click()
        await eventually(() => count(p), n, 'after a click')
        if (n === '3') shown.took = Math.round(performance.now() - began)
      }
      // What a model does, and what happens elsewhere, shows too.
      await p.call('act_on_page', { session: p.session, action: 'decrement' })
      await (await p.frame()).evaluate(() => dispatchEvent(new Event('focus')))
      await eventually(() => count(p), '2', 'after somebody else did something')
      if ((await p.page.evaluate(() => globalThis.heard.sizes.at(-1))) < 40) throw new Error('it says no size')
      await p.close()
      return `a click shows after ${shown.took} ms`
    })
    if (name === 'bridge') await step('an interface shown again', async () => {
      const p = await program(name)
      await p.call('act_on_page', { session: p.session, action: 'demo-todo' })
      await p.show('show_page', { session: p.session })
      await p.view.locator('#todo-text').fill('buy milk')
      await p.view.getByRole('button', { name: 'Add' }).click()
      await eventually(() => p.view.locator('#todos li').allTextContents().then((all) => all.map((s) => s.includes('buy milk'))), [true], 'the form was sent')
      await p.view.locator('#todo-text').fill('eat')
      await p.view.locator('#todo-text').press('Enter')
      await eventually(() => p.view.locator('#todos li').count(), 2, 'the form was sent by Enter')
      await p.close()
    })
    await step(`${name}: typing while an answer is given`, async () => {
      const p = await program(name)
      await p.show('act_on_page', { session: p.session, action: 'draw' })
      await p.view.locator('#go').click()
      const field = p.view.locator('#name')
      await field.click()
      const text = 'what I write is mine'
      await p.page.keyboard.type(text, { delay: 30 })
      equal(await field.inputValue(), text, 'the text')
      equal(await field.evaluate((el) => el === el.getRootNode().activeElement && el.selectionStart), text.length, 'focus and cursor')
      await eventually(() => p.view.locator('#list li').count(), 30, 'all patches')
      equal(await p.view.locator('h1').textContent(), 'Step 29', 'the last one')
      await p.view.getByRole('link').click()
      await eventually(() => p.page.evaluate(() => globalThis.heard.links), ['https://example.com/x'], 'links that the program opened')
      await p.view.locator('#ok').click()
      await eventually(() => p.view.locator('h1').textContent(), 'Saved', 'the form was sent')
      await p.close()
    })
  }
  await step('what it looks like is up to the program', async () => {
    const p = await program('bridge')
    await p.show('act_on_page', { session: p.session, action: 'demo-counter' })
    equal(await p.view.locator('#count').evaluate((el) => getComputedStyle(el).color), 'rgb(1, 2, 3)', 'colour')
    const frame = await p.frame()
    equal(await frame.evaluate(() => getComputedStyle(document.documentElement).colorScheme), 'dark', 'theme')
    await p.page.evaluate(() => globalThis.bridge.sendHostContextChange({ theme: 'light' }))
    await eventually(() => frame.evaluate(() => getComputedStyle(document.documentElement).colorScheme), 'light', 'theme')
    equal(await p.page.evaluate(() => globalThis.bridge.teardownResource({})), {}, 'the end')
    await p.close()
  })
  await step('nothing else runs or is reached', async () => {
    const p = await program('bridge')
    await p.show('act_on_page', { session: p.session, action: 'demo-counter' })
    await eventually(() => count(p), '0', 'the page')
    const frame = await p.frame()
    const before = faults.length
    const found = await frame.evaluate(async ([node, key]) => {
      globalThis.ran = 0
      for (const make of [
        () => Object.assign(document.createElement('script'), { textContent: 'ran++' }),
        () => Object.assign(document.createElement('script'), { src: 'data:text/javascript,ran++' }),
        () => Object.assign(document.createElement('iframe'), { srcdoc: '<script>parent.ran++</script>' }),
      ]) document.body.append(make())
      const button = document.createElement('button')
      button.setAttribute('onclick', 'ran++')
      document.body.append(button)
      button.click()
      setTimeout('ran++')
      const reached = await fetch(`${node}/v1/sessions`, { headers: { Authorization: `Bearer ${key}` } }).then(() => 'reached', () => 'refused')
      const image = await new Promise((done) => Object.assign(new Image(), { onload: () => done('loaded'), onerror: () => done('refused'), src: `${node}/favicon.ico` }))
      await new Promise((done) => setTimeout(done, 300))
      return { ran, reached, image }
    }, [input.node, input.key])
    faults.splice(before) // which the policy reports
    equal(found, { ran: 0, reached: 'refused', image: 'refused' }, 'attempts')
    await p.close()
  })
  await step('a program that passes on no calls', async () => {
    const p = await program('bridge')
    await p.call('act_on_page', { session: p.session, action: 'demo-counter' })
    await p.show('show_page', { session: p.session }, {})
    await eventually(() => count(p), '0', 'the page')
    await eventually(() => p.view.getByRole('alert').textContent().then((s) => s.includes('no tools')), true, 'what is wrong')
    await p.close()
  })
  await step('a session that is not there', async () => {
    const p = await program('bridge')
    const shown = await p.show('show_page', { session: 'nobody' })
    equal(shown.error, true, 'the result')
    await eventually(() => p.view.getByRole('alert').textContent().then((s) => s.includes('no such session')), true, 'what is wrong')
    await p.close()
  })
  await step('a resource of one session', async () => {
    const p = await program('renderer')
    await p.call('act_on_page', { session: p.session, action: 'demo-counter' })
    await p.show('show_page', undefined, { toolResourceUri: `ui://engi/sessions/${p.session}` })
    await eventually(() => count(p), '0', 'the page')
    equal(await p.page.evaluate(() => globalThis.heard.errors), [], 'errors')
    await p.close()
  })
  await step('a2ui', async () => {
    const page = await (await browser.newContext()).newPage()
    listen(page, 'a2ui')
    await page.goto(`${input.url}/a2ui`)
    await page.waitForFunction(() => globalThis.ready)
    await page.evaluate(() => void globalThis.act('demo-counter'))
    for (const n of ['0', '1', '2']) {
      await page.getByText(n, { exact: true }).waitFor()
      await page.getByRole('button', { name: 'More' }).click()
    }
    await page.getByText('3', { exact: true }).waitFor()
    // A form, and typing while the page changes.
    await page.evaluate(() => void globalThis.act('draw'))
    await page.getByRole('button', { name: 'Go' }).click()
    const field = page.getByRole('textbox')
    await field.click()
    await page.keyboard.type('what I write is mine', { delay: 30 })
    await page.getByText('Step 29').waitFor()
    equal(await field.inputValue(), 'what I write is mine', 'the text')
    await page.getByRole('button', { name: 'Save' }).click()
    await page.getByText('Saved').waitFor()
    equal(await page.evaluate(() => globalThis.sent.at(-1)), ['save', { name: 'what I write is mine' }], 'what was sent')
    await page.context().close()
  })
  await step('no errors', async () => equal(faults, [], 'console'))
} finally {
  await browser.close()
}
