// The parts that pages are made of.

import type { ButtonHTMLAttributes, ComponentChildren } from 'preact'
import { signal } from '@preact/signals'
import { useEffect, useId, useRef, useState } from 'preact/hooks'
import { problemOf } from './api'
import { route, setQuery } from './route'

type Children = ComponentChildren
type ProblemLike = ReturnType<typeof problemOf>

// ---- values

const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB']
export function bytes(n: unknown): string {
  let x = Number(n ?? 0)
  let i = 0
  while (x >= 1024 && i < units.length - 1) {
    x /= 1024
    i++
  }
  return `${x >= 100 || i === 0 ? Math.round(x) : Number(x.toFixed(1))} ${units[i]}`
}

/** A text of others in which what changes how the text around it is shown is written out. */
export function visible(text: string): string {
  return text.replace(/[\p{Cc}\p{Bidi_Control}\u2028\u2029]/gu, (c) => (c === '\n' || c === '\t' ? c : `\\u{${c.codePointAt(0)!.toString(16)}}`))
}

/** Seconds of a duration as Go writes it, like 1m30.5s. */
export function seconds(d: string | undefined): number {
  const unit: Record<string, number> = { h: 3600, m: 60, s: 1, ms: 1e-3, µs: 1e-6, us: 1e-6, ns: 1e-9, d: 86400 }
  let total = 0
  for (const [, n, u] of (d ?? '').matchAll(/([\d.]+)(ms|µs|us|ns|h|m|s|d)/g)) total += Number(n) * unit[u]
  return total
}

