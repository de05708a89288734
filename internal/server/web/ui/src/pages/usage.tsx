// What there is, what there may be, and what models cost.

import type { ModelUsage, Usage as UsageOf } from '../openapi'
import { get } from '../api'
import { useLive } from '../live'
import { bytes, Card, Empty, Page, Table, Trouble } from '../ui'

const resources = [
  ['sandboxes', 'Sandboxes'], ['vcpus', 'Processors'], ['memory', 'Memory'], ['disk', 'Disk'], ['snapshots', 'Snapshots'], ['volumes', 'Volumes'],
] as const

export function Usage() {
  const found = useLive((stop) => get<UsageOf>('/v1/usage', stop), ['sandbox.', 'snapshot.', 'volume.', 'run.', 'model.'], [], 15_000)
  const u = found.data
  const number = (m: ModelUsage) => `${m.day} ${m.owner ?? ''} ${m.model}`
  return (
    <Page title="Usage" about={u?.owner ? `Use and quotas of ${u.owner}.` : 'Use by all owners of this node. Quotas apply to each owner, but not to administrators.'}>
      <Trouble of={found.problem} again={found.reload} />
      {u && <dl class="numbers meters">{resources.map(([name, label]) => {
        const format = name === 'memory' || name === 'disk' ? bytes : String
        const used = Number(u.used[name] ?? 0)
        const most = Number(u.quota[name] ?? 0)
        return <div key={name}>
          <dt>{label}</dt>
          <dd>{format(used)}<small> {most ? `of ${format(most)}` : 'no limit'}</small>{most > 0 && <meter aria-label={label} min={0} max={most} high={most * 0.85} optimum={0} value={used} />}</dd>
        </div>
      })}</dl>}
      {!found.problem && <Card title="Language models">
        <Table name="Models" rows={u && (u.models ?? [])} id={number} empty={<Empty title="No models used"><p>The cost of models since the first of last month is listed here, by day.</p></Empty>}
          columns={[
            { head: 'Day', cell: (m) => m.day, by: (m) => m.day },
            { head: 'Model', cell: (m) => m.model, by: (m) => m.model },
            { head: 'Owner', cell: (m) => m.owner || '–', by: (m) => m.owner, wide: true },
            { head: 'Tokens in', cell: (m) => m.input_tokens, by: (m) => m.input_tokens, number: true },
            { head: 'Tokens out', cell: (m) => m.output_tokens, by: (m) => m.output_tokens, number: true },
            { head: 'Cost', cell: (m) => m.cost?.toFixed(4) ?? '–', by: (m) => m.cost, number: true },
          ]} />
      </Card>}
    </Page>
  )
}
