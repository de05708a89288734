// Builds an app in the dashboard: a prompt about an element of the page, what becomes of
// it, errors, files, and the way back.
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { becomes, browser, equal, input, step } from './chromium.mjs'

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8')
const wide = { width: 1280, height: 960 }
const page = await (await browser.newContext({ viewport: wide, reducedMotion: 'reduce' })).newPage()
page.setDefaultTimeout(60_000) // the sandbox and the browser share the processors
const faults = []
page.on('pageerror', (e) => { if (!e.stack.includes(new URL(input.preview).host)) faults.push(e.stack) }) // the app has faults of its own
let sockets = 0 // that pages of apps have had to their servers
let updates = 0 // that have come over them
page.on('websocket', (s) => s.on('framereceived', ({ payload }) => {
  if (String(payload).includes('"connected"')) sockets++
  if (String(payload).includes('"update"')) updates++
}))
/** Waits until something has changed. */
async function until(what, changed) {
  for (const end = Date.now() + 60_000; !changed(); await new Promise((next) => setTimeout(next, 50))) {
    if (Date.now() > end) throw new Error(`${what} does not come`)
  }
}
/** Does something that cuts them, and waits until the page of the app is back. */
async function back(cut) {
  const before = sockets
  await cut()
  await until('the page of the app', () => sockets > before)
}
const shown = page.frameLocator('iframe[title="The page of shop"]')
const inside = () => page.frames().find((f) => f.url().startsWith(new URL(input.preview).origin))
const done = page.getByRole('log', { name: 'What is done' })
const picked = page.getByRole('group', { name: 'Element of the page' })
const prompt = page.getByLabel('What should change?')
const tree = page.getByLabel('Files of the app')
const leaf = (name) => tree.locator('.leaf', { hasText: name })
const top = () => page.evaluate(() => scrollTo(0, 0)) // what is not in sight is not drawn
const tab = (name) => page.getByRole('tab', { name }).click()

/** Has axe look at the page, in light and in dark; and at the same on a phone, which scrolls one way only. */
async function accessible(what) {
  if (!await page.evaluate(() => Boolean(globalThis.axe))) await page.evaluate(axe)
  for (const colorScheme of ['dark', 'light']) {
    await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' })
    const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'], iframes: false }))
    if (violations.length) throw new Error(`${what}, ${colorScheme}: ` + violations.map((v) => `${v.id}: ${v.nodes.map((n) => `${n.html} ${n.any.map((a) => a.message)}`).join('; ')}`).join('\n'))
    await page.screenshot({ path: `${input.shots}/studio-${what}-${colorScheme}.png`, fullPage: true })
  }
  await page.setViewportSize({ width: 390, height: 844 })
  await becomes(() => page.evaluate(() => document.documentElement.scrollWidth), 390, `the width of ${what} on a phone`)
  await page.screenshot({ path: `${input.shots}/studio-${what}-phone.png`, fullPage: true })
  await page.setViewportSize(wide)
}

/** The app as the API has it. */
const app = () => page.evaluate(async (id) => (await fetch(`/v1/apps/${id}`, { headers: { 'Engi-Dashboard': '1' } })).json(), input.app)

async function apply(text) {
  await page.getByRole('button', { name: 'Apply a text' }).click()
  await page.getByLabel("A model's text").fill(text)
  await page.getByRole('button', { name: 'Apply', exact: true }).click()
}

