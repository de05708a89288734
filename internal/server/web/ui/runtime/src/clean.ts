// What markup may exist, whoever sent it. The server has cleaned it before; this
// stands for itself: nothing here that may exist can run a script, and it is
// looked at as the tree that is shown, not as text.

import { attrOf, attrsOf, drop, first, isElement, nameOf, next, of, parentOf, styleOf } from './dom'

const words = (s: string) => new Set(s.split(' '))

const elements = words('a abbr address article aside b bdi bdo blockquote br button caption cite code col colgroup data datalist dd del details dfn div dl dt em fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr i img input ins kbd label legend li main mark menu meter nav ol optgroup option output p pre progress q rp rt ruby s samp section select small span strong sub summary sup table tbody td textarea tfoot th thead time tr u ul var wbr svg g path rect circle ellipse line polyline polygon text tspan title desc defs lineargradient radialgradient stop')
const never = /^(action|archive|attributionsrc|autofocus|background|classid|clip-path|code|contenteditable|data|download|dynsrc|filter|http-equiv|imagesrcset|interestfor|is|longdesc|lowsrc|manifest|mask|method|nonce|part|ping|profile|slot|srcdoc|srcset|style|usemap)$|^(on|form|popover|shadowroot|marker|xml|command)|[^\w.-]/

/** May an element have an attribute? */
export function allowed(el: Element, name: string, value: string): boolean {
  if (never.test(name)) return false
  if (name === 'target') return value === '_blank'
  if (/^(fill|stroke)/.test(name)) return !unsafe.test(value.replace(/^url\(#[\w-]+\)$/, ''))
  if (!/^(href|src|poster|cite)$/.test(name)) return true
  try {
    const { protocol, origin } = new URL(value, document.baseURI)
    if (nameOf(el) === 'a') return /^(https?|mailto|tel):$/.test(protocol)
    return name !== 'href' && (origin === location.origin || /^data:image\/(?!svg)/.test(value))
  } catch {
    return nameOf(el) === 'a' // leads nowhere
  }
}

// What loads something, is placed by the window, or is written so that one can not see it.
const unsafe = /url|image\(|image-set|src\(|element\(|paint\(|expression|fixed|sticky|[\\<@]/i

// The declarations of elements in their order: browsers write a style attribute in
// their own way, in which one stands for several.
const declared = new WeakMap<Element, Map<string, string>>()

/** Sets properties of styles that are safe; null removes. It uses the CSSOM: policies of pages forbid the attribute. */
export function setStyle(el: Element, changes: Iterable<[string, string | null]>, anew = false): void {
  const all = (!anew && declared.get(el)) || new Map<string, string>()
  for (const [name, value] of changes) {
    if (value === null) all.delete(name)
    else if (!unsafe.test(value)) all.set(name, value)
  }
  declared.set(el, all)
  const style = styleOf(el)
  style.cssText = ''
  for (const [name, value] of all) style.setProperty(name, value)
}

/** The declarations of a style attribute, or of an element. */
export function declarations(from: string | Element): [string, string][] {
  if (typeof from !== 'string') return [...declared.get(from) ?? []]
  return from.split(';').map((d) => {
    const at = d.indexOf(':')
    return [d.slice(0, at).trim(), d.slice(at + 1).trim()] as [string, string]
  }).filter(([name]) => name)
}

let inert: Document | undefined
// Browsers report style attributes to policies of the page even where nothing is
// shown, so while HTML is parsed they have another name.
const mark = '\uFDD0'

/** Parses HTML as what would be written into an element, and removes what may not exist. */
export function parse(html: string, into: Element): Element {
  inert ??= document.implementation.createHTMLDocument('')
  const holder = inert.createElementNS(of<string>(into, 'namespaceURI'), nameOf(into))
  // The parser leaves out a form in a form.
  for (let n: Element | null = into; n; n = parentOf(n)) {
    if (nameOf(n) === 'form' && n !== into) {
      inert.createElement('form').append(holder)
      break
    }
  }
  holder.innerHTML = html.replaceAll(mark, '').replace(/style(?=\s*=)/gi, mark + '$&')
  clean(holder, 0)
  return holder
}

function clean(parent: Node, depth: number): void {
  for (let n = first(parent); n; ) {
    const after = next(n)
    if (!isElement(n)) {
      if (of(n, 'nodeType') !== 3) drop(n)
      else if (n.nodeValue!.includes(mark)) n.nodeValue = n.nodeValue!.replaceAll(mark, '')
    } else if (depth > 512 || !elements.has(nameOf(n).toLowerCase())) drop(n)
    else {
      for (const name of attrsOf(n)) {
        const value = attrOf(n, name)!
        const plain = value.replaceAll(mark, '')
        if (name === mark + 'style') setStyle(n, declarations(plain))
        if (!allowed(n, name.toLowerCase(), plain)) of(n, 'removeAttribute', name)
        else if (plain !== value) of(n, 'setAttribute', name, plain)
      }
      clean(n, depth + 1)
    }
    n = after
  }
}
