// Style sheets for xterm.js: its build calls this where it made style elements,
// which the policy of the page forbids (see vite.config.ts).

/** An element whose text is a style sheet of the document until it is removed. */
export function sheetElement(): HTMLElement {
  const sheet = new CSSStyleSheet()
  document.adoptedStyleSheets.push(sheet)
  const el = document.createElement('template')
  Object.defineProperty(el, 'textContent', { set: (css: string) => sheet.replaceSync(css) })
  el.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((s) => s !== sheet)
    HTMLElement.prototype.remove.call(el)
  }
  return el
}
