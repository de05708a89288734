// Shows the page of a session in an element: follows its stream, and sends what
// people do.

import { allowed } from './clean'
import { attrOf, of } from './dom'
import { messages } from './stream'
import { View, type Patch } from './view'

export { View, type Patch }

/** What has happened, as the server sends it; see docs/pages.md of engi. */
export interface Update {
  kind: 'action' | 'patch' | 'html' | 'stats' | 'tool' | 'stdout' | 'error' | 'done'
  seq?: number
  time?: string
  run?: string
  action?: string
  data?: unknown
  html?: string
  partial?: boolean
  patches?: Patch[]
  stats?: unknown
  call?: { id: string; name: string; arguments?: string }
  result?: { text: string; failed?: boolean }
  text?: string
  state?: string
}

/** idle: everything is answered. closed: nothing more comes. */
export type State = 'connecting' | 'idle' | 'working' | 'closed'

export interface Options {
  /** ID or name of the session. */
  session: string
  /** Where the node is; nothing means where this page comes from. */
  base?: string
  /** A key of the API; without one the cookie of the dashboard counts. */
  key?: string
  /** Who answers; nothing means the agent of the node for pages. */
  agent?: string
  model?: string
  onupdate?: (update: Update) => void
  onstate?: (state: State) => void
  /** What went wrong: a refusal of the server, after which state is closed, or an action that was not taken. */
  onerror?: (error: Error) => void
}

export interface UI {
  readonly view: View
  readonly state: State
  /** Does an action, and returns its number in the log once the server has it. */
  send(action: string, data?: object): Promise<number>
  /** Ends the run that answers and forgets actions that wait. */
  cancel(): Promise<void>
  close(): void
}

/** A refusal of the server. */
export class Refusal extends Error {
  constructor(readonly status: number, detail: string, readonly remedy = '') {
    super(detail)
  }
}

const frame = 8 // milliseconds of work in one frame
const silence = 60_000 // the server is heard from more often

const pause = (ms: number, stop: AbortSignal) => new Promise<void>((done) => {
  const end = () => {
    clearTimeout(timer)
    removeEventListener('online', end)
    done()
  }
  const timer = setTimeout(end, ms)
  addEventListener('online', end)
  stop.addEventListener('abort', end, { once: true })
})

/** May it help to ask again? */
const passing = (err: unknown) => !(err instanceof Refusal) || [408, 425, 429].includes(err.status) || err.status >= 500

/** How a page reaches its server. */
export interface Line {
  /** What has happened after an event, and what happens; it says when it is connected. */
  updates(after: number, connected: () => void, stop: AbortSignal): AsyncIterable<Update>
  /** Does an action, once, and returns its number in the log. */
  send(action: string, data: object, stop: AbortSignal): Promise<number>
  cancel(stop: AbortSignal): Promise<unknown>
  /** Opens what a link leads to. */
  open(url: URL): void
}

/** The line to a node over HTTP. */
function http(options: Options): Line {
  const at = `${(options.base ?? '').replace(/\/$/, '')}/v1/sessions/${encodeURIComponent(options.session)}/page`
  const who: Record<string, string> = options.key ? { Authorization: `Bearer ${options.key}` } : { 'Engi-Dashboard': '1' }
  const ask = async (path: string, q: RequestInit): Promise<Response> => {
    const resp = await fetch(at + path, { credentials: 'same-origin', cache: 'no-store', ...q, headers: { ...who, ...q.headers } })
    if (resp.ok) return resp
    const problem = await resp.json().catch(() => ({}))
    throw new Refusal(resp.status, problem.detail ?? `the server answered ${resp.status}`, problem.remedy)
  }
  return {
    async *updates(after, connected, stop) {
      const line = new AbortController()
      const cut = () => line.abort()
      stop.addEventListener('abort', cut)
      let quiet: ReturnType<typeof setTimeout> | undefined
      const heard = () => {
        clearTimeout(quiet)
        quiet = setTimeout(cut, silence)
      }
      try {
        heard()
        const resp = await ask('/stream?format=engi', { signal: line.signal, headers: { Accept: 'text/event-stream', ...after ? { 'Last-Event-ID': `${after}` } : {} } })
        connected()
        for await (const m of messages(resp.body!, heard)) yield { ...JSON.parse(m.data), kind: m.kind, seq: Number(m.id) || undefined }
      } finally {
        clearTimeout(quiet)
        stop.removeEventListener('abort', cut)
        cut()
      }
    },
    async send(action, data, stop) {
      // The same key again is the same action, so that a lost answer does no harm.
      const once = Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, '0')).join('')
      for (let tries = 0; ; tries++) {
        try {
          const resp = await ask('/actions', {
            method: 'POST', signal: stop, headers: { Accept: 'application/json', 'Content-Type': 'application/json', 'Idempotency-Key': once },
            body: JSON.stringify({ action, data, agent: options.agent, model: options.model }),
          })
          return (await resp.json()).seq
        } catch (err) {
          if (stop.aborted || !passing(err) || tries > 5) throw err
          await pause(250 * 2 ** tries, stop)
        }
      }
    },
    cancel: (stop) => ask('/cancel', { method: 'POST', signal: stop }),
    open: (url) => open(url, '_blank', 'noopener'),
  }
}

