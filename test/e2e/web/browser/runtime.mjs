// Shows pages of a scripted server in Chromium and prints a line of JSON for each
// thing that it looked at: {name, ok, detail}.
import { browser, equal, input, step } from './chromium.mjs'

const faults = []
async function host(path = 'strict') {
  const page = await (await browser.newContext({ viewport: { width: 1000, height: 700 } })).newPage()
  page.setDefaultTimeout(60_000)
  page.on('console', (m) => { if ((m.type() === 'error' || m.type() === 'warning') && !/net::ERR_|status of 422/.test(m.text())) faults.push(m.text()) })
  page.on('pageerror', (e) => faults.push(e.stack))
  await page.goto(`${input.url}/${path}`)
  await page.evaluate(async () => { globalThis.engi = await import('/ui/element.js') })
  return page
}
/** Shows a session in <engi-ui>. */
async function show(page, session, more = {}) {
  await page.evaluate(([session, more]) => {
    const el = document.createElement('engi-ui')
    for (const [k, v] of Object.entries({ session, ...more })) el.setAttribute(k, v)
    globalThis.told = []
    for (const kind of ['update', 'state', 'error']) el.addEventListener(kind, (e) => told.push([kind, e.detail]))
    document.body.replaceChildren(el)
  }, [session, more])
  await page.waitForFunction(() => document.querySelector('engi-ui').getAttribute('state') === 'idle' && document.querySelector('engi-ui').ui.view.body.firstChild)
}
const body = (page, f, arg) => page.evaluate(([f, arg]) => (0, eval)(f)(document.querySelector('engi-ui').shadowRoot.querySelector('body'), arg), [String(f), arg])
const idle = (page) => page.waitForFunction(() => document.querySelector('engi-ui').getAttribute('state') === 'idle')

