// The files of a sandbox: directories, an editor, uploads and downloads by drag and by button.

import { useEffect, useState } from 'preact/hooks'
import type { FileInfo } from '../openapi'
import { ask, list, problemOf, segment, send } from '../api'
import { Editor, languageOf } from '../editor'
import { useLive } from '../live'
import { route, setQuery } from '../route'
import { Act, Ago, Button, bytes, Card, Empty, Field, FormDialog, Table, textOf, toast, Trouble } from '../ui'

const most = 1 << 20 // bytes of a file that is edited here

const own = 'application/x-engi-file' // marks what is dragged out of a list of files, for some systems make files of that

const nameOf = (path: string) => path.split('/').pop() || '/'
const within = (dir: string, name: string) => (dir === '/' ? '' : dir) + '/' + name

export function Files({ base, write }: { base: string; write: boolean }) {
  const dir = route.value.query.get('dir') ?? '/workspace'
  const open = route.value.query.get('file')
  const found = useLive((stop) => list<FileInfo>(`${base}/files/list?depth=1&path=${segment(dir)}`, stop), [], [base, dir], 10_000)
  const [over, setOver] = useState(false)
  const [making, setMaking] = useState(false)
  const url = (path: string) => `${base}/files?path=${segment(path)}`
  const archive = (path: string) => `${base}/files/archive?path=${segment(path)}&format=tar.gz`
  /** Lets the browser write a file, or a directory as an archive, to wherever it is dropped. */
  const drag = (f: FileInfo, to: DataTransfer) => {
    const directory = f.type === 'directory'
    const from = new URL(directory ? archive(f.path) : url(f.path), location.href).href
    // A colon ends the name, and what systems do not take in one is left out.
    const name = nameOf(f.path).replace(/[\p{Cc}\p{Bidi_Control}:*?"<>|\\]/gu, '_') + (directory ? '.tar.gz' : '')
    to.setData('DownloadURL', `${directory ? 'application/gzip' : 'application/octet-stream'}:${name}:${from}`)
    to.setData('text/uri-list', from)
    to.setData(own, f.path)
    to.effectAllowed = 'copy'
  }
  const upload = async (files: FileList | null | undefined) => {
    for (const f of files ?? []) {
      try {
        await ask(url(within(dir, f.name)), { method: 'PUT', raw: f, headers: { 'Content-Type': 'application/octet-stream' } })
        toast(`${f.name} is there`)
      } catch (err) {
        const p = problemOf(err)
        toast(p.detail, p.remedy)
      }
    }
    found.reload()
  }
  const rows = found.data?.toSorted((a, b) => Number(b.type === 'directory') - Number(a.type === 'directory') || a.path.localeCompare(b.path))
  const parts = dir.split('/').filter(Boolean)
  return (
    <div class={over ? 'files drop' : 'files'}
      onDragOver={(e) => {
        e.preventDefault()
        const takes = write && !e.dataTransfer?.types.includes(own)
        if (!takes && e.dataTransfer) e.dataTransfer.dropEffect = 'none'
        setOver(takes)
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(e) => {
        e.preventDefault()
        setOver(false)
        if (write && !e.dataTransfer?.types.includes(own)) void upload(e.dataTransfer?.files)
      }}>
      <Card>
        <nav class="crumbs" aria-label="Directory">
          <Button kind="plain" onClick={() => setQuery({ dir: '/' })}>/</Button>
          {parts.map((p, i) => <Button key={i} kind="plain" aria-current={i === parts.length - 1 ? 'location' : undefined} onClick={() => setQuery({ dir: '/' + parts.slice(0, i + 1).join('/') })}>{p}{i < parts.length - 1 ? ' /' : ''}</Button>)}
        </nav>
        <Trouble of={found.problem} again={found.reload} />
        <Table name="Files" rows={rows} id={(f) => f.path} prefix="f"
          tools={write && <>
            <label class="button small">Upload<input class="hidden" type="file" multiple onChange={(e) => upload(e.currentTarget.files)} /></label>
            <Button class="small" onClick={() => setMaking(true)}>New file</Button>
            <a class="button small" href={archive(dir)} download={`${nameOf(dir) === '/' ? 'root' : nameOf(dir)}.tar.gz`}>Download all</a>
          </>}
          empty={<Empty title="This directory is empty"><p>Drop files here to upload them.</p></Empty>}
          columns={[
            { head: 'Name', cell: (f) => <Button kind="plain" class="mono" draggable={f.type !== 'other'} onDragStart={(e) => { if (e.dataTransfer) drag(f, e.dataTransfer) }} aria-current={f.path === open ? 'true' : undefined} onClick={() => setQuery(f.type === 'directory' ? { dir: f.path, file: undefined } : { file: f.path })}>{nameOf(f.path)}{f.type === 'directory' ? '/' : ''}</Button>, by: (f) => nameOf(f.path) },
            { head: 'Size', cell: (f) => (f.type === 'directory' ? <span class="dim">–</span> : bytes(f.size)), by: (f) => Number(f.size), number: true },
            { head: 'Owner', cell: (f) => f.owner ?? f.uid, by: (f) => f.owner, wide: true },
            { head: 'Changed', cell: (f) => <Ago at={f.modified_at} />, by: (f) => f.modified_at, number: true, wide: true },
          ]} />
      </Card>
      {open ? <One key={open} path={open} url={url(open)} write={write} changed={found.reload} /> : <Card><p class="dim">Choose a file to see and edit it. {write && 'Drop files on this page to upload them.'} Chrome and Edge on Windows and macOS download what you drag out of the list.</p></Card>}
      {making && (
        <FormDialog title="New file" action="Create" onClose={() => setMaking(false)} submit={async (form) => {
          const path = within(dir, textOf(form, 'name')!)
          await ask(url(path), { method: 'PUT', raw: '', headers: { 'Content-Type': 'application/octet-stream' } })
          found.reload()
          setQuery({ file: path })
        }}>
          <Field label="Name"><input name="name" required placeholder="main.py" /></Field>
        </FormDialog>
      )}
    </div>
  )
}

function One({ path, url, write, changed }: { path: string; url: string; write: boolean; changed: () => void }) {
  const [saved, setSaved] = useState<string>()
  const [text, setText] = useState('')
  const [problem, setProblem] = useState<ReturnType<typeof problemOf>>()
  const [diff, setDiff] = useState(false)
  useEffect(() => {
    const stop = new AbortController()
    void (async () => {
      try {
        const resp = await ask(url, { signal: stop.signal, headers: { Accept: '*/*' } })
        if (Number(resp.headers.get('Content-Length')) > most) {
          stop.abort()
          setProblem({ detail: 'The file is too long to be edited here.', remedy: 'download it', kind: 'unsupported', status: 0 })
          return
        }
        const data = await resp.text()
        if (data.includes('\0')) throw new Error('The file is not text.')
        setSaved(data)
        setText(data)
      } catch (err) {
        if (!stop.signal.aborted) setProblem(err instanceof Error && err.constructor === Error ? { detail: err.message, remedy: 'download it', kind: 'unsupported', status: 0 } : problemOf(err))
      }
    })()
    return () => stop.abort()
  }, [url])
  const name = nameOf(path)
  const save = async () => {
    await ask(url, { method: 'PUT', raw: text, headers: { 'Content-Type': 'application/octet-stream' } })
    setSaved(text)
    setDiff(false)
    changed()
  }
  const dirty = saved !== undefined && text !== saved
  return (
    <Card title={name} actions={<span class="row">
      {dirty && <Button class="small" aria-pressed={diff} onClick={() => setDiff(!diff)}>Changes</Button>}
      {write && saved !== undefined && <Act class="small" kind="primary" disabled={!dirty} act={save} done={`${name} is saved`}>Save</Act>}
      <a class="button small" href={url} download={name}>Download</a>
      {write && <Act class="small" kind="danger" ask={`${path} is removed.`} act={async () => {
        await send('DELETE', url)
        setQuery({ file: undefined })
        changed()
      }}>Remove</Act>}
    </span>}>
      <Trouble of={problem} />
      {saved !== undefined && <div class={diff ? 'hidden' : undefined} aria-hidden={diff}><Editor label={name} text={saved} language={languageOf(name)} onChange={write ? setText : undefined} onRun={write ? save : undefined} /></div>}
      {diff && saved !== undefined && <pre class="output" tabIndex={0} aria-label="Changes">{changes(saved, text).map((l, i) => <span key={i} class={l[0] === '+' ? 'added' : l[0] === '-' ? 'err' : 'dim'}>{l}{'\n'}</span>)}</pre>}
    </Card>
  )
}

/** Lines that were added and removed between what both begin and end with. */
function changes(from: string, to: string): string[] {
  const a = from.split('\n')
  const b = to.split('\n')
  let head = 0
  while (head < a.length && head < b.length && a[head] === b[head]) head++
  let tail = 0
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++
  return [
    ...a.slice(Math.max(0, head - 3), head).map((l) => '  ' + l), ...a.slice(head, a.length - tail).map((l) => '- ' + l),
    ...b.slice(head, b.length - tail).map((l) => '+ ' + l), ...b.slice(b.length - tail, b.length - tail + 3).map((l) => '  ' + l),
  ]
}
