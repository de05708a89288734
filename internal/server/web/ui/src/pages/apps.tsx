// Apps: web applications that models write. The list, and one with its page, what
// changes it, its files, its history, its console and how it does.

import type { ComponentChildren } from 'preact'
import { useRef, useState } from 'preact/hooks'
import type { App, AppElement, AppLogs, AppRequest, AppRevision, AppStatus, Template, Workspace } from '../openapi'
import { ask, get, list, may, type problemOf, segment, send, session } from '../api'
import { useLive } from '../live'
import { go, href, route, setQuery } from '../route'
import { Act, Ago, Button, bytes, Card, duration, Empty, Facts, Field, FormDialog, Id, Page, seconds, State, Table, Tabs, textOf, Trouble, visible } from '../ui'
import { Attempts } from './attempts'
import { Change, type Mode, Place } from './change'
import { Diff } from './diff'
import { Preview, Visit } from './preview'
import { Files } from './source'
import { filesOf, useUpdates } from './updates'

export function Apps({ id }: { id?: string }) {
  return id ? <One id={id} /> : <All />
}

const create = (kind?: 'primary') => <Button kind={kind} onClick={() => setQuery({ new: '1' })} disabled={!may('sandboxes')}>New app</Button>
const removal = (a: App) => `Deletes the app ${a.name} with ${a.directory ? 'its history. Its files stay in the workspace.' : 'its files and its history.'}`
const owns = (w: Workspace) => (w.owner ?? '') === (session.value?.owner ?? '')

function All() {
  return (
    <Page title="Apps" about="Web applications that models write. Each has files with a history, and a server whose page is shown here." actions={create('primary')}>
      <List />
    </Page>
  )
}

