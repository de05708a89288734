// Properties of nodes as the platform has them: a form has its fields as
// properties, so that form.firstChild is whatever field is called that.

const found: Record<string, (this: Node, ...args: unknown[]) => unknown> = {}

/** Reads a property of a node, or calls a method. */
export function of<T>(node: Node, name: string, ...args: unknown[]): T {
  const get = found[name] ??= (() => {
    for (const { prototype } of [Node, Element, HTMLElement, HTMLFormElement]) {
      const p = Object.getOwnPropertyDescriptor(prototype, name)
      if (p) return p.get ?? p.value
    }
  })()
  return get.apply(node, args) as T
}

export const first = (n: Node) => of<ChildNode | null>(n, 'firstChild')
export const next = (n: Node) => of<ChildNode | null>(n, 'nextSibling')
export const parentOf = (n: Node) => of<Element | null>(n, 'parentElement')
export const nameOf = (n: Node) => of<string>(n, 'localName')
export const isElement = (n: Node): n is Element => of(n, 'nodeType') === 1
export const attrOf = (n: Node, name: string) => of<string | null>(n, 'getAttribute', name)
export const attrsOf = (n: Node) => of<string[]>(n, 'getAttributeNames')
export const styleOf = (n: Element) => (n instanceof HTMLFormElement ? of<CSSStyleDeclaration>(n, 'style') : (n as HTMLElement).style)
export const drop = (n: Node) => of<Node | null>(n, 'parentNode') && of(of<Node>(n, 'parentNode'), 'removeChild', n)

/** Puts a node before another, or last; what is there already keeps its state where browsers can. */
export function put(into: Node, n: Node, before: Node | null): void {
  try {
    if (!of(n, 'isConnected')) throw 0
    of(into, 'moveBefore', n, before)
  } catch {
    of(into, 'insertBefore', n, before)
  }
}
