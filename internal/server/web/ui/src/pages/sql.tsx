// A console for SQL: a text, and what the database answers. Consoles for other databases share parts of it.

import { useEffect, useRef, useState } from 'preact/hooks'
import type { QueryPlan, QueryResult, Service } from '../openapi'
import { ask, problemOf } from '../api'
import { Editor } from '../editor'
import { Button, Card, Trouble, visible } from '../ui'
import { exactly, Result } from './result'
import type { Part } from './workspaces'

const drafts = new Map<string, string>() // what was written last, by workspace and service

export const defaults = { rows: 1000, timeout: '30s' }

/** Runs one request at a time, until it is cancelled or its console is left. */
export function useRun() {
  const [running, setRunning] = useState<AbortController>()
  const current = useRef(running)
  current.current = running
  useEffect(() => () => current.current?.abort(), [])
  /** Returns the problem of a request that failed or was cancelled. */
  const run = async (act: (stop: AbortSignal) => Promise<void>, cancelled = ''): Promise<ReturnType<typeof problemOf> | undefined> => {
    const stop = new AbortController()
    setRunning(stop)
    try {
      await act(stop.signal)
    } catch (err) {
      return stop.signal.aborted ? { detail: 'It was cancelled.', remedy: cancelled, kind: 'expired', status: 0 } : problemOf(err)
    } finally {
      setRunning(undefined)
    }
  }
  return { running, run }
}

/** The fields for the maximum number of rows and the maximum run time. */
export function Limits({ of: x, set, rows }: { of: typeof defaults; set: (to: typeof defaults) => void; rows: string }) {
  return (
    <>
      <select class="auto small" aria-label={`${rows[0].toUpperCase()}${rows.slice(1)} at most`} value={x.rows} onChange={(e) => set({ ...x, rows: Number(e.currentTarget.value) })}>{[100, 1000, 10_000].map((n) => <option key={n} value={n}>{n.toLocaleString()} {rows}</option>)}</select>
      <select class="auto small" aria-label="Time at most" value={x.timeout} onChange={(e) => set({ ...x, timeout: e.currentTarget.value })}>{[['30s', '30 s'], ['2m', '2 min'], ['10m', '10 min']].map(([v, t]) => <option key={v} value={v}>{t}</option>)}</select>
    </>
  )
}

interface ConsoleProps extends Part {
  service: Service
  /** A text to put into the editor, and what is told then. */
  insert?: string
  inserted: () => void
  /** Called when something was run that may have changed tables. */
  ran: () => void
}

export function Console({ of: w, service: s, path, edit, insert, inserted, ran }: ConsoleProps) {
  const draft = `${w.id} ${s.name}`
  const [text, setText] = useState(drafts.get(draft) ?? 'select 42 as n')
  const [opened, setOpened] = useState({ text, n: 0 }) // what the editor has begun with
  const [readOnly, setReadOnly] = useState(!edit)
  const [limits, setLimits] = useState(defaults)
  const [answer, setAnswer] = useState<{ text: string; result?: QueryResult; plan?: string; problem?: ReturnType<typeof problemOf> }>()
  const { running, run: attempt } = useRun()
  const write = (t: string) => {
    drafts.set(draft, t)
    setText(t)
  }
  useEffect(() => {
    if (insert === undefined) return
    write(insert)
    setOpened({ text: insert, n: opened.n + 1 })
    inserted()
  }, [insert])
  const run = async (what: 'query' | 'explain') => {
    if (running || !text.trim()) return
    const only = readOnly || !edit
    const problem = await attempt(async (stop) => {
      const resp = await ask(`${path}/${what}`, { method: 'POST', signal: stop, body: { text, service: s.name, read_only: only, timeout: limits.timeout, ...(what === 'query' ? { max_rows: limits.rows, max_bytes: '8MiB' } : {}) } })
      const body = await resp.text()
      setAnswer(what === 'explain' ? { text, plan: (JSON.parse(body) as QueryPlan).text } : { text, result: exactly<QueryResult>(body) })
      if (!only) ran()
    }, only ? '' : 'Its changes were rolled back, except for those committed earlier.')
    if (problem) setAnswer({ text, problem })
  }
  const error = answer?.result?.error
  return (
    <div class="stack">
      <Card title={`Ask ${s.name}`} actions={<span class="row">
        <label class="check"><input type="checkbox" checked={readOnly || !edit} disabled={!edit} onChange={(e) => setReadOnly(e.currentTarget.checked)} /> Read only</label>
        <Limits of={limits} set={setLimits} rows="rows" />
      </span>}>
        <div class="sql"><Editor key={opened.n} label="Query" text={opened.text} language={s.type === 'mysql' ? 'mysql' : 'sql'} wrong={error && answer.text === text ? error.position : undefined} onChange={write} onRun={() => void run('query')} /></div>
        <div class="row">
          <Button kind="primary" disabled={Boolean(running) || !text.trim()} onClick={() => run('query')}>Run <kbd>Ctrl ↵</kbd></Button>
          <Button disabled={Boolean(running) || !text.trim()} onClick={() => run('explain')}>Explain</Button>
          {running && <Button onClick={() => running.abort()}>Cancel</Button>}
          <span class="dim" role="status">{running ? 'It runs.' : ''}</span>
        </div>
        {!edit && <p class="dim">As a reviewer you can only read: the server refuses changes.</p>}
      </Card>
      {answer?.problem && <Trouble of={answer.problem} />}
      {answer?.plan !== undefined && <Card title="Plan"><pre class="output" tabIndex={0} aria-label="Plan">{visible(answer.plan)}</pre></Card>}
      {answer?.result && <Result of={answer.result} text={answer.text} />}
    </div>
  )
}
