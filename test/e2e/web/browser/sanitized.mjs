// Applies hostile and random changes to pages in Chromium and prints a line of JSON
// for each thing that it looked at: {name, ok, detail}.
import { browser, equal, input, step } from './chromium.mjs'

const page = await (await browser.newContext()).newPage()
const asked = []
page.on('framenavigated', (f) => asked.push(`navigated to ${f.url()}`))
page.on('request', (r) => { if (!r.url().startsWith('data:')) asked.push(`${r.resourceType()} ${r.url()}`) })
page.on('dialog', (d) => {
  asked.push(`a dialog: ${d.message()}`)
  void d.dismiss()
})

/** Loads a page without any policy, on which calls of scripts are noted in ran. */
async function load() {
  await page.goto(`${input.url}/open`)
  await page.evaluate(async () => {
    globalThis.engi = await import('/ui/index.js')
    globalThis.ran = []
    globalThis.opened = []
    for (const name of ['alert', 'confirm', 'prompt', 'print']) globalThis[name] = (...args) => { ran.push(`${name}(${args}) in ${globalThis.trying}`) }
    globalThis.open = (url) => { opened.push(String(url)) }
    addEventListener('error', (e) => e instanceof ErrorEvent && ran.push(`an error in ${globalThis.trying}: ${e.message}`))
    // Does to a page what people do, and events that time would bring.
    globalThis.use = (root) => {
      for (const el of root.querySelectorAll('*')) {
        for (const kind of ['mouseover', 'pointerover', 'focusin', 'focus', 'blur', 'input', 'toggle', 'animationstart', 'begin', 'error', 'load', 'scroll', 'keydown']) {
          Element.prototype.dispatchEvent.call(el, new Event(kind, { bubbles: true, cancelable: true }))
        }
        Element.prototype.dispatchEvent.call(el, new MouseEvent('click', { bubbles: true, cancelable: true, composed: true }))
        if (el instanceof HTMLElement) HTMLElement.prototype.focus.call(el)
      }
    }
    // What may not be, whatever it is good for.
    globalThis.wrong = (root) => {
      const found = []
      for (const el of root.querySelectorAll('*')) {
        const name = Element.prototype.getAttribute
        if (/^(script|style|iframe|frame|frameset|object|embed|applet|base|meta|link|template|noscript|math|audio|video|source|use|animate.*|set|image|foreignobject|handler|slot|portal|fencedframe|.*-.*)$/i.test(el.localName)) found.push(`<${el.localName}>`)
        for (const a of Element.prototype.getAttributeNames.call(el)) {
          const v = name.call(el, a)
          if (/^(on|form|srcdoc$|action$|ping$|is$|xlink|srcset$|background$|popover|autofocus$)/i.test(a) || /^(href|src)$/.test(a) && !/^(https?|mailto|tel|data):/.test(new URL(v, document.baseURI).protocol) || a === 'style' && /url|expression|image-set/i.test(v)) found.push(`${a}="${v}"`)
        }
      }
      return found
    }
  })
}

