// The event log: what has happened, filtered, and what happens now.

import { useEffect, useState } from 'preact/hooks'
import type { Event } from '../openapi'
import { list, problemOf, segment, session } from '../api'
import { events, link } from '../live'
import { go, href, route, setQuery } from '../route'
import { Ago, Choice, Dialog, Empty, Facts, Id, Page, State, Table, Trouble } from '../ui'

const places: Record<string, string> = { sbx: 'sandboxes', exe: 'run', ses: 'sessions', apr: 'approvals', wsp: 'workspaces' }

/** A link to the page about an object, by the form of its ID. */
export function Subject({ of }: { of?: string }) {
  if (!of) return <span class="dim">–</span>
  const place = places[of.split('_')[0]]
  return place ? <a href={href(place, of)}><Id of={of} /></a> : <Id of={of} />
}

export function EventRow({ of: e }: { of: Event }) {
  return <li><span class="row spread"><code>{e.type}</code><span class="dim"><Ago at={e.created_at} /></span></span><Subject of={e.subject} /></li>
}

export function Events() {
  const query = route.value.query
  const type = query.get('type') ?? ''
  const subject = query.get('subject') ?? ''
  const open = query.get('event')
  const [old, setOld] = useState<Event[]>()
  const [problem, setProblem] = useState<ReturnType<typeof problemOf>>()
  useEffect(() => {
    const stop = new AbortController()
    const q = new URLSearchParams({ limit: '300' })
    if (type) q.set('type', type)
    if (subject) q.set('subject', subject)
    setProblem(undefined)
    list<Event>(`/v1/events?${q}`, stop.signal).then(setOld, (err) => { if (!stop.signal.aborted) setProblem(problemOf(err)) })
    return () => stop.abort()
  }, [type, subject])
  const fits = (e: Event) => (!type || e.type.startsWith(type.replace(/\*$/, ''))) && (!subject || e.subject === subject)
  const seen = new Set(old?.map((e) => e.seq))
  const all = old && [...events.value.filter((e) => fits(e) && !seen.has(e.seq)), ...old]
  const shown = all?.find((e) => e.id === open)
  return (
    <Page title="Events" about="Each change appends an event to one log. The newest events come first; new events appear automatically." actions={<State of={link.value} />}>
      <Trouble of={problem} />
      <Table name="Events" rows={all} id={(e) => e.id ?? String(e.seq)}
        tools={<>
          <Choice name="type" label="Type" of={[['', 'All types'], ...['execution.*', 'sandbox.*', 'session.*', 'workspace.*', 'snapshot.*', 'template.*', 'volume.*', 'secret.*', 'key.*', 'run.*', 'tool.*', 'function.*', 'approval.*', 'network.*', 'quota.*', 'operation.*', 'webhook.*'].map((t): [string, string] => [t, t])]} />
          {subject && <button type="button" class="button small" onClick={() => setQuery({ subject: undefined })}>About {subject.slice(0, 14)}… ×</button>}
        </>}
        empty={<Empty title="No events yet"><p>Run a program or create a sandbox: each step appears here as an event.</p><a class="button" href={href('run')}>Run code</a></Empty>}
        columns={[
          { head: 'Seq', cell: (e) => e.seq, by: (e) => e.seq, number: true, wide: true },
          { head: 'Type', cell: (e) => <button type="button" class="button plain mono" onClick={() => setQuery({ event: e.id })}>{e.type}</button>, by: (e) => e.type },
          { head: 'About', cell: (e) => <Subject of={e.subject} />, by: (e) => e.subject },
          { head: 'By', cell: (e) => (e.actor ? <Id of={e.actor} /> : <span class="dim">engi</span>), by: (e) => e.actor, wide: true },
          ...(session.value?.admin ? [{ head: 'Owner', cell: (e: Event) => e.owner || '–', by: (e: Event) => e.owner, wide: true }] : []),
          { head: 'When', cell: (e) => <Ago at={e.created_at} />, by: (e) => e.created_at, number: true },
        ]} />
      {shown && (
        <Dialog title={shown.type} onClose={() => setQuery({ event: undefined })}>
          <Facts of={[['Event', <Id of={shown.id ?? ''} />], ['Sequence', shown.seq], ['About', <Subject of={shown.subject} />], ['When', new Date(shown.created_at ?? '').toLocaleString()], ['By', shown.actor ?? 'engi'], ['Owner', shown.owner || '–']]} />
          <pre tabIndex={0}>{JSON.stringify(shown.data ?? {}, null, 2)}</pre>
          {shown.subject && <footer><button type="button" class="button" onClick={() => go(`${href('events')}?subject=${segment(shown.subject!)}`)}>All events of this object</button></footer>}
        </Dialog>
      )}
    </Page>
  )
}