export function duration(s: number): string {
  if (s < 0.001) return `${Math.round(s * 1e6)} µs`
  if (s < 1) return `${Math.round(s * 1e3)} ms`
  if (s < 60) return `${Number(s.toFixed(1))} s`
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`
}

const now = signal(Date.now())
setInterval(() => { now.value = Date.now() }, 5000)

export function Ago({ at }: { at?: string }) {
  if (!at) return <span class="dim">–</span>
  const s = (now.value - Date.parse(at)) / 1000
  const size = Math.abs(s)
  const text = size < 5 ? 'now' : size < 60 ? `${Math.round(size)} s` : size < 3600 ? `${Math.round(size / 60)} min` : size < 86400 ? `${Math.round(size / 3600)} h` : `${Math.round(size / 86400)} d`
  return <time dateTime={at} title={new Date(at).toLocaleString()}>{text === 'now' ? text : s < 0 ? `in ${text}` : `${text} ago`}</time>
}

const good = ['running', 'ready', 'done', 'allowed', 'live', 'built', 'in force', 'exited', 'listening', 'ok', 'cloned', 'pushed', 'well', 'taken', 'healthy']
const busy = ['starting', 'applying', 'editing', 'resuming', 'hibernating', 'stopping', 'queued', 'pending', 'booting', 'waiting', 'connecting', 'reading', 'conflict', 'working']
const bad = ['failed', 'refused', 'denied', 'memory', 'timeout', 'sandbox_lost', 'disk', 'output', 'processes', 'error', 'revoked', 'expired', 'not well', 'unhealthy']

/** A state in words, with a dot of its colour. */
export function State({ of }: { of: string }) {
  const kind = good.includes(of) ? 'good' : busy.includes(of) ? 'busy' : bad.includes(of) ? 'bad' : 'idle'
  return <span class={`state ${kind}`}>{of.replaceAll('_', ' ')}</span>
}

/** How a program ended. */
export function Outcome({ cause, state, code }: { cause?: string; state: string; code?: number }) {
  if (cause === 'exited') return code ? <span class="state bad">exit code {code}</span> : <State of="done" />
  return <State of={cause ?? state} />
}

export function Id({ of }: { of: string }) {
  return <code class="id" title={of}>{of}</code>
}

// ---- things to press

interface ButtonProps extends ButtonHTMLAttributes<HTMLButtonElement> {
  kind?: 'primary' | 'danger' | 'plain'
}

export function Button({ kind, class: cls, ...rest }: ButtonProps) {
  return <button type="button" {...rest} class={`button ${kind ?? ''} ${cls ?? ''}`} />
}

/** A button that does something on the server and says how it went. */
export function Act({ act, ask, done, children, ...rest }: Omit<ButtonProps, 'onClick'> & { act: () => Promise<unknown>; ask?: string; done?: string; children: Children }) {
  const [running, setRunning] = useState(false)
  const run = async () => {
    if (ask && !(await confirm(ask))) return
    setRunning(true)
    try {
      await act()
      if (done) toast(done)
    } catch (err) {
      const p = problemOf(err)
      toast(p.detail, p.remedy)
    }
    setRunning(false)
  }
  return <Button {...rest} disabled={running || rest.disabled === true} onClick={run}>{children}</Button>
}

export function Copy({ text, label = 'Copy' }: { text: string; label?: string }) {
  const [copied, setCopied] = useState(false)
  return (
    <Button kind="plain" onClick={async () => {
      await navigator.clipboard.writeText(text)
      setCopied(true)
      setTimeout(() => setCopied(false), 1500)
    }}>{copied ? 'Copied' : label}</Button>
  )
}

// ---- telling

const toasts = signal<{ id: number; text: string; remedy?: string }[]>([])
let count = 0
export function toast(text: string, remedy?: string): void {
  const id = ++count
  toasts.value = [...toasts.value, { id, text, remedy }]
  setTimeout(() => { toasts.value = toasts.value.filter((t) => t.id !== id) }, remedy ? 9000 : 3500)
}

/**
 * Waits for what may take minutes, but only for a moment: then it goes on by itself, and is told about if
 * it fails. What it results in is undefined then.
 */
export async function begin<T>(work: Promise<T>): Promise<T | undefined> {
  let late = false
  work.catch((err) => {
    if (!late) return // who waits is told
    const p = problemOf(err)
    toast(p.detail, p.remedy)
  })
  const early = await Promise.race([work, new Promise<undefined>((done) => setTimeout(done, 1500))])
  late = true
  return early
}

export function Toasts() {
  return (
    <div class="toasts" role="status">
      {toasts.value.map((t) => (
        <div key={t.id} class={t.remedy ? 'toast bad' : 'toast'}>
          <p>{t.text}</p>
          {t.remedy && <p class="dim">{t.remedy}</p>}
        </div>
      ))}
    </div>
  )
}

/** What went wrong and what to do about it. */
export function Trouble({ of, again }: { of?: ProblemLike; again?: () => void }) {
  if (!of) return null
  return (
    <div class="trouble" role="alert">
      <div>
        <p>{of.detail}</p>
        {of.remedy && <p class="dim">{of.remedy}</p>}
      </div>
      {again && <Button onClick={again}>Try again</Button>}
    </div>
  )
}

/** What to show where there is nothing yet: what this is and what to do first. */
export function Empty({ title, children }: { title: string; children?: Children }) {
  return (
    <div class="empty">
      <h2>{title}</h2>
      {children}
    </div>
  )
}

// ---- dialogs

export function Dialog({ title, onClose, children }: { title: string; onClose: () => void; children: Children }) {
  const ref = useRef<HTMLDialogElement>(null)
  const id = useId()
  useEffect(() => { ref.current?.showModal() }, [])
  return (
    <dialog ref={ref} aria-labelledby={id} onClose={onClose} onClick={(e) => { if (e.target === ref.current) ref.current?.close() }}>
      <div class="dialog">
        <header>
          <h2 id={id}>{title}</h2>
          <Button kind="plain" aria-label="Close" onClick={() => ref.current?.close()}>Close</Button>
        </header>
        {children}
      </div>
    </dialog>
  )
}

const question = signal<{ text: string; answer: (yes: boolean) => void } | undefined>(undefined)
export function confirm(text: string): Promise<boolean> {
  return new Promise((answer) => { question.value = { text, answer } })
}

export function Question() {
  const q = question.value
  if (!q) return null
  const answer = (yes: boolean) => {
    question.value = undefined
    q.answer(yes)
  }
  return (
    <Dialog title="Are you sure?" onClose={() => answer(false)}>
      <p>{q.text}</p>
      <footer>
        <Button onClick={() => answer(false)}>Cancel</Button>
        <Button kind="danger" onClick={() => answer(true)}>Yes, do it</Button>
      </footer>
    </Dialog>
  )
}

/** A form in a dialog. It stays open, and says why, if the server refuses. */
export function FormDialog({ title, action, submit, onClose, children }: { title: string; action: string; submit: (form: FormData) => Promise<unknown>; onClose: () => void; children: Children }) {
  const [problem, setProblem] = useState<ProblemLike>()
  const [running, setRunning] = useState(false)
  return (
    <Dialog title={title} onClose={onClose}>
      <form onSubmit={async (e) => {
        e.preventDefault()
        setRunning(true)
        setProblem(undefined)
        try {
          await submit(new FormData(e.currentTarget))
          onClose()
        } catch (err) {
          setProblem(problemOf(err))
        }
        setRunning(false)
      }}>
        {children}
        <Trouble of={problem} />
        <footer>
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="primary" type="submit" disabled={running}>{action}</Button>
        </footer>
      </form>
    </Dialog>
  )
}

export function Field({ label, hint, children }: { label: string; hint?: string; children: Children }) {
  return (
    <label class="field">
      <span>{label}</span>
      {children}
      {hint && <small class="dim">{hint}</small>}
    </label>
  )
}

/** The text of a form's field; undefined if it is empty. */
export function textOf(form: FormData, name: string): string | undefined {
  return String(form.get(name) ?? '').trim() || undefined
}

// ---- pages

export function Page({ title, about, actions, children }: { title: Children; about?: Children; actions?: Children; children: Children }) {
  return (
    <>
      <header class="page">
        <div>
          <h1>{title}</h1>
          {about && <p class="dim">{about}</p>}
        </div>
        {actions && <div class="actions">{actions}</div>}
      </header>
      {children}
    </>
  )
}

export function Card({ title, actions, children, class: cls }: { title?: string; actions?: Children; children: Children; class?: string }) {
  return (
    <section class={`card ${cls ?? ''}`}>
      {(title || actions) && <header><h2>{title}</h2>{actions}</header>}
      {children}
    </section>
  )
}

export function Facts({ of }: { of: [string, Children][] }) {
  return <dl class="facts">{of.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>
}

/** Tabs whose choice is in the address. */
export function Tabs({ of }: { of: { id: string; name: string; show: () => Children }[] }) {
  const chosen = of.find((t) => t.id === route.value.query.get('tab')) ?? of[0]
  const choose = (i: number) => {
    const t = of[(i + of.length) % of.length]
    setQuery({ tab: t === of[0] ? undefined : t.id })
    document.getElementById(`tab-${t.id}`)?.focus()
  }
  return (
    <>
      <div class="tabs" role="tablist">
        {of.map((t, i) => (
          <button key={t.id} id={`tab-${t.id}`} type="button" role="tab" aria-selected={t === chosen} aria-controls="tab-panel" tabIndex={t === chosen ? 0 : -1}
            onClick={() => choose(i)}
            onKeyDown={(e) => {
              if (e.key === 'ArrowRight') choose(i + 1)
              if (e.key === 'ArrowLeft') choose(i - 1)
            }}>{t.name}</button>
        ))}
      </div>
      <div id="tab-panel" role="tabpanel" aria-labelledby={`tab-${chosen.id}`} key={chosen.id}>{chosen.show()}</div>
    </>
  )
}

// ---- tables

export interface Column<T> {
  head: string
  cell: (row: T) => Children
  /** What the column is sorted and searched by. */
  by?: (row: T) => string | number | undefined
  number?: boolean
  wide?: boolean // not on phones
}

interface TableProps<T> {
  name: string
  rows?: T[]
  columns: Column<T>[]
  id: (row: T) => string
  empty: Children
  tools?: Children
  /** Of the parameters in the address, if a page has more than one table. */
  prefix?: string
}

/** A table that is searched and sorted by parameters of the address. */
export function Table<T>({ name, rows, columns, id, empty, tools, prefix = '' }: TableProps<T>) {
  const query = route.value.query
  const search = query.get(prefix + 'q') ?? ''
  const sort = query.get(prefix + 'sort') ?? ''
  if (!rows) return <div class="loading" role="status">Loading {name.toLowerCase()}</div>
  if (rows.length === 0) return <>{tools && <div class="filters">{tools}</div>}{empty}</>
  const words = search.toLowerCase().split(/\s+/).filter(Boolean)
  let shown = rows.filter((row) => {
    const text = columns.map((c) => String(c.by?.(row) ?? '')).concat(id(row)).join(' ').toLowerCase()
    return words.every((w) => text.includes(w))
  })
  const column = columns.find((c) => c.head === sort.replace(/^-/, ''))
  if (column?.by) {
    const sign = sort.startsWith('-') ? -1 : 1
    const by = column.by
    shown = shown.toSorted((a, b) => {
      const x = by(a) ?? ''
      const y = by(b) ?? ''
      return sign * (typeof x === 'number' && typeof y === 'number' ? x - y : String(x).localeCompare(String(y)))
    })
  }
  return (
    <>
      <div class="filters">
        <input type="search" class="search" placeholder={`Filter ${name.toLowerCase()}`} aria-label={`Filter ${name.toLowerCase()}`} value={search}
          onInput={(e) => setQuery({ [prefix + 'q']: e.currentTarget.value })} />
        {tools}
        <span class="dim count">{shown.length === rows.length ? rows.length : `${shown.length} of ${rows.length}`}</span>
      </div>
      <div class="scroll" role="region" aria-label={name} tabIndex={0}>
        <table>
          <thead>
            <tr>
              {columns.map((c) => (
                <th key={c.head} class={`${c.number ? 'number' : ''} ${c.wide ? 'wide' : ''}`} aria-sort={column === c ? (sort.startsWith('-') ? 'descending' : 'ascending') : undefined}>
                  {c.by && c.head ? <button type="button" onClick={() => setQuery({ [prefix + 'sort']: sort === c.head ? '-' + c.head : sort === '-' + c.head ? undefined : c.head })}>{c.head}</button> : c.head || <span class="hidden">Actions</span>}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {shown.map((row) => (
              <tr key={id(row)}>{columns.map((c) => <td key={c.head} class={`${c.number ? 'number' : ''} ${c.wide ? 'wide' : ''}`}>{c.cell(row)}</td>)}</tr>
            ))}
          </tbody>
        </table>
        {shown.length === 0 && <p class="none dim">No rows match. <Button kind="plain" onClick={() => setQuery({ [prefix + 'q']: undefined })}>Clear the filter</Button></p>}
      </div>
    </>
  )
}

/** A choice that is in the address. */
export function Choice({ name, label, of }: { name: string; label: string; of: [value: string, text: string][] }) {
  const value = route.value.query.get(name) ?? ''
  return (
    <select aria-label={label} value={value} onChange={(e) => setQuery({ [name]: e.currentTarget.value })}>
      {of.map(([v, text]) => <option key={v} value={v}>{text}</option>)}
    </select>
  )
}

/** A list to choose from at once. */
export function Choose({ label, of, choose }: { label: string; of: [value: string, text: string][]; choose: (value: string) => void }) {
  return (
    <select class="auto small" aria-label={label} value="" onChange={(e) => choose(e.currentTarget.value)}>
      <option value="">{label}</option>
      {of.map(([v, text]) => <option key={v} value={v}>{text}</option>)}
    </select>
  )
}
