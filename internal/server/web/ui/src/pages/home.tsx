// What runs now, how the node is, and what to do about it.

import { signal } from '@preact/signals'
import { useEffect } from 'preact/hooks'
import type { Check, ExecutionSummary, ModelUsage, Node, Pool, Readiness, Sandbox, Template, Usage } from '../openapi'
import { ask, get, list, may, session } from '../api'
import { events, useLive } from '../live'
import { Plot } from '../plot'
import { href } from '../route'
import { Ago, bytes, Card, duration, Empty, Id, Outcome, Page, seconds, State, Table, Trouble } from '../ui'
import { EventRow } from './events'

/** What the metrics said at a time. */
interface Sample {
  at: number
  claims: number
  buckets: Map<number, number> // of claims, by their upper bound
  memory: number
  ready: number
  used: number
  booting: number
  cpu: number
}

const samples = signal<Sample[]>([])
const every = 2000

const today = () => Math.floor(Date.now() / 86_400_000) // counted from 1970, in UTC
const money = (v: number) => String(Number(v.toPrecision(3)))

/** What models cost on each of the last 28 days, all of which /v1/usage has; nothing is known before it answers. */
function costs(models?: ModelUsage[]): { x: number[]; y: (number | null)[] } {
  const x = Array.from({ length: 28 }, (_, i) => today() - 27 + i)
  return { x, y: x.map((day) => models?.reduce((sum, m) => sum + (Date.parse(m.day) === day * 86_400_000 ? m.cost ?? 0 : 0), 0) ?? null) }
}

/** Reads what this page shows of Prometheus' text. */
function read(text: string): Sample {
  const s: Sample = { at: Date.now() / 1000, claims: 0, buckets: new Map(), memory: 0, ready: 0, used: 0, booting: 0, cpu: 0 }
  for (const line of text.split('\n')) {
    const [, name, labels, value] = /^(\w+)(?:{(.*)})? (\S+)/.exec(line) ?? []
    const v = Number(value)
    if (name === 'engi_claim_seconds_count') s.claims += v
    if (name === 'engi_claim_seconds_bucket') {
      const le = /le="([^"]+)"/.exec(labels)?.[1]
      const bound = le === '+Inf' ? Infinity : Number(le)
      s.buckets.set(bound, (s.buckets.get(bound) ?? 0) + v)
    }
    if (name === 'process_resident_memory_bytes') s.memory = v
    if (name === 'process_cpu_seconds_total') s.cpu = v
    if (name === 'engi_pool_sandboxes') {
      const state = /state="(\w+)"/.exec(labels)?.[1]
      if (state === 'ready') s.ready += v
      if (state === 'used') s.used += v
      if (state === 'booting') s.booting += v
    }
  }
  return s
}

/** The share of claims between two samples that took no longer than this. */
function quantile(from: Sample, to: Sample, share: number): number | null {
  const total = to.claims - from.claims
  if (total <= 0) return null
  let below = 0
  let low = 0
  for (const [bound, n] of [...to.buckets].sort((a, b) => a[0] - b[0])) {
    const count = n - (from.buckets.get(bound) ?? 0)
    if (count >= share * total) {
      if (bound === Infinity) return low
      return low + (bound - low) * ((share * total - below) / Math.max(1, count - below))
    }
    below = count
    low = bound
  }
  return null
}

function Plots({ models }: { models?: ModelUsage[] }) {
  useEffect(() => {
    const look = async () => {
      if (document.hidden) return
      try {
        samples.value = [...samples.value, read(await (await ask('/metrics')).text())].slice(-150)
      } catch {
        // The page says elsewhere that the server does not answer.
      }
    }
    void look()
    const timer = setInterval(look, every)
    return () => clearInterval(timer)
  }, [])
  const all = samples.value
  const x = all.map((s) => s.at)
  const before = (i: number, n: number) => all[Math.max(0, i - n)]
  const cost = costs(models)
  return (
    <div class="plots five">
      <Card title="Claims per second"><Plot label="Claims per second" x={x} format={(v) => String(Number(v.toFixed(2)))}
        lines={[{ name: 'claims', y: all.map((s, i) => (i ? (s.claims - before(i, 5).claims) / (s.at - before(i, 5).at) : 0)) }]} /></Card>
      <Card title="Time until a program has its sandbox"><Plot label="Claim latency" x={x} format={duration}
        lines={[{ name: 'p50', y: all.map((s, i) => quantile(before(i, 15), s, 0.5)) }, { name: 'p99', y: all.map((s, i) => quantile(before(i, 15), s, 0.99)) }]} /></Card>
      <Card title="Warm pools"><Plot label="Warm pools" x={x} format={(v) => String(Number(v.toFixed(1)))}
        lines={[{ name: 'ready', y: all.map((s) => s.ready) }, { name: 'booting', y: all.map((s) => s.booting) }, { name: 'in use', y: all.map((s) => s.used) }]} /></Card>
      <Card title="Memory of the server"><Plot label="Memory of the server" x={x} format={bytes} lines={[{ name: 'resident', y: all.map((s) => s.memory) }]} /></Card>
      <Card title="Cost of models per day (UTC), in the currency of your prices"><Plot label="Cost of models per day" x={cost.x} format={money} days lines={[{ name: 'today', y: cost.y }]} /></Card>
    </div>
  )
}

