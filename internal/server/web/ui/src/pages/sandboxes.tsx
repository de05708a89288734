// Sandboxes: the list, and one of them with all that is in it.

import { useState } from 'preact/hooks'
import type { Fork, NetworkPolicy, NetworkRecord, Port, Process, Sample, Sandbox, Snapshot, Template } from '../openapi'
import { get, list, may, segment, send } from '../api'
import { useLive } from '../live'
import { Plot } from '../plot'
import { go, href, route, setQuery } from '../route'
import { Act, Ago, Button, bytes, Card, Choice, Empty, Facts, Field, FormDialog, Id, Page, State, Table, Tabs, textOf, toast, Trouble } from '../ui'
import { Files } from './files'
import { Subject } from './events'
import { Terminals } from './terminals'

export function Sandboxes({ id }: { id?: string }) {
  return id ? <One id={id} /> : <All />
}

const asleep = ['paused', 'hibernated']
const over = ['stopped', 'stopping']

function All() {
  const query = route.value.query
  const state = query.get('state') ?? ''
  const found = useLive((stop) => list<Sandbox>(`/v1/sandboxes?owned=true&limit=200${state ? `&state=${state}` : ''}`, stop), ['sandbox.'], [state])
  return (
    <Page title="Sandboxes" about="Machines that stay until you stop them. Each has its own files, processes, ports and network."
      actions={<Button kind="primary" onClick={() => setQuery({ new: '1' })} disabled={!may('sandboxes')}>New sandbox</Button>}>
      <Trouble of={found.problem} again={found.reload} />
      <Table name="Sandboxes" rows={found.data} id={(s) => s.id}
        tools={<Choice name="state" label="State" of={[['', 'All that live'], ['running', 'Running'], ['paused,hibernated', 'Asleep'], ['stopped', 'Ended']]} />}
        empty={<Empty title={state ? 'No sandboxes in this state' : 'No sandboxes'}>
          <p>Create one here, with <code>engi sandbox create</code>, or with any client. A sandbox ends after its timeout, or when you stop it.</p>
          <Button onClick={() => setQuery({ new: '1' })}>New sandbox</Button>
        </Empty>}
        columns={[
          { head: 'Sandbox', cell: (s) => <a href={href('sandboxes', s.id)}><Id of={s.id} /></a>, by: (s) => s.id },
          { head: 'State', cell: (s) => <><State of={s.state} />{s.cause && <span class="dim"> {s.cause.replaceAll('_', ' ')}</span>}</>, by: (s) => s.state },
          { head: 'Template', cell: (s) => s.template, by: (s) => s.template, wide: true },
          { head: 'Metadata', cell: (s) => Object.entries(s.metadata ?? {}).map(([k, v]) => `${k}=${v}`).join(', ') || <span class="dim">–</span>, by: (s) => Object.entries(s.metadata ?? {}).flat().join(' '), wide: true },
          { head: 'Size', cell: (s) => `${s.size.vcpus} CPU, ${bytes(s.size.memory)}`, by: (s) => Number(s.size.memory), number: true, wide: true },
          { head: 'Created', cell: (s) => <Ago at={s.created_at} />, by: (s) => s.created_at, number: true },
        ]} />
      {query.get('new') && <New onClose={() => setQuery({ new: undefined })} />}
    </Page>
  )
}

