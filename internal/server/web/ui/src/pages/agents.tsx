// Talks to an agent: text as it comes, tool calls that unfold, output of code,
// what it cost. Older runs can be read again.

import { useEffect, useRef, useState } from 'preact/hooks'
import type { Agent, AgentRun, AgentUpdate, Message } from '../openapi'
import { get, list, may, problemOf, segment, send, stream } from '../api'
import { useLive } from '../live'
import { Markdown } from '../markdown'
import { go, href } from '../route'
import { Act, Ago, Button, Card, Empty, Facts, Id, Page, State, Table, Trouble } from '../ui'
import { Subject } from './events'

interface Call {
  id: string
  name: string
  arguments: string
  output: string
  result?: string
  failed?: boolean
  waits?: boolean // for somebody's decision
}

interface Turn {
  who: 'you' | 'agent'
  text: string
  calls: Call[]
}

/** The turns of a transcript. */
function turnsOf(messages: Message[]): Turn[] {
  const turns: Turn[] = []
  for (const m of messages) {
    if (m.role === 'user') turns.push({ who: 'you', text: m.text ?? '', calls: [] })
    if (m.role === 'assistant') turns.push({ who: 'agent', text: m.text ?? '', calls: (m.calls ?? []).map((c) => ({ id: c.id, name: c.name, arguments: c.arguments ?? '', output: '' })) })
    if (m.role === 'tool') {
      for (const r of m.results ?? []) {
        const call = turns.flatMap((t) => t.calls).findLast((c) => c.id === r.call_id)
        if (call) Object.assign(call, { result: r.text, failed: r.failed })
      }
    }
  }
  return turns
}

/** All arguments of a tool call, by which people decide: code as it is, and nothing that is shown in another order than it runs. */
function codeOf(c: Call): string {
  try {
    const args = JSON.parse(c.arguments) as Record<string, unknown>
    const { code, ...rest } = args
    const text = typeof code !== 'string' ? JSON.stringify(args, null, 2) : Object.keys(rest).some((k) => k !== 'language') ? `${JSON.stringify(rest, null, 2)}\n\n${code}` : code
    return text.replace(/\p{Bidi_Control}/gu, '\uFFFD')
  } catch {
    return c.arguments
  }
}

/** Lets a call that waits begin, or refuses it. */
function Decide({ run, call }: { run: string; call: string }) {
  const [reason, setReason] = useState('')
  const at = useRef<HTMLDivElement>(null)
  useEffect(() => at.current?.scrollIntoView({ block: 'center' }), []) // nothing goes on before
  if (!may('approvals')) return <p class="dim">The call waits for a decision by a user whose key has the scope approvals.</p>
  const decide = (allow: boolean) => () => send('POST', `/v1/runs/${segment(run)}/calls/${segment(call)}/decision`, { allow, ...(reason ? { reason } : {}) })
  return (
    <div class="row" ref={at}>
      <Act kind="primary" act={decide(true)}>Allow</Act>
      <Act kind="danger" act={decide(false)}>Refuse</Act>
      <input class="auto" aria-label="Reason" placeholder="Reason, which the model sees" maxLength={500} value={reason} onInput={(e) => setReason(e.currentTarget.value)} />
    </div>
  )
}

