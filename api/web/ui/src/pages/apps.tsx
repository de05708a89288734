// Apps: web applications that models write. The list, and one with its page, what is
// applied to it, its files and its history.

import { useEffect, useRef, useState } from 'preact/hooks'
import type { App, AppFile, AppLogs, AppRevision, AppStatus, AppUpdate, Template } from '../openapi'
import { ask, get, list, may, problemOf, segment, send, session, stream } from '../api'
import { Editor } from '../editor'
import { useLive } from '../live'
import { go, href, route, setQuery } from '../route'
import { Act, Ago, Button, bytes, Card, duration, Empty, Facts, Field, FormDialog, Id, Page, seconds, State, Table, Tabs, textOf, Trouble } from '../ui'

export function Apps({ id }: { id?: string }) {
  return id ? <One id={id} /> : <All />
}

function All() {
  const query = route.value.query
  const found = useLive((stop) => list<App>('/v1/apps', stop), ['app.created', 'app.state', 'app.applied', 'app.rolled_back', 'app.removed'])
  return (
    <Page title="Apps" about="Web applications that models write: files with a history, and a server whose page is here while they change."
      actions={<Button kind="primary" onClick={() => setQuery({ new: '1' })} disabled={!may('sandboxes')}>New app</Button>}>
      <Trouble of={found.problem} again={found.reload} />
      <Table name="Apps" rows={found.data} id={(a) => a.id}
        empty={!found.problem && <Empty title="There is no app">
          <p>Create one here or with <code>engi app create</code>, then apply what a model has written.</p>
          <Button onClick={() => setQuery({ new: '1' })}>New app</Button>
        </Empty>}
        columns={[
          { head: 'App', cell: (a) => <a href={href('apps', a.id)}>{a.name}</a>, by: (a) => a.name },
          { head: 'State', cell: (a) => <State of={a.state} />, by: (a) => a.state },
          { head: 'Template', cell: (a) => a.template, by: (a) => a.template, wide: true },
          { head: 'Revision', cell: (a) => a.revision, by: (a) => a.revision, number: true },
          { head: 'Used', cell: (a) => <Ago at={a.used_at ?? a.created_at} />, by: (a) => a.used_at ?? a.created_at, number: true, wide: true },
          { head: '', cell: (a) => may('sandboxes') && <div class="row">
            {a.preview_url && <a class="button small" href={a.preview_url} target="_blank" rel="noopener noreferrer">Open<span class="hidden"> {a.name}</span></a>}
            <Act class="small" kind="danger" ask={`The app ${a.name} is deleted, with its files and its history.`} act={() => send('DELETE', `/v1/apps/${segment(a.id)}`)}>Remove</Act>
          </div> },
        ]} />
      {query.get('new') && <New onClose={() => setQuery({ new: undefined })} />}
    </Page>
  )
}

const own = ['vite-react', 'node-api', 'fastapi']

function New({ onClose }: { onClose: () => void }) {
  const templates = useLive((stop) => list<Template>('/v1/templates', stop).catch(() => []), []) // a key may not see them
  const others = templates.data?.filter((t) => t.built && !own.includes(t.name)) ?? []
  return (
    <FormDialog title="New app" action="Create" onClose={onClose} submit={async (form) => {
      const template = textOf(form, 'template')
      if (session.value?.admin && templates.data?.some((t) => t.name === template && !t.built)) {
        await send('POST', '/v1/templates', { name: template })
      }
      const a = await send<App>('POST', '/v1/apps', { name: textOf(form, 'name'), template })
      go(href('apps', a.id))
    }}>
      <Field label="Name" hint="Letters, digits and -. Empty means one made up."><input name="name" maxLength={63} placeholder="shop" /></Field>
      <Field label="Template" hint="The first app of a template may take minutes, if the template is to be built.">
        <select name="template">
          {[...own, ...others.map((t) => t.name)].map((t) => <option key={t}>{t}</option>)}
        </select>
      </Field>
    </FormDialog>
  )
}