interface Finding {
  what: string
  remedy: string
}

/** What is not as it should be, from what the API tells. */
function findings(node: Node, ready: Readiness, pools: Pool[], templates: Template[], checks: Check[]): Finding[] {
  const all: Finding[] = checks.filter((c) => !c.ok || c.fix).map((c) => ({ what: `${c.name}: ${c.detail}`, remedy: c.fix ?? '' }))
  if (!ready.ready) all.push({ what: `Not ready: ${ready.reason ?? 'pools are warming'}`, remedy: 'Programs can run, but the first ones wait until a sandbox has booted.' })
  else if (ready.reason) all.push({ what: ready.reason, remedy: 'All other features work.' })
  for (const limit of node.not_enforced ?? []) all.push({ what: `This machine cannot enforce the limit on ${limit}`, remedy: 'Run engi doctor on that machine to see the reason.' })
  for (const p of pools) if (p.target > 0 && p.ready === 0 && p.booting === 0) all.push({ what: `The pool for ${p.language || p.template} is empty`, remedy: 'Programs wait for a sandbox to boot. Run engi doctor, and look at the log of the server.' })
  if (pools.length === 0) all.push({ what: 'There are no warm pools', remedy: 'Each program waits for a sandbox to boot. Set pools in config.toml, like python=4,bash=2.' })
  if (checks.every((c) => c.name !== 'template base') && !templates.some((t) => t.name === 'base' && t.built)) all.push({ what: 'The template base is not built', remedy: 'Programs use interpreters of the host until engi template build base has run.' })
  return all
}

