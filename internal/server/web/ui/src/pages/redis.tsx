// A command line for Redis.

import { useEffect, useRef, useState } from 'preact/hooks'
import type { CommandReply, Service } from '../openapi'
import { problemOf, Refusal, segment, send } from '../api'
import { Card, visible } from '../ui'

const keep = 100 // commands whose replies are shown
const longest = 20_000 // characters of a reply that are shown

interface Done { command: string; reply?: unknown; problem?: ReturnType<typeof problemOf> }

export function Redis({ of: s, path }: { of: Service; path: string }) {
  const [text, setText] = useState('')
  const [done, setDone] = useState<Done[]>([])
  const [back, setBack] = useState(0) // commands back from the last one
  const [running, setRunning] = useState(false)
  const end = useRef<HTMLDivElement>(null)
  useEffect(() => end.current?.scrollTo(0, end.current.scrollHeight), [done])
  const run = async () => {
    const command = text.trim()
    if (!command || running) return
    setRunning(true)
    let last: Done
    try {
      const args = argsOf(command)
      last = { command, reply: (await send<CommandReply>('POST', `${path}/services/${segment(s.name)}/command`, { args })).reply }
    } catch (err) {
      last = { command, problem: problemOf(err) }
    }
    setDone((all) => [...all, last].slice(-keep))
    setText('')
    setBack(0)
    setRunning(false)
  }
  const step = (by: number) => {
    const n = Math.min(Math.max(back + by, 0), done.length)
    setBack(n)
    setText(n ? done[done.length - n].command : '')
  }
  return (
    <Card title={`Ask ${s.name}`}>
      {done.length > 0 && <div ref={end} class="output done" tabIndex={0} role="log" aria-label="Replies">
        {done.map((d, i) => <div key={i}>
          <p class="line asked">{visible(d.command)}</p>
          {d.problem
            ? <><p class="err">{visible(d.problem.detail)}</p>{d.problem.remedy && <p class="dim">{visible(d.problem.remedy)}</p>}</>
            : <p class={`line ${isError(d.reply) ? 'err' : ''}`}>{cut(replyOf(d.reply))}</p>}
        </div>)}
      </div>}
      <form onSubmit={(e) => {
        e.preventDefault()
        void run()
      }}>
        <input class="mono" aria-label="Command" placeholder="SET greeting hello" autocomplete="off" spellcheck={false} value={text} onInput={(e) => setText(e.currentTarget.value)}
          onKeyDown={(e) => {
            if (e.key !== 'ArrowUp' && e.key !== 'ArrowDown') return
            e.preventDefault()
            step(e.key === 'ArrowUp' ? 1 : -1)
          }} />
      </form>
      <p class="dim">Enter runs the command; the arrow keys show earlier commands. Quotes work as in redis-cli.</p>
    </Card>
  )
}

const escapes: Record<string, string> = { n: '\n', r: '\r', t: '\t', b: '\b', a: '\x07' }

/** The arguments of a command, in which quotes mean what they mean to redis-cli. */
function argsOf(command: string): string[] {
  const args: string[] = []
  let rest = command.trim()
  while (rest) {
    const quoted = /^"((?:[^"\\]|\\.)*)"(?=\s|$)/s.exec(rest) ?? /^'((?:[^'\\]|\\.)*)'(?=\s|$)/s.exec(rest) ?? /^([^\s"']\S*)/.exec(rest)
    if (!quoted) throw new Refusal({ detail: 'A quote is not closed, or text follows it without a space.', remedy: 'write \\" for a quote within quotes', kind: 'invalid', status: 0 })
    const body = quoted[1]
    args.push(rest[0] === '"' ? body.replace(/\\(?:x([0-7][\da-f])|(.))/gis, (_, hex: string | undefined, c: string) => (hex ? String.fromCharCode(parseInt(hex, 16)) : escapes[c] ?? c)) : rest[0] === "'" ? body.replaceAll("\\'", "'") : body)
    rest = rest.slice(quoted[0].length).trimStart()
  }
  return args
}

const isError = (reply: unknown) => typeof reply === 'object' && reply !== null && !Array.isArray(reply) && typeof (reply as { error?: unknown }).error === 'string' && Object.keys(reply).length === 1
const cut = (text: string) => (text.length > longest ? `${text.slice(0, longest)}…\n${(text.length - longest).toLocaleString()} more characters are not shown` : text)

/** A reply as redis-cli shows it. */
function replyOf(reply: unknown, indent = ''): string {
  if (reply === null || reply === undefined) return '(nil)'
  if (typeof reply === 'number') return `(integer) ${reply}`
  if (isError(reply)) return `(error) ${visible((reply as { error: string }).error)}`
  if (typeof reply === 'string') return indent ? `"${visible(reply)}"` : reply === '' ? '""' : visible(reply)
  const items = Array.isArray(reply) ? reply.map((v, i) => [`${i + 1})`, v] as const) : Object.entries(reply as object).map(([k, v]) => [`${visible(k)}:`, v] as const)
  if (typeof reply !== 'object' || !items.length) return typeof reply === 'object' ? '(empty)' : String(reply)
  return items.map(([name, v], i) => `${i ? indent : ''}${name} ${replyOf(v, indent + ' '.repeat(name.length + 1))}`).join('\n')
}
