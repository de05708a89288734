// The files of an app, as they change; one in an editor, with what is different from
// what is saved, and from the revision before.

import { useEffect, useState } from 'preact/hooks'
import type { AppFile, AppRevision } from '../openapi'
import { ask, list, problemOf, segment, send } from '../api'
import { Editor, languageOf } from '../editor'
import { useLive } from '../live'
import { route, setQuery } from '../route'
import { Act, Card, Trouble } from '../ui'
import { type Leaf, Tree } from './tree'

const longest = 1 << 20 // bytes of a file that is edited here

interface FilesProps {
  path: string
  version: number // counts what changes files
  revision: number
  write: boolean
  written: Map<string, string> // files that the apply under way has put in place, and how
}

export function Files({ path, version, revision, write, written }: FilesProps) {
  const found = useLive((stop) => list<AppFile>(`${path}/files/list`, stop), [], [path, version])
  const last = useLive((stop) => list<AppRevision>(`${path}/revisions?limit=1`, stop), [], [path, version])
  const open = route.value.query.get('file') ?? undefined
  const file = found.data?.find((f) => f.path === open)
  const leaves = new Map<string, Leaf>(found.data?.map((f) => [f.path, { path: f.path, size: f.size }]))
  for (const c of last.data?.[0]?.parent ? last.data[0].changed ?? [] : []) {
    const leaf = leaves.get(c.path)
    if (leaf) leaf.op = c.op
  }
  for (const [p, op] of written) leaves.set(p, { ...leaves.get(p), path: p, op, now: true })
  return (
    <div class="files">
      <Card title="Files" actions={found.data && <span class="dim">{found.data.length}</span>}>
        <Trouble of={found.problem} again={found.reload} />
        {found.data && <Tree label="Files of the app" files={[...leaves.values()]} open={open} />}
      </Card>
      {file ? <Source key={`${file.path} ${file.sha256}`} of={file} path={path} revision={revision} write={write} /> : <Card><p class="dim">{open && found.data ? <>There is no <code>{open}</code> any more.</> : 'Choose a file to open it.'}</p></Card>}
    </div>
  )
}

function Source({ of: f, path, revision, write }: { of: AppFile; path: string; revision: number; write: boolean }) {
  const url = `${path}/files?path=${segment(f.path)}`
  const [saved, setSaved] = useState<string>()
  const [before, setBefore] = useState<string>() // what the revision that changed it last has changed
  const [text, setText] = useState('')
  const [problem, setProblem] = useState<ReturnType<typeof problemOf>>()
  const query = route.value.query
  const compare = query.get('compare') ?? ''
  const read = async (of: number, signal: AbortSignal) => (await ask(`${url}&revision=${of}`, { signal, headers: { Accept: '*/*' } })).text()
  useEffect(() => {
    const stop = new AbortController()
    void (async () => {
      try {
        if (Number(f.size) > longest) throw new Error('It is too long to be shown here.')
        const data = await read(revision, stop.signal)
        if (data.includes('\0')) throw new Error('The file is not text.')
        setSaved(data)
        setText(data)
      } catch (err) {
        if (!stop.signal.aborted) setProblem(err instanceof Error && err.constructor === Error ? { detail: err.message, remedy: 'download it', kind: 'unsupported', status: 0 } : problemOf(err))
      }
    })()
    return () => stop.abort()
  }, [url])
  useEffect(() => {
    if (compare !== 'before' || f.since < 2) return
    const stop = new AbortController()
    read(f.since - 1, stop.signal).then(setBefore, (err) => {
      if (stop.signal.aborted) return
      if (problemOf(err).status === 404) setBefore('') // the revision has made it
      else setProblem(problemOf(err))
    })
    return () => stop.abort()
  }, [url, compare])
  const save = async () => {
    if (text.includes('</file>')) throw new Error('</file> ends a file in what is applied: write it in two parts.')
    await send('POST', `${path}/apply`, { text: `<file path="${f.path}">\n${text}</file>`, message: `Edit ${f.path}` })
  }
  const edits = write && !/["'<>&]/.test(f.path)
  return (
    <Card title={f.path} actions={<span class="row">
      {saved !== undefined && <select class="auto small" aria-label="Compare" value={compare} onChange={(e) => setQuery({ compare: e.currentTarget.value || undefined })}>
        <option value="">As it is</option>
        {edits && <option value="saved">Unsaved changes</option>}
        {f.since > 1 && <option value="before">Changes of revision {f.since}</option>}
      </select>}
      {edits && saved !== undefined && <Act class="small" kind="primary" disabled={text === saved} act={save}>Save</Act>}
      <a class="button small" href={url} download={f.path.split('/').pop()}>Download</a>
    </span>}>
      <Trouble of={problem} />
      {saved !== undefined && <Editor label={f.path} text={saved} language={languageOf(f.path)} original={compare === 'saved' ? saved : compare === 'before' ? before : undefined}
        line={Number(query.get('line')) || undefined} onChange={edits ? setText : undefined} />}
    </Card>
  )
}
