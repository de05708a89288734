// What changes an app: a prompt for a model, or what one has written elsewhere; and
// what is done then, as it happens.

import { useEffect, useRef, useState } from 'preact/hooks'
import type { App, AppElement, AppUpdate, EditRequest } from '../openapi'
import { problemOf, send } from '../api'
import { setQuery } from '../route'
import { Act, Button, Card, Field, Trouble } from '../ui'
import { ofAttempt } from './updates'

/** A place in a file, which opens it there. */
export function Place({ path, line }: { path: string; line?: number }) {
  return <Button kind="plain" class="mono place" onClick={() => setQuery({ tab: undefined, file: path, line: line ? String(line) : undefined })}>{path}{line ? `:${line}` : ''}</Button>
}

/** What an element of the page is called. */
function Element({ of: e, remove }: { of: AppElement; remove: () => void }) {
  const name = e.selector?.split(' > ').at(-1)
  const text = e.text?.trim().split('\n')[0]
  return (
    <div class="picked" role="group" aria-label="Element of the page">
      <span title={e.selector}><code>{name}</code>{text && <> “{text.length > 60 ? text.slice(0, 60) + '…' : text}”</>}{e.path && <span class="dim"> {e.path}{e.line ? `:${e.line}` : ''}</span>}</span>
      <Button kind="plain" class="small" aria-label="Remove the element" onClick={remove}>×</Button>
    </div>
  )
}

export type Mode = 'prompt' | 'text'

interface ChangeProps {
  of: App
  path: string
  write: boolean
  updates: AppUpdate[]
  mode: Mode
  setMode: (mode: Mode) => void
  element?: AppElement
  setElement: (element?: AppElement) => void
}

export function Change({ of: a, path, write, updates, mode, setMode, element, setElement }: ChangeProps) {
  const busy = Boolean(a.applying || a.editing)
  return (
    <Card title={write ? 'Change' : 'What is done'} actions={write && <span class="row">
      {busy && <Act class="small" act={() => send('POST', `${path}/cancel`)}>Cancel</Act>}
      <span class="row" role="group" aria-label="How">
        <Button class="small" aria-pressed={mode === 'prompt'} onClick={() => setMode('prompt')}>Ask a model</Button>
        <Button class="small" aria-pressed={mode === 'text'} onClick={() => setMode('text')}>Apply a text</Button>
      </span>
    </span>}>
      {write && <div hidden={mode !== 'prompt'}><Prompt path={path} busy={busy} alone={!a.directory} element={element} setElement={setElement} /></div>}
      {write && <div hidden={mode !== 'text'}><Apply path={path} busy={busy} /></div>}
      <Done updates={updates} />
    </Card>
  )
}