export function New({ onClose, snapshot }: { onClose: () => void; snapshot?: string }) {
  const templates = useLive((stop) => list<Template>('/v1/templates', stop), [])
  return (
    <FormDialog title={snapshot ? 'Start a sandbox from a snapshot' : 'New sandbox'} action="Create" onClose={onClose} submit={async (form) => {
      const mode = textOf(form, 'network')
      const s = await send<Sandbox>('POST', '/v1/sandboxes', {
        template: textOf(form, 'template'), snapshot, timeout: textOf(form, 'timeout'),
        ...(textOf(form, 'memory') ? { memory: textOf(form, 'memory') } : {}),
        ...(mode ? { network: { mode, ...(mode === 'restricted' ? { allow: textOf(form, 'allow')?.split(/[\s,]+/) ?? [] } : {}) } } : {}),
      })
      go(href('sandboxes', s.id))
    }}>
      {!snapshot && (
        <Field label="Template">
          <select name="template">
            <option value="">The node's default</option>
            {templates.data?.filter((t) => t.built).map((t) => <option key={t.name}>{t.name}</option>)}
          </select>
        </Field>
      )}
      <Field label="Lives for" hint="For example 30m or 8h. You can extend it later."><input name="timeout" placeholder="1h" defaultValue="1h" /></Field>
      {!snapshot && <Field label="Memory" hint="Empty means the node's default."><input name="memory" placeholder="512MiB" /></Field>}
      <Field label="Network">
        <select name="network">
          <option value="">{snapshot ? 'As in the snapshot' : 'None'}</option>
          <option value="restricted">Only hosts listed below</option>
          <option value="open">All public hosts</option>
        </select>
      </Field>
      <Field label="Allowed" hint="Names, addresses, or packages for the public registries."><input name="allow" placeholder="api.example.com, packages" /></Field>
    </FormDialog>
  )
}

/** Why a sandbox ended, and what to do so that the next one does not. */
const remedies: Record<string, string> = {
  timeout: 'Its timeout was reached. Give the next sandbox a longer timeout, or extend it while it runs.',
  idle: 'Its idle timeout was reached. Give the next sandbox a longer idle timeout, or let it hibernate instead.',
  memory: 'It reached its memory limit. Give the next sandbox more memory.',
  sandbox_lost: 'Its kernel crashed. See the reason in the log of the server, and run engi doctor to check the machine.',
  disk: 'Its disk was full. Give the next sandbox a larger disk, or keep data in a volume.',
}

function One({ id }: { id: string }) {
  const found = useLive((stop) => get<Sandbox>(`/v1/sandboxes/${segment(id)}`, stop), ['sandbox.'], [id])
  const s = found.data
  if (!s) return <Page title="Sandbox"><Trouble of={found.problem} again={found.reload} />{!found.problem && <div class="loading" role="status">Loading the sandbox</div>}</Page>
  const path = `/v1/sandboxes/${segment(id)}`
  const awake = !asleep.includes(s.state) && !over.includes(s.state)
  const ended = over.includes(s.state)
  const sleeping = <Empty title={ended ? 'It has ended' : `It is ${s.state}`}><p>{ended ? 'Its files are deleted, except for snapshots and volumes.' : 'Resume the sandbox to see its files.'}</p>{!ended && <Act act={() => send('POST', `${path}/resume`)}>Wake it</Act>}</Empty>
  const write = may('sandboxes')
  return (
    <Page title={<code>{id}</code>} about={<><State of={s.state} />{s.cause && <> {s.cause.replaceAll('_', ' ')}</>} from {s.template}</>}
      actions={!ended && write && <>
        {awake ? <>
          <Act act={() => send('POST', `${path}/pause`)} done="It is paused">Pause</Act>
          <Act act={() => send('POST', `${path}/hibernate`)} done="It is on disk">Hibernate</Act>
        </> : <Act act={() => send('POST', `${path}/resume`)} done="It is awake">Wake</Act>}
        <Act act={() => send('POST', `${path}/extend`, { timeout: '1h' })} done="Extended by an hour">Extend by 1 h</Act>
        <Act kind="danger" ask="Destroys the sandbox with its processes and files." act={() => send('DELETE', path)} done="It has ended">Stop</Act>
      </>}>
      <Trouble of={found.problem} again={found.reload} />
      {ended && s.cause && remedies[s.cause] && <p class="notice">{remedies[s.cause]}</p>}
      <Tabs of={[
        { id: 'overview', name: 'Overview', show: () => <Overview of={s} awake={awake} /> },
        { id: 'terminal', name: 'Terminal', show: () => (awake ? <Terminals base={path} write={write} /> : sleeping) },
        { id: 'files', name: 'Files', show: () => (awake ? <Files base={path} write={write} /> : sleeping) },
        { id: 'processes', name: 'Processes', show: () => (awake ? <Processes path={path} write={write} /> : sleeping) },
        { id: 'ports', name: 'Ports', show: () => (awake ? <Ports path={path} write={write} /> : sleeping) },
        { id: 'network', name: 'Network', show: () => <Network path={path} write={write && !ended} /> },
        { id: 'snapshots', name: 'Snapshots', show: () => <Snapshots of={s} path={path} write={write} awake={!ended} /> },
      ]} />
    </Page>
  )
}

