// A page: a tree that patches and whole pages change in place, so that whoever
// uses it meanwhile loses nothing.

import { allowed, declarations, parse, setStyle } from './clean'
import { attrOf, attrsOf, drop, first, isElement, nameOf, next, of, parentOf, put } from './dom'

/** One change of the elements that a selector selects, as the server sends it. */
export interface Patch {
  selector: string
  text?: string
  html?: string
  attr?: Record<string, string | null>
  class?: Record<string, boolean>
  style?: Record<string, string | null>
  value?: string
  append?: string
  prepend?: string
  before?: string
  after?: string
  replace?: string
  remove?: boolean
  move?: { to: string; place: string }
}

/** How far siblings are looked at for one that fits. */
const reach = 8

let sheet: CSSStyleSheet | undefined

export class View {
  /** Where the page is; it has the role of a body, and its selector. */
  readonly body: HTMLElement
  private readonly shadow: ShadowRoot
  /** Fields that the user has changed since they were sent, and what had been sent then. */
  private readonly touched = new WeakMap<Node, number>()
  /** Whether details were open by the server's will, which users may have changed. */
  private readonly open = new WeakMap<Node, boolean>()
  private before?: string
  private readonly stale = new Set<Node>()
  /** Elements that show that their action is worked on. */
  readonly busy = new Set<Element>()
  /** How many actions were sent. */
  sent = 0

  constructor(host: Element) {
    this.shadow = host.shadowRoot ?? host.attachShadow({ mode: 'open' })
    if (!sheet) {
      sheet = new CSSStyleSheet()
      // Nothing of the page can be outside of its place.
      sheet.replaceSync(':host{display:block;contain:content}body{margin:0}')
    }
    const { adoptedStyleSheets: all } = this.shadow
    if (!all.includes(sheet)) all.unshift(sheet)
    this.body = document.createElement('body')
    this.shadow.replaceChildren(this.body)
    const touch = (e: Event) => this.touched.set(e.target as Node, this.sent)
    this.body.addEventListener('input', touch)
    this.body.addEventListener('change', touch)
  }

  /** Fields of a form that was sent: what they show next is up to the server. */
  taken(fields: Iterable<Node>): void {
    for (const f of fields) {
      this.touched.delete(f)
      this.stale.add(f)
    }
  }

  /** Replaces all by HTML; or, while that is being written, shows as much as there is, until something else comes. */
  set(html: string, partial = false): void {
    if (partial) this.before ??= this.body.innerHTML.replaceAll(' aria-busy="true"', '')
    else this.before = undefined
    this.keep(() => this.children(this.body, parse(html, this.body), partial))
    if (partial) return
    for (const f of this.stale) this.field(f)
    this.stale.clear()
  }

  /** Shows what was before a page that was being written. */
  settle(): void {
    if (this.before !== undefined) this.set(this.before)
  }

  /** Applies patches in their order. One that fits nothing does nothing. */
  patch(patches: Patch[]): void {
    this.settle()
    this.keep(() => {
      for (const p of patches) {
        try {
          let outer: Element | undefined
          // What is in an element that is replaced goes with it.
          const within = (el: Element) => outer && of(outer, 'contains', el) || !(outer = el)
          const replaces = (p.text ?? p.html ?? p.replace ?? p.remove) !== undefined
          for (const el of [...this.shadow.querySelectorAll(p.selector)].filter((el) => !replaces || !within(el))) {
            this.change(el, p)
            if (p.move) break
          }
        } catch { /* no selector, or no name of an attribute */ }
      }
    })
  }

  private change(el: Element, p: Patch): void {
    const root = el === this.body
    if (p.text !== undefined) {
      const holder = document.createElement('p')
      holder.textContent = p.text
      this.children(el, holder)
    } else if (p.html !== undefined) this.children(el, parse(p.html, el))
    else if (p.append !== undefined) this.insert(p.append, el, null)
    else if (p.prepend !== undefined) this.insert(p.prepend, el, first(el))
    else if (root) return
    else if (p.attr) {
      for (const [name, value] of Object.entries(p.attr)) {
        if (name === 'style' && value !== null) setStyle(el, declarations(value), true)
        if (value === null || allowed(el, name.toLowerCase(), value)) this.attribute(el, name, value)
      }
    } else if (p.class) for (const [name, on] of Object.entries(p.class)) of<DOMTokenList>(el, 'classList').toggle(name, on)
    else if (p.style) setStyle(el, Object.entries(p.style))
    else if (p.value !== undefined) this.value(el, p.value)
    else if (p.before !== undefined) this.insert(p.before, parentOf(el)!, el)
    else if (p.after !== undefined) this.insert(p.after, parentOf(el)!, next(el))
    else if (p.replace !== undefined) {
      const into = parentOf(el)!
      const made = parse(p.replace, into)
      const only = first(made)
      if (only && !next(only) && alike(el, only)) this.node(el, only)
      else {
        while (first(made)) this.add(into, first(made)!, el)
        drop(el)
      }
    } else if (p.remove) drop(el)
    else if (p.move) {
      const to = this.shadow.querySelector(p.move.to)
      if (!to || of(el, 'contains', to)) return
      const { place } = p.move
      if (place === 'append' || place === 'prepend') put(to, el, place === 'append' ? null : first(to))
      else if (to !== this.body) put(parentOf(to)!, el, place === 'before' ? to : next(to))
    }
  }

  private insert(html: string, into: Element, before: Node | null): void {
    const made = parse(html, into)
    while (first(made)) this.add(into, first(made)!, before)
    this.field(into)
  }

  private add(into: Node, n: Node, before: Node | null): void {
    if (isElement(n)) for (const d of [n, ...of<NodeListOf<Element>>(n, 'querySelectorAll', 'details')]) this.open.set(d, of(d, 'hasAttribute', 'open'))
    of(into, 'insertBefore', n, before)
  }