const most = 300 // updates that are shown

const pause = (ms: number) => new Promise((done) => setTimeout(done, ms))

/** Follows what happens to an app, and comes back to a broken stream. */
function useUpdates(path: string, seen: (u: AppUpdate) => void) {
  const [updates, setUpdates] = useState<AppUpdate[]>([])
  const call = useRef(seen)
  call.current = seen
  useEffect(() => {
    const stop = new AbortController()
    let after = -1
    void (async () => {
      for (let tries = 0; !stop.signal.aborted; tries++) {
        try {
          for await (const u of stream<AppUpdate>(`${path}/stream?after=${after}`, { signal: stop.signal })) {
            if (u.type === 'heartbeat') continue
            if (u.type === 'error' && !u.seq) break
            tries = 0
            after = Math.max(after, u.seq ?? 0)
            setUpdates((all) => (u.type === 'start' ? [u] : [...all, u].slice(-most)))
            call.current(u)
          }
        } catch (err) {
          if (problemOf(err).status === 404) return
        }
        if (!stop.signal.aborted) await pause(Math.min(500 * 2 ** tries, 10_000))
      }
    })()
    return () => stop.abort()
  }, [path])
  return updates
}

/** An update in a line, as the command line has it. */
function line(u: AppUpdate): string {
  const where = u.path ? u.path + (u.line ? `:${u.line}` : '') : ''
  const parts = {
    progress: [u.step], start: ['apply'], log: ['  ' + (u.text ?? '').trimEnd()],
    done: [`done: revision ${u.revision}`], published: [`published: revision ${u.revision}`], rollback: [`rolled back: revision ${u.revision}`], command: ['  $', u.name, `exit code ${u.code ?? 0}`],
  }[u.type as string] ?? ['  ' + u.type, u.state, u.op, where, u.name]
  return [...parts, u.type === 'log' ? '' : u.text, u.error?.detail].filter(Boolean).join(' ')
}

function One({ id }: { id: string }) {
  const path = `/v1/apps/${segment(id)}`
  const found = useLive((stop) => get<App>(path, stop), ['app.state', 'app.removed'], [id])
  const [version, setVersion] = useState(0) // counts what changes files
  const updates = useUpdates(path, (u) => {
    if (['state', 'start', 'done', 'error', 'rollback', 'published', 'unpublished'].includes(u.type)) found.reload()
    if (['done', 'rollback'].includes(u.type)) setVersion((v) => v + 1)
  })
  const a = found.data
  if (!a) return <Page title="App"><Trouble of={found.problem} again={found.reload} />{!found.problem && <div class="loading" role="status">Loading the app</div>}</Page>
  const write = may('sandboxes')
  return (
    <Page title={a.name} about={<><State of={a.applying ? 'applying' : a.state} /> revision {a.revision} from {a.template}{a.published && <>, revision {a.published.revision} is <a href={a.published.url} target="_blank" rel="noopener noreferrer">published</a></>}</>}
      actions={<>
        {a.preview_url && <a class="button" href={a.preview_url} target="_blank" rel="noopener noreferrer">Open in a tab</a>}
        {write && (a.state === 'stopped'
          ? <Act act={async () => { await send('POST', `${path}/open`); found.reload() }}>Start</Act>
          : <Act act={async () => { await send('POST', `${path}/stop`); found.reload() }} done="Its sandbox is gone; files and history stay">Stop</Act>)}
        {write && a.template === 'vite-react' && <Act act={() => send('POST', `${path}/publish`, { private: a.published?.private })} done="Its build is served, also without a sandbox">{a.published ? 'Publish again' : 'Publish'}</Act>}
        {write && a.published && <Act ask="Its published page is not served any more." act={() => send('POST', `${path}/unpublish`)}>Unpublish</Act>}
        <a class="button" href={`${path}/zip`} download={`${a.name}.zip`}>Download</a>
        {write && <Act kind="danger" ask={`The app ${a.name} is deleted, with its files and its history.`} act={async () => { await send('DELETE', path); go(href('apps')) }}>Remove</Act>}
      </>}>
      <Trouble of={found.problem} again={found.reload} />
      {a.error && <Trouble of={a.error} />}
      <div class="studio">
        <Apply of={a} path={path} write={write} updates={updates} />
        <Preview of={a} write={write} />
      </div>
      <Tabs of={[
        { id: 'files', name: 'Files', show: () => <Files path={path} version={version} revision={a.revision} write={write} /> },
        { id: 'history', name: 'History', show: () => <History of={a} path={path} version={version} write={write} /> },
        { id: 'log', name: 'Log', show: () => <Log path={path} state={a.state} /> },
        { id: 'status', name: 'Status', show: () => <Status of={a} path={path} /> },
      ]} />
    </Page>
  )
}

