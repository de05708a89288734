// The tables of a database of a workspace, or its collections.

import type { Service, Table } from '../openapi'
import { list, segment } from '../api'
import { type Loaded, useLive } from '../live'
import { Act, Button, bytes, Card, Trouble, visible } from '../ui'

const most = 500

/** The tables of a service, which are read again when it changes. */
export const useTables = (path: string, s: Service) => useLive((stop) => list<Table>(`${path}/tables?service=${segment(s.name)}`, stop), ['workspace.service'], [path, s.name])

/** A name with its schema. */
export const fullName = (t: Table) => [t.schema, t.name].filter((n): n is string => Boolean(n))

export function Tables({ title, of: tables, choose }: { title: string; of: Loaded<Table[]>; choose: (t: Table) => Promise<void> }) {
  return (
    <Card title={title} actions={<Button class="small" onClick={tables.reload}>Look again</Button>}>
      <Trouble of={tables.problem} again={tables.reload} />
      {tables.data?.length === 0 && <p class="dim">The database has no {title.toLowerCase()}.</p>}
      <ul class="faults" aria-label={title}>
        {tables.data?.slice(0, most).map((t) => <li key={fullName(t).join('.')} class="row spread">
          <Act kind="plain" class="mono place" act={() => choose(t)}>{t.schema && t.schema !== 'public' ? `${visible(t.schema)}.` : ''}{visible(t.name)}</Act>
          <span class="dim">{t.kind === 'table' || t.kind === 'collection' ? '' : `${t.kind} `}{t.rows === undefined ? '' : `about ${t.rows.toLocaleString()} rows `}{t.size === undefined ? '' : bytes(t.size)}</span>
        </li>)}
      </ul>
      {(tables.data?.length ?? 0) > most && <p class="dim">and {tables.data!.length - most} more</p>}
    </Card>
  )
}