function Overview({ of: s, awake }: { of: Sandbox; awake: boolean }) {
  const samples = useLive((stop) => list<Sample>(`/v1/sandboxes/${segment(s.id)}/metrics`, stop), [], [s.id], awake ? 5000 : 0)
  const x = samples.data?.map((m) => Date.parse(m.time) / 1000) ?? []
  const last = samples.data?.at(-1)
  return (
    <>
      <Card title="About"><Facts of={[
        ['Owner', s.owner || '–'], ['Isolation', s.tier], ['Created', <Ago at={s.created_at} />], ['Ends', s.deadline_at ? <Ago at={s.deadline_at} /> : 'never'],
        ['Processors', s.size.vcpus], ['Memory', bytes(s.size.memory)], ['Disk', bytes(s.size.disk)], ['At the timeout', s.lifetime?.on_timeout ?? 'kill'],
        ['Network', s.network?.mode ?? 'none'], ['Snapshot', s.snapshot_id ? <Id of={s.snapshot_id} /> : '–'],
        ['Volumes', s.volumes?.map((v) => `${v.volume} at ${v.path}`).join(', ') || '–'],
        ['Metadata', Object.entries(s.metadata ?? {}).map(([k, v]) => `${k}=${v}`).join(', ') || '–'],
        ['Events', <a href={`${href('events')}?subject=${segment(s.id)}`}>what happened to it</a>],
      ]} /></Card>
      <div class="plots">
        <Card title="Processor">
          <Plot label="Processor" x={x} format={(v) => `${Math.round(v)} %`} lines={[{ name: 'used', y: samples.data?.map((m) => m.cpu_percent) ?? [] }]} />
        </Card>
        <Card title="Memory" actions={last && <span class="dim">of {bytes(last.memory_limit)}</span>}>
          <Plot label="Memory" x={x} format={bytes} lines={[{ name: 'used', y: samples.data?.map((m) => Number(m.memory)) ?? [] }]} />
        </Card>
      </div>
    </>
  )
}

function Processes({ path, write }: { path: string; write: boolean }) {
  const found = useLive((stop) => list<Process>(`${path}/processes`, stop), ['sandbox.'], [path], 3000)
  const [command, setCommand] = useState('')
  const [output, setOutput] = useState<string>()
  return (
    <>
      <Trouble of={found.problem} again={found.reload} />
      {write && (
        <Card title="Run a command">
          <form class="row" onSubmit={(e) => e.preventDefault()}>
            <input class="mono grow" aria-label="Command" placeholder="ls -la" value={command} onInput={(e) => setCommand(e.currentTarget.value)} />
            <Act type="submit" kind="primary" disabled={!command} act={async () => {
              const r = await send<{ stdout: string; stderr: string; exit: { exit_code: number } }>('POST', `${path}/processes`, { command, timeout: '30s' })
              setOutput(`${r.stdout}${r.stderr}` || `The program printed nothing. Exit code ${r.exit.exit_code}.`)
              found.reload()
            }}>Run</Act>
          </form>
          {output !== undefined && <pre class="output" tabIndex={0} aria-label="Output of the command">{output}</pre>}
        </Card>
      )}
      <Table name="Processes" rows={found.data} id={(p) => p.id}
        empty={<Empty title="No processes were started from outside"><p>Run a command above, or <code>engi sandbox exec</code>.</p></Empty>}
        columns={[
          { head: 'Command', cell: (p) => <code>{p.args?.join(' ')}</code>, by: (p) => p.args?.join(' ') },
          { head: 'PID', cell: (p) => p.pid, by: (p) => p.pid, number: true, wide: true },
          { head: 'Directory', cell: (p) => <code>{p.dir}</code>, by: (p) => p.dir, wide: true },
          { head: 'State', cell: (p) => <State of={p.running ? 'running' : 'ended'} />, by: (p) => String(p.running) },
          { head: 'Started', cell: (p) => <Ago at={p.started_at} />, by: (p) => p.started_at, number: true, wide: true },
          { head: '', cell: (p) => write && p.running && <div class="row"><Act class="small" act={() => send('POST', `${path}/processes/${segment(p.id)}/signal`, { signal: 'TERM' })} done="Signal sent">End</Act></div> },
        ]} />
    </>
  )
}