/** Shows a session's page in an element, whose content it hides, until it is closed. */
export function mount(host: Element, options: Options): UI {
  return show(host, options, http(options))
}

/** The same with another line. */
export function show(host: Element, options: Pick<Options, 'onupdate' | 'onstate' | 'onerror'>, line: Line): UI {
  const view = new View(host)
  const stop = new AbortController()
  let state: State = 'connecting'
  let connected = false
  let last = 0 // event that was seen
  let asked = 0 // the last action that the server took from here
  let sending = 0 // actions that it has not taken yet
  let waiting = 0 // actions that no run is known to have seen
  let run = '' // that answers
  let ended = ''

  const tell = () => {
    const now: State = stop.signal.aborted ? 'closed' : !connected ? 'connecting' : run || waiting || sending || asked > last ? 'working' : 'idle'
    if (now === 'working') view.body.setAttribute('aria-busy', 'true')
    else view.body.removeAttribute('aria-busy')
    if (now === 'idle' || now === 'closed') {
      for (const el of view.busy) of(el, 'removeAttribute', 'aria-busy')
      view.busy.clear()
    }
    if (now !== state) options.onstate?.(state = now)
  }

  // What is not shown yet. Frames are not drawn where nobody sees them.
  let queue: (Update | Patch)[] = []
  let due = 0
  let timer: ReturnType<typeof setTimeout>
  const soon = () => {
    if (due || !queue.length) return
    due = requestAnimationFrame(flush)
    timer = setTimeout(flush, 500)
  }
  const flush = () => {
    cancelAnimationFrame(due)
    clearTimeout(timer)
    due = 0
    const end = performance.now() + frame
    while (queue.length && performance.now() < end) {
      const item = queue.shift()!
      if ('selector' in item) view.patch([item])
      else if (item.kind === 'html') view.set(item.html!, item.partial)
      else view.settle()
    }
    if (queue.length) soon()
  }

  /** Takes what the server says. */
  const take = (u: Update & { error?: { detail: string } }): void => {
    const { seq } = u
    const resumed = last > 0
    if (u.kind === 'html') {
      // What comes before a whole page is not seen, nor half of what is here.
      if (!u.partial) queue = []
      else if ((queue.at(-1) as Update)?.partial) queue.pop()
      queue.push(u)
    } else if (seq && seq <= last) return
    last = seq || last
    if (u.kind === 'patch') queue.push(...u.patches!)
    else if (u.kind === 'action') waiting++
    else if (u.kind === 'error') u.text ??= u.error?.detail
    if (u.kind === 'done') {
      if (u.run !== run || u.state !== 'done') waiting = 0
      run = ''
      ended = u.run!
    } else if (u.run && u.run !== run && u.run !== ended && (u.kind !== 'html' || u.partial || resumed)) {
      run = u.run
      waiting = 0
    }
    if (u.kind === 'error' || u.kind === 'done') queue.push(u)
    soon()
    options.onupdate?.(u)
    tell()
  }

  const follow = async () => {
    for (let tries = 0; !stop.signal.aborted; tries++) {
      try {
        const updates = line.updates(last, () => {
          connected = true
          tell()
        }, stop.signal)
        for await (const u of updates) {
          tries = 0
          take(u)
        }
      } catch (err) {
        if (!passing(err)) {
          stop.abort()
          options.onerror?.(err as Error)
        }
      }
      connected = false
      tell()
      queue.push({ kind: 'done' }) // of a page that was being written no more is known
      soon()
      await pause(Math.min(250 * 2 ** tries, 10_000) * (0.5 + Math.random() / 2), stop.signal)
    }
  }

  const send = async (action: string, data: object = {}): Promise<number> => {
    view.sent++
    sending++
    tell()
    try {
      const seq = await line.send(action, data, stop.signal)
      asked = Math.max(asked, seq)
      return seq
    } finally {
      sending--
      tell()
    }
  }

  /** Does the action of an element, with its data and the fields of a form. */
  const act = (el: Element, form?: HTMLFormElement | null, submitter?: HTMLElement | null) => {
    const data = new Map<string, unknown>(Object.entries({ ...of<DOMStringMap>(el, 'dataset') }))
    const action = data.get('action') as string
    data.delete('action')
    if (form) {
      const fields = new FormData(form, submitter)
      for (const name of new Set(fields.keys())) {
        const all = fields.getAll(name).filter((v) => typeof v === 'string')
        if (all.length) data.set(name, all.length > 1 ? all : all[0])
      }
      view.taken(of<HTMLCollection>(form, 'elements'))
    } else if (isField(el)) {
      data.set(el.name || 'value', (el as HTMLInputElement).type === 'checkbox' ? (el as HTMLInputElement).checked : el.value)
      view.taken([el])
    }
    of(el, 'setAttribute', 'aria-busy', 'true')
    view.busy.add(el)
    send(action, Object.fromEntries(data)).catch((err) => { if (!stop.signal.aborted) options.onerror?.(err) })
  }

  // Also when it is closed: nothing of a page leads away from the one that it is in.
  const listen = (kind: string, hear: (e: Event, target: Element) => void) => view.body.addEventListener(kind, (e) => hear(e, e.target as Element))
  listen('click', (e, target) => {
    const link = of<HTMLElement | null>(target, 'closest', 'a[href]')
    if (link) e.preventDefault()
    const el = of<HTMLElement | null>(target, 'closest', '[data-action]:not(form),a[href]')
    if (!el || isField(el)) return
    if (attrOf(el, 'data-action')) {
      const { form, type } = el as HTMLButtonElement
      const submits = form && type === 'submit'
      if (submits) {
        e.preventDefault()
        if (!HTMLFormElement.prototype.reportValidity.call(form)) return
      }
      act(el, form, submits ? el : null)
    } else if (link) {
      const href = attrOf(link, 'href')!
      if (href[0] === '#') {
        for (const to of of<NodeListOf<Element>>(view.body, 'querySelectorAll', '[id]')) if (attrOf(to, 'id') === href.slice(1)) to.scrollIntoView()
      } else if (allowed(link, 'href', href)) line.open(new URL(href, document.baseURI))
    }
  })
  listen('change', (_, target) => { if (isField(target) && attrOf(target, 'data-action')) act(target) })
  listen('submit', (e, form) => {
    e.preventDefault()
    if (attrOf(form, 'data-action')) act(form, form as HTMLFormElement, (e as SubmitEvent).submitter)
  })

  void follow()
  return {
    view,
    get state() { return state },
    send,
    cancel: async () => {
      await line.cancel(stop.signal)
      waiting = 0
      tell()
    },
    close: () => {
      stop.abort()
      tell()
    },
  }
}

/** Is it a field whose change is an action, and not its click? */
function isField(el: Element): el is HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement {
  return el instanceof HTMLInputElement ? !/^(button|submit|reset|image|file)$/.test(el.type) : el instanceof HTMLSelectElement || el instanceof HTMLTextAreaElement
}