function Apply({ of: a, path, write, updates }: { of: App; path: string; write: boolean; updates: AppUpdate[] }) {
  const [text, setText] = useState('')
  const shown = updates.filter((u) => u.type !== 'state')
  const end = useRef<HTMLPreElement>(null)
  useEffect(() => { end.current?.scrollTo(0, end.current.scrollHeight) }, [shown.length])
  return (
    <Card title="Apply" actions={write && Boolean(a.applying) && <Act class="small" act={() => send('POST', `${path}/cancel`)}>Cancel</Act>}>
      {write && <>
        <textarea aria-label="What a model has written" rows={8} spellcheck={false} value={text} onInput={(e) => setText(e.currentTarget.value)}
          placeholder={'<file path="src/App.tsx">\nexport default function App() {\n  return <h1>Hello</h1>\n}\n</file>'} />
        <div class="row">
          <Act kind="primary" disabled={!text.trim() || Boolean(a.applying)} act={async () => {
            await send('POST', `${path}/apply`, { text })
            setText('')
          }}>Apply</Act>
          <span class="dim">Files, edits, diffs, packages and commands, as models write them.</span>
        </div>
      </>}
      {shown.length > 0 && <pre ref={end} class="output" tabIndex={0} role="log" aria-label="What is done">
        {shown.map((u, i) => <span key={i} class={u.type === 'error' ? 'err' : u.type === 'done' || u.type === 'rollback' ? 'added' : u.type === 'log' ? 'dim' : undefined}>{line(u)}{'\n'}</span>)}
      </pre>}
    </Card>
  )
}

const sizes = [['', 'Full width'], ['tablet', 'Tablet, 768'], ['phone', 'Phone, 390']] as const

function Preview({ of: a, write }: { of: App; write: boolean }) {
  const [shown, setShown] = useState<string>()
  const [width, setWidth] = useState('')
  const [again, setAgain] = useState(0)
  useEffect(() => {
    let gone = false
    setShown(undefined)
    if (!a.preview_url) return
    void (async () => {
      // A link opens a private preview, too.
      const link = write && a.sandbox_id ? await send<{ url: string }>('POST', `/v1/sandboxes/${segment(a.sandbox_id)}/ports/${a.port}/link`, { ttl: '12h' }).catch(() => undefined) : undefined
      if (!gone) setShown(link?.url ?? a.preview_url)
    })()
    return () => { gone = true }
  }, [a.preview_url, a.sandbox_id])
  return (
    <Card title="Preview" actions={a.preview_url && <span class="row">
      <select class="auto small" aria-label="Width of the page" value={width} onChange={(e) => setWidth(e.currentTarget.value)}>
        {sizes.map(([v, name]) => <option key={v} value={v}>{name}</option>)}
      </select>
      <Button class="small" onClick={() => setAgain((n) => n + 1)}>Reload</Button>
    </span>}>
      {a.preview_url
        ? <div class="device">{shown && <iframe key={again} class={`shown ${width}`} src={shown} title={`The page of ${a.name}`} sandbox="allow-scripts allow-same-origin allow-forms allow-popups allow-modals" />}</div>
        : <Empty title={a.state === 'starting' ? 'Its server starts' : 'It has no server now'}><p>{a.state === 'starting' ? 'Its page comes in a moment.' : 'Start it to see its page. Its files and its history are below.'}</p></Empty>}
    </Card>
  )
}

