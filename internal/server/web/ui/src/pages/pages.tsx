// Pages that models write: examples that run, and those of one's own sessions.

import { h } from 'preact'
import { useCallback, useEffect, useState } from 'preact/hooks'
import type { Event, Secret, Session, SessionRequest } from '../openapi'
import type { EngiUI, State as PageState, Update } from '../../runtime/src/element'
import { ask, get, list, may, problemOf, segment, send } from '../api'
import { useLive } from '../live'
import { go, href } from '../route'
import { Act, Ago, Button, Card, Empty, Field, Id, Page, State, Table, textOf, toast, Trouble } from '../ui'

const examples = [
  { action: 'demo-counter', name: 'Counter', about: 'A number with buttons that change it. Each click sends an action; each answer is one patch.' },
  { action: 'demo-todo', name: 'To-do list', about: 'A form that adds entries, which can be ticked off and removed. Text that is being typed stays.' },
  { action: 'demo-form', name: 'Form', about: 'Fields that are checked when the form is sent, each with its error message.' },
  { action: 'demo-chart', name: 'Chart', about: 'Bars with data that a program in a sandbox computes.' },
  { action: 'demo-board', name: 'Board', about: 'Issues of a tracker, which code in a sandbox reads and changes. Its key is inserted at the egress gateway: neither the model nor the sandbox can read it.' },
]

// The look of pages here: they inherit fonts and colours and know no other style.
const look = `
  body { line-height: 1.5; overflow-wrap: anywhere; }
  button, input, select, textarea { font: inherit; color: inherit; background: var(--panel); border: 1px solid var(--line-strong); border-radius: var(--radius); padding: 3px 9px; min-height: 30px; max-width: 100%; box-sizing: border-box; }
  article { border: 1px solid var(--line); border-radius: var(--radius); padding: 0 12px 12px; margin: 8px 0; }
  button { font-weight: 500; cursor: pointer; }
  button:hover { background: var(--hover); }
  button[aria-busy] { opacity: .6; }
  :focus-visible { outline: 2px solid var(--accent); outline-offset: 1px; }
  a { color: var(--accent); }
  h1 { font-size: 17px; } h2 { font-size: 15px; } h3 { font-size: 13.5px; }
  table { border-collapse: collapse; } th, td { text-align: left; padding: 4px 12px 4px 0; border-bottom: 1px solid var(--line); }
  img, svg { max-width: 100%; }
  ::placeholder { color: var(--dim); opacity: 1; }`

/** What the session of an example needs: for the board a tracker, which is where its secret may go. */
const needs = async (action: string): Promise<Partial<SessionRequest>> => {
  if (action !== 'demo-board') return {}
  const secret = await get<Secret>('/v1/secrets/demo-tracker').catch(() => undefined) // the page says how to make one
  const host = secret?.hosts?.[0]
  if (!host) return {}
  const url = host.includes('://') ? host : `https://${host}`
  return { env: { TRACKER_URL: url }, network: { allow: [new URL(url).host], grants: [{ secret: 'demo-tracker', hosts: [host], env: 'TRACKER_KEY' }] } }
}

const begin = async (action: string) => {
  const made = await send<Session>('POST', '/v1/sessions', { name: `${action}-${Date.now().toString(36)}`, ...await needs(action) })
  await send('POST', `/v1/sessions/${segment(made.id)}/page/actions`, { action })
  go(href('pages', made.id))
}

export function Pages({ id }: { id?: string }) {
  if (id) return <Interface id={id} />
  return <Gallery />
}

function Gallery() {
  const sessions = useLive((stop) => list<Session>('/v1/sessions?limit=100', stop), ['session.'])
  return (
    <Page title="Pages" about="Pages that a model writes, and changes while people use them. Choose an example, or open the page of a session.">
      <div class="grid">
        {examples.map((e) => (
          <Card key={e.action} title={e.name} actions={<Act kind="primary" class="small" disabled={!may('agents') || !may('sandboxes')} act={() => begin(e.action)}>Try<span class="hidden"> {e.name}</span></Act>}>
            <p class="dim">{e.about}</p>
          </Card>
        ))}
      </div>
      <Trouble of={sessions.problem} again={sessions.reload} />
      <Table name="Sessions" rows={sessions.data?.filter((s) => s.state !== 'terminated')} id={(s) => s.id}
        empty={<Empty title="No sessions"><p>Each session has a page. Choose an example to create a session, or use <code>engi session create</code>.</p></Empty>}
        columns={[
          { head: 'Page of', cell: (s) => <a href={href('pages', s.id)}>{s.name || <Id of={s.id} />}</a>, by: (s) => s.name || s.id },
          { head: 'Session', cell: (s) => <Id of={s.id} />, by: (s) => s.id, wide: true },
          { head: 'Used', cell: (s) => <Ago at={s.used_at} />, by: (s) => s.used_at, number: true },
        ]} />
    </Page>
  )
}

const wentBack = 'went back'

/** What has been done on a page, the newest first: the page before each can be had again. */
interface Done {
  seq: number
  at?: string
  what: string
}

function doneOf(e: Event): Done {
  const data = e.data as { action?: string } | undefined
  return { seq: e.seq!, at: e.created_at, what: e.type === 'page.restored' ? wentBack : data?.action ?? e.type }
}

