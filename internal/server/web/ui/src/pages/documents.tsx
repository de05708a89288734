// A console for documents: a collection, a filter or the stages of an aggregation, and what the database answers.

import { useState } from 'preact/hooks'
import type { CollectionResult, QueryResult, Service } from '../openapi'
import { ask, Refusal, type problemOf } from '../api'
import { Editor } from '../editor'
import { Button, Card, Field, Trouble } from '../ui'
import { exactly, isNumber, Result } from './result'
import { defaults, Limits, useRun } from './sql'
import { Tables, useTables } from './tables'
import type { Part } from './workspaces'

const drafts = new Map<string, { collection: string; text: string }>() // what was written last, by workspace and service

export function Documents({ of: w, service: s, path, edit }: Part & { service: Service }) {
  const tables = useTables(path, s)
  const draft = `${w.id} ${s.name}`
  const [{ collection, text }, setText] = useState(drafts.get(draft) ?? { collection: '', text: '{}' })
  const [opened] = useState(text) // what the editor has begun with
  const [limits, setLimits] = useState(defaults)
  const [answer, setAnswer] = useState<{ result?: QueryResult; documents?: unknown[]; problem?: ReturnType<typeof problemOf> }>()
  const { running, run: attempt } = useRun()
  const write = (change: { collection?: string; text?: string }) => {
    const next = { collection, text, ...drafts.get(draft), ...change }
    drafts.set(draft, next)
    setText(next)
  }
  const run = async () => {
    if (running) return
    const problem = await attempt(async (stop) => {
      const asked = parsed(text)
      const resp = await ask(`${path}/documents`, { method: 'POST', signal: stop, body: { collection, service: s.name, [Array.isArray(asked) ? 'pipeline' : 'filter']: asked, timeout: limits.timeout, max_rows: limits.rows, max_bytes: '8MiB' } })
      const found = exactly<CollectionResult>(await resp.text())
      setAnswer({ result: rowsOf(found), documents: found.documents ?? [] })
      if (Array.isArray(asked)) tables.reload() // its last stage may make a collection
    })
    if (problem) setAnswer({ problem })
  }
  return (
    <div class="files">
      <Tables title="Collections" of={tables} choose={async (t) => write({ collection: t.name })} />
      <div class="stack">
        <Card title={`Ask ${s.name}`} actions={<span class="row"><Limits of={limits} set={setLimits} rows="documents" /></span>}>
          <Field label="Collection"><input class="mono" autocomplete="off" spellcheck={false} value={collection} onInput={(e) => write({ collection: e.currentTarget.value })} /></Field>
          <div class="sql"><Editor label="Filter or pipeline" text={opened} language="javascript" onChange={(text) => write({ text })} onRun={() => void run()} /></div>
          <div class="row">
            <Button kind="primary" disabled={Boolean(running)} onClick={run}>Run <kbd>Ctrl ↵</kbd></Button>
            {running && <Button onClick={() => running.abort()}>Cancel</Button>}
            <span class="dim" role="status">{running ? 'It runs.' : ''}</span>
          </div>
          <p class="dim">An object is a filter, like <code>{'{"total": {"$gt": 5}}'}</code>. A list is the pipeline of an aggregation, like <code>{'[{"$sort": {"total": -1}}]'}</code>.</p>
          {!edit && <p class="dim">As a reviewer you can only read: the stages <code>$out</code> and <code>$merge</code> are refused.</p>}
        </Card>
        {answer?.problem && <Trouble of={answer.problem} />}
        {answer?.result && <Result of={answer.result} text="" documents={answer.documents} />}
      </div>
    </div>
  )
}

/** The JSON value of a text; an empty one is a filter for all documents. */
function parsed(text: string): unknown {
  try {
    return exactly(text.trim() || '{}')
  } catch (err) {
    throw new Refusal({ detail: `This is not JSON: ${(err as Error).message}`, remedy: 'write names and texts in double quotes', kind: 'invalid', status: 0 })
  }
}

/** A table with a column for each field of the documents. */
function rowsOf({ documents, ...rest }: CollectionResult): QueryResult {
  const types = new Map<string, Set<string>>() // by field
  const rows = documents?.map((d) => new Map(Object.entries(d as object).map(([name, v]) => {
    const [type, value] = simple(v)
    const all = types.get(name) ?? new Set()
    types.set(name, v === null ? all : all.add(type))
    return [name, value]
  }))) ?? []
  const columns = [...types].map(([name, all]) => ({ name, type: all.size === 1 ? [...all][0] : '' }))
  return { ...rest, columns, rows: rows.map((row) => columns.map((c) => row.get(c.name))) }
}

/** The type of a value, if a column of such values has its own form in tables and plots, and the value without its type. */
function simple(v: unknown): [type: string, value: unknown] {
  if (isNumber(v)) return ['number', v]
  const { $oid: id, $date: date } = (v ?? {}) as { $oid?: unknown; $date?: unknown }
  return typeof id === 'string' ? ['objectId', id] : typeof date === 'string' ? ['date', date] : ['', v]
}
