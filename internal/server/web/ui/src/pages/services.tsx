// The services of a workspace: how they do, what they print, how they are reached.

import { useEffect, useRef, useState } from 'preact/hooks'
import type { Connection, Service, ServiceLogs } from '../openapi'
import { get, segment, send } from '../api'
import { useLive } from '../live'
import { route, setQuery } from '../route'
import { Act, Ago, begin, Button, bytes, Card, Copy, Dialog, Empty, Facts, Field, FormDialog, Table, textOf, State, Trouble, visible } from '../ui'
import { Visit } from './shown'
import type { Part } from './workspaces'

/** The types of services, and what serves them. */
export const types: [type: string, server: string][] = [['postgres', 'PostgreSQL'], ['mysql', 'MariaDB'], ['redis', 'Redis'], ['mongodb', 'FerretDB or MongoDB'], ['nginx', 'nginx']]

export function Services({ of: w, path, edit, changed }: Part) {
  const all = w.services ?? []
  const [adding, setAdding] = useState(false)
  const [reached, setReached] = useState<{ of: Service; by: Connection }>()
  const chosen = all.find((s) => s.name === route.value.query.get('service'))
  const at = (s: Service) => `${path}/services/${segment(s.name)}`
  const add = () => <Button class="small" onClick={() => setAdding(true)}>Add a service</Button>
  return (
    <>
      <Table name="Services" rows={all} id={(s) => s.name} prefix="s" tools={edit && all.length > 0 && add()}
        empty={<Empty title="This workspace has no services"><p>A service is a real server in its own sandbox. Programs in the workspace connect to it by its name. Its data outlives its sandbox.</p>{edit && add()}</Empty>}
        columns={[
          { head: 'Service', cell: (s) => <strong>{s.name}</strong>, by: (s) => s.name },
          { head: 'State', cell: (s) => <>
            <State of={s.state} />
            {s.restarts > 0 && <span class="dim"> restarted {s.restarts === 1 ? 'once' : `${s.restarts} times`}</span>}
            {s.error && <p class="dim">{visible(s.error.detail)}; {visible(s.error.remedy)}</p>}
          </>, by: (s) => `${s.state} ${s.error?.detail ?? ''}` },
          { head: 'Server', cell: (s) => visible(s.version ? `${(s.server ?? s.type).replace(/ [\d.]+$/, '')} ${s.version}` : s.server ?? s.type), by: (s) => `${s.type} ${s.server} ${s.version}`, wide: true },
          { head: 'Use', cell: (s) => s.use ? <>{Math.round(s.use.cpu_percent)} % of a processor, {bytes(s.use.memory)} of memory, {bytes(s.use.disk)} of data</> : <span class="dim">–</span>, by: (s) => s.use?.memory ?? 0, wide: true },
          { head: 'In the workspace', cell: (s) => <code>{s.host}:{s.port}</code>, by: (s) => s.host, wide: true },
          { head: 'From outside', cell: (s) => !s.exposed ? <span class="dim">–</span> : s.url ? <Visit url={s.url} path={path} service={s.name} edit={edit} /> : <code>engi workspace connect {w.name} {s.name}</code>, wide: true },
          { head: 'Needs', cell: (s) => s.needs?.join(', ') || <span class="dim">–</span>, by: (s) => s.needs?.join(' '), wide: true },
          { head: 'Started', cell: (s) => <Ago at={s.started_at} />, by: (s) => s.started_at, number: true, wide: true },
          { head: '', cell: (s) => <div class="row">
            <Button class="small" aria-pressed={s === chosen} onClick={() => setQuery({ service: s === chosen ? undefined : s.name })}>Log<span class="hidden"> of {s.name}</span></Button>
            {edit && <Act class="small" act={async () => setReached({ of: s, by: await get<Connection>(`${at(s)}/connection`) })}>Connection<span class="hidden"> of {s.name}</span></Act>}
            {edit && <Act class="small" act={() => send('POST', `${at(s)}/restart`)}>Restart<span class="hidden"> {s.name}</span></Act>}
            {edit && <Act class="small" kind="danger" ask={`Removes the service ${s.name} with all its data.`} act={async () => { await send('DELETE', at(s)); changed() }}>Remove<span class="hidden"> {s.name}</span></Act>}
          </div> },
        ]} />
      {chosen && <Log key={chosen.name} of={chosen} at={at(chosen)} />}
      {reached && <Dialog title={`Connection of ${reached.of.name}`} onClose={() => setReached(undefined)}>
        <p class="dim">For sandboxes of the workspace. The URL contains the password.</p>
        <pre tabIndex={0} aria-label="Connection">{reached.by.url}</pre>
        <Facts of={[['Host', reached.by.host], ['Port', reached.by.port], ['User', reached.by.user || '–'], ['Database', reached.by.database || '–']]} />
        <footer><Copy text={reached.by.url} /></footer>
      </Dialog>}
      {adding && (
        <FormDialog title="Add a service" action="Add" onClose={() => setAdding(false)} submit={async (form) => {
          await begin(send<Service>('POST', `${path}/services`, { type: textOf(form, 'type'), name: textOf(form, 'name'), version: textOf(form, 'version'), exposed: form.has('exposed'), needs: form.getAll('needs') }))
          changed()
        }}>
          <Field label="Type" hint="The first service of a type takes minutes if its template must be built.">
            <select name="type">{types.map(([type, server]) => <option key={type} value={type}>{server}</option>)}</select>
          </Field>
          <Field label="Name" hint="Host name of the service. Empty means the name of the type."><input name="name" maxLength={63} placeholder="main" /></Field>
          <Field label="Version" hint="Empty means the newest available version."><input name="version" maxLength={32} placeholder="15" /></Field>
          <label class="check"><input type="checkbox" name="exposed" /> Allow connections from outside for people who may change the workspace</label>
          {all.length > 0 && <fieldset>
            <legend>Starts after</legend>
            {all.map((s) => <label key={s.name} class="check"><input type="checkbox" name="needs" value={s.name} /> {s.name}</label>)}
          </fieldset>}
        </FormDialog>
      )}
    </>
  )
}

/** The end of what a server prints, as it prints. */
function Log({ of: s, at }: { of: Service; at: string }) {
  const found = useLive((stop) => get<ServiceLogs>(`${at}/logs`, stop), ['workspace.service'], [at, s.state], 3000)
  const box = useRef<HTMLPreElement>(null)
  const follows = useRef(true)
  const text = found.data?.text
  useEffect(() => { if (follows.current) box.current?.scrollTo(0, box.current.scrollHeight) }, [text])
  return (
    <Card title={`Output of ${s.name}`} actions={<Button kind="plain" onClick={() => setQuery({ service: undefined })}>Close</Button>}>
      <Trouble of={found.problem} again={found.reload} />
      {text !== undefined && <pre ref={box} class="output" tabIndex={0} role="log" aria-live="off" aria-label={`Log of ${s.name}`} onScroll={(e) => {
        const { scrollTop, scrollHeight, clientHeight } = e.currentTarget
        follows.current = scrollHeight - scrollTop - clientHeight < 40
      }}>{text ? visible(text) : 'Nothing yet.'}</pre>}
    </Card>
  )
}
