// Uses an app of React in Chromium and prints a line of JSON for each thing that it
// looked at: {name, ok, detail}.
import { browser, equal, input, step } from './chromium.mjs'

const tell = async (what) => {
  const resp = await fetch(`${input.url}/${what}`, { method: 'POST' })
  if (!resp.ok) throw new Error(`${what}: ${resp.status}`)
}
const faults = []
async function tab(view, session, base = input.url) {
  const page = await (await browser.newContext()).newPage()
  page.setDefaultTimeout(60_000)
  page.on('console', (m) => { if ((m.type() === 'error' || m.type() === 'warning') && !/net::ERR_|status of 50/.test(m.text())) faults.push(m.text()) })
  page.on('pageerror', (e) => faults.push(e.stack))
  await page.goto(`${input.url}/?${new URLSearchParams({ view, session: input.sessions[session], base, key: input.key })}`)
  return page
}
const api = async (session, path, body) => {
  const resp = await fetch(`${input.node}/v1/sessions/${input.sessions[session]}/page${path}`, { method: body ? 'POST' : 'GET', headers: { Authorization: `Bearer ${input.key}`, Accept: 'application/json', 'Content-Type': 'application/json' }, body: body && JSON.stringify(body) })
  if (!resp.ok) throw new Error(`${path}: ${resp.status} ${await resp.text()}`)
  return resp.json()
}
const settled = async (session) => {
  for (;;) {
    const now = await api(session, '')
    if (!now.working && !now.waiting) return now
    await new Promise((done) => setTimeout(done, 20))
  }
}