  /** Makes what is in a node like what is in another, with as few changes as it can. */
  private children(live: Node, want: Node, partial = false): void {
    const ids = new Set<string>()
    const byId = new Map<string, Node>()
    for (let n = first(want); n; n = next(n)) if (idOf(n)) ids.add(idOf(n))
    for (let n = first(live); n; n = next(n)) if (ids.has(idOf(n))) byId.set(idOf(n), n)
    let at: Node | null = first(live)
    const skip = () => {
      const gone = at!
      at = next(gone)
      drop(gone)
    }
    for (let w: Node | null = first(want), after; w; w = after) {
      after = next(w)
      let match = byId.get(idOf(w))
      if (!match) {
        // One that is the same, however far it has moved, or the next one that can become it.
        let fits: Node | undefined
        let n = at
        for (let i = 0; n && i < reach && !match; i++, n = next(n)) {
          if (byId.has(idOf(n)) || !alike(n, w)) continue
          fits ??= n
          if (of(n, 'isEqualNode', w)) match = n
        }
        if (!match && fits) {
          let other: Node | null = after
          for (let i = 0; other && i < reach && !of(fits, 'isEqualNode', other); i++) other = next(other)
          if (!other) match = fits
        }
      } else if (!alike(match, w)) match = undefined
      // What it skips is gone, but for what has its place later.
      while (match && !partial && at && at !== match && !byId.has(idOf(at)) && !this.used(at)) skip()
      if (!match) {
        this.add(live, w, at)
        continue
      }
      byId.delete(idOf(w))
      if (match === at) at = next(at)
      else put(live, match, at)
      this.node(match, w, partial && !after)
    }
    while (at && !partial) skip()
    this.field(live)
  }

  /** Has the user done something in it? */
  private used(n: Node): boolean {
    return isElement(n) && (of(n, 'contains', this.shadow.activeElement) || [n, ...of<NodeListOf<Element>>(n, 'querySelectorAll', 'input,select,textarea')].some((f) => this.touched.has(f)))
  }

  /** Makes a node like another of its kind. */
  private node(live: Node, want: Node, partial = false): void {
    if (of(live, 'isEqualNode', want)) return
    if (!isElement(live)) {
      live.nodeValue = want.nodeValue
      return
    }
    for (const name of attrsOf(live)) if (attrOf(want, name) === null) this.attribute(live, name, null)
    for (const name of attrsOf(want)) this.attribute(live, name, attrOf(want, name))
    if (attrOf(live, 'style') !== attrOf(want, 'style')) setStyle(live, declarations(want as Element), true)
    this.children(live, want, partial)
  }

  private attribute(el: Element, name: string, value: string | null): void {
    const is = nameOf(el)
    if (name === 'aria-busy' && this.busy.has(el)) return
    if (is === 'details' && name === 'open') {
      const [wanted, wants] = [this.open.get(el) ?? false, value !== null]
      // The user has opened or closed what the server wants as before.
      if (wanted === wants && (attrOf(el, name) !== null) !== wants) return
      this.open.set(el, wants)
    }
    if (attrOf(el, name) === value || name === 'style' && value !== null) return
    if (name === 'style') setStyle(el, [], true)
    if (value === null) of(el, 'removeAttribute', name)
    else of(el, 'setAttribute', name, value)
    if (/^(value|checked|selected)$/.test(name)) this.field(name === 'selected' ? of<Element | null>(el, 'closest', 'select') ?? el : el)
  }

  /** Shows in a field what the server has put into it, unless the user has changed it. */
  private field(n: Node): void {
    if (this.touched.has(n)) return
    if (n instanceof HTMLInputElement) {
      if (n.type !== 'file' && n.value !== n.defaultValue) n.value = n.defaultValue
      n.checked = n.defaultChecked
    } else if (n instanceof HTMLTextAreaElement) {
      if (n.value !== n.defaultValue) n.value = n.defaultValue
    } else if (n instanceof HTMLSelectElement) for (const o of n.options) if (o.selected !== o.defaultSelected) o.selected = o.defaultSelected
  }

  private value(el: Element, value: string): void {
    // Who types at this moment is right.
    if (this.touched.get(el) !== this.sent) this.touched.delete(el)
    if (nameOf(el) === 'textarea') this.change(el, { selector: '', text: value })
    else if (el instanceof HTMLSelectElement) {
      const chosen = [...el.options].find((o) => o.value === value)
      for (const o of el.options) this.attribute(o, 'selected', o === chosen ? '' : null)
    }
    else this.attribute(el, 'value', value)
    this.field(el)
  }

  /** Does something to the page, after which the focus is where it was. */
  private keep(act: () => void): void {
    const el = this.shadow.activeElement as HTMLInputElement | null
    const [from, to, way] = el && 'selectionStart' in el ? [el.selectionStart, el.selectionEnd, el.selectionDirection] : []
    act()
    if (!el || !of(el, 'isConnected') || this.shadow.activeElement === el) return
    el.focus({ preventScroll: true })
    if (from != null) el.setSelectionRange(from, to!, way!)
  }
}

function idOf(n: Node): string {
  return isElement(n) ? attrOf(n, 'id') ?? '' : ''
}

/** Can one become the other? */
function alike(a: Node, b: Node): boolean {
  if (of(a, 'nodeType') !== of(b, 'nodeType')) return false
  if (!isElement(a)) return true
  return nameOf(a) === nameOf(b) && of(a, 'namespaceURI') === of(b, 'namespaceURI') && ['id', 'type', 'name'].every((name) => attrOf(a, name) === attrOf(b as Element, name))
}