/** A prompt for a model. Only an app that is alone in its sandbox can have several attempts. */
function Prompt({ path, busy, alone, element, setElement }: { path: string; busy: boolean; alone: boolean; element?: AppElement; setElement: (e?: AppElement) => void }) {
  const [prompt, setPrompt] = useState('')
  const [bounds, setBounds] = useState({ model: '', rounds: '', cost: '', attempts: '', command: '', judge: '', criteria: '' })
  const [by, setBy] = useState('') // who compares attempts
  const [keep, setKeep] = useState(false)
  const [sending, setSending] = useState(false)
  const [problem, setProblem] = useState<ReturnType<typeof problemOf>>()
  const box = useRef<HTMLTextAreaElement>(null)
  useEffect(() => { if (element) box.current?.focus() }, [element])
  const several = alone && (Number(bounds.attempts) > 1 || bounds.model.includes(','))
  const ready = Boolean(prompt.trim()) && !busy && !sending
  const ask = async () => {
    if (!ready) return
    setSending(true)
    setProblem(undefined)
    const number = (text: string) => (text ? Number(text) : undefined)
    const text = (text: string) => text.trim() || undefined
    const q: EditRequest = {
      prompt, element, model: text(bounds.model), max_rounds: number(bounds.rounds), max_cost: number(bounds.cost), attempts: number(bounds.attempts),
      judge: !several || !by ? undefined : by === 'command' ? { command: text(bounds.command) } : { model: text(bounds.judge), criteria: text(bounds.criteria) },
      keep_attempts: (several && keep) || undefined,
    }
    try {
      await send('POST', `${path}/edit`, q)
      setPrompt('')
      setElement(undefined)
    } catch (err) {
      setProblem(problemOf(err))
    }
    setSending(false)
  }
  const bound = (name: keyof typeof bounds) => ({ value: bounds[name], onInput: (e: { currentTarget: HTMLInputElement | HTMLTextAreaElement }) => setBounds({ ...bounds, [name]: e.currentTarget.value }) })
  return (
    <form class="stack" onSubmit={(e) => {
      e.preventDefault()
      void ask()
    }}>
      <Field label="What should change?">
        <textarea ref={box} class="prose" rows={4} value={prompt} placeholder="Add a cart that keeps its items" onInput={(e) => setPrompt(e.currentTarget.value)}
          onKeyDown={(e) => { if (e.key === 'Enter' && (e.ctrlKey || e.metaKey)) void ask() }} />
      </Field>
      {element && <Element of={element} remove={() => setElement(undefined)} />}
      <details>
        <summary class="dim">Model and limits</summary>
        <div class="bounds">
          <Field label="Model" hint={`Empty means the node's default.${alone ? ' Several models, separated by commas, take turns.' : ''}`}><input placeholder="openai:gpt-5" maxLength={2000} {...bound('model')} /></Field>
          <Field label="Rounds" hint="Maximum number of the model's answers."><input type="number" min={1} max={10} placeholder="3" {...bound('rounds')} /></Field>
          <Field label="Cost" hint="Maximum cost; the edit ends when it is reached."><input type="number" min={0} step="any" placeholder="none" {...bound('cost')} /></Field>
          {alone
            ? <Field label="Attempts" hint="Attempts run at the same time; the best one is applied."><input type="number" min={1} max={8} placeholder="1" {...bound('attempts')} /></Field>
            : <small class="dim">Several attempts need a sandbox each, and this app shares the sandbox of its workspace.</small>}
          {several && <>
            <Field label="Judge" hint="Compares the attempts whose app works.">
              <select value={by} onChange={(e) => setBy(e.currentTarget.value)}>
                <option value="">Fewest problems, then least cost</option>
                <option value="command">A command</option>
                <option value="model">A model</option>
              </select>
            </Field>
            {by === 'command' && <Field label="Command of the judge" hint="Runs in each attempt. Exit code 0 wins, then the highest number on the last line."><input class="mono" placeholder="npm test" maxLength={4096} {...bound('command')} /></Field>}
            {by === 'model' && <Field label="Model of the judge" hint="Empty means the node's default."><input placeholder="openai:gpt-5" maxLength={200} {...bound('judge')} /></Field>}
            {by === 'model' && <Field label="Criteria"><textarea class="prose" rows={2} placeholder="Prefer the simplest code" maxLength={8192} {...bound('criteria')} /></Field>}
            <label class="check"><input type="checkbox" checked={keep} onChange={(e) => setKeep(e.currentTarget.checked)} /> Keep the attempts as separate apps</label>
          </>}
        </div>
      </details>
      <div class="row">
        <Button kind="primary" type="submit" disabled={!ready}>Change it <kbd>Ctrl ↵</kbd></Button>
        <span class="dim">Problems are then sent back to the model.</span>
      </div>
      <Trouble of={problem} />
    </form>
  )
}

function Apply({ path, busy }: { path: string; busy: boolean }) {
  const [text, setText] = useState('')
  return (
    <div class="stack">
      <textarea aria-label="A model's text" rows={8} spellcheck={false} value={text} onInput={(e) => setText(e.currentTarget.value)}
        placeholder={'<file path="src/App.tsx">\nexport default function App() {\n  return <h1>Hello</h1>\n}\n</file>'} />
      <div class="row">
        <Act kind="primary" disabled={!text.trim() || busy} act={async () => {
          await send('POST', `${path}/apply`, { text })
          setText('')
        }}>Apply</Act>
        <span class="dim">Files, edits, diffs, packages and commands, in the format that models write.</span>
      </div>
    </div>
  )
}