try {
  await step('typing while everything changes', async () => {
    const page = await host()
    await show(page, 'typing-1')
    await page.locator('#more summary').click()
    await page.locator('#big').check()
    await page.locator('#size').selectOption('m')
    await page.locator('#box').evaluate((el) => { el.scrollTop = 77 })
    await page.locator('#text').fill('left alone')
    const text = 'what I write is mine, while the page is written anew'
    await page.locator('#name').click()
    await page.keyboard.type(text[0])
    await body(page, (b) => b.querySelector('#go').click())
    await page.keyboard.type(text.slice(1), { delay: 25 })
    equal(await body(page, (b) => [b.getRootNode().activeElement?.id, b.querySelector('#name').selectionStart]), ['name', text.length], 'focus and cursor while it changes')
    await page.locator('#name').evaluate((el) => el.setSelectionRange(5, 12, 'backward'))
    await idle(page)
    const found = await body(page, (b) => {
      const name = b.querySelector('#name')
      return { value: name.value, focus: b.getRootNode().activeElement?.id, range: [name.selectionStart, name.selectionEnd, name.selectionDirection], text: b.querySelector('#text').value, big: b.querySelector('#big').checked, size: b.querySelector('#size').value, open: b.querySelector('#more').open, scroll: b.querySelector('#box').scrollTop, title: b.querySelector('h1').textContent }
    })
    equal(await page.evaluate(() => told.filter(([k]) => k === 'state').map(([, s]) => s)), ['idle', 'working', 'idle'], 'states')
    equal(found, { value: text, focus: 'name', range: [5, 12, 'backward'], text: 'left alone', big: true, size: 'm', open: true, scroll: 77, title: 'Whole 118' }, 'after that')
    await page.locator('#name').press('Enter')
    await page.waitForFunction(() => told.some(([k, d]) => k === 'update' && d.kind === 'action' && d.action === 'save'))
    await page.context().close()
  })
  await step('two hundred patches a second', async () => {
    const page = await host()
    // Frames while something happens for three seconds, and how long the longest took.
    const frames = (f) => page.evaluate(async (f) => {
      const times = []
      let on = true
      const tick = (t) => {
        times.push(t)
        if (on) requestAnimationFrame(tick)
      }
      requestAnimationFrame(tick)
      await (0, eval)(f)()
      on = false
      const gaps = times.slice(1).map((t, i) => t - times[i])
      return { perSecond: gaps.length / ((times.at(-1) - times[0]) / 1000), longest: Math.max(...gaps) }
    }, String(f))
    await show(page, 'flood-1')
    const ours = await frames(async () => {
      const el = document.querySelector('engi-ui')
      await el.ui.send('flood')
      await new Promise((done) => { el.addEventListener('update', (e) => { if (e.detail.kind === 'done') done() }) })
    })
    await page.waitForFunction(() => document.querySelector('engi-ui').shadowRoot.querySelector('#n').textContent === '599')
    equal(await body(page, (b) => [b.querySelector('#n').textContent, b.querySelectorAll('li').length, b.querySelector('li:last-child').textContent]), ['599', 600, '599 bold'], 'the page')
    await page.evaluate(() => document.body.replaceChildren())
    const bare = await frames(async () => {
      document.body.innerHTML = '<ul></ul><p></p>'
      const [list, n] = document.body.children
      const begin = performance.now()
      for (let i = 0; i < 600;) {
        while (i < 600 && i * 5 <= performance.now() - begin) {
          n.textContent = String(i)
          list.insertAdjacentHTML('beforeend', `<li class="row">${i} <b>bold</b></li>`)
          i++
        }
        await new Promise((done) => setTimeout(done, 5))
      }
    })
    // What a patch costs, without the network and without frames.
    const cost = await page.evaluate(() => {
      const time = (f) => {
        const host = document.createElement('div')
        document.body.replaceChildren(host)
        const apply = f(host)
        const begin = performance.now()
        for (let i = 0; i < 4000; i++) apply(i)
        return (performance.now() - begin) / 4000
      }
      const ours = () => time((host) => {
        const view = new engi.View(host)
        view.set('<ul id="list"></ul><p id="n">0</p>')
        return (i) => view.patch([{ selector: '#n', text: String(i) }, { selector: '#list', append: `<li class="row">${i} <b>bold</b></li>` }])
      })
      const bare = () => time((host) => {
        host.innerHTML = '<ul id="list"></ul><p id="n">0</p>'
        return (i) => {
          host.querySelector('#n').textContent = String(i)
          host.querySelector('#list').insertAdjacentHTML('beforeend', `<li class="row">${i} <b>bold</b></li>`)
        }
      })
      ours(), bare()
      return { ours: ours(), bare: bare() }
    })
    const said = `${ours.perSecond.toFixed(1)} frames a second, the longest ${ours.longest.toFixed(0)} ms; a bare loop of DOM calls: ${bare.perSecond.toFixed(1)} and ${bare.longest.toFixed(0)} ms. ` +
      `Two patches take ${(cost.ours * 1000).toFixed(1)} µs, bare calls ${(cost.bare * 1000).toFixed(1)} µs: ${(cost.ours / cost.bare).toFixed(1)} times`
    if (ours.perSecond < bare.perSecond * 0.6 || cost.ours > cost.bare * 20) throw new Error(said)
    await page.context().close()
    return said
  })
  await step('a patch is seen soon', async () => {
    const page = await host()
    await show(page, 'flood-2')
    const late = await page.evaluate(async () => {
      const el = document.querySelector('engi-ui')
      const n = el.shadowRoot.querySelector('#n')
      const late = []
      // In the frame in which it changes, what is written then has been drawn.
      new MutationObserver(() => {
        const at = Number(n.textContent)
        requestAnimationFrame(() => late.push(Date.now() - at))
      }).observe(n, { childList: true, characterData: true, subtree: true })
      await el.ui.send('clock')
      await new Promise((done) => { el.addEventListener('update', (e) => { if (e.detail.kind === 'done') setTimeout(done, 100) }) })
      return late.sort((a, b) => a - b)
    })
    const said = `after ${late[late.length >> 1]} ms, 19 of 20 after ${late[Math.floor(late.length * 0.95)]} ms (${late.length} patches)`
    // They are drawn while the answer goes on, each or a few at once, and not at its end.
    if (late.length < 10) throw new Error(said)
    await page.context().close()
    return said
  })
  await step('connections that are cut anywhere', async () => {
    const page = await host()
    await show(page, 'cut-1')
    await page.evaluate(() => document.querySelector('engi-ui').ui.send('count'))
    await page.waitForFunction(() => told.some(([k, d]) => k === 'update' && d.kind === 'done'), undefined, { timeout: 90_000 })
    await idle(page)
    equal(await body(page, (b) => [...b.querySelectorAll('li')].map((li) => li.textContent)), Array.from({ length: 300 }, (_, i) => `${i} größer`), 'the list')
    const seqs = await page.evaluate(() => told.filter(([k, d]) => k === 'update' && d.seq).map(([, d]) => d.seq))
    equal(seqs, Array.from({ length: 303 }, (_, i) => i + 1), 'what was heard')
    await page.context().close()
  })
  await step('actions', async () => {
    const page = await host()
    await show(page, 'act-1')
    const after = async (act, want) => {
      const before = await page.evaluate(() => told.length)
      await act()
      await page.waitForFunction((n) => told.slice(n).some(([k, d]) => k === 'update' && d.kind === 'done'), before)
      equal(await (await fetch(`${input.url}/acts/act-1`)).json(), want, 'the action')
      await idle(page)
    }
    await after(() => page.locator('#plus').click(), { action: 'plus', data: { by: '2', itemId: 'a b' } })
    await after(() => page.locator('#link').click(), { action: 'link', data: {} })
    await after(() => page.locator('#done').check(), { action: 'done', data: { id: '3', value: true } })
    await after(() => page.locator('#pick').selectOption('blue'), { action: 'pick', data: { colour: 'blue' } })
    await page.locator('#name').fill('Ann')
    await page.locator('#big').check()
    await after(() => page.locator('#name').press('Enter'), { action: 'save', data: { list: '7', name: 'Ann', text: '', big: 'on', size: 's' } })
    await page.locator('#sendmany').click() // a field is missing
    await page.locator('#must').fill('here')
    await after(() => page.locator('#sendmany').click(), { action: 'many', data: { nodeName: '1', attributes: '2', firstChild: '3', tag: ['4', '5'], must: 'here', by: 'button' } })
    await page.locator('#send').click()
    await page.locator('#down').click()
    await page.waitForFunction(() => scrollY > 1000)
    const [opened] = await Promise.all([page.context().waitForEvent('page'), page.locator('#out').click()])
    equal(await opened.evaluate(() => opener), null, 'what the other page sees of this one')
    equal(page.url(), `${input.url}/strict`, 'the address')
    const refused = await page.evaluate(() => document.querySelector('engi-ui').ui.send('refused').catch((e) => [e.message, e.remedy, e.status]))
    equal(refused, ['no such action', 'do another', 422], 'a refusal')
    await show(page, 'act-lost')
    await page.evaluate(() => document.querySelector('engi-ui').ui.send('lost'))
    await page.context().close()
  })
  await step('styles where policies forbid them', async () => {
    const page = await host()
    await show(page, 'styles-1')
    const colours = () => body(page, (b) => [...b.querySelectorAll('p, #d')].map((el) => [el.style.color, el.style.position, el.style.background]))
    equal(await colours(), [['rgb(1, 2, 3)', '', ''], ['', '', '']], 'styles')
    await page.evaluate(() => document.querySelector('engi-ui').ui.view.patch([
      { selector: '#d', html: '<p style="color: red">style="text", Style = more</p>' }, { selector: '#d', style: { color: 'blue', background: 'url(/leak)', margin: '1px' } }, { selector: '#p', attr: { style: 'color: green' } },
    ]))
    equal(await colours(), [['green', '', ''], ['blue', '', ''], ['red', '', '']], 'after patches')
    equal(await body(page, (b) => b.querySelector('#d').textContent), 'style="text", Style = more', 'text')
    await page.context().close()
  })
  await step('a page that was being written and is not', async () => {
    const page = await host()
    await show(page, 'partial-1')
    await page.evaluate(() => document.querySelector('engi-ui').ui.send('stops'))
    await page.waitForFunction(() => told.some(([k, d]) => k === 'update' && d.partial))
    await page.waitForFunction(() => document.querySelector('engi-ui').shadowRoot.querySelector('body').innerHTML.startsWith('<h1>Half'))
    await page.waitForFunction(() => told.some(([k, d]) => k === 'update' && d.kind === 'done'))
    await page.waitForFunction(() => document.querySelector('engi-ui').shadowRoot.querySelector('body').innerHTML === '<h1>Old</h1><p>page</p><p>more</p>')
    await idle(page)
    await page.context().close()
  })
  await step('a hook of React', async () => {
    const page = await host('react')
    await page.evaluate(async () => {
      const { createElement: h, render } = await import('/preact/dist/preact.mjs')
      const { useEngiUI } = await import('/ui/react.js')
      globalThis.app = (session) => {
        const App = () => {
          const ui = useEngiUI({ session, key: 'k', base: location.origin + '/' })
          globalThis.last = ui
          return h('div', null, h('output', null, ui.state), h('div', { ref: ui.ref, id: 'page' }))
        }
        render(h(App), document.body)
      }
      app('act-2')
    })
    await page.locator('output', { hasText: 'idle' }).waitFor()
    await Promise.all([page.waitForResponse('**/page/actions'), page.locator('#page #plus').click()])
    equal((await (await fetch(`${input.url}/acts/act-2`)).json()).action, 'plus', 'the action')
    equal(typeof await page.evaluate(() => last.send('again', { x: 1 })), 'number', 'what send returns')
    await page.evaluate(async () => (await import('/preact/dist/preact.mjs')).render(null, document.body))
    await page.context().close()
  })
} finally {
  await browser.close()
}
console.log(JSON.stringify({ name: 'no page complains', ok: faults.length === 0, detail: faults.join('\n') }))