function Ports({ path, write }: { path: string; write: boolean }) {
  const found = useLive((stop) => list<Port>(`${path}/ports`, stop), ['sandbox.'], [path], 3000)
  const [shown, setShown] = useState<string>()
  const link = (p: Port) => send<{ url: string }>('POST', `${path}/ports/${p.port}/link`, { ttl: '1h' })
  return (
    <>
      <Trouble of={found.problem} again={found.reload} />
      <Table name="Ports" rows={found.data} id={(p) => String(p.port)}
        empty={<Empty title="Nothing listens"><p>Start a server inside, for example <code>python3 -m http.server 8000</code>: its port then appears here with its URL.</p></Empty>}
        columns={[
          { head: 'Port', cell: (p) => p.port, by: (p) => p.port },
          { head: 'Address', cell: (p) => (p.url ? <a href={p.url} target="_blank" rel="noopener noreferrer">{p.url}</a> : '–'), by: (p) => p.url, wide: true },
          { head: 'State', cell: (p) => <State of={p.listening ? 'listening' : 'closed'} />, by: (p) => String(p.listening) },
          { head: '', cell: (p) => <div class="row">
            <Act class="small" act={async () => setShown(write ? (await link(p)).url : p.url)}>Show</Act>
            {write && <Act class="small" act={async () => {
              await navigator.clipboard.writeText((await link(p)).url)
              toast('Copied a link that is valid for an hour')
            }}>Copy link</Act>}
          </div> },
        ]} />
      {shown && <Card title="Preview" actions={<Button kind="plain" onClick={() => setShown(undefined)}>Close</Button>}><iframe class="shown" src={shown} title="Preview" referrerpolicy="strict-origin" sandbox="allow-scripts allow-same-origin allow-forms allow-popups" /></Card>}
    </>
  )
}

function Network({ path, write }: { path: string; write: boolean }) {
  const policy = useLive((stop) => get<NetworkPolicy>(`${path}/network`, stop), ['sandbox.updated'], [path])
  const log = useLive((stop) => list<NetworkRecord>(`${path}/network/events?limit=200`, stop), ['network.'], [path], 3000)
  const p = policy.data
  /** Puts a host on one list, and takes it from the other. */
  const decide = async (host: string, allow: boolean) => {
    const without = (all?: string[] | null) => (all ?? []).filter((h) => h !== host)
    await send('PUT', `${path}/network`, {
      ...p, mode: p?.mode === 'none' || !p?.mode ? 'restricted' : p.mode,
      allow: allow ? [...without(p?.allow), host] : without(p?.allow), deny: allow ? without(p?.deny) : [...without(p?.deny), host],
    })
    policy.reload()
  }
  const words = (all?: string[] | null) => (all?.length ? all.map((h) => <code key={h} class="chip">{h}</code>) : '–')
  return (
    <>
      <Trouble of={policy.problem ?? log.problem} again={policy.reload} />
      {p && <Card title="Policy"><Facts of={[['Mode', p.mode ?? 'none'], ['Allowed', words(p.allow)], ['Denied', words(p.deny)]]} /></Card>}
      <Table name="Connections" rows={log.data?.toReversed()} id={(r) => String(r.seq)}
        empty={<Empty title="No requests yet"><p>DNS queries and connections of the sandbox are listed here, each with the rule that decided. You can allow or deny a host with one click.</p></Empty>}
        columns={[
          { head: 'When', cell: (r) => <Ago at={r.time} />, by: (r) => r.time, wide: true },
          { head: 'What', cell: (r) => r.type, by: (r) => r.type },
          { head: 'Host', cell: (r) => <code>{r.host || r.address || '–'}</code>, by: (r) => r.host || r.address },
          { head: 'Decision', cell: (r) => <State of={r.allowed ? 'allowed' : 'denied'} />, by: (r) => (r.allowed ? 'allowed' : 'denied') },
          { head: 'Why', cell: (r) => r.rule || r.reason || '–', by: (r) => r.rule || r.reason, wide: true },
          { head: '', cell: (r) => write && p && r.host && <div class="row"><Act class="small" act={() => decide(r.host!, !r.allowed)} done={`${r.host} is ${r.allowed ? 'denied' : 'allowed'} from now on`}>{r.allowed ? 'Deny' : 'Allow'}</Act></div> },
        ]} />
    </>
  )
}

