// What a database has answered: a table, a plot where there is something to plot, or
// an error with its place.

import { useEffect, useMemo, useRef, useState } from 'preact/hooks'
import type { QueryColumn, QueryError, QueryResult } from '../openapi'
import { Plot } from '../plot'
import { Button, Card, Dialog, duration, seconds, visible } from '../ui'

/** A number as it was written, where a number of JavaScript would lose digits. */
interface Raw { rawJSON: string }

// In browsers since 2023 to 2025; without, numbers lose what JavaScript has no digits for.
const json = JSON as typeof JSON & { rawJSON?: (text: string) => Raw; isRawJSON?: (v: unknown) => v is Raw }

/** Reads JSON, and keeps numbers as they are written. */
export function exactly<T>(text: string): T {
  return JSON.parse(text, ((_key: string, v: unknown, at?: { source?: string }) => (typeof v === 'number' && at?.source && at.source !== String(v) && json.rawJSON ? json.rawJSON(at.source) : v)) as (key: string, v: unknown) => unknown) as T
}

export const isNumber = (v: unknown) => typeof v === 'number' || json.isRawJSON?.(v) === true

/** The text of a value that is not NULL. */
function textOf(v: unknown): string {
  if (typeof v === 'string') return v
  if (json.isRawJSON?.(v)) return v.rawJSON
  return JSON.stringify(v)
}

const long = 300 // characters of a value that are shown in the table
const whole = 100_000 // and in a dialog, or as JSON
const cells = 20_000 // that are drawn at first
const mostColumns = 200

interface ResultProps {
  of: QueryResult
  text: string
  /** What the rows were made from, if the database has documents instead of rows. */
  documents?: unknown[]
}

export function Result({ of: r, text, documents }: ResultProps) {
  const plots = useMemo(() => plotsOf(r), [r])
  const [chosen, setChosen] = useState('Table')
  const ways = ['Table', ...(plots ? ['Plot'] : []), ...(documents?.length ? ['JSON'] : [])]
  const as = ways.includes(chosen) ? chosen : 'Table'
  const [one, many] = documents ? ['document', 'documents'] : ['row', 'rows']
  const n = r.rows?.length ?? 0
  const took = duration(seconds(r.took))
  if (r.error) return <Wrong of={r.error} text={text} />
  if (!documents && !r.columns?.length) return <Card title="Done"><p role="status">{r.affected === undefined ? 'Done' : r.affected === 1 ? 'One row affected' : `${r.affected.toLocaleString()} rows affected`} in {took}.</p></Card>
  return (
    <Card title="Result" actions={ways.length > 1 && <span class="row" role="group" aria-label="Show as">
      {ways.map((w) => <Button key={w} class="small" aria-pressed={w === as} onClick={() => setChosen(w)}>{w}</Button>)}
    </span>}>
      <p role="status">{n === 1 ? `One ${one}` : `${n.toLocaleString()} ${many}`} in {took}{r.truncated && <span class="err">, and more {many} that are not shown</span>}.</p>
      {as === 'JSON' ? <Whole name="Documents" text={JSON.stringify(documents, null, 2)} /> : as === 'Plot' ? <Plotted key={plots!.x.map((a) => a.name).join('\0')} of={plots!} /> : r.columns!.length > 0 && <Rows of={r} />}
    </Card>
  )
}

function Rows({ of: r }: { of: QueryResult }) {
  const columns = r.columns!.slice(0, mostColumns)
  const step = Math.max(20, Math.min(200, Math.floor(cells / columns.length)))
  const [shown, setShown] = useState(step)
  const [open, setOpen] = useState<{ name: string; text: string }>()
  useEffect(() => setShown(step), [r])
  const rows = r.rows ?? []
  const cell = (v: unknown, name: string) => {
    if (v === undefined) return '' // a document without the field
    if (v === null) return <span class="null">NULL</span>
    const text = textOf(v)
    if (text === '') return <span class="dim">''</span>
    if (text.length <= long) return visible(text)
    return <>{visible(text.slice(0, long))}… <Button kind="plain" onClick={() => setOpen({ name, text })}>all {text.length.toLocaleString()} characters</Button></>
  }
  return (
    <>
      <div class="scroll rows" role="region" aria-label="Rows" tabIndex={0}>
        <table>
          <thead><tr>{columns.map((c, i) => <th key={i}>{visible(c.name) || '?'} <span class="dim">{visible(c.type)}</span></th>)}</tr></thead>
          <tbody>{rows.slice(0, shown).map((row, i) => <tr key={i}>{columns.map((c, j) => <td key={j} class={numeric(c) ? 'number' : ''}>{cell(row?.[j], c.name)}</td>)}</tr>)}</tbody>
        </table>
      </div>
      {(rows.length > shown || r.columns!.length > mostColumns) && <p class="row">
        {rows.length > shown && <><span class="dim">{(rows.length - shown).toLocaleString()} rows are not shown.</span><Button class="small" onClick={() => setShown(shown + step)}>Show {Math.min(step, rows.length - shown)} more</Button></>}
        {r.columns!.length > mostColumns && <span class="dim">{r.columns!.length - mostColumns} columns are not shown.</span>}
      </p>}
      {open && <Dialog title={visible(open.name)} onClose={() => setOpen(undefined)}>
        <Whole name={visible(open.name)} text={open.text} />
      </Dialog>}
    </>
  )
}

function Whole({ name, text }: { name: string; text: string }) {
  return (
    <>
      <pre class="output" tabIndex={0} aria-label={name}>{visible(text.slice(0, whole))}</pre>
      {text.length > whole && <p class="dim">{(text.length - whole).toLocaleString()} more characters are not shown.</p>}
    </>
  )
}

