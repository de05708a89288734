// The history of a workspace: what has changed, by whom, and the way back.

import { useState } from 'preact/hooks'
import type { WorkspaceRevision } from '../openapi'
import { ask, list, send } from '../api'
import { useLive } from '../live'
import { Act, Ago, Button, Card, Empty, Facts, Id, Table, Trouble, visible } from '../ui'
import { Diff } from './diff'
import { marks } from './tree'
import type { Part } from './workspaces'

const step = 100 // revisions that are shown at first
const most = 1000
const mostFiles = 200 // of a revision that are listed

export function History({ of: w, path, edit, changed }: Part) {
  const [limit, setLimit] = useState(step)
  const found = useLive((stop) => list<WorkspaceRevision>(`${path}/revisions?limit=${limit}`, stop), [], [path, w.revision, limit])
  const [open, setOpen] = useState<{ of: WorkspaceRevision; diff: string; now: boolean }>()
  const text = async (query: string) => (await ask(`${path}/diff?${query}`, { headers: { Accept: '*/*' } })).text()
  const restore = (revision: number, file?: string) => async () => {
    await send('POST', `${path}/restore`, { revision, path: file })
    changed()
  }
  const files = open?.of.changed ?? []
  return (
    <>
      <Trouble of={found.problem} again={found.reload} />
      <Table name="Revisions" rows={found.data} id={(r) => String(r.number)} empty={<Empty title="No revisions yet"><p>The first file creates the first revision.</p></Empty>}
        tools={found.data && found.data.length >= limit && limit < most && <Button class="small" onClick={() => setLimit(most)}>Show older revisions</Button>}
        columns={[
          { head: 'Revision', cell: (r) => r.number, by: (r) => r.number, number: true },
          { head: 'What', cell: (r) => <>{visible(r.message.split('\n')[0])}{r.of ? <span class="dim"> (as in revision {r.of})</span> : null}{r.number === w.revision && <span class="dim"> (now)</span>}</>, by: (r) => r.message },
          { head: 'Files', cell: (r) => r.changed?.length ?? 0, by: (r) => r.changed?.length, number: true, wide: true },
          { head: 'Who', cell: (r) => (r.actor ? <Id of={r.actor} /> : '–'), by: (r) => r.actor, wide: true },
          { head: 'When', cell: (r) => <Ago at={r.created_at} />, by: (r) => r.created_at, number: true, wide: true },
          { head: '', cell: (r) => <div class="row">
            <Act class="small" act={async () => setOpen({ of: r, diff: await text(`to=${r.number}`), now: false })}>Changes<span class="hidden"> of revision {r.number}</span></Act>
            {edit && r.number !== w.revision && <Act class="small" act={restore(r.number)} done={`Restored the files of revision ${r.number}`}>Restore<span class="hidden"> revision {r.number}</span></Act>}
          </div> },
        ]} />
      {open && <>
        <Card title={`Revision ${open.of.number}`} actions={open.of.number !== w.revision && <Button class="small" aria-pressed={open.now} onClick={async () => {
          const now = !open.now
          setOpen({ ...open, diff: await text(now ? `from=${open.of.number}&to=${w.revision}` : `to=${open.of.number}`), now })
        }}>Changes since</Button>}>
          <Facts of={[['What', visible(open.of.message)], ['Who', open.of.actor ? <Id of={open.of.actor} /> : '–'], ['When', new Date(open.of.created_at).toLocaleString()], ['Commit', open.of.commit ? <Id of={open.of.commit} /> : '–']]} />
          <ul class="faults" aria-label="Changed files">
            {files.slice(0, mostFiles).map((c) => <li key={c.path} class="row">
              <span class={`mark ${c.op}`}>{marks[c.op]}</span><code>{visible(c.path)}</code>
              {edit && c.op !== 'remove' && open.of.number !== w.revision && <Act class="small" act={restore(open.of.number, c.path)} done={`Restored the file of revision ${open.of.number}`}>Restore<span class="hidden"> {c.path}</span></Act>}
              {edit && c.op === 'remove' && open.of.parent && <Act class="small" act={restore(open.of.parent, c.path)} done={`Restored the file of revision ${open.of.parent}`}>Bring back<span class="hidden"> {c.path}</span></Act>}
            </li>)}
          </ul>
          {files.length > mostFiles && <p class="dim">and {files.length - mostFiles} more</p>}
        </Card>
        <Diff title={open.now ? `Changes since revision ${open.of.number}` : `Changes of revision ${open.of.number}`} text={open.diff} onClose={() => setOpen(undefined)} />
      </>}
    </>
  )
}
