// The files of a workspace; one in an editor, which overwrites nothing that somebody else
// has written meanwhile.

import { useEffect, useRef, useState } from 'preact/hooks'
import type { BlameLine, Workspace, WorkspaceFile, WorkspaceRevision } from '../openapi'
import { ask, get, list, problemOf, segment, send } from '../api'
import { Editor, languageOf } from '../editor'
import { useLive } from '../live'
import { route, setQuery } from '../route'
import { Act, Button, bytes, Card, confirm, Empty, Field, FormDialog, textOf, Trouble, visible } from '../ui'
import { type Leaf, Tree } from './tree'
import type { Part } from './workspaces'

const longest = 1 << 20 // bytes of a file that is edited here
const octets = { 'Content-Type': 'application/octet-stream' }

export function Files(part: Part) {
  const { of: w, path, edit, changed } = part
  // The files of a revision, so that what is saved later is known to be based on it.
  const found = useLive(async (stop) => ({ revision: w.revision, files: await list<WorkspaceFile>(`${path}/files/list?revision=${w.revision}`, stop) }), [], [path, w.revision])
  const last = useLive((stop) => list<WorkspaceRevision>(`${path}/revisions?limit=1`, stop), [], [path, w.revision])
  const [making, setMaking] = useState(false)
  const [problem, setProblem] = useState<ReturnType<typeof problemOf>>()
  /** Makes what programs have changed in the sandbox a revision. */
  const look = async (signal?: AbortSignal) => {
    await list(`${path}/files/list`, signal)
    changed()
  }
  useEffect(() => {
    if (!w.sandbox_id) return
    const stop = new AbortController()
    look(stop.signal).catch((err) => { if (!stop.signal.aborted) setProblem(problemOf(err)) })
    return () => stop.abort()
  }, [path, w.sandbox_id])
  const open = route.value.query.get('file') ?? undefined
  const files = found.data?.files
  const leaves = new Map<string, Leaf>(files?.map((f) => [f.path, { path: f.path, size: f.size }]))
  for (const c of last.data?.[0]?.parent ? last.data[0].changed ?? [] : []) {
    const leaf = leaves.get(c.path)
    if (leaf) leaf.op = c.op
  }
  return (
    <div class="files">
      <Card title="Files" actions={<span class="row">
        {files && <span class="dim">{files.length === 1 ? 'one file' : `${files.length} files`}, {bytes(files.reduce((n, f) => n + Number(f.size), 0))}</span>}
        {w.sandbox_id && <Act class="small" act={() => look()}>Look again</Act>}
        {edit && files && <Button class="small" onClick={() => setMaking(true)}>New file</Button>}
      </span>}>
        <Trouble of={problem ?? found.problem} again={() => {
          setProblem(undefined)
          found.reload()
        }} />
        {files && (files.length
          ? <Tree label="Files of the workspace" files={[...leaves.values()]} open={open} />
          : <p class="dim">There is no file yet.{edit && <> Make one here, with <code>engi workspace write</code>, or in the sandbox.</>}</p>)}
      </Card>
      {open && found.data
        ? <Source key={open} {...part} name={open} file={files?.find((f) => f.path === open)} revision={found.data.revision} />
        : <Card><p class="dim">Choose a file to open it. Each change is a revision, which <em>History</em> can take back.</p></Card>}
      {making && (
        <FormDialog title="New file" action="Create" onClose={() => setMaking(false)} submit={async (form) => {
          const name = textOf(form, 'name')!
          if (!files?.some((f) => f.path === name)) await ask(`${path}/files?path=${segment(name)}&base=${w.revision}`, { method: 'PUT', raw: '', headers: octets })
          changed()
          setQuery({ file: name })
        }}>
          <Field label="Name" hint="With its directories, which need not be there."><input name="name" required maxLength={512} placeholder="src/main.py" /></Field>
        </FormDialog>
      )}
    </div>
  )
}

/** A text, and the revision that has it. Without text, the revision has no such file. */
interface Version { text?: string; revision: number }

