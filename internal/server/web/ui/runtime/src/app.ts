// What engi's MCP server gives to programs that show interfaces (MCP Apps): the page
// of a session in a frame that reaches nothing but the program around it, which
// passes actions and what comes of them on to the server as calls of its tools.

import { of } from './dom'
import { Refusal, show, View, type Line, type UI, type Update } from './index'

/** A message of JSON-RPC. */
interface Message {
  jsonrpc: '2.0'
  id?: number | string
  method?: string
  params?: object
  result?: unknown
  error?: { code: number; message: string }
}
interface ToolResult {
  content?: { type: string; text?: string }[]
  structuredContent?: object
  isError?: boolean
}
interface Context {
  theme?: string
  styles?: { variables?: Record<string, string | undefined> }
}

const look = `
body{font:14px/1.5 var(--font-sans,system-ui,sans-serif);color:var(--color-text-primary,CanvasText)}
button,input,select,textarea{font:inherit;color:inherit;background:var(--color-background-secondary,Canvas);border:1px solid var(--color-border-primary,GrayText);border-radius:var(--border-radius-sm,4px);padding:.25em .6em}
button,[data-action]:not(form,input,select,textarea){cursor:pointer}
[aria-busy=true]{opacity:.7}
img,svg,table{max-width:100%}
[hidden]{display:none}`

const host = document.body.appendChild(document.createElement('main'))
const alert = document.body.appendChild(document.createElement('p'))
alert.setAttribute('role', 'alert')

const sheetOf = (css: string) => {
  const sheet = new CSSStyleSheet()
  sheet.replaceSync(css)
  return sheet
}
document.adoptedStyleSheets = [sheetOf('body{margin:12px;height:fit-content}[role=alert]{margin:12px 0 0;font:14px system-ui,sans-serif;color:var(--color-text-danger,light-dark(#b00020,#ff8a80))}[role=alert]:empty{display:none}')]
host.attachShadow({ mode: 'open' }).adoptedStyleSheets = [sheetOf(look)]

const outside = window.parent
const asked = new Map<Message['id'], [(result: unknown) => void, (err: Error) => void]>()
let last = 0

const post = (m: Omit<Message, 'jsonrpc'>) => outside.postMessage({ jsonrpc: '2.0', ...m }, '*')
const request = <T>(method: string, params: object) => new Promise<T>((done, fail) => {
  asked.set(++last, [done as (result: unknown) => void, fail])
  post({ id: last, method, params })
})

const textOf = (r: ToolResult) => r.content?.map((c) => c.text ?? '').join('\n') ?? ''

/** Calls a tool of the server. What the server refuses, it refuses again. */
const call = async <T>(name: string, args: object): Promise<T> => {
  const r = await request<ToolResult>('tools/call', { name, arguments: args })
  if (r.isError) throw new Refusal(403, textOf(r))
  return r.structuredContent as T
}

let session = ''
let ui: UI | undefined
let tools = false // does the program pass calls on?
let wake = () => {}

const line: Line = {
  async *updates(after, connected, stop) {
    while (!stop.aborted) {
      const woken = new Promise<void>((done) => { wake = done })
      const { updates, idle } = await call<{ updates: (Update & { type: Update['kind'] })[]; idle: boolean }>('watch_page', { session, after })
      connected()
      for (const u of updates) {
        yield { ...u, kind: u.type }
        after = u.seq ?? after
      }
      // Nothing comes until somebody does something: here, or elsewhere while this was not looked at.
      if (idle && !updates.length) await woken
    }
  },
  async send(action, data) {
    alert.textContent = ''
    const { seq } = await call<{ seq: number }>('act_on_page', { session, action, data, no_wait: true })
    wake()
    return seq
  },
  async cancel() { throw new Refusal(403, 'answers are cancelled elsewhere') },
  open(url) { request('ui/open-link', { url: url.href }).catch(() => {}) },
}
for (const kind of ['focus', 'online', 'pageshow']) addEventListener(kind, () => wake())
document.addEventListener('visibilitychange', () => wake())

/** Shows the page of a session. */
const begin = (id?: string) => {
  if (!id || ui || !tools) return
  session = id
  let wrong = ''
  ui = show(host, {
    onupdate: (u) => {
      if (u.kind === 'error') wrong = u.text ?? ''
      else if (u.kind === 'action') wrong = alert.textContent = ''
      else if (u.kind === 'done' && u.state === 'failed') alert.textContent = wrong
    },
    onerror: (err) => { alert.textContent = err.message },
  }, line)
  // Frames that may not send forms tell nobody that one is sent.
  ui.view.body.addEventListener('click', (e) => {
    const button = of<HTMLButtonElement | null>(e.target as Element, 'closest', 'button,input')
    if (e.defaultPrevented || !button?.form || button.type !== 'submit') return
    e.preventDefault()
    if (HTMLFormElement.prototype.reportValidity.call(button.form)) button.form.dispatchEvent(new SubmitEvent('submit', { submitter: button, bubbles: true, cancelable: true }))
  })
}

const adapt = (c: Context = {}) => {
  const { style } = document.documentElement
  if (c.theme) style.colorScheme = c.theme
  for (const [name, value] of Object.entries(c.styles?.variables ?? {})) if (name.startsWith('--')) style.setProperty(name, value ?? '')
}

const hear: Record<string, (params: never) => void> = {
  'ui/notifications/tool-input': (p: { arguments?: { session?: string } }) => begin(p.arguments?.session),
  'ui/notifications/tool-result': (r: ToolResult) => {
    const page = r.structuredContent as { session?: string; html?: string } | undefined
    if (r.isError && !ui) alert.textContent = textOf(r)
    if (!tools && page?.html) new View(host).set(page.html)
    begin(page?.session)
    wake()
  },
  'ui/notifications/host-context-changed': adapt,
}

addEventListener('message', ({ source, data }: MessageEvent<Message>) => {
  if (source !== outside || data?.jsonrpc !== '2.0') return
  if (data.method === undefined) {
    const [done, fail] = asked.get(data.id) ?? []
    asked.delete(data.id)
    if (data.error) fail?.(new Error(data.error.message))
    else done?.(data.result)
  } else if (data.id === undefined) hear[data.method]?.(data.params as never)
  else if (data.method === 'ping' || data.method === 'ui/resource-teardown') {
    if (data.method !== 'ping') ui?.close()
    post({ id: data.id, result: {} })
  } else post({ id: data.id, error: { code: -32601, message: `there is no ${data.method}` } })
})

const { hostCapabilities, hostContext } = await request<{ hostCapabilities?: { serverTools?: object }; hostContext?: Context }>('ui/initialize', {
  appInfo: { name: 'engi', version: '1' }, appCapabilities: { availableDisplayModes: ['inline', 'fullscreen'] }, protocolVersion: '2026-01-26',
})
tools = !!hostCapabilities?.serverTools
if (!tools) alert.textContent = 'This program lets interfaces call no tools, which they need.'
adapt(hostContext)
post({ method: 'ui/notifications/initialized', params: {} })
new ResizeObserver(() => post({ method: 'ui/notifications/size-changed', params: { height: Math.ceil(document.body.getBoundingClientRect().height) + 24 } })).observe(document.body)
begin(JSON.parse(document.getElementById('page')?.textContent || '{}').session)