// The chat.
const status = (page, want) => page.locator('#status', { hasText: new RegExp(`^${want}$`) }).waitFor()
const say = async (page, text) => {
  await page.locator('input[name=text]').fill(text)
  await page.locator('input[name=text]').press('Enter')
}
/** The parts of the last answer: their types, and what the patches counted. */
const answer = (page) => page.evaluate(() => {
  const all = document.querySelectorAll('ol.assistant')
  const parts = [...all.item(all.length - 1).children]
  return {
    answers: all.length, types: [...new Set(parts.map((p) => p.className))].join(' '), pages: parts.filter((p) => p.className === 'data-html').length,
    counted: parts.filter((p) => p.className === 'data-patch').map((p) => Number(/#n=(\d+)/.exec(p.textContent)?.[1])),
  }
})
const upTo = Array.from({ length: input.counts }, (_, i) => i + 1)
const half = Math.floor(input.counts / 2)
/** Waits until half of an answer is there; the model holds. */
const halfway = (page) => page.waitForFunction((n) => document.querySelectorAll('ol.assistant:last-of-type .data-patch').length === n, half)
const draw = async (page) => {
  await page.locator('#told', { hasText: 'data-html' }).waitFor() // it has come back, to nothing
  await status(page, 'ready')
  await say(page, 'draw')
  await page.locator('ol.assistant .data-html', { hasText: '<h1>Page</h1>' }).waitFor()
  await status(page, 'ready')
}

try {
  await step('a chat by useChat, whose connection is cut', async () => {
    const page = await tab('chat', 'chat')
    await draw(page)
    await tell('hold')
    await say(page, 'count')
    await halfway(page)
    await tell('cut')
    await status(page, 'error')
    await tell('go') // the answer goes on
    await page.getByRole('button', { name: 'Resume' }).click()
    await status(page, 'ready')
    equal(await answer(page), { answers: 2, types: 'data-html data-patch', pages: 1, counted: upTo }, 'the answer')
    // Nothing is there to come back to.
    await page.getByRole('button', { name: 'Resume' }).click()
    await status(page, 'ready')
    equal((await answer(page)).counted, upTo, 'the same answer')
    await say(page, 'draw')
    await page.waitForFunction(() => document.querySelectorAll('ol.assistant').length === 3)
    await status(page, 'ready')
    await page.context().close()
  })
  await step('a chat that is reloaded, and another one in the middle of an answer', async () => {
    const page = await tab('chat', 'reload')
    await draw(page)
    await tell('hold')
    await say(page, 'count')
    await halfway(page)
    await page.reload() // resume: true
    const other = await tab('chat', 'reload')
    for (const p of [page, other]) await halfway(p)
    await tell('go')
    for (const p of [page, other]) {
      await p.waitForFunction((n) => document.querySelectorAll('ol.assistant:last-of-type .data-patch').length === n, input.counts)
      await status(p, 'ready')
    }
    equal(await answer(page), { answers: 2, types: 'data-html data-patch', pages: 1, counted: upTo }, 'the answer after the reload')
    equal(await answer(other), { answers: 1, types: 'step-start data-html data-patch', pages: 1, counted: upTo }, 'the answer elsewhere')
    // Nobody answers, and nobody waits.
    await page.reload()
    await status(page, 'ready')
    equal((await answer(page)).counted, upTo, 'the kept answer')
    const late = await tab('chat', 'reload')
    await late.locator('#told', { hasText: 'data-html' }).waitFor()
    await status(late, 'ready')
    for (const p of [page, other, late]) await p.context().close()
  })
  await step('a chat whose node is killed', async () => {
    const page = await tab('chat', 'killed')
    await draw(page)
    await tell('hold')
    await say(page, 'count')
    await halfway(page)
    await tell('restart')
    await status(page, 'error')
    await tell('go')
    await page.getByRole('button', { name: 'Resume' }).click()
    await status(page, 'ready')
    const got = await answer(page)
    const now = await settled('killed')
    equal([got.answers, got.types, got.pages, got.counted.at(-1)], [2, 'data-html data-patch', 1, input.counts], 'the answer')
    equal(now.html.match(/<li>/g).length, input.counts, 'the page')
    await page.context().close()
  })
  await step('typing into pages of the packed hook and element while the node is killed', async () => {
    await api('page', '/actions', { action: 'draw' })
    await settled('page')
    const page = await tab('page', 'page', input.node) // of another origin
    const both = ['#hook', 'engi-ui']
    const n = (of) => page.locator(of).locator('#n')
    for (const of of both) await n(of).getByText('0', { exact: true }).waitFor()
    await page.locator('#state', { hasText: 'idle' }).waitFor()
    await page.locator('#element-state', { hasText: 'idle' }).waitFor()
    await page.locator('engi-ui').getByLabel('Name').fill('in the element')
    const field = page.locator('#hook').getByLabel('Name')
    await field.click()
    const text = 'typed while patches arrive, and while nobody sends any'
    await page.keyboard.type(text.slice(0, 5))
    await tell('hold')
    await page.getByRole('button', { name: 'Count' }).click()
    await n('#hook').getByText(String(half), { exact: true }).waitFor()
    await field.focus()
    await page.keyboard.press('End')
    const restarted = tell('restart')
    await page.keyboard.type(text.slice(5), { delay: 40 })
    await restarted
    await tell('go')
    for (const of of both) await n(of).getByText(String(input.counts), { exact: true }).waitFor()
    await page.locator('#state', { hasText: 'idle' }).waitFor()
    await page.locator('#element-state', { hasText: 'idle' }).waitFor()
    equal(await page.locator('#error').textContent(), '', 'what went wrong')
    equal(await page.evaluate(() => [document.activeElement.id, document.activeElement.shadowRoot.activeElement.id]), ['hook', 'name'], 'where the keyboard is')
    for (const of of both) {
      equal(await page.evaluate((of) => [...document.querySelector(of).shadowRoot.querySelectorAll('li')].map((li) => Number(li.textContent)), of), upTo, `what is counted in ${of}`)
    }
    equal([await field.inputValue(), await page.locator('engi-ui').getByLabel('Name').inputValue()], [text, 'in the element'], 'what was typed')
    await field.press('Enter')
    for (const of of both) await page.locator(of).locator('#saved', { hasText: text }).waitFor()
    return `${await page.locator('#updates').textContent()} updates`
  })
  await step('a patch is seen soon after the model has written it', async () => {
    await api('clock', '/actions', { action: 'draw' })
    await settled('clock')
    const page = await tab('page', 'clock', input.node)
    await page.locator('engi-ui').locator('#n').getByText('0', { exact: true }).waitFor()
    await page.evaluate(() => {
      globalThis.late = []
      const n = document.querySelector('engi-ui').shadowRoot.querySelector('#n')
      new MutationObserver(() => {
        const at = Number(n.textContent)
        requestAnimationFrame(() => late.push(Date.now() - at))
      }).observe(n, { childList: true, characterData: true, subtree: true })
    })
    await api('clock', '/actions', { action: 'clock' })
    await settled('clock')
    await page.locator('#element-state', { hasText: 'idle' }).waitFor()
    const late = (await page.evaluate(() => late)).sort((a, b) => a - b)
    const said = `after ${late[late.length >> 1]} ms, 19 of 20 after ${late[Math.floor(late.length * 0.95)]} ms (${late.length} patches, at a frame)`
    if (late.length < 20 || late[0] < 0) throw new Error(said)
    await page.context().close()
    return said
  })
  await step('a page that is taken away and shown again', async () => {
    const page = await tab('page', 'page', input.node)
    const shown = async () => { for (const of of ['#hook', 'engi-ui']) await page.locator(of).locator('#saved', { hasText: 'typed' }).waitFor() }
    await shown()
    await page.getByRole('checkbox').uncheck()
    await page.locator('#hook').waitFor({ state: 'detached' })
    await page.getByRole('checkbox').check()
    await shown()
    await tell('hold')
    await page.getByRole('button', { name: 'Count' }).click()
    await page.locator('#state', { hasText: 'working' }).waitFor()
    await page.getByRole('button', { name: 'Cancel' }).click()
    await page.locator('#state', { hasText: 'idle' }).waitFor()
    equal(faults, [], 'what browsers complain of')
    await page.context().close()
  })
} finally {
  await browser.close()
}