function Interface({ id }: { id: string }) {
  const at = `/v1/sessions/${segment(id)}`
  const [state, setState] = useState<PageState>('connecting')
  const [problem, setProblem] = useState<ReturnType<typeof problemOf>>()
  const [said, setSaid] = useState<string[]>([])
  const found = useLive(async (stop) => {
    const session = await get<Session>(at, stop)
    const all = await list<Event>(`/v1/events?${new URLSearchParams({ subject: session.id, type: 'page.*', limit: '1000' })}`, stop).catch(() => []) // a key may not read events
    return { session, done: all.filter((e) => e.type === 'page.acted' || e.type === 'page.restored').map(doneOf) }
  }, ['page.acted', 'page.restored'], [id])
  const host = useCallback((el: EngiUI | null) => {
    if (!el || el.shadowRoot) return
    const sheet = new CSSStyleSheet()
    sheet.replaceSync(look)
    el.attachShadow({ mode: 'open' }).adoptedStyleSheets = [sheet]
  }, [])
  useEffect(() => { void import('../../runtime/src/element') }, [])
  const [back, setBack] = useState(Infinity) // the oldest action that was undone
  const restore = async (seq: number) => {
    await send('POST', `${at}/page/restore`, { seq: seq - 1 })
    setBack(seq)
    found.reload()
  }
  // The list of events comes a little later than what the page hears.
  const [heard, setHeard] = useState<Done[]>([])
  const listed = new Set(found.data?.done.map((d) => d.seq))
  const done = found.data && [...heard.filter((d) => !listed.has(d.seq)), ...found.data.done].toSorted((a, b) => b.seq - a.seq)
  const last = done?.find((d) => d.seq < back && d.what !== wentBack)
  const save = async () => {
    const text = await (await ask(`${at}/page`, { headers: { Accept: 'text/html' } })).text()
    const link = document.createElement('a')
    link.href = URL.createObjectURL(new Blob([text.replace('</head>', '<meta name="viewport" content="width=device-width"><meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; style-src \'unsafe-inline\'"></head>')], { type: 'text/html' }))
    link.download = `${found.data?.session.name || id}.html`
    link.click()
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000)
  }
  const act = async (form: FormData) => {
    setProblem(undefined)
    try {
      const data = textOf(form, 'data')
      await send('POST', `${at}/page/actions`, { action: textOf(form, 'action'), data: data ? JSON.parse(data) : undefined })
    } catch (err) {
      setProblem(err instanceof SyntaxError ? { detail: `the data is no JSON: ${err.message}`, remedy: 'write an object, like {"id": 7}', kind: 'invalid', status: 0 } : problemOf(err))
    }
  }
  const name = found.data?.session.name || id
  return (
    <Page title={name} about={<><a href={href('pages')}>All pages</a> · <a href={href('sessions', id)}>its session</a></>}
      actions={<>
        <Act disabled={state !== 'working' || !may('agents')} act={() => send('POST', `${at}/page/cancel`)}>Cancel</Act>
        <Act disabled={state === 'working' || !last || !may('agents')} act={() => restore(last!.seq)} done="Restored the earlier page">Undo</Act>
        <Act act={save}>Export</Act>
      </>}>
      <Trouble of={found.problem} again={found.reload} />
      <Trouble of={problem} />
      <Card title="Page" actions={<State of={state === 'idle' ? 'live' : state === 'closed' ? 'ended' : state} />}>
        {h('engi-ui', {
          key: id, ref: host, session: id,
          onstate: (e: CustomEvent<PageState>) => setState(e.detail),
          onerror: (e: CustomEvent<Error>) => {
            if (e.detail instanceof Error) setProblem({ detail: e.detail.message, remedy: (e.detail as { remedy?: string }).remedy ?? '', kind: 'internal', status: 0 })
          },
          onupdate: ({ detail: u }: CustomEvent<Update>) => {
            if (u.kind === 'error' && u.text) setSaid((all) => [...all, u.text!].slice(-20))
            if (u.kind === 'action') {
              setSaid([])
              setBack(Infinity)
              setHeard((all) => [{ seq: u.seq!, at: u.time, what: u.action ?? '' }, ...all].slice(0, 100))
            }
            if (u.kind === 'tool' && u.call && !u.result) toast(`The model uses ${u.call.name}`)
          },
        } as never)}
        {said.length > 0 && <ul class="findings" aria-label="What went wrong">{said.map((s, i) => <li key={i}>{s}</li>)}</ul>}
      </Card>
      {may('agents') && <Card title="Do something">
        <form class="row" onSubmit={(e) => {
          e.preventDefault()
          void act(new FormData(e.currentTarget))
        }}>
          <Field label="Action"><input name="action" required maxLength={128} list="examples" placeholder="demo-counter" /></Field>
          <datalist id="examples">{examples.map((x) => <option key={x.action} value={x.action} />)}</datalist>
          <Field label="Data"><input name="data" placeholder='{"id": 7}' spellcheck={false} /></Field>
          <Button type="submit" kind="primary">Send</Button>
        </form>
      </Card>}
      <Card title="History">
        <Table name="Actions" rows={done} id={(d) => String(d.seq)} empty={<Empty title="No actions yet"><p>Send an action, such as <code>demo-counter</code>.</p></Empty>}
          columns={[
            { head: 'Action', cell: (d) => <code>{d.what}</code>, by: (d) => d.what },
            { head: 'Seq', cell: (d) => d.seq, by: (d) => d.seq, number: true, wide: true },
            { head: 'When', cell: (d) => <Ago at={d.at} />, by: (d) => d.at, number: true },
            { head: '', cell: (d) => may('agents') && <div class="row"><Act class="small" disabled={state === 'working'} act={() => restore(d.seq)}>Restore the page before this action</Act></div> },
          ]} />
      </Card>
    </Page>
  )
}
