// The databases of a workspace: a console for each service that has one, with its tables.

import { useState } from 'preact/hooks'
import type { Service, TableDescription } from '../openapi'
import { get, may, segment, send } from '../api'
import { route, setQuery } from '../route'
import { Act, Button, Card, Empty, State, visible } from '../ui'
import { Documents } from './documents'
import { Redis } from './redis'
import { Console } from './sql'
import { fullName, Tables, useTables } from './tables'
import type { Part } from './workspaces'

const spoken = ['postgres', 'mysql', 'redis', 'mongodb'] // types that there is a console for

export function Databases(part: Part) {
  const { of: w, path, edit, query, changed } = part
  const all = w.services?.filter((s) => spoken.includes(s.type)) ?? []
  const s = all.find((s) => s.name === route.value.query.get('db')) ?? all[0]
  if (!may('sandboxes')) return <Empty title="This key is read-only"><p>Queries need a key with the scope sandboxes.</p></Empty>
  if (!query) return <Empty title="Databases are for reviewers and editors"><p>You may look at the files and services of this workspace. Its owner can make you a reviewer, who queries databases without changing them.</p></Empty>
  if (!s) return <Empty title="This workspace has no database"><p>Add PostgreSQL, MariaDB, Redis, FerretDB or MongoDB to query it here.</p><Button onClick={() => setQuery({ tab: 'services' })}>Services</Button></Empty>
  return (
    <>
      <div class="row" role="group" aria-label="Database">
        {all.map((x) => <Button key={x.name} class="small" aria-pressed={x === s} onClick={() => setQuery({ db: x.name })}>{x.name} <State of={x.state} /></Button>)}
      </div>
      {s.state === 'stopped'
        ? <Empty title={`${s.name} is stopped`}><p>Its data is kept.</p>{edit && <Act act={async () => { await send('POST', `${path}/services/${segment(s.name)}/restart`); changed() }}>Start it</Act>}</Empty>
        : s.state === 'starting' ? <div class="loading" role="status">{s.name} starts</div>
        : s.type === 'mongodb' ? <Documents key={s.name} {...part} service={s} />
        : s.type !== 'redis' ? <SQL key={s.name} {...part} service={s} />
        : edit ? <Redis key={s.name} of={s} path={path} /> : <Empty title="Commands of Redis are for editors"><p>engi cannot tell which commands only read.</p></Empty>}
    </>
  )
}

/** A name as a database reads it. */
const quoted = (s: Service, name: string) => (s.type === 'mysql' ? `\`${name.replaceAll('`', '``')}\`` : `"${name.replaceAll('"', '""')}"`)

function SQL({ service: s, ...part }: Part & { service: Service }) {
  const { path } = part
  const tables = useTables(path, s)
  const [chosen, setChosen] = useState<TableDescription>()
  const [insert, setInsert] = useState<string>()
  return (
    <div class="files">
      <div class="stack">
        <Tables title="Tables" of={tables} choose={async (t) => setChosen(await get<TableDescription>(`${path}/tables/${segment(fullName(t).join('.'))}?service=${segment(s.name)}`))} />
        {chosen && <Described of={chosen} close={() => setChosen(undefined)} rows={() => setInsert(`select * from ${fullName(chosen.table).map((n) => quoted(s, n)).join('.')} limit 100`)} />}
      </div>
      <Console {...part} service={s} insert={insert} inserted={() => setInsert(undefined)} ran={tables.reload} />
    </div>
  )
}

const most = 200 // columns and the like that are shown

function Described({ of: d, rows, close }: { of: TableDescription; rows: () => void; close: () => void }) {
  const more = [...(d.constraints ?? []), ...(d.indexes ?? [])]
  return (
    <Card title={visible(d.table.name)} actions={<span class="row"><Button class="small" onClick={rows}>Its rows</Button><Button kind="plain" onClick={close}>Close</Button></span>}>
      <div class="scroll" role="region" aria-label="Columns" tabIndex={0}>
        <table>
          <thead><tr><th>Column</th><th>Type</th><th>Default</th></tr></thead>
          <tbody>{d.columns?.slice(0, most).map((c) => <tr key={c.name}><td><code>{visible(c.name)}</code></td><td>{visible(c.type)}{!c.nullable && <span class="dim"> not null</span>}</td><td>{c.default ? <code>{visible(c.default)}</code> : <span class="dim">–</span>}</td></tr>)}</tbody>
        </table>
      </div>
      {more.length > 0 && <ul class="faults" aria-label="Constraints and indexes">{more.slice(0, most).map((x, i) => <li key={i}><span class="dim">{visible(x.name)}</span> <code>{visible(x.definition)}</code></li>)}</ul>}
    </Card>
  )
}