try {
  await step('the page of an app', async () => {
    await page.goto(input.link)
    await page.getByRole('heading', { name: 'Home', level: 1 }).waitFor()
    await page.goto(`${input.url}/#/apps/${input.app}`)
    await shown.getByText('Nothing here yet').waitFor()
    await page.getByRole('button', { name: 'Pick an element' }).waitFor()
    await accessible('new')
  })
  await step('what the page says by itself counts for nothing', async () => {
    const say = (what) => inside().evaluate((what) => parent.postMessage({ type: 'engi:picked', element: what }, '*'), what)
    await say({ selector: 'evil' })
    await page.evaluate(() => postMessage({ type: 'engi:picked', element: { selector: 'evil' } }, '*'))
    const pick = page.getByRole('button', { name: 'Pick an element' })
    await pick.click()
    await say('evil')
    await pick.waitFor() // it has ended that
    await becomes(() => picked.count(), 0, 'elements')
    await page.getByRole('button', { name: 'Pick an element' }).click()
    await say({ selector: '<img src=x onerror=alert(1)>', text: 'x'.repeat(1e6), html: {}, path: 7, line: -1 })
    await picked.getByText('<img src=x onerror=alert(1)>').waitFor()
    await becomes(async () => (await picked.textContent()).length < 200, true, 'what is shown of it is short')
    await becomes(() => page.locator('img[src=x]').count(), 0, 'elements that it has made')
    await page.getByRole('button', { name: 'Remove the element' }).click()
    await becomes(() => picked.count(), 0, 'elements')
  })
  await step('a page that is in no frame has no picker', async () => {
    const alone = await page.context().newPage()
    await alone.goto(input.preview)
    await alone.getByText('Nothing here yet').waitFor()
    await alone.evaluate(() => new Promise((done) => {
      addEventListener('message', done)
      postMessage({ type: 'engi:pick' }, '*')
    }))
    await alone.locator('h1').hover()
    await becomes(() => alone.evaluate(() => document.documentElement.lastElementChild.localName), 'body', 'what is last in the page')
    await alone.close()
  })
  await step('speak about an element', async () => {
    await page.getByRole('button', { name: 'Pick an element' }).click()
    await shown.locator('h1').hover()
    await inside().waitForFunction(() => document.documentElement.lastElementChild.localName === 'div')
    await page.screenshot({ path: `${input.shots}/apps-pick.png` })
    await shown.locator('h1').click()
    await picked.getByText('h1 “Nothing here yet” src/App.tsx:4').waitFor()
    await inside().waitForFunction(() => document.documentElement.lastElementChild.localName === 'body')
    await becomes(() => prompt.evaluate((el) => el === document.activeElement), true, 'the prompt has the focus')
    await prompt.fill('Sell shoes here')
    await prompt.press('Control+Enter')
    await done.getByText('Sell shoes here').first().waitFor()
    await done.getByText('Round 1').waitFor()
    await done.getByText('I made it a shop.').first().waitFor()
    await done.getByText('tsc').first().waitFor()
    await done.getByText('TS2345').first().waitFor()
    await done.getByText('Round 2').waitFor()
    await done.getByText('The app is well: revision 3, 2 rounds').waitFor()
    await becomes(() => picked.count(), 0, 'elements after that')
    await shown.getByRole('heading', { name: 'Shoes' }).waitFor()
    await becomes(() => leaf('App.tsx').locator('.mark').textContent(), 'changed', 'the mark of App.tsx')
    await done.getByRole('button', { name: 'src/App.tsx:5' }).click() // where the problem was
    await page.locator('.editor .cm-activeLine', { hasText: 'useState(0)' }).waitFor()
  })
  await step('hot reload, and clicks that are none', async () => {
    await shown.getByLabel('Name').fill('Ann')
    await shown.getByRole('button', { name: 'Sold 0' }).click()
    await page.getByRole('button', { name: 'Pick an element' }).click()
    await shown.getByRole('button', { name: 'Sold 1' }).click()
    await picked.getByText('button:nth-of-type(1) “Sold 1” src/App.tsx:10').waitFor()
    await page.getByRole('button', { name: 'Pick an element' }).click()
    await shown.getByRole('heading', { name: 'Shoes' }).click()
    await picked.getByText('h1 “Shoes” src/App.tsx:8').waitFor()
    await prompt.fill('Call them boots')
    await page.evaluate(() => scrollTo(0, 0))
    await page.screenshot({ path: `${input.shots}/studio.png`, clip: { x: 0, y: 0, width: 1280, height: 860 } })
    await page.getByRole('button', { name: 'Change it' }).click()
    await shown.getByRole('heading', { name: 'Boots' }).waitFor()
    await done.getByText('The app is well: revision 4, one round').waitFor()
    await becomes(() => shown.getByLabel('Name').inputValue(), 'Ann', 'what was typed')
    await shown.getByRole('button', { name: 'Sold 1' }).click() // picking it has sold none
    await shown.getByRole('button', { name: 'Sold 2' }).waitFor()
  })
  await step('on a phone, and on a tablet', async () => {
    for (const [label, width] of [['Phone, 390', 390], ['Tablet, 768', 768]]) {
      await page.getByLabel('Width of the page').selectOption(label)
      await inside().waitForFunction((width) => innerWidth === width, width)
      await page.screenshot({ path: `${input.shots}/studio-${width}.png` })
    }
    await page.setViewportSize({ width: 390, height: 844 })
    await becomes(() => page.evaluate(() => document.documentElement.scrollWidth), 390, 'the width of a tablet on a phone')
    await page.setViewportSize(wide)
    await page.getByLabel('Width of the page').selectOption('Full width')
    await inside().waitForFunction(() => innerWidth !== 768)
    await becomes(() => shown.getByLabel('Name').inputValue(), 'Ann', 'what was typed')
  })
  await step('the console has an error with its place', async () => {
    await tab('Console')
    const wrong = page.getByRole('list', { name: 'What is wrong' })
    await shown.getByRole('button', { name: 'How many are left?' }).click()
    await inside().evaluate(() => {
      console.error('the stock is empty')
      document.body.append(Object.assign(new Image(), { src: '/missing.png', alt: '' }))
    })
    await wrong.getByText("reading 'left'").waitFor()
    await wrong.getByText('the stock is empty').waitFor()
    await wrong.getByText('Request failed: GET').waitFor()
    await accessible('console')
    await wrong.getByRole('button', { name: 'src/Stock.tsx:4' }).click()
    await page.locator('.editor .cm-activeLine', { hasText: 'sizes[41].left' }).waitFor()
    await tab('Console')
    await page.getByRole('button', { name: 'Clear' }).click()
    await page.getByText('No problems since the last change.').waitFor()
    await tab('Files')
  })
  await step('what is different', async () => {
    await tree.getByText('App.tsx').click()
    await page.getByLabel('Compare').selectOption('before')
    await page.locator('.editor .cm-deletedChunk', { hasText: 'Shoes</h1>' }).waitFor()
    await page.locator('.editor .cm-changedLine', { hasText: 'Boots</h1>' }).waitFor()
    await accessible('changes')
    await page.getByLabel('Compare').selectOption('saved')
    await page.locator('.editor .cm-deletedChunk').waitFor({ state: 'detached' })
    await page.locator('.editor .cm-line', { hasText: 'Boots</h1>' }).click()
    await page.keyboard.press('End')
    await page.keyboard.type(' {/* high */}')
    await page.locator('.editor .cm-changedLine', { hasText: 'high' }).waitFor()
    await page.locator('.editor .cm-deletedChunk', { hasText: 'Boots</h1>' }).waitFor()
    await page.getByRole('button', { name: 'Save' }).click()
    await done.getByText('done: revision 5').waitFor()
    await page.locator('.editor .cm-deletedChunk').waitFor({ state: 'detached' })
    await becomes(() => leaf('Stock.tsx').locator('.mark').count(), 0, 'marks of what has not changed')
  })
  await step('files while something is applied', async () => {
    await apply('<file path="src/Later.tsx">\nexport const later = 1\n</file>\n<command>sleep 600</command>')
    await leaf('Later.tsx').locator('.mark.busy', { hasText: 'new' }).waitFor()
    await page.getByRole('button', { name: 'Cancel' }).click()
    await leaf('Later.tsx').waitFor({ state: 'detached' })
    await done.locator('.err').waitFor()
  })
  await step('a model that there is not', async () => {
    await page.getByRole('button', { name: 'Ask a model' }).click()
    await page.getByText('Model and limits').click()
    await page.getByLabel('Model', { exact: false }).first().fill('nobody:x')
    await prompt.fill('Sell hats')
    await page.getByRole('button', { name: 'Change it' }).click()
    await page.getByRole('alert').getByText('choose one of demo, play').waitFor()
    await becomes(() => prompt.inputValue(), 'Sell hats', 'the prompt after that')
    await accessible('refused')
  })
  await step('several attempts, and a judge', async () => {
    const attempt = (n) => page.getByRole('region', { name: `Attempt ${n}` })
    const frame = (n) => page.frameLocator(`iframe[title="The page of attempt ${n}"]`)
    await page.getByLabel('Model', { exact: false }).first().fill('')
    await page.getByLabel('Attempts').fill('2')
    await page.getByLabel('Judge', { exact: false }).first().selectOption('A command')
    await page.getByLabel('Command of the judge').fill('until [ -e /tmp/seen ]; do sleep 1; done; grep -c Blue src/App.tsx')
    await prompt.fill('Paint the heading')
    await accessible('bounds')
    await page.getByRole('button', { name: 'Change it' }).click()
    // What they write at the same time is not mixed.
    for (const [n, word] of [[1, 'apple'], [2, 'pear']]) {
      const text = attempt(n).getByLabel("The model's output").first()
      await attempt(n).getByText('Round 1').waitFor()
      await text.getByText('<edit path="src/App.tsx">').waitFor({ state: 'attached' })
      const words = (await text.textContent()).split('<edit')[0].trim().split(/\s+/)
      equal([words.length, words.every((w) => w === word)], [800, true], `the words of attempt ${n}`)
    }
    await done.getByText('Paint the heading').waitFor() // all that they write has not pushed it out
    await attempt(1).locator('.fault').first().waitFor()
    await attempt(1).scrollIntoViewIfNeeded()
    await frame(2).getByRole('heading', { name: 'Blue boots' }).waitFor()
    await frame(1).getByRole('heading', { name: 'Red boots' }).waitFor()
    await accessible('attempts')
    await page.evaluate(async (id) => { // the judge waits for somebody to have seen them
      const headers = { 'Engi-Dashboard': '1' }
      const { items } = await (await fetch('/v1/apps', { headers })).json()
      for (const a of items.filter((a) => a.attempt_of === id)) {
        const { ok } = await fetch(`/v1/sandboxes/${a.sandbox_id}/files?path=/tmp/seen`, { method: 'PUT', headers: { ...headers, 'Content-Type': 'application/octet-stream' }, body: 'yes' })
        if (!ok) throw new Error('the judge cannot be told')
      }
    }, input.app)
    await page.getByRole('status').getByText('the command of the judge ended with 0 in 1 of 2').waitFor()
    await done.getByText('The app is well: revision 6 of attempt 2, 3 rounds').waitFor()
    await attempt(2).getByText('taken').waitFor()
    await attempt(1).getByText('Its branch was removed when the edit ended.').waitFor()
    await becomes(() => page.locator('.attempts iframe').count(), 0, 'pages of branches that are gone')
    await becomes(() => attempt(1).getByText('Round 2').count(), 1, 'rounds that were needed')
    await top()
    await shown.getByRole('heading', { name: 'Blue boots' }).waitFor()
    await accessible('judged')
  })
  await step('back to a snapshot', async () => {
    await tab('History')
    await back(async () => {
      await page.getByRole('button', { name: 'Keep a snapshot' }).click()
      await done.getByText('snapshot of revision 6').waitFor()
    })
    const restore = page.getByRole('button', { name: 'Restore the snapshot of revision 6' })
    await restore.waitFor()
    await accessible('history')
    await apply('<edit path="src/App.tsx">\n<<<<<<< SEARCH\nBlue boots\n=======\nNothing\n>>>>>>> REPLACE\n</edit>\n<command>echo lost > node_modules/.note</command>')
    await done.getByText('done: revision 7').waitFor()
    await shown.getByRole('heading', { name: 'Nothing' }).waitFor()
    await back(async () => {
      await apply("<edit path=\"vite.config.ts\">\n<<<<<<< SEARCH\nname: 'requests',\n=======\nname: 'asks',\n>>>>>>> REPLACE\n</edit>")
      await done.getByText('done: revision 8').waitFor() // its server was started again
    })
    await apply('<edit path="src/App.tsx">\n<<<<<<< SEARCH\nNothing\n=======\nNothing more\n>>>>>>> REPLACE\n</edit>')
    await done.getByText('done: revision 9').waitFor()
    await shown.getByRole('heading', { name: 'Nothing more' }).waitFor()
    const before = await app()
    await restore.click()
    await page.getByRole('dialog').getByText('Later changes of its databases are lost').waitFor()
    await page.getByRole('button', { name: 'Yes, do it' }).click()
    await done.getByText('rolled back: revision 10').waitFor()
    await top()
    await shown.getByRole('heading', { name: 'Blue boots' }).waitFor()
    const after = await app()
    equal([after.preview_url, after.sandbox_id === before.sandbox_id], [input.preview, false], 'its address, and whether its sandbox is the same')
    equal(new URL(inside().url()).origin, new URL(input.preview).origin, 'where its page is')
  })
  await step('the way back, and a build', async () => {
    await tab('History')
    await page.getByRole('button', { name: 'Go back to revision 3' }).click()
    await done.getByText('rolled back: revision 11').waitFor()
    await top()
    await shown.getByRole('heading', { name: 'Shoes' }).waitFor()
    await page.getByRole('button', { name: 'Publish' }).click()
    await done.getByText('published: revision 11').waitFor()
    const build = await page.context().newPage()
    const code = []
    build.on('response', (r) => code.push(r.text()))
    await build.goto(await page.getByRole('link', { name: 'published' }).getAttribute('href'))
    await build.getByRole('heading', { name: 'Shoes' }).waitFor()
    const all = (await Promise.all(code)).join()
    equal([all.includes('Shoes'), all.includes('engi:'), all.includes('places of JSX')], [true, false, false], 'what is in it')
    await build.close()
  })
  await step('a change while the page loads', async () => {
    let held
    const old = page.waitForResponse('**/src/App.tsx*')
    await page.route('**/src/index.css*', async (route) => { // without which no script of the page runs
      await new Promise((go) => { held = go })
      await route.continue()
    }, { times: 1 })
    await back(() => inside().evaluate(() => location.reload()))
    await until('the request of the styles', () => held)
    await (await old).finished()
    const before = updates
    await apply('<edit path="src/App.tsx">\n<<<<<<< SEARCH\nShoes\n=======\nSandals\n>>>>>>> REPLACE\n</edit>')
    await done.getByText('done: revision 12').waitFor()
    await until('the change', () => updates > before)
    held()
    await top()
    await shown.getByRole('heading', { name: 'Sandals' }).waitFor()
    equal(faults, [], 'what the dashboard complains of')
  })
} finally {
  await browser.close()
}