function Source({ path, edit, changed, name, file, revision }: Part & { name: string; file?: WorkspaceFile; revision: number }) {
  const url = `${path}/files?path=${segment(name)}`
  const [saved, setSaved] = useState<Version>() // what the text here has come of
  const [text, setText] = useState('')
  const [theirs, setTheirs] = useState<Version>() // that somebody else has made of it
  const [opened, setOpened] = useState(0) // counts texts that the editor has begun with
  const [message, setMessage] = useState('')
  const [problem, setProblem] = useState<ReturnType<typeof problemOf>>()
  const now = useRef({ saved, text })
  now.current = { saved, text }
  const compare = route.value.query.get('compare') ?? ''

  const take = (v: Version) => {
    setSaved(v)
    setText(v.text ?? '')
    setTheirs(undefined)
    setOpened((n) => n + 1)
  }
  /** Takes notice of what a revision has, without losing what was written here. */
  const meet = (v: Version) => {
    const { saved, text } = now.current
    if (saved && v.text !== undefined && (v.text === saved.text || v.text === text)) {
      setSaved(v)
      setTheirs(undefined)
    } else if (v.text !== undefined && (!saved || saved.text === text)) {
      take(v)
    } else {
      setTheirs(v)
    }
  }
  const read = async (of: number, signal?: AbortSignal): Promise<Version> => {
    try {
      const text = await (await ask(`${url}&revision=${of}`, { signal, headers: { Accept: '*/*' } })).text()
      if (text.includes('\0')) throw new Error('The file is not text.')
      return { text, revision: of }
    } catch (err) {
      if (now.current.saved && problemOf(err).status === 404) return { revision: of }
      throw err
    }
  }
  useEffect(() => {
    const stop = new AbortController()
    setProblem(undefined)
    void (async () => {
      try {
        if (Number(file?.size) > longest) throw new Error('It is too long to be shown here.')
        meet(await read(revision, stop.signal))
      } catch (err) {
        if (!stop.signal.aborted) setProblem(err instanceof Error && err.constructor === Error ? { detail: err.message, remedy: 'download it', kind: 'unsupported', status: 0 } : problemOf(err))
      }
    })()
    return () => stop.abort()
  }, [url, file?.digest])
  const save = async () => {
    const query = new URLSearchParams({ base: String(saved!.revision), message })
    try {
      const resp = await ask(`${url}&${query}`, { method: 'PUT', raw: text, headers: octets })
      setSaved({ text, revision: ((await resp.json()) as WorkspaceRevision).number })
      setTheirs(undefined)
      setMessage('')
      changed()
    } catch (err) {
      if (problemOf(err).kind === 'conflict') meet(await read((await get<Workspace>(path)).revision))
      throw err
    }
  }
  const dirty = saved !== undefined && text !== saved.text
  const original = compare === 'saved' ? saved?.text : compare === 'theirs' ? theirs?.text : undefined
  return (
    <Card title={visible(name)} actions={<span class="row">
      {saved && <select class="auto small" aria-label="Compare" value={compare} onChange={(e) => setQuery({ compare: e.currentTarget.value || undefined })}>
        <option value="">As it is</option>
        {edit && <option value="saved">Unsaved changes</option>}
        {theirs?.text !== undefined && <option value="theirs">Against revision {theirs.revision}</option>}
        <option value="lines">Who wrote which line</option>
      </select>}
      {file && <a class="button small" href={`${url}&revision=${revision}`} download={name.split('/').pop()}>Download</a>}
      {edit && file && <Act class="small" kind="danger" ask={`${visible(name)} is removed. Its history stays.`} act={async () => {
        await send('DELETE', `${url}&base=${saved?.revision ?? revision}`)
        setQuery({ file: undefined })
        changed()
      }}>Remove</Act>}
    </span>}>
      <Trouble of={problem} />
      {theirs && <div class="notice stack" role="alert">
        <p>Somebody else has {theirs.text === undefined ? 'removed' : 'changed'} it, as of revision {theirs.revision}. Nothing was overwritten, and what you have written here is not saved.</p>
        <div class="row">
          {theirs.text !== undefined && <Button class="small" onClick={() => setQuery({ compare: 'theirs' })}>Compare</Button>}
          <Button class="small" onClick={async () => {
            if (!(await confirm('What you have written here is lost.'))) return
            if (theirs.text === undefined) setQuery({ file: undefined })
            else take(theirs)
          }}>{theirs.text === undefined ? 'Leave it' : 'Take theirs'}</Button>
          <Button class="small" onClick={() => {
            setSaved(theirs) // from now on it is known
            setTheirs(undefined)
          }}>Keep mine, to save it over theirs</Button>
        </div>
      </div>}
      {saved && compare === 'lines' && <Lines path={path} name={name} revision={revision} />}
      {saved && <div hidden={compare === 'lines'}>
        <Editor key={opened} label={visible(name)} text={saved.text ?? ''} language={languageOf(name)} original={original} onChange={edit ? setText : undefined} />
      </div>}
      {edit && saved && <div class="row">
        <input class="grow" aria-label="Message of the revision" placeholder={`Change ${visible(name)}`} maxLength={100} value={message} onInput={(e) => setMessage(e.currentTarget.value)} />
        <Act kind="primary" disabled={!dirty || Boolean(theirs)} act={save}>Save</Act>
        <span class="dim">{dirty ? 'not saved' : `revision ${saved.revision}`}</span>
      </div>}
    </Card>
  )
}

const mostLines = 5000

/** A file with the revisions that have made its lines. */
function Lines({ path, name, revision }: { path: string; name: string; revision: number }) {
  const found = useLive((stop) => list<BlameLine>(`${path}/blame?path=${segment(name)}&revision=${revision}`, stop), [], [path, name, revision])
  const lines = found.data ?? []
  const width = String(revision).length
  return (
    <>
      <Trouble of={found.problem} again={found.reload} />
      {found.data && lines.length === 0 && <Empty title="It has no lines" />}
      {lines.length > 0 && <pre class="output" tabIndex={0} aria-label={`Lines of ${name}`}>
        {lines.slice(0, mostLines).map((l, i) => <span key={i} title={`${l.actor ?? ''} ${new Date(l.created_at).toLocaleString()}`}><span class="dim">{l.revision === lines[i - 1]?.revision ? ' '.repeat(width) : String(l.revision).padStart(width)} </span>{visible(l.text)}{'\n'}</span>)}
      </pre>}
      {lines.length > mostLines && <p class="dim">{lines.length - mostLines} more lines are not shown.</p>}
    </>
  )
}
