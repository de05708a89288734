// Runs first in a page that is served by path. What names the root of the page's host
// means the root of its service.
(() => {
  const root = new URL(document.currentScript.dataset.root, location.href).pathname
  const own = (address) => {
    let u
    try { u = new URL(address, document.baseURI) } catch { return address }
    if (u.host !== location.host || u.pathname.startsWith(root)) return address
    u.pathname = root + u.pathname.slice(1)
    return u.href
  }
  for (const name of ['WebSocket', 'EventSource']) {
    globalThis[name] = new Proxy(globalThis[name], { construct: (type, [address, ...rest], as) => Reflect.construct(type, [own(address), ...rest], as) })
  }
  const { fetch } = globalThis
  globalThis.fetch = (what, how) => {
    if (!(what instanceof Request)) return fetch(own(what), how)
    const address = own(what.url)
    return fetch(address === what.url ? what : new Request(address, what), how)
  }
  const { open } = XMLHttpRequest.prototype
  XMLHttpRequest.prototype.open = function (method, address, ...rest) { return open.call(this, method, own(address), ...rest) }
  for (const name of ['pushState', 'replaceState']) {
    const change = history[name]
    history[name] = (state, title, address) => change.call(history, state, title, address == null ? address : own(address))
  }
  delete globalThis.SharedWorker // refused to such pages; Vite does without, if there is none

  const names = ['src', 'href', 'action', 'formaction', 'poster']
  const { setAttribute } = Element.prototype
  Element.prototype.setAttribute = function (name, value) {
    return setAttribute.call(this, name, names.includes(String(name).toLowerCase()) ? own(value) : value)
  }
  for (const [type, name] of [[HTMLScriptElement, 'src'], [HTMLLinkElement, 'href'], [HTMLImageElement, 'src'], [HTMLIFrameElement, 'src']]) {
    const { set, ...rest } = Object.getOwnPropertyDescriptor(type.prototype, name)
    Object.defineProperty(type.prototype, name, { ...rest, set(value) { set.call(this, own(value)) } })
  }
  // What comes as markup.
  const correct = (element) => {
    for (const name of names) {
      const value = element.getAttribute(name)
      if (value !== null && own(value) !== value) element.setAttribute(name, value)
    }
  }
  new MutationObserver((changes) => {
    for (const { target, addedNodes } of changes) {
      correct(target)
      for (const node of addedNodes) {
        if (node.nodeType !== Node.ELEMENT_NODE) continue
        correct(node)
        node.querySelectorAll(names.map((name) => `[${name}]`).join()).forEach(correct)
      }
    }
  }).observe(document, { subtree: true, childList: true, attributeFilter: names })
})()