try {
  await step('a script that runs is seen', async () => {
    await load()
    await page.evaluate(() => {
      globalThis.trying = 'the control'
      const el = document.createElement('div')
      document.body.append(el)
      el.innerHTML = '<img src=data:, onerror=alert(1)><a id=evil href="javascript:alert(2)">x</a><b onmouseover=alert(3)>b</b>'
      el.querySelector('#evil').click()
      use(el)
    })
    await page.waitForFunction(() => new Set(ran).size >= 3)
    equal([...new Set(await page.evaluate(() => ran.toSorted()))], [1, 2, 3].map((n) => `alert(${n}) in the control`), 'what ran')
  })
  for (const how of ['as the server sends them', 'as they are']) {
    await step(`no vector runs a script, ${how}`, async () => {
      await load()
      asked.length = 0
      const { tried, found } = await page.evaluate(async (raw) => {
        const found = []
        let tried = 0
        for (const [i, vector] of (await (await fetch('/vectors')).json()).entries()) {
          const some = (n, of) => of.map((_, j) => of[(i + j) % of.length]).slice(0, n) // others for each vector
          const v = raw ? vector : vector.clean
          globalThis.trying = vector.name
          const attempt = (name, f) => {
            tried++
            const host = document.createElement('div')
            document.body.append(host)
            const page = engi.mount(host, { session: 'xss-1', key: 'k' })
            page.close()
            f(page.view)
            use(page.view.body)
            for (const what of wrong(page.view.body)) found.push(`${vector.name}, ${name}: ${what}`)
            if (document.body.children.length > 12) document.body.firstChild.remove()
          }
          if (v.patches) {
            attempt('patches', (view) => {
              view.set(v.start)
              view.patch(v.patches)
            })
            attempt('patches over another page', (view) => {
              view.set('<form id="x"><input name="a"></form><p>p</p>')
              view.set(v.start)
              view.patch(v.patches)
            })
          } else {
            const text = v.html
            attempt('whole', (view) => view.set(text))
            attempt('partial', (view) => { for (let i = 1; i < 5; i++) view.set(text.slice(0, text.length * i / 4), true) })
            attempt('morphed', (view) => {
              view.set('<div id="x"><a href="/">a</a><img src="/i.png" alt=""><svg><circle r="1"/></svg><form><input name="a"></form></div>')
              view.set(`<div id="x">${text}</div>`)
              view.set(text)
            })
            attempt('fragments', (view) => {
              const start = '<div id="t"><p>p</p></div><table><tbody><tr><td>1</td></tr></tbody></table><svg><g></g></svg><select><option>o</option></select><form></form><textarea></textarea>'
              for (const change of ['append', 'prepend', 'before', 'after', 'html', 'replace', 'text', 'value']) {
                view.set(start)
                for (const selector of some(3, ['p', 'td', 'tr', 'g', 'svg', 'select', 'option', 'form', 'textarea', '#t'])) view.patch([{ selector, [change]: text }])
              }
            })
            attempt('attributes', (view) => {
              view.set('<a>a</a><img alt=""><p>p</p><input><svg><rect/></svg><form></form><button>b</button>')
              for (const selector of some(3, ['a', 'img', 'p', 'input', 'rect', 'svg', 'form', 'button'])) {
                for (const name of ['href', 'src', 'style', 'onclick', 'onerror', 'xlink:href', 'srcdoc', 'formaction', 'action', 'fill', 'title']) view.patch([{ selector, attr: { [name]: text } }])
                view.patch([{ selector, style: { background: text, color: text, [text]: 'red' } }, { selector, attr: { [text]: 'x' } }, { selector: text, text: 'x' }])
              }
            })
          }
          if (i % 4 === 0) await new Promise((done) => setTimeout(done)) // what is loaded says so
        }
        await new Promise((done) => setTimeout(done, 500))
        return { tried, found }
      }, how === 'as they are')
      equal(await page.evaluate(() => ran), [], 'what ran')
      equal(found, [], 'what there was')
      equal(page.url(), `${input.url}/open`, 'the address')
      equal(await page.evaluate(() => opened.filter((u) => !/^(https?|mailto|tel):/.test(u))), [], 'what was opened')
      // A page may show images of where it comes from.
      equal(asked.filter((a) => !a.endsWith('/vectors') && !a.endsWith('/page/stream?format=engi') && !a.startsWith(`image ${input.url}/`)), [], 'what was asked for')
      return `${tried} attempts`
    })
  }
  await step('random patches make the same page here and on the server', async () => {
    await load()
    const { steps, patches, wrong } = await page.evaluate(async () => {
      // A tree as text: attributes in order, texts joined, styles as the browser reads them.
      const tree = (el) => {
        const out = []
        let text = ''
        const flush = () => {
          if (text) out.push(JSON.stringify(text))
          text = ''
        }
        for (const n of el.childNodes) {
          if (n.nodeType === 3) text += n.data
          else {
            flush()
            const attrs = [...n.attributes].map((a) => {
              if (a.name === 'class') return [...new Set(a.value.split(/\s+/))].sort().join(' ').trim() && `class=${[...new Set(a.value.split(/\s+/))].sort().join(' ').trim()}`
              if (a.name === 'style') {
                const s = document.createElement('i').style
                s.cssText = a.value
                return s.length ? `style=${[...s].map((k) => `${k}:${s.getPropertyValue(k)}`).sort().join(';')}` : ''
              }
              return `${a.name}=${JSON.stringify(a.value)}`
            }).filter(Boolean).sort()
            out.push(`<${n.namespaceURI.endsWith('svg') ? 'svg:' : ''}${n.localName}${attrs.map((a) => ' ' + a).join('')}>[${tree(n)}]`)
          }
        }
        flush()
        return out.join('')
      }
      let steps = 0
      let patches = 0
      const wrong = []
      for (const q of await (await fetch('/sequences')).json()) {
        const host = document.createElement('div')
        document.body.replaceChildren(host)
        const view = new engi.View(host)
        view.set(q.start)
        for (const [i, s] of q.steps.entries()) {
          steps++
          patches += s.patches?.length ?? 0
          const before = view.body.innerHTML
          if (s.html === null) view.patch(s.patches ?? [])
          else view.set(s.html)
          const want = document.createElement('body')
          want.innerHTML = s.want
          if (tree(view.body) !== tree(want)) {
            wrong.push(`sequence ${q.number}, step ${i}: ${JSON.stringify(s.html ?? s.patches)}\n to ${before}\n got ${tree(view.body)}\nwant ${tree(want)}`)
            break
          }
          // Fields show what their attributes say.
          for (const el of view.body.querySelectorAll('input,textarea')) {
            if (el.value !== el.cloneNode(true).value || el.checked !== el.cloneNode(true).checked && el.type !== 'radio') wrong.push(`sequence ${q.number}, step ${i}: ${el.outerHTML} shows ${el.value} ${el.checked}`)
          }
        }
      }
      return { steps, patches, wrong }
    })
    if (wrong.length) throw new Error(`${wrong.length} differ\n${wrong.slice(0, 5).join('\n\n')}`)
    return `${patches} patches in ${steps} steps`
  })
} finally {
  await browser.close()
}