/** An update in a line, as the command line has it. */
function line(u: AppUpdate): string {
  const where = u.path ? u.path + (u.line ? `:${u.line}` : '') : ''
  const parts = {
    progress: [u.step], start: ['apply'], log: ['  ' + (u.text ?? '').trimEnd()],
    done: [`done: revision ${u.revision}`], snapshot: [`snapshot of revision ${u.revision}`], judged: [`attempt ${u.attempt} is taken:`], published: [`published: revision ${u.revision}`], rollback: [`rolled back: revision ${u.revision}`], command: ['  $', u.name, `exit code ${u.code ?? 0}`],
  }[u.type as string] ?? ['  ' + u.type, u.state, u.op, where, u.name]
  return [...parts, u.type === 'log' ? '' : u.text, u.error?.detail].filter(Boolean).join(' ')
}

function Done({ updates }: { updates: AppUpdate[] }) {
  const at = useRef<HTMLDivElement>(null)
  const follows = useRef(true)
  const shown = updates.filter((u) => u.type !== 'state' && !ofAttempt(u))
  const answer = shown.findLast((u) => u.type === 'output')
  useEffect(() => { if (follows.current) at.current?.scrollTo(0, at.current.scrollHeight) }, [updates])
  if (!shown.length) return null
  return (
    <div ref={at} class="output done" tabIndex={0} role="log" aria-label="What is done" onScroll={(e) => {
      const { scrollTop, scrollHeight, clientHeight } = e.currentTarget
      follows.current = scrollHeight - scrollTop - clientHeight < 40
    }}>
      {shown.map((u, i) => <Happened key={i} of={u} open={u === answer} />)}
    </div>
  )
}

const cost = (u: AppUpdate) => (u.cost ? `, cost ${Number(u.cost.toPrecision(2))}` : '')

/** How an edit, or one of its attempts, has ended. */
export function resultOf(u: AppUpdate) {
  if (u.error) return <><p class="err">{u.error.detail}</p>{u.error.remedy && <p class="dim">{u.error.remedy}</p>}</>
  return <p class="added">The app is well: {u.revision ? `revision ${u.revision}` : 'nothing had to change'}{u.type === 'edited' && u.attempt ? ` of attempt ${u.attempt}` : ''}, {u.rounds === 1 ? 'one round' : `${u.rounds} rounds`}{cost(u)}</p>
}

/** Something that has happened to an app. */
export function Happened({ of: u, open }: { of: AppUpdate; open: boolean }) {
  switch (u.type) {
    case 'edit':
      return <p class="asked">{u.text}</p>
    case 'round':
      return <h3>Round {u.round}</h3>
    case 'output':
      return <details open={open}><summary class="dim">The model's output</summary><Answer text={u.text ?? ''} /></details>
    case 'problem':
      return <div class="fault"><span class="dim">{u.source}</span>{u.path && <Place path={u.path} line={u.line} />}<span class="err">{u.text}</span></div>
    case 'edited':
      return <div class="result">{resultOf(u)}</div>
  }
  return <p class={`line ${u.type === 'error' ? 'err' : ['done', 'rollback', 'snapshot', 'judged'].includes(u.type) ? 'added' : u.type === 'log' ? 'dim' : ''}`}>{line(u)}</p>
}

/** Shows the end of what is being written. */
function Answer({ text }: { text: string }) {
  const at = useRef<HTMLPreElement>(null)
  useEffect(() => { at.current?.scrollTo(0, at.current.scrollHeight) }, [text])
  return <pre ref={at} tabIndex={0} aria-live="off" aria-label="The model's output">{text}</pre>
}