function Snapshots({ of: s, path, write, awake }: { of: Sandbox; path: string; write: boolean; awake: boolean }) {
  const found = useLive(async (stop) => ({
    snapshots: await list<Snapshot>('/v1/snapshots', stop),
    sandboxes: await list<Sandbox>('/v1/sandboxes?owned=true&limit=200', stop),
  }), ['snapshot.', 'sandbox.'], [s.id])
  const [restore, setRestore] = useState<string>()
  const [making, setMaking] = useState(false)
  const d = found.data
  const name = (x: Snapshot) => x.name || x.id
  /** A snapshot with the sandboxes that began with it, and their snapshots. */
  const branch = (x: Snapshot, depth: number) => (
    <li key={x.id}>
      <div class="node">
        <strong>{name(x)}</strong>
        <span class="dim">{x.disk_only ? 'disk' : 'memory and disk'}, {bytes(x.bytes)}, <Ago at={x.created_at} /></span>
        {write && <span class="row">
          <Button class="small" onClick={() => setRestore(name(x))}>Create a sandbox from it</Button>
          <Act class="small" kind="danger" ask={`Removes the snapshot ${name(x)}.`} act={() => send('DELETE', `/v1/snapshots/${segment(name(x))}`)}>Remove</Act>
        </span>}
      </div>
      <ul>{d!.sandboxes.filter((b) => b.snapshot_id === x.id).map((b) => leaf(b, depth + 1))}</ul>
    </li>
  )
  const leaf = (b: Sandbox, depth: number) => (
    <li key={b.id}>
      <div class="node"><Subject of={b.id} /><State of={b.state} />{b.id === s.id && <span class="dim">this one</span>}</div>
      {depth < 8 && <ul>{d!.snapshots.filter((x) => x.sandbox_id === b.id).map((x) => branch(x, depth + 1))}</ul>}
    </li>
  )
  const parent = d?.snapshots.find((x) => x.id === s.snapshot_id)
  return (
    <>
      <Trouble of={found.problem} again={found.reload} />
      <Card title="Snapshots" actions={write && awake && <span class="row">
        <Act class="small" act={async () => {
          const { items } = await send<{ items: Fork[] }>('POST', `${path}/fork`, { count: 1 })
          const made = items[0].sandbox
          if (!made) throw new Error(items[0].error?.detail)
          go(href('sandboxes', made.id))
        }} done="This is the copy">Fork</Act>
        <Button class="small" onClick={() => setMaking(true)}>Make a snapshot</Button>
      </span>}>
        {d && <ul class="tree">{parent ? branch(parent, 0) : leaf(s, 0)}</ul>}
        {d && d.snapshots.every((x) => x.sandbox_id !== s.id) && <p class="dim">A snapshot saves memory and disk as they are now: start any number of sandboxes from it. A fork is a copy that runs at once.</p>}
      </Card>
      {making && (
        <FormDialog title="Make a snapshot" action="Make it" onClose={() => setMaking(false)} submit={async (form) => {
          await send('POST', `${path}/snapshot`, { name: textOf(form, 'name'), disk_only: form.has('disk') })
          found.reload()
        }}>
          <Field label="Name" hint="Optional: small letters, digits and -."><input name="name" placeholder="before-upgrade" /></Field>
          <label class="check"><input type="checkbox" name="disk" />Only the disk, not running programs</label>
        </FormDialog>
      )}
      {restore && <New snapshot={restore} onClose={() => setRestore(undefined)} />}
    </>
  )
}
