// Pages about what runs on its own: approvals that wait, and durable functions.

import { useState } from 'preact/hooks'
import type { Approval, Function, FunctionRun, FunctionWait } from '../openapi'
import { get, list, may, segment, send } from '../api'
import { useLive } from '../live'
import { href, route } from '../route'
import { Act, Ago, Button, Card, Choice, Dialog, Empty, Facts, Field, FormDialog, Id, Page, State, Table, textOf, Trouble } from '../ui'
import { Subject } from './events'

/** How many requests wait, for the list of pages. */
export function Waiting() {
  const found = useLive((stop) => list<Approval>('/v1/approvals?state=pending', stop), ['approval.'])
  return found.data?.length ? <span class="badge">{found.data.length}<span class="hidden"> wait</span></span> : null
}

export function Approvals({ id }: { id?: string }) {
  const state = route.value.query.get('state') ?? 'pending'
  const filter = state === 'all' ? '' : state === 'remembered' ? '&remembered=true' : `&state=${state}`
  const found = useLive((stop) => list<Approval>(`/v1/approvals?limit=200${filter}`, stop), ['approval.'], [state])
  const [chosen, setChosen] = useState(id)
  const [memory, setMemory] = useState('')
  const shown = found.data?.find((a) => a.id === chosen)
  const choose = (id?: string) => {
    setMemory('')
    setChosen(id)
  }
  const decide = async (a: Approval, allow: boolean) => {
    const remember = a.id === chosen && memory ? { for: '1h', exact: memory === 'exact' } : undefined
    await send('POST', `/v1/approvals/${segment(a.id)}/decision`, { allow, remember })
    choose()
    found.reload()
  }
  const buttons = (a: Approval) => a.state === 'pending' && may('approvals') && <div class="row">
    <Act class="small" act={() => decide(a, true)} done="It goes out">Allow</Act>
    <Act class="small" kind="danger" act={() => decide(a, false)} done="It is refused">Deny</Act>
  </div>
  const covered = (a: Approval) => (a.whole_rule ? 'all that the rule asks about' : a.exact ? 'exactly this request' : 'the same host, port, method and path, with any query and body')
  const kept = (a: Approval) => a.remembered_until && Date.parse(a.remembered_until) > Date.now()
  return (
    <Page title="Approvals" about="Requests of sandboxes that a rule asks somebody about. They wait until you decide, or their time is up.">
      <Trouble of={found.problem} again={found.reload} />
      <Table name="Approvals" rows={found.data} id={(a) => a.id}
        tools={<Choice name="state" label="State" of={[['', 'That wait'], ['allowed', 'Allowed'], ['denied', 'Denied'], ['expired', 'Expired'], ['remembered', 'Remembered'], ['all', 'All']]} />}
        empty={<Empty title={state === 'pending' ? 'Nothing waits' : 'There is none'}><p>A network policy can ask about requests, for example each <code>DELETE</code> to an API. They appear here with everything that would be sent.</p></Empty>}
        columns={[
          { head: 'Request', cell: (a) => <Button kind="plain" class="mono" onClick={() => choose(a.id)}>{a.method} {a.host}{a.path}</Button>, by: (a) => `${a.method} ${a.host}${a.path}` },
          { head: 'Sandbox', cell: (a) => <Subject of={a.sandbox_id} />, by: (a) => a.sandbox_id, wide: true },
          { head: 'State', cell: (a) => <State of={a.state} />, by: (a) => a.state },
          { head: 'Asked', cell: (a) => <Ago at={a.created_at} />, by: (a) => a.created_at, number: true, wide: true },
          { head: '', cell: (a) => (kept(a) && may('approvals')
            ? <Act class="small" act={() => send('DELETE', `/v1/approvals/${segment(a.id)}/remembered`)} done="Later requests wait again">Forget</Act> : buttons(a)) },
        ]} />
      {shown && <Dialog title={`${shown.method} ${shown.host}`} onClose={() => choose()}>
        <Facts of={[['Path', <code>{shown.path}</code>], ['Rule', shown.rule], ['Sandbox', <Subject of={shown.sandbox_id} />], ['Secrets that go along', shown.secrets?.join(', ') || 'none'], ['Ends', <Ago at={shown.expires_at} />], ['State', <State of={shown.state} />],
          ...(kept(shown) ? [['Applies to', `${covered(shown)}, ${shown.all_sandboxes ? 'of all sandboxes' : 'of this sandbox'}`] as [string, string]] : [])]} />
        {(shown.body ?? shown.body_base64) && <pre tabIndex={0} aria-label="Body">{shown.body ?? shown.body_base64}</pre>}
        {shown.body_size > 4096 && <p class="dim">These are the first 4 KiB of {shown.body_size} bytes.</p>}
        {shown.state === 'pending' && may('approvals') && <Field label="Your decision is for" hint={shown.exact_only
          ? 'The rule asks about each query and body, so a decision applies to other requests only if they are exactly the same.'
          : memory === 'similar' ? 'Query and body are not compared: such a request may say something else than this one.' : undefined}>
          <select value={memory} onChange={(e) => setMemory(e.currentTarget.value)}>
            <option value="">this request</option>
            <option value="exact">exactly this request, for an hour</option>
            {!shown.exact_only && <option value="similar">any query and body at this host and path, for an hour</option>}
          </select>
        </Field>}
        <footer>{buttons(shown)}</footer>
      </Dialog>}
    </Page>
  )
}