/** An error of the database, and the line of the text where it is. */
function Wrong({ of: e, text }: { of: QueryError; text: string }) {
  const all = [...text] // positions count characters, not units of UTF-16
  const at = e.position ? e.position - 1 : -1
  const begin = at > 0 ? all.lastIndexOf('\n', at - 1) + 1 : 0
  const end = all.indexOf('\n', at)
  const word = at < 0 ? '' : (/^(\w+|.)/u.exec(all.slice(at, at + 100).join(''))?.[0] ?? '')
  const length = [...word].length
  const line = all.slice(0, begin).filter((c) => c === '\n').length + 1
  return (
    <Card title="The database refused the query">
      <p role="alert"><span class="err">{visible(e.text)}</span>{e.code && <span class="dim"> ({visible(e.code)})</span>}</p>
      {at >= 0 && at <= all.length && <pre aria-label="Position of the error" tabIndex={0}><span class="dim">{line} </span>{visible(all.slice(Math.max(begin, at - 200), at).join(''))}<mark>{visible(word) || ' '}</mark>{visible(all.slice(at + length, Math.min(end < 0 ? all.length : end, at + 200)).join(''))}</pre>}
      {e.detail && <p>{visible(e.detail)}</p>}
      {e.hint && <p class="dim">{visible(e.hint)}</p>}
    </Card>
  )
}

// ---- plots

const numeric = (c: QueryColumn) => /^(number$|(unsigned )?(tiny|small|medium|big)?int(eger)?\d?( unsigned)?$|numeric|decimal|float|double|real|year)/i.test(c.type)
const timely = (c: QueryColumn) => /^(date|timestamp)/i.test(c.type)

/** A column with what can be plotted of it. */
interface Axis { name: string; values: (number | null)[] }
interface Plots {
  /** What can be across: the first is the best. */
  x: (Axis & { scale: 'time' | 'number' | string[] })[]
  y: Axis[]
}

const most = 60 // names that fit below a plot

function plotsOf(r: QueryResult): Plots | undefined {
  const rows = r.rows ?? []
  if (rows.length < 2 || r.error) return undefined
  const column = (i: number, of: (v: unknown) => number): (number | null)[] | undefined => {
    let some = false
    const values = rows.map((row) => {
      const v = row?.[i] ?? null
      if (v === null) return null
      some = true
      return of(v)
    })
    return some && values.every((v) => v === null || Number.isFinite(v)) ? values : undefined
  }
  const x: Plots['x'] = []
  const y: Axis[] = []
  const columns = r.columns!.slice(0, mostColumns)
  columns.forEach((c, i) => {
    const name = visible(c.name)
    const numbers = numeric(c) ? column(i, (v) => Number(textOf(v))) : undefined
    // A day without a time is that of whoever looks, as a time without a zone is.
    const times = timely(c) ? column(i, (v) => Date.parse(/^\d+-\d+-\d+$/.test(textOf(v)) ? `${textOf(v)}T00:00` : textOf(v)) / 1000) : undefined
    if (numbers) {
      y.push({ name, values: numbers })
      x.push({ name, values: numbers, scale: 'number' })
    } else if (times) {
      x.push({ name, values: times, scale: 'time' })
    } else if (rows.length <= most) {
      x.push({ name, values: rows.map((_, n) => n), scale: rows.map((row) => (row?.[i] == null ? 'NULL' : visible(textOf(row[i]).slice(0, 24)))) })
    }
  })
  x.sort((a, b) => order(a.scale) - order(b.scale))
  // What is across needs something else above it.
  const usable = x.filter((a) => y.some((b) => b.values !== a.values))
  return usable.length ? { x: usable, y } : undefined
}
const order = (scale: Plots['x'][number]['scale']) => (scale === 'time' ? 0 : scale === 'number' ? 2 : 1)

const lines = 3 // that have a colour

const compact = new Intl.NumberFormat([], { notation: 'compact', maximumFractionDigits: 3 })

function Plotted({ of: p }: { of: Plots }) {
  const [across, setAcross] = useState(0)
  const [only, setOnly] = useState('')
  const x = p.x[across]
  const results = useRef(0)
  useMemo(() => results.current++, [p])
  const others = p.y.filter((b) => b.values !== x.values)
  const shown = others.filter((_, i) => only === '' || String(i) === only).slice(0, lines)
  const sorted = useMemo(() => x.values.map((v, i) => [v, i] as const).filter((v): v is readonly [number, number] => v[0] !== null).sort((a, b) => a[0] - b[0]), [x])
  const pick = (of: Axis) => sorted.map(([, i]) => of.values[i])
  return (
    <>
      <div class="row">
        <select class="auto small" aria-label="Across" value={across} onChange={(e) => {
          setAcross(Number(e.currentTarget.value))
          setOnly('')
        }}>{p.x.map((a, i) => <option key={i} value={i}>by {a.name}</option>)}</select>
        {others.length > 1 && <select class="auto small" aria-label="Above" value={only} onChange={(e) => setOnly(e.currentTarget.value)}>
          <option value="">{others.length > lines ? `the first ${lines} numbers` : 'all numbers'}</option>
          {others.map((a, i) => <option key={i} value={i}>{a.name}</option>)}
        </select>}
      </div>
      <Plot key={`${results.current} ${across} ${only}`} label={`${shown.map((s) => s.name).join(', ')} by ${x.name}`} x={sorted.map(([v]) => v)} scale={x.scale} lines={shown.map((s) => ({ name: s.name, y: pick(s) }))} format={(v) => compact.format(v)} />
    </>
  )
}