const languages: Record<string, string> = { py: 'python', js: 'javascript', mjs: 'javascript', jsx: 'javascript', ts: 'typescript', tsx: 'typescript', sh: 'bash' }
const longest = 1 << 20 // bytes of a file that is edited here

/** What is in a directory: its directories, then its files. */
function Branch({ files, below, open }: { files: AppFile[]; below: string; open?: string }) {
  const dirs = new Map<string, AppFile[]>()
  const here: AppFile[] = []
  for (const f of files) {
    const [first, ...rest] = f.path.slice(below.length).split('/')
    if (rest.length) dirs.set(first, [...(dirs.get(first) ?? []), f])
    else here.push(f)
  }
  return (
    <ul>
      {[...dirs].map(([name, inside]) => <li key={name}><details open><summary class="mono">{name}/</summary><Branch files={inside} below={`${below}${name}/`} open={open} /></details></li>)}
      {here.map((f) => <li key={f.path}><Button kind="plain" class="mono" title={bytes(f.size)} aria-current={f.path === open ? 'true' : undefined} onClick={() => setQuery({ file: f.path })}>{f.path.slice(below.length)}</Button></li>)}
    </ul>
  )
}

function Files({ path, version, revision, write }: { path: string; version: number; revision: number; write: boolean }) {
  const found = useLive((stop) => list<AppFile>(`${path}/files/list`, stop), [], [path, version])
  const open = route.value.query.get('file') ?? undefined
  const file = found.data?.find((f) => f.path === open)
  return (
    <div class="files">
      <Card title="Files" actions={found.data && <span class="dim">{found.data.length}</span>}>
        <Trouble of={found.problem} again={found.reload} />
        {found.data && <nav class="tree" aria-label="Files of the app"><Branch files={found.data} below="" open={open} /></nav>}
      </Card>
      {file ? <Source key={`${file.path} ${file.sha256}`} of={file} path={path} revision={revision} write={write} /> : <Card><p class="dim">{open && found.data ? <>There is no <code>{open}</code> any more.</> : 'Choose a file to see it.'}</p></Card>}
    </div>
  )
}