export function Functions({ id }: { id?: string }) {
  const functions = useLive((stop) => list<Function>('/v1/functions', stop), [])
  const runs = useLive((stop) => list<FunctionRun>('/v1/functions/runs?limit=100', stop), ['function.'])
  const [sending, setSending] = useState<string>()
  const shown = runs.data?.find((r) => r.id === id)
  return (
    <Page title="Functions" about="They start on events and by the clock, and go on where they were after a crash." actions={<Button kind="primary" disabled={!may('events')} onClick={() => setSending('')}>Send an event</Button>}>
      <Trouble of={functions.problem ?? runs.problem} again={functions.reload} />
      {!functions.problem && <Table name="Functions" rows={functions.data} id={(f) => f.name}
        empty={<Empty title="There is no function"><p>Programs in the directory of functions are bound to events: see docs/events.md.</p></Empty>}
        columns={[
          { head: 'Function', cell: (f) => <><strong>{f.name}</strong>{f.description && <div class="dim">{f.description}</div>}</>, by: (f) => `${f.name} ${f.description ?? ''}` },
          { head: 'Starts on', cell: (f) => <code>{f.event ?? f.cron ?? '–'}</code>, by: (f) => f.event ?? f.cron },
          { head: 'Retries', cell: (f) => f.retries, by: (f) => f.retries, number: true, wide: true },
          { head: '', cell: (f) => f.event && may('events') && <div class="row"><Button class="small" onClick={() => setSending(f.event)}>Send</Button></div> },
        ]} />}
      <Card title="Runs">
        <Table name="Runs" rows={runs.data} id={(r) => r.id} prefix="r" empty={<Empty title="No function has run"><p>Send an event that one of them starts on.</p></Empty>}
          columns={[
            { head: 'Function', cell: (r) => <a href={href('functions', r.id)}>{r.function}</a>, by: (r) => r.function },
            { head: 'Run', cell: (r) => <Id of={r.id} />, by: (r) => r.id, wide: true },
            { head: 'State', cell: (r) => <><State of={r.state} />{r.wait && <div class="dim">for {awaited(r.wait)}</div>}</>, by: (r) => r.state },
            { head: 'Attempt', cell: (r) => r.attempt, by: (r) => r.attempt, number: true, wide: true },
            { head: 'Started', cell: (r) => <Ago at={r.created_at} />, by: (r) => r.created_at, number: true },
            { head: '', cell: (r) => ['queued', 'running', 'waiting'].includes(r.state) && may('events') && <div class="row"><Act class="small" kind="danger" act={() => send('DELETE', `/v1/functions/runs/${segment(r.id)}`)}>Cancel</Act></div> },
          ]} />
      </Card>
      {shown && <Run of={shown} />}
      {sending !== undefined && (
        <FormDialog title="Send an event" action="Send" onClose={() => setSending(undefined)} submit={async (form) => {
          await send('POST', '/v1/events', { type: textOf(form, 'type'), data: JSON.parse(textOf(form, 'data') ?? '{}') })
          runs.reload()
        }}>
          <Field label="Type"><input name="type" required defaultValue={sending} placeholder="app/order.paid" /></Field>
          <Field label="Data" hint="A JSON object."><textarea name="data" rows={5} defaultValue="{}" /></Field>
        </FormDialog>
      )}
    </Page>
  )
}

/** What a run waits for. */
function awaited(w: FunctionWait) {
  const event = w.types || w.subject ? ['an event', w.types && `of type ${w.types.join(', ')}`, w.subject && `about ${w.subject}`].filter(Boolean).join(' ') : 'a time'
  return w.until ? `${event}, until ${new Date(w.until).toLocaleString()}` : event
}

function Run({ of: r }: { of: FunctionRun }) {
  const found = useLive((stop) => get<FunctionRun>(`/v1/functions/runs/${segment(r.id)}`, stop), ['function.'], [r.id]) // with its steps
  const steps = found.data?.steps ?? []
  return (
    <Card title={`Run of ${r.function}`} actions={<State of={r.state} />}>
      <Facts of={[['Run', <Id of={r.id} />], ['Event', r.event_id ? <Id of={r.event_id} /> : '–'], ...(r.wait ? [['Waits for', awaited(r.wait)] as [string, string]] : []), ['Started', <Ago at={r.started_at} />], ['Ended', <Ago at={r.ended_at} />]]} />
      <Trouble of={r.error ? { detail: r.error.detail, remedy: r.error.remedy, kind: r.error.kind, status: r.error.status } : undefined} />
      {steps.map((s) => (
        <details class="call" key={s.name}>
          <summary><strong>{s.name}</strong><State of={s.error ? 'failed' : s.ended_at ? 'done' : 'running'} />{s.attempts > 1 && <span class="dim">{s.attempts} attempts</span>}</summary>
          <div class="body"><pre tabIndex={0}>{s.error?.detail ?? JSON.stringify(s.output ?? null, null, 2)}</pre></div>
        </details>
      ))}
      {r.output !== undefined && <pre tabIndex={0} aria-label="Output">{JSON.stringify(r.output, null, 2)}</pre>}
    </Card>
  )
}