/** Lists all apps, or the apps of a workspace, and creates new ones. */
export function List({ of: w }: { of?: Workspace }) {
  const found = useLive((stop) => list<App>('/v1/apps', stop), ['app.created', 'app.state', 'app.applied', 'app.rolled_back', 'app.removed'])
  const rows = w ? found.data?.filter((a) => a.workspace_id === w.id) : found.data
  return (
    <>
      <Trouble of={found.problem} again={found.reload} />
      <Table name="Apps" rows={rows} id={(a) => a.id} prefix={w && 'a'} tools={w && owns(w) && Boolean(rows?.length) && create()}
        empty={!found.problem && <Empty title={w ? 'This workspace has no apps' : 'There is no app'}>
          {w
            ? <p>An app can be a directory of the workspace, with a server in the workspace's sandbox, or have a sandbox of its own and reach the services. Only the owner of the workspace creates apps in it.</p>
            : <p>Create one here or with <code>engi app create</code>, then apply a model's text.</p>}
          {(!w || owns(w)) && create()}
        </Empty>}
        columns={[
          { head: 'App', cell: (a) => <><a href={href('apps', a.id)}>{a.name}</a>{a.attempt_of && <span class="dim"> an attempt</span>}</>, by: (a) => a.name },
          { head: 'State', cell: (a) => <State of={a.state} />, by: (a) => a.state },
          w
            ? { head: 'Directory', cell: (a) => (a.directory ? <code>{visible(a.directory)}</code> : <span class="dim">none</span>), by: (a) => a.directory, wide: true }
            : { head: 'Template', cell: (a) => a.template, by: (a) => a.template, wide: true },
          { head: 'Revision', cell: (a) => a.revision, by: (a) => a.revision, number: true },
          { head: 'Used', cell: (a) => <Ago at={a.used_at ?? a.created_at} />, by: (a) => a.used_at ?? a.created_at, number: true, wide: true },
          { head: '', cell: (a) => may('sandboxes') && <div class="row">
            {a.preview_url && <Visit id={a.id} address={a.preview_url} class="small">Open<span class="hidden"> {a.name}</span></Visit>}
            <Act class="small" kind="danger" ask={removal(a)} act={() => send('DELETE', `/v1/apps/${segment(a.id)}`)}>Remove<span class="hidden"> {a.name}</span></Act>
          </div> },
        ]} />
      {route.value.query.get('new') && <New of={w} onClose={() => setQuery({ new: undefined })} />}
    </>
  )
}

const own = ['vite-react', 'node-api', 'fastapi']

function New({ of: w, onClose }: { of?: Workspace; onClose: () => void }) {
  const templates = useLive((stop) => list<Template>('/v1/templates', stop).catch(() => []), []) // a key may not see them
  const workspaces = useLive(async (stop) => (w ? [] : list<Workspace>('/v1/workspaces', stop).catch(() => [])), [])
  const [workspace, setWorkspace] = useState(w?.id ?? '')
  const [directory, setDirectory] = useState('')
  const inside = Boolean(workspace && directory.trim()) // the sandbox of the workspace
  const others = templates.data?.filter((t) => t.built && !own.includes(t.name)) ?? []
  return (
    <FormDialog title={w ? `New app in ${w.name}` : 'New app'} action="Create" onClose={onClose} submit={async (form) => {
      const template = textOf(form, 'template')
      if (session.value?.admin && templates.data?.some((t) => t.name === template && !t.built)) {
        await send('POST', '/v1/templates', { name: template })
      }
      const a = await send<App>('POST', '/v1/apps', {
        name: textOf(form, 'name'), template, workspace: workspace || undefined,
        directory: textOf(form, 'directory'), start: textOf(form, 'start'), port: Number(textOf(form, 'port')) || undefined,
      } satisfies AppRequest)
      go(href('apps', a.id))
    }}>
      <Field label="Name" hint="Letters, digits and -. Empty means a generated name."><input name="name" maxLength={63} placeholder="shop" /></Field>
      {!w && <Field label="Workspace" hint="The app reaches its services, and can be one of its directories.">
        <select value={workspace} onChange={(e) => setWorkspace(e.currentTarget.value)}>
          <option value="">None</option>
          {workspaces.data?.filter(owns).map((x) => <option key={x.id} value={x.id}>{x.name}</option>)}
        </select>
      </Field>}
      {workspace && <>
        <Field label="Directory" hint="Directory of the workspace with the app's files. The server then runs in the workspace's sandbox. Empty means files and a sandbox of its own.">
          <input name="directory" maxLength={512} placeholder="web" value={directory} onInput={(e) => setDirectory(e.currentTarget.value)} />
        </Field>
        <Field label="Start command" hint="Shell command that starts the server in the directory."><input name="start" class="mono" maxLength={4096} placeholder="npm start" required={inside} /></Field>
        <Field label="Port" hint="Port of the server, which no other app in the workspace has."><input name="port" type="number" min={1} max={65535} placeholder="3000" required={inside} /></Field>
      </>}
      <Field label="Template" hint={inside ? 'The sandbox has the template of the workspace.' : 'The first app of a template may take minutes if the template must be built.'}>
        <select name="template" disabled={inside}>
          {[...own, ...others.map((t) => t.name)].map((t) => <option key={t}>{t}</option>)}
        </select>
      </Field>
    </FormDialog>
  )
}

function One({ id }: { id: string }) {
  const path = `/v1/apps/${segment(id)}`
  const found = useLive((stop) => get<App>(path, stop), ['app.state', 'app.removed'], [id])
  if (found.data) return <Studio of={found.data} path={path} problem={found.problem} reload={found.reload} />
  return <Page title="App"><Trouble of={found.problem} again={found.reload} />{!found.problem && <div class="loading" role="status">Loading the app</div>}</Page>
}

function Studio({ of: a, path, problem, reload }: { of: App; path: string; problem?: ReturnType<typeof problemOf>; reload: () => void }) {
  const [version, setVersion] = useState(0) // counts what changes files
  const [mark, setMark] = useState('') // of the log, where the console begins
  const [mode, setMode] = useState<Mode>('prompt')
  const [element, setElement] = useState<AppElement>()
  const [fresh, setFresh] = useState(0)
  const restarted = useRef(false)
  const state = useRef<string>(a.state)
  const [updates, breaks] = useUpdates(a, path, (u) => {
    // A page in a frame on another site does not notice that its server is back: browsers have no
    // shared workers there, with which Vite waits for that.
    if (u.type === 'start') restarted.current = false
    if (u.type === 'progress' && u.step === 'restart' && !u.attempt) restarted.current = true
    const ready = u.type === 'state' && u.state === 'ready' && state.current !== 'ready'
    if (u.type === 'state') state.current = u.state ?? ''
    if (u.type === 'snapshot' || ready || restarted.current && ['done', 'error', 'rollback'].includes(u.type)) {
      restarted.current = false
      setFresh((n) => n + 1)
    }
    if (['state', 'start', 'done', 'error', 'edit', 'edited', 'rollback', 'published', 'unpublished'].includes(u.type)) reload()
    if (['done', 'rollback', 'snapshot'].includes(u.type)) setVersion((v) => v + 1)
    // What was wrong before is not what is wrong with it now.
    if (u.type === 'start') get<AppLogs>(`${path}/logs?max=1`).then((l) => setMark(l.mark ?? ''), () => {}) // it may have no server yet
  })
  const write = may('sandboxes')
  return (
    <Page title={a.name} about={<><State of={a.editing ? 'editing' : a.applying ? 'applying' : a.state} /> revision {a.revision} {a.directory ? <>in <code>{visible(a.directory)}</code> of its workspace</> : <>from {a.template}</>}{a.published && <>, revision {a.published.revision} is <a href={a.published.url} target="_blank" rel="noopener noreferrer">published</a></>}</>}
      actions={<>
        {a.preview_url && <Visit id={a.id} address={a.preview_url}>Open in a tab</Visit>}
        {a.workspace_id && <a class="button" href={href('workspaces', a.workspace_id)}>Workspace</a>}
        {write && (a.state === 'stopped'
          ? <Act act={async () => { await send('POST', `${path}/open`); reload() }}>Start</Act>
          : <Act act={async () => { await send('POST', `${path}/stop`); reload() }} done={a.directory ? "The app's server has ended; its files and history stay" : "The app's sandbox is destroyed; its files and history stay"}>Stop</Act>)}
        {write && a.template === 'vite-react' && <Act act={() => send('POST', `${path}/publish`, { private: a.published?.private })} done="The app's build is published; it is served without a sandbox">{a.published ? 'Publish again' : 'Publish'}</Act>}
        {write && a.published && <Act ask="The published page is no longer served." act={() => send('POST', `${path}/unpublish`)}>Unpublish</Act>}
        <a class="button" href={`${path}/zip`} download={`${a.name}.zip`}>Download</a>
        {write && <Act kind="danger" ask={removal(a)} act={async () => { await send('DELETE', path); go(href('apps')) }}>Remove</Act>}
      </>}>
      <Trouble of={problem} again={reload} />
      {a.error && <Trouble of={a.error} />}
      <div class="app-view">
        <Change of={a} path={path} write={write} updates={updates} mode={mode} setMode={setMode} element={element} setElement={setElement} />
        <Preview of={a} write={write} fresh={fresh + breaks} picked={(e) => {
          setElement(e)
          setMode('prompt')
        }} />
      </div>
      <Attempts of={updates} />
      <Tabs of={[
        { id: 'files', name: 'Files', show: () => <Files path={path} version={version} revision={a.revision} write={write} written={filesOf(updates)} /> },
        { id: 'history', name: 'History', show: () => <History of={a} path={path} version={version} write={write} /> },
        { id: 'console', name: 'Console', show: () => <Console path={path} state={a.state} mark={mark} setMark={setMark} /> },
        { id: 'status', name: 'Status', show: () => <Status of={a} path={path} /> },
      ]} />
    </Page>
  )
}

function History({ of: a, path, version, write }: { of: App; path: string; version: number; write: boolean }) {
  const found = useLive((stop) => list<AppRevision>(`${path}/revisions?limit=200`, stop), [], [path, version])
  const [diff, setDiff] = useState<{ number: number; text: string }>()
  const busy = Boolean(a.applying || a.editing)
  return (
    <>
      <Trouble of={found.problem} again={found.reload} />
      {a.directory && <p class="dim">This app has no snapshots and no branches, because it shares the sandbox of its workspace with other programs.</p>}
      <Table name="Revisions" rows={found.data} id={(r) => String(r.number)} empty={<Empty title="No revisions yet" />}
        tools={write && !a.directory && <Act class="small" disabled={busy} act={() => send('POST', `${path}/snapshot`)} done="Saves the sandbox as it is now, with its databases">Keep a snapshot</Act>}
        columns={[
          { head: 'Revision', cell: (r) => r.number, by: (r) => r.number, number: true },
          { head: 'What', cell: (r) => <>{r.message.split('\n')[0]}{r.number === a.revision && <span class="dim"> (now)</span>}</>, by: (r) => r.message },
          { head: 'Files', cell: (r) => r.changed?.length ?? 0, by: (r) => r.changed?.length, number: true, wide: true },
          ...(a.directory ? [] : [{ head: 'Snapshot', cell: (r: AppRevision) => (r.snapshot ? <span title={r.snapshot.id}>{bytes(r.snapshot.size)}</span> : '–'), by: (r: AppRevision) => Number(r.snapshot?.size ?? 0), number: true, wide: true }]),
          { head: 'Who', cell: (r) => (r.actor ? <Id of={r.actor} /> : '–'), by: (r) => r.actor, wide: true },
          { head: 'When', cell: (r) => <Ago at={r.created_at} />, by: (r) => r.created_at, number: true, wide: true },
          { head: '', cell: (r) => <div class="row">
            <Act class="small" act={async () => setDiff({ number: r.number, text: await (await ask(`${path}/diff?to=${r.number}`, { headers: { Accept: '*/*' } })).text() })}>Changes<span class="hidden"> of revision {r.number}</span></Act>
            {write && r.number !== a.revision && <Act class="small" disabled={busy} act={() => send('POST', `${path}/rollback`, { revision: r.number })} done={`Restored the files of revision ${r.number}`}>Go back<span class="hidden"> to revision {r.number}</span></Act>}
            {write && r.snapshot && <Act class="small" disabled={busy} ask={`Restores the app from the snapshot of revision ${r.number}, with its databases and processes. Later changes of its databases are lost.`}
              act={() => send('POST', `${path}/rollback`, { revision: r.number, snapshot: true })} done={`Restored the snapshot of revision ${r.number}`}>Restore<span class="hidden"> the snapshot of revision {r.number}</span></Act>}
          </div> },
        ]} />
      {diff && <Diff title={`Changes of revision ${diff.number}`} text={diff.text} onClose={() => setDiff(undefined)} />}
    </>
  )
}

/** What is wrong, as pages and the server say, from a mark of the log on; and all that the server prints. */
function Console({ path, state, mark, setMark }: { path: string; state: string; mark: string; setMark: (mark: string) => void }) {
  const all = useLive((stop) => get<AppLogs>(`${path}/logs`, stop), [], [path, state], 3000)
  const since = useLive((stop) => get<AppLogs>(`${path}/logs?max=262144&after=${segment(mark)}`, stop), [], [path, state, mark], 3000)
  if (state === 'stopped') return <Empty title="The server is not running"><p>Start the app to see the server's output.</p></Empty>
  return (
    <div class="two">
      <Card title="What is wrong" actions={since.data?.mark && <Button class="small" onClick={() => setMark(since.data!.mark!)}>Clear</Button>}>
        <Trouble of={since.problem} again={since.reload} />
        {since.data && (since.data.faults?.length
          ? <ul class="faults" aria-label="What is wrong">{since.data.faults.map((f, i) => <li key={i} class="fault"><span class="dim">{f.source}</span>{f.path && <Place path={f.path} line={f.line} />}<span class="err">{f.text}</span></li>)}</ul>
          : <p class="dim">No problems since the last change. Errors of the app's pages appear here: uncaught errors, <code>console.error</code>, requests.</p>)}
      </Card>
      <Card title="The server's output">
        <Trouble of={all.problem} again={all.reload} />
        {all.data && <pre class="output" tabIndex={0} aria-label="Output of the server">{all.data.text || 'Nothing yet.'}</pre>}
      </Card>
    </div>
  )
}

function Status({ of: a, path }: { of: App; path: string }) {
  const found = useLive((stop) => get<AppStatus>(`${path}/status`, stop), [], [path, a.state], 10_000)
  const s = found.data
  return (
    <Card title="How it does">
      <Trouble of={found.problem} again={found.reload} />
      {s?.alerts?.map((x) => <p key={x.metric} class="err" role="status">{x.text}: {x.action.replaceAll('_', ' ')}, <Ago at={x.since} /></p>)}
      {s && <Facts of={[
        ['Server', <State of={s.healthy ? 'ready' : a.state === 'stopped' ? 'stopped' : 'failed'} />], ['Checked', <Ago at={s.checked_at} />], ['Answers after', s.healthy ? duration(seconds(s.latency)) : '–'],
        ['Startup', seconds(s.startup) ? duration(seconds(s.startup)) : '–'], ['Memory', a.directory ? 'not measured' : bytes(s.memory)], ['Files', s.files],
        ['Files are read and written in', seconds(s.file_time) ? duration(seconds(s.file_time)) : '–'],
        ['Reads without the sandbox', `${Math.round(s.cache_hits * 100)} %`], ['Failed operations', `${Math.round(s.errors * 100)} %`],
        ...(a.directory ? [['Directory', <code>{visible(a.directory)}</code>], ['Start command', <code>{visible(a.start ?? '')}</code>], ['Port', a.port]] as [string, ComponentChildren][] : []),
        ['Sandbox', a.sandbox_id ? <a href={href('sandboxes', a.sandbox_id)}><Id of={a.sandbox_id} /></a> : '–'],
        ['Events', <a href={`${href('events')}?subject=${segment(a.id)}`}>what happened to it</a>],
      ]} />}
    </Card>
  )
}