export function Agents({ id }: { id?: string }) {
  const agents = useLive((stop) => list<Agent>('/v1/agents', stop), [])
  const runs = useLive((stop) => list<AgentRun>('/v1/runs?limit=50', stop), ['run.', 'tool.waiting', 'tool.decided'])
  const [turns, setTurns] = useState<Turn[]>([])
  const [run, setRun] = useState<AgentRun>()
  const [busy, setBusy] = useState(false)
  const [problem, setProblem] = useState<ReturnType<typeof problemOf>>()
  const [agent, setAgent] = useState('')
  const [confirm, setConfirm] = useState(false)
  const stop = useRef<AbortController>(undefined)
  const box = useRef<HTMLTextAreaElement>(null)
  useEffect(() => () => stop.current?.abort(), [])
  useEffect(() => {
    if (!id || id === run?.id) return
    const c = new AbortController()
    Promise.all([get<AgentRun>(`/v1/runs/${segment(id)}`, c.signal), list<Message>(`/v1/runs/${segment(id)}/messages`, c.signal)]).then(([r, messages]) => {
      setRun(r)
      if (r.state !== 'running') return setTurns(turnsOf(messages))
      // What the run has done so far comes again with its events.
      void follow(r, turnsOf(messages.slice(0, messages.findLastIndex((m) => m.role === 'user') + 1)))
    }, (err) => { if (!c.signal.aborted) setProblem(problemOf(err)) })
    return () => c.abort()
  }, [id])

  // follow shows what happens in a run, after what was said before.
  const follow = async (of: AgentRun, before: Turn[]) => {
    stop.current?.abort()
    const c = stop.current = new AbortController()
    setBusy(true)
    let now: Turn[] = [...before, { who: 'agent', text: '', calls: [] }]
    const show = (change: (t: Turn) => Turn) => {
      now = [...now.slice(0, -1), change(now.at(-1)!)]
      setTurns(now)
    }
    const callOf = (t: Turn, id: string | undefined, change: (c: Call) => Call): Turn => ({ ...t, calls: t.calls.map((c, i) => ((id ? c.id === id : i === t.calls.length - 1) ? change(c) : c)) })
    setTurns(now)
    try {
      for await (const u of stream<AgentUpdate>(`/v1/runs/${segment(of.id)}/events`, { signal: c.signal })) {
        if (u.run) setRun(u.run)
        if (u.type === 'text') show((t) => (t.calls.length ? t : { ...t, text: t.text + (u.text ?? '') }))
        if (u.type === 'text' && now.at(-1)!.calls.length) {
          now = [...now, { who: 'agent', text: u.text ?? '', calls: [] }]
          setTurns(now)
        }
        if (u.type === 'again') show((t) => ({ ...t, text: '' }))
        if ((u.type === 'waiting' || u.type === 'call') && u.call) {
          const call: Call = { id: u.call.id, name: u.call.name, arguments: u.call.arguments ?? '', output: '', waits: u.type === 'waiting' }
          show((t) => (t.calls.some((c) => c.id === call.id) ? callOf(t, call.id, () => call) : { ...t, calls: [...t.calls, call] }))
        }
        if (u.type === 'stdout' || u.type === 'stderr') show((t) => callOf(t, undefined, (c) => ({ ...c, output: c.output + (u.text ?? '') })))
        if (u.type === 'result' && u.result) show((t) => callOf(t, u.result!.call_id, (c) => ({ ...c, result: u.result!.text, failed: u.result!.failed })))
        if (u.type === 'error' && u.error) setProblem({ detail: u.error.detail, remedy: u.error.remedy, kind: u.error.kind, status: u.error.status })
      }
    } catch (err) {
      if (!c.signal.aborted) setProblem(problemOf(err))
    }
    if (!c.signal.aborted) setBusy(false)
    runs.reload()
  }
  const say = async (message: string) => {
    setProblem(undefined)
    setBusy(true)
    const before: Turn[] = [...turns, { who: 'you', text: message, calls: [] }]
    setTurns(before)
    try {
      const name = agent || (agents.data?.[0]?.name ?? '')
      const r = await send<AgentRun>('POST', `/v1/agents/${segment(name)}/runs`, { input: message, ...(confirm ? { confirm: ['*'] } : {}), ...(run ? { conversation_id: run.conversation_id } : {}) })
      setRun(r)
      await follow(r, before)
    } catch (err) {
      setProblem(problemOf(err))
      setBusy(false)
    }
  }
  const submit = () => {
    const text = box.current?.value.trim()
    if (!text || busy) return
    box.current!.value = ''
    void say(text)
  }
  const anew = () => {
    stop.current?.abort()
    setBusy(false)
    setTurns([])
    setRun(undefined)
    setProblem(undefined)
    go(href('agents'))
  }
  return (
    <Page title="Agents" about="Language models that run code here. Each call of a tool, and its output, is shown as it happens."
      actions={<>
        <select class="auto" aria-label="Agent" value={agent} onChange={(e) => setAgent(e.currentTarget.value)}>
          <option value="">Default agent</option>
          {agents.data?.map((a) => <option key={a.name}>{a.name}</option>)}
        </select>
        <Button onClick={anew} disabled={turns.length === 0}>New conversation</Button>
      </>}>
      <Trouble of={agents.problem} again={agents.reload} />
      {!agents.problem && <div class="talk">
        {turns.length === 0 && <Empty title="Enter a task"><p>For example: write a function that parses CSV and show that it works. Without a configured model, the demo model answers: it only runs the code between ``` fences.</p></Empty>}
        {turns.map((t, i) => (
          <article class="turn" key={i} aria-label={t.who === 'you' ? 'You said' : 'The agent said'}>
            <span class="who">{t.who === 'you' ? 'You' : run?.agent ?? 'Agent'}</span>
            {t.text && (t.who === 'you' ? <div class="said">{t.text}</div> : <Markdown text={t.text} />)}
            {t.calls.map((c) => (
              <details class="call" key={c.id} open={i >= turns.length - 2 || c.waits}>
                <summary><strong>{c.name}</strong><State of={c.result !== undefined ? (c.failed ? 'failed' : 'done') : !busy ? 'ended' : c.waits ? 'waiting' : 'running'} /></summary>
                <div class="body">
                  <pre tabIndex={0} aria-label="Arguments">{codeOf(c)}</pre>
                  {c.waits && c.result === undefined && busy && run && <Decide run={run.id} call={c.id} />}
                  {c.output && <pre tabIndex={0} aria-label="Output">{c.output}</pre>}
                  {c.result !== undefined && <pre tabIndex={0} aria-label="Result">{c.result}</pre>}
                </div>
              </details>
            ))}
            {busy && i === turns.length - 1 && !t.text && t.calls.length === 0 && <span class="dim" role="status">Thinking</span>}
          </article>
        ))}
        <Trouble of={problem} />
        {may('agents') && <form class="composer" onSubmit={(e) => {
          e.preventDefault()
          submit()
        }}>
          <textarea ref={box} rows={2} aria-label="Message" placeholder="Message" onKeyDown={(e) => {
            if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) {
              e.preventDefault()
              submit()
            }
          }} />
          {busy && run ? <Act kind="danger" act={() => send('DELETE', `/v1/runs/${segment(run.id)}`)}>Stop</Act> : <Button type="submit" kind="primary" disabled={busy}>Send</Button>}
          <label class="check"><input type="checkbox" checked={confirm} onChange={(e) => setConfirm(e.currentTarget.checked)} />Ask before each tool call</label>
        </form>}
      </div>}
      {run && <Card title="This run" actions={<State of={run.state} />}><Facts of={[
        ['Run', <Id of={run.id} />], ['Model', run.model], ['Steps', run.steps], ['Tokens', `${run.usage.input_tokens} in, ${run.usage.output_tokens} out`], ['Cost', run.usage.cost?.toFixed(4) ?? '–'],
        ['Sandbox', <Subject of={run.sandbox_id} />], ['Timeline', <a href={`${href('events')}?subject=${segment(run.id)}`}>its events</a>],
      ]} /></Card>}
      <Card title="Runs">
        <Table name="Runs" rows={runs.data} id={(r) => r.id} empty={<Empty title="No runs yet" />} columns={[
          { head: 'Run', cell: (r) => <a href={href('agents', r.id)}><Id of={r.id} /></a>, by: (r) => r.id },
          { head: 'Agent', cell: (r) => r.agent, by: (r) => r.agent },
          { head: 'State', cell: (r) => <State of={r.waiting?.length ? 'waiting' : r.state} />, by: (r) => r.state },
          { head: 'Steps', cell: (r) => r.steps, by: (r) => r.steps, number: true, wide: true },
          { head: 'Cost', cell: (r) => r.usage.cost?.toFixed(4) ?? '–', by: (r) => r.usage.cost, number: true, wide: true },
          { head: 'Started', cell: (r) => <Ago at={r.created_at} />, by: (r) => r.created_at, number: true },
        ]} />
      </Card>
    </Page>
  )
}