export function Home() {
  const node = useLive(async (stop) => {
    const [node, pools, usage, templates] = await Promise.all([
      get<Node>('/v1/node', stop), list<Pool>('/v1/pools', stop), get<Usage>('/v1/usage', stop),
      may('templates', false) ? list<Template>('/v1/templates', stop) : Promise.resolve([]),
    ])
    // An answer of 503 is an answer here.
    const ready = await (await fetch('/readyz', { signal: stop }).catch(() => new Response('{"ready":false}'))).json() as Readiness
    return { node, pools, usage, ready, templates }
  }, ['template.', 'sandbox.', 'snapshot.', 'volume.', 'model.'], [], 10_000)
  // The machine changes slowly, and without events.
  const doctor = useLive((stop) => (session.value?.admin ? list<Check>('/v1/doctor', stop) : Promise.resolve([])), ['template.'], [], 60_000)
  const checks = doctor.data ?? []
  const running = useLive((stop) => list<Sandbox>('/v1/sandboxes?owned=true&limit=100', stop), ['sandbox.'])
  const runs = useLive((stop) => list<ExecutionSummary>('/v1/executions?limit=8', stop), ['execution.'])
  const d = node.data
  const cost = d?.usage.models?.reduce((sum, m) => sum + (m.cost ?? 0), 0) ?? 0
  const found = d && findings(d.node, d.ready, d.pools, d.templates, checks)
  const quota = (used: unknown, of: unknown, format: (v: unknown) => string = String) => <>{format(used ?? 0)}{of ? <small> of {format(of)}</small> : null}</>
  return (
    <Page title="Home" about={d && <>engi {d.node.version}, isolation {d.node.tier}, started <Ago at={d.node.started_at} /></>}
      actions={<><a class="button" href={href('sandboxes') + '?new=1'}>New sandbox</a><a class="button primary" href={href('run')}>Run code</a></>}>
      <Trouble of={node.problem} again={node.reload} />
      {d && (
        <dl class="numbers">
          <div><dt>Sandboxes</dt><dd>{quota(d.usage.used.sandboxes, d.usage.quota.sandboxes)}</dd></div>
          <div><dt>Processors</dt><dd>{quota(d.usage.used.vcpus, d.usage.quota.vcpus)}</dd></div>
          <div><dt>Memory</dt><dd>{quota(d.usage.used.memory, d.usage.quota.memory, bytes)}</dd></div>
          <div><dt>Disk</dt><dd>{quota(d.usage.used.disk, d.usage.quota.disk, bytes)}</dd></div>
          <div><dt>Warm and ready</dt><dd>{quota(d.pools.reduce((n, p) => n + p.ready, 0), d.pools.reduce((n, p) => n + Math.max(p.target, p.ready), 0))}</dd></div>
          <div><dt>Models, recent cost</dt><dd>{cost.toFixed(2)}</dd></div>
        </dl>
      )}
      <Plots models={d && (d.usage.models ?? [])} />
      <div class="grid">
        <Card title="Findings">
          {found && <ul class="findings">
            {found.length === 0 && <li class="good"><span>No problems</span><span class="dim">For a full check that also boots a sandbox, run engi doctor on the machine.</span></li>}
            {found.map((f) => <li key={f.what}><span>{f.what}</span><span class="dim">{f.remedy}</span></li>)}
          </ul>}
          <Trouble of={doctor.problem} again={doctor.reload} />
          {checks.length > 0 && <details><summary class="dim">{checks.filter((c) => c.ok).length} of {checks.length} checks of the machine pass</summary>
            <ul class="checks">{checks.map((c) => <li key={c.name}><State of={c.ok ? 'ok' : 'failed'} /><span><strong>{c.name}</strong> <span class="dim">{c.detail}</span></span></li>)}</ul>
          </details>}
        </Card>
        <Card title="What happens" actions={<a href={href('events')}>All events</a>}>
          {events.value.length === 0 ? <p class="dim">No events since this page was opened.</p> : <ul class="findings plainlist">{events.value.slice(0, 6).map((e) => <EventRow key={e.seq} of={e} />)}</ul>}
        </Card>
      </div>
      <Card title="Sandboxes" actions={<a href={href('sandboxes')}>All sandboxes</a>}>
        <Trouble of={running.problem} again={running.reload} />
        <Table name="Sandboxes" rows={running.data} id={(s) => s.id} prefix="s" empty={<Empty title="No sandboxes">
          <p>A sandbox is a machine of your own. Its files, processes and ports stay until you stop it.</p>
          <a class="button" href={href('sandboxes') + '?new=1'}>Create one</a>
        </Empty>}
          columns={[
            { head: 'Sandbox', cell: (s) => <a href={href('sandboxes', s.id)}><Id of={s.id} /></a>, by: (s) => s.id },
            { head: 'State', cell: (s) => <State of={s.state} />, by: (s) => s.state },
            { head: 'Template', cell: (s) => s.template, by: (s) => s.template, wide: true },
            { head: 'Owner', cell: (s) => s.owner || '–', by: (s) => s.owner, wide: true },
            { head: 'Memory', cell: (s) => bytes(s.size.memory), by: (s) => Number(s.size.memory), number: true, wide: true },
            { head: 'Created', cell: (s) => <Ago at={s.created_at} />, by: (s) => s.created_at, number: true },
          ]} />
      </Card>
      <Card title="Latest programs" actions={<a href={href('run')}>Run code</a>}>
        <Trouble of={runs.problem} again={runs.reload} />
        <Table name="Programs" rows={runs.data} id={(e) => e.id} prefix="p" empty={<Empty title="No executions yet"><p>Each program runs in a new sandbox, which is destroyed afterwards.</p><a class="button" href={href('run')}>Run a program</a></Empty>}
          columns={[
            { head: 'Program', cell: (e) => <a href={href('run', e.id)}><Id of={e.id} /></a>, by: (e) => e.id },
            { head: 'Language', cell: (e) => e.language, by: (e) => e.language },
            { head: 'Ended', cell: (e) => <Outcome cause={e.cause} state={e.state} code={e.exit_code} />, by: (e) => e.cause ?? e.state },
            { head: 'Took', cell: (e) => (e.duration ? duration(seconds(e.duration)) : '–'), by: (e) => seconds(e.duration), number: true, wide: true },
            { head: 'Started', cell: (e) => <Ago at={e.created_at} />, by: (e) => e.created_at, number: true },
          ]} />
      </Card>
    </Page>
  )
}

