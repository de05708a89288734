// <engi-ui session="ses_…" base="https://node" key="engi_…"> shows a page.

import { mount, type Options, type State, type UI } from './index'

export * from './index'

const attributes = ['session', 'base', 'key', 'api-key', 'agent', 'model'] as const

/** Dispatches "update", "state" and "error" with a detail; its attribute state is one for styles. */
export class EngiUI extends HTMLElement {
  static observedAttributes = [...attributes]
  /** The page, once there is a session. */
  ui?: UI
  private options = ''

  connectedCallback() { this.start() }
  connectedMoveCallback() { /* it goes on */ }
  attributeChangedCallback() { this.start() }
  disconnectedCallback() { this.start() }

  // All that changes at once, or moves, is one change.
  private start() {
    queueMicrotask(() => {
      const options: Partial<Options> = {}
      // Frameworks keep key to themselves.
      if (this.isConnected) for (const name of attributes) options[name === 'api-key' ? 'key' : name] ??= this.getAttribute(name) || undefined
      const now = options.session ? JSON.stringify(options) : ''
      if (now === this.options) return
      this.options = now
      this.ui?.close()
      this.ui = undefined
      if (!options.session) return
      const tell = (kind: string, detail: unknown) => { this.dispatchEvent(new CustomEvent(kind, { detail })) }
      this.setAttribute('state', 'connecting')
      const ui: UI = this.ui = mount(this, {
        ...options as Options,
        onupdate: (u) => tell('update', u),
        onstate: (s: State) => {
          if (this.ui !== ui) return
          this.setAttribute('state', s)
          tell('state', s)
        },
        onerror: (e) => tell('error', e),
      })
    })
  }
}

if (!customElements.get('engi-ui')) customElements.define('engi-ui', EngiUI)