function Source({ of: f, path, revision, write }: { of: AppFile; path: string; revision: number; write: boolean }) {
  const url = `${path}/files?path=${segment(f.path)}`
  const [saved, setSaved] = useState<string>()
  const [text, setText] = useState('')
  const [problem, setProblem] = useState<ReturnType<typeof problemOf>>()
  useEffect(() => {
    const stop = new AbortController()
    void (async () => {
      try {
        if (Number(f.size) > longest) throw new Error('It is too long to be shown here.')
        const data = await (await ask(`${url}&revision=${revision}`, { signal: stop.signal, headers: { Accept: '*/*' } })).text()
        if (data.includes('\0')) throw new Error('This is not text.')
        setSaved(data)
        setText(data)
      } catch (err) {
        if (!stop.signal.aborted) setProblem(err instanceof Error && err.constructor === Error ? { detail: err.message, remedy: 'download it', kind: 'unsupported', status: 0 } : problemOf(err))
      }
    })()
    return () => stop.abort()
  }, [url])
  const save = async () => {
    if (text.includes('</file>')) throw new Error('</file> ends a file in what is applied: write it in two parts.')
    await send('POST', `${path}/apply`, { text: `<file path="${f.path}">\n${text}</file>`, message: `Edit ${f.path}` })
  }
  const edits = write && !/["'<>&]/.test(f.path)
  return (
    <Card title={f.path} actions={<span class="row">
      {edits && saved !== undefined && <Act class="small" kind="primary" disabled={text === saved} act={save}>Save</Act>}
      <a class="button small" href={url} download={f.path.split('/').pop()}>Download</a>
    </span>}>
      <Trouble of={problem} />
      {saved !== undefined && <Editor label={f.path} text={saved} language={languages[f.path.split('.').pop()!] ?? 'text'} onChange={edits ? setText : undefined} />}
    </Card>
  )
}

function History({ of: a, path, version, write }: { of: App; path: string; version: number; write: boolean }) {
  const found = useLive((stop) => list<AppRevision>(`${path}/revisions?limit=200`, stop), [], [path, version])
  const [diff, setDiff] = useState<{ number: number; text: string }>()
  return (
    <>
      <Trouble of={found.problem} again={found.reload} />
      <Table name="Revisions" rows={found.data} id={(r) => String(r.number)} empty={<Empty title="There is no revision yet" />}
        columns={[
          { head: 'Revision', cell: (r) => r.number, by: (r) => r.number, number: true },
          { head: 'What', cell: (r) => <>{r.message.split('\n')[0]}{r.number === a.revision && <span class="dim"> (now)</span>}</>, by: (r) => r.message },
          { head: 'Files', cell: (r) => r.changed?.length ?? 0, by: (r) => r.changed?.length, number: true, wide: true },
          { head: 'Who', cell: (r) => (r.actor ? <Id of={r.actor} /> : '–'), by: (r) => r.actor, wide: true },
          { head: 'When', cell: (r) => <Ago at={r.created_at} />, by: (r) => r.created_at, number: true, wide: true },
          { head: '', cell: (r) => <div class="row">
            <Act class="small" act={async () => setDiff({ number: r.number, text: await (await ask(`${path}/diff?to=${r.number}`, { headers: { Accept: '*/*' } })).text() })}>Changes<span class="hidden"> of revision {r.number}</span></Act>
            {write && r.number !== a.revision && <Act class="small" disabled={Boolean(a.applying)} act={() => send('POST', `${path}/rollback`, { revision: r.number })} done={`Its files are those of revision ${r.number} again`}>Go back<span class="hidden"> to revision {r.number}</span></Act>}
          </div> },
        ]} />
      {diff && (
        <Card title={`Changes of revision ${diff.number}`} actions={<Button kind="plain" onClick={() => setDiff(undefined)}>Close</Button>}>
          <pre class="output" tabIndex={0} aria-label={`Changes of revision ${diff.number}`}>
            {diff.text ? diff.text.split('\n').slice(0, 5000).map((l, i) => <span key={i} class={/^(\+\+\+|---|@@|diff |index )/.test(l) ? 'dim' : l[0] === '+' ? 'added' : l[0] === '-' ? 'err' : undefined}>{l}{'\n'}</span>) : 'It changed nothing.'}
          </pre>
        </Card>
      )}
    </>
  )
}

function Log({ path, state }: { path: string; state: string }) {
  const found = useLive((stop) => get<AppLogs>(`${path}/logs`, stop), [], [path, state], 3000)
  if (state === 'stopped') return <Empty title="It has no server now"><p>Start it to see what it prints.</p></Empty>
  return (
    <Card title="What its server prints">
      <Trouble of={found.problem} again={found.reload} />
      {found.data && <pre class="output" tabIndex={0} aria-label="Output of the server">{found.data.text || 'Nothing yet.'}</pre>}
    </Card>
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
        ['Startup', seconds(s.startup) ? duration(seconds(s.startup)) : '–'], ['Memory', bytes(s.memory)], ['Files', s.files],
        ['Files are read and written in', seconds(s.file_time) ? duration(seconds(s.file_time)) : '–'],
        ['Reads without the sandbox', `${Math.round(s.cache_hits * 100)} %`], ['Failed operations', `${Math.round(s.errors * 100)} %`],
        ['Sandbox', a.sandbox_id ? <a href={href('sandboxes', a.sandbox_id)}><Id of={a.sandbox_id} /></a> : '–'],
        ['Events', <a href={`${href('events')}?subject=${segment(a.id)}`}>what happened to it</a>],
      ]} />}
    </Card>
  )
}
