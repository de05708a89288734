// Runs a program in a new sandbox and shows its output as it comes.

import { useEffect, useRef, useState } from 'preact/hooks'
import type { Artifact, Execution, ExecutionSummary, ExecutionUpdate, Result } from '../openapi'
import { ask, get, list, problemOf, segment, stream } from '../api'
import { Editor } from '../editor'
import { useLive } from '../live'
import { go, href, route, setQuery } from '../route'
import { Act, Ago, Button, bytes, Card, Copy, Dialog, duration, Empty, Facts, Field, Id, Outcome, Page, seconds, State, Table, Trouble } from '../ui'

const examples: Record<string, string> = {
  python: 'import platform, sys\n\nprint("Hello from", platform.system(), platform.release())\nprint("Python", sys.version.split()[0])\n\n# Files that a program leaves in /workspace become artifacts.\nwith open("squares.csv", "w") as f:\n    f.write("n,square\\n")\n    f.writelines(f"{n},{n * n}\\n" for n in range(1, 6))\n',
  javascript: 'console.log("Hello from Node", process.version)\nconsole.log([1, 2, 3].map((n) => n ** 2))\n',
  typescript: 'interface Greeting { name: string }\nconst g: Greeting = { name: "TypeScript" }\nconsole.log(`Hello from ${g.name}`)\n',
  go: 'package main\n\nimport (\n\t"fmt"\n\t"runtime"\n)\n\nfunc main() {\n\tfmt.Println("Hello from", runtime.Version())\n}\n',
  bash: 'echo "Hello from $(uname -sr)"\nls /\n',
}
const names: Record<string, string> = { python: 'Python', javascript: 'JavaScript', typescript: 'TypeScript', go: 'Go', bash: 'Bash' }

/** The output of a program, as it comes. */
interface Output {
  parts: { text: string; err: boolean }[]
  execution?: Execution
  running: boolean
  problem?: ReturnType<typeof problemOf>
}

function decode(u: { data?: string; data_base64?: string }): string {
  return u.data ?? new TextDecoder().decode(Uint8Array.from(atob(u.data_base64 ?? ''), (c) => c.charCodeAt(0)))
}

// Drafts stay while one looks at other pages.
const drafts: Record<string, string> = { ...examples }

export function Run({ id }: { id?: string }) {
  const language = route.value.query.get('language') ?? 'python'
  const [code, setCode] = useState(drafts[language])
  const [out, setOut] = useState<Output>({ parts: [], running: false })
  const [snippets, setSnippets] = useState(false)
  const stop = useRef<AbortController>(undefined)
  const timeout = useRef<HTMLInputElement>(null)
  useEffect(() => setCode(drafts[language]), [language])
  useEffect(() => () => stop.current?.abort(), [])

  // A program of the history.
  useEffect(() => {
    if (!id) return
    const c = new AbortController()
    get<Execution>(`/v1/executions/${segment(id)}`, c.signal).then((e) => {
      setOut({ parts: [{ text: e.result?.stdout ?? '', err: false }, { text: e.result?.stderr ?? '', err: true }], execution: e, running: e.state === 'running' || e.state === 'queued' })
      if (e.state === 'running') void watch(`/v1/executions/${segment(id)}/events`, {})
    }, (err) => { if (!c.signal.aborted) setOut({ parts: [], running: false, problem: problemOf(err) }) })
    return () => c.abort()
  }, [id])

  const request = () => ({ language, code, ...(timeout.current?.value ? { timeout: timeout.current.value } : {}) })

  async function watch(path: string, q: { method?: string; body?: unknown; headers?: Record<string, string> }) {
    stop.current?.abort()
    stop.current = new AbortController()
    const { signal } = stop.current
    let last: Output = { parts: [], running: true }
    const show = (change: Partial<Output>) => {
      last = { ...last, ...change }
      if (!signal.aborted) setOut(last)
    }
    show({})
    try {
      for await (const u of stream<ExecutionUpdate>(path, { ...q, signal })) {
        if (u.execution) show({ execution: u.execution })
        if (u.type === 'stdout' || u.type === 'stderr') {
          const err = u.type === 'stderr'
          const text = decode(u)
          const end = last.parts.at(-1)
          show({ parts: end?.err === err ? [...last.parts.slice(0, -1), { text: end.text + text, err }] : [...last.parts, { text, err }] })
        }
        if (u.type === 'error') show({ problem: u.error && { detail: u.error.detail, remedy: u.error.remedy, kind: u.error.kind, status: u.error.status } })
      }
    } catch (err) {
      if (!signal.aborted) show({ problem: problemOf(err) })
    }
    show({ running: false })
  }
  const run = () => {
    if (id) go(`${href('run')}?language=${language}`)
    return watch('/v1/executions', { method: 'POST', body: request(), headers: { 'Idempotency-Key': crypto.randomUUID?.() ?? String(Math.random()) } })
  }
  const result = out.execution?.result
  return (
    <Page title="Run" about="Runs in a new sandbox, which is destroyed afterwards."
      actions={<>
        <Button onClick={() => setSnippets(true)}>As code</Button>
        {out.running && out.execution
          ? <Act kind="danger" act={() => ask(`/v1/executions/${segment(out.execution!.id)}`, { method: 'DELETE' })}>Cancel</Act>
          : <Button kind="primary" disabled={out.running} onClick={run}>Run <kbd>Ctrl ↵</kbd></Button>}
      </>}>
      <div class="two">
        <Card title="Program" actions={<span class="row">
          <select aria-label="Language" class="small" value={language} onChange={(e) => setQuery({ language: e.currentTarget.value })}>
            {Object.entries(names).map(([value, name]) => <option key={value} value={value}>{name}</option>)}
          </select>
        </span>}>
          <Editor label="Program" text={drafts[language]} language={language} onRun={run} onChange={(text) => {
            drafts[language] = text
            setCode(text)
          }} />
          <Field label="Time limit" hint="Empty means the node's default."><input ref={timeout} placeholder="30s" pattern="[0-9.]+(ms|s|m|h)" /></Field>
        </Card>
        <Card title="Output" actions={out.running ? <State of="running" /> : out.execution && <Outcome cause={result?.cause} state={out.execution.state} code={result?.exit_code} />}>
          <Trouble of={out.problem} />
          <pre class="output" tabIndex={0} aria-label="Output" aria-live="polite">
            {out.parts.map((p, i) => <span key={i} class={p.err ? 'err' : undefined}>{p.text}</span>)}
            {!out.running && out.parts.every((p) => !p.text) && <span class="dim">{out.execution ? 'The program printed nothing.' : 'Output appears here as the program prints it.'}</span>}
          </pre>
          {result && <Ending of={result} execution={out.execution!} />}
        </Card>
      </div>
      {result?.artifacts?.length ? <Artifacts of={result.artifacts} left={result.artifacts_left ?? 0} /> : null}
      <History chosen={id ?? out.execution?.id} />
      {snippets && <Snippets request={request()} onClose={() => setSnippets(false)} />}
    </Page>
  )
}

function Ending({ of: r, execution }: { of: Result; execution: Execution }) {
  return (
    <>
      {r.remedy && <p class="notice">{r.error ? `${r.error}. ` : ''}{r.remedy}</p>}
      <Facts of={[
        ['Exit code', r.signal ? `${r.exit_code} (${r.signal})` : r.exit_code], ['Took', duration(seconds(r.duration))],
        ['Time until the sandbox was ready', `${duration(seconds(r.claim_time))}${r.warm ? ', warm' : ''}`], ['Execution', <a href={href('run', execution.id)}><Id of={execution.id} /></a>],
      ]} />
    </>
  )
}

const pictures = ['png', 'jpg', 'jpeg', 'gif', 'webp', 'avif', 'bmp', 'svg']

function Artifacts({ of, left }: { of: Artifact[]; left: number }) {
  const [open, setOpen] = useState<Artifact>()
  const shown = of.includes(open!) ? open! : of[0]
  return (
    <Card title={`Artifacts`} actions={<span class="dim">{of.length}{left ? `, ${left} more were over the limit` : ''}</span>}>
      <div class="row">
        {of.map((a) => <Button key={a.path} class="small" aria-pressed={a === shown} onClick={() => setOpen(a)}>{a.path} <span class="dim">{bytes(a.size)}</span></Button>)}
      </div>
      <Preview key={shown.url} of={shown} />
    </Card>
  )
}

/** Shows a file that a program left. Nothing of it runs with the rights of this page. */
function Preview({ of: a }: { of: Artifact }) {
  const [show, setShow] = useState<{ text?: string; url?: string }>()
  const [problem, setProblem] = useState<ReturnType<typeof problemOf>>()
  const end = a.path.split('.').pop()!.toLowerCase()
  const large = Number(a.size) > 4 << 20
  useEffect(() => {
    if (large) return
    let url: string | undefined
    const c = new AbortController()
    void (async () => {
      try {
        const blob = await (await ask(a.url, { signal: c.signal, headers: { Accept: '*/*' } })).blob()
        if (pictures.includes(end)) {
          url = URL.createObjectURL(new Blob([blob], { type: end === 'svg' ? 'image/svg+xml' : `image/${end === 'jpg' ? 'jpeg' : end}` }))
          setShow({ url })
        } else setShow({ text: await blob.text() })
      } catch (err) {
        if (!c.signal.aborted) setProblem(problemOf(err))
      }
    })()
    return () => {
      c.abort()
      if (url) URL.revokeObjectURL(url)
    }
  }, [a.url])
  const frame = useRef<HTMLIFrameElement>(null)
  const text = show?.text
  return (
    <div class="stack">
      <Trouble of={problem} />
      {large && <p class="dim">The file is too large to be shown here.</p>}
      {show?.url && <img class="shown" src={show.url} alt={a.path} />}
      {text !== undefined && (end === 'html' || end === 'htm'
        ? <iframe ref={frame} class="shown" src="/dashboard/frame" sandbox="allow-scripts" title={a.path} onLoad={() => frame.current?.contentWindow?.postMessage(text, '*')} />
        : end === 'csv' || end === 'tsv'
          ? <Sheet text={text} by={end === 'tsv' ? '\t' : ','} name={a.path} />
          : <pre class="output" tabIndex={0}>{text.includes('\0') ? 'The file is not text.' : text.slice(0, 200_000)}</pre>)}
      <div><a class="button" href={a.url} download={a.path.split('/').pop()}>Download {a.path}</a></div>
    </div>
  )
}

/** The cells of comma-separated values, with quotes as in RFC 4180. */
function cells(text: string, by: string): string[][] {
  const rows: string[][] = [[]]
  let cell = ''
  let quoted = false
  for (let i = 0; i < text.length && rows.length <= 201; i++) {
    const c = text[i]
    if (quoted) {
      if (c !== '"') cell += c
      else if (text[i + 1] === '"') cell += text[++i]
      else quoted = false
    } else if (c === '"') quoted = true
    else if (c === by || c === '\n') {
      rows.at(-1)!.push(cell.replace(/\r$/, ''))
      cell = ''
      if (c === '\n') rows.push([])
    } else cell += c
  }
  if (cell) rows.at(-1)!.push(cell)
  return rows.filter((r) => r.length > 0)
}

function Sheet({ text, by, name }: { text: string; by: string; name: string }) {
  const [head, ...rows] = cells(text, by)
  if (!head) return <p class="dim">The file is empty.</p>
  return (
    <div class="scroll" role="region" aria-label={name} tabIndex={0}>
      <table>
        <thead><tr>{head.map((c, i) => <th key={i} scope="col">{c}</th>)}</tr></thead>
        <tbody>{rows.slice(0, 200).map((r, i) => <tr key={i}>{r.map((c, j) => <td key={j}>{c}</td>)}</tr>)}</tbody>
      </table>
    </div>
  )
}

function History({ chosen }: { chosen?: string }) {
  const runs = useLive((signal) => list<ExecutionSummary>('/v1/executions?limit=50', signal), ['execution.'])
  return (
    <Card title="History">
      <Trouble of={runs.problem} again={runs.reload} />
      <Table name="Programs" rows={runs.data} id={(e) => e.id} empty={<Empty title="No executions yet"><p>Choose a language above and press Run. Recent executions are listed here with their output.</p></Empty>}
        columns={[
          { head: 'Program', cell: (e) => <a href={href('run', e.id)} aria-current={e.id === chosen ? 'true' : undefined}><Id of={e.id} /></a>, by: (e) => e.id },
          { head: 'Language', cell: (e) => e.language, by: (e) => e.language },
          { head: 'Ended', cell: (e) => <Outcome cause={e.cause} state={e.state} code={e.exit_code} />, by: (e) => e.cause ?? e.state },
          { head: 'Took', cell: (e) => (e.duration ? duration(seconds(e.duration)) : '–'), by: (e) => seconds(e.duration), number: true, wide: true },
          { head: 'Started', cell: (e) => <Ago at={e.created_at} />, by: (e) => e.created_at, number: true },
        ]} />
    </Card>
  )
}

/** The same request in the words of others. No key is in it. */
function Snippets({ request, onClose }: { request: { language: string; code: string; timeout?: string }; onClose: () => void }) {
  const json = JSON.stringify(request)
  const url = location.origin
  const texts: Record<string, string> = {
    curl: `curl -s ${url}/v1/executions \\\n  -H "Authorization: Bearer $ENGI_KEY" \\\n  -H 'Content-Type: application/json' \\\n  -d '${json.replaceAll("'", "'\\''")}'\n`,
    Go: `c := client.New("${url}", os.Getenv("ENGI_KEY"))\ne, err := c.Run(ctx, v1.ExecutionRequest{\n\tLanguage: ${JSON.stringify(request.language)},\n\tCode:     ${JSON.stringify(request.code)},\n})\nif err != nil {\n\tlog.Fatal(err)\n}\nfmt.Print(e.Result.Stdout)\n`,
    JavaScript: `const response = await fetch('${url}/v1/executions', {\n  method: 'POST',\n  headers: { Authorization: \`Bearer \${process.env.ENGI_KEY}\`, 'Content-Type': 'application/json' },\n  body: JSON.stringify(${json}),\n})\nconsole.log((await response.json()).result.stdout)\n`,
    Python: `import json, os, urllib.request\n\nrequest = urllib.request.Request(\n    "${url}/v1/executions",\n    headers={"Authorization": "Bearer " + os.environ["ENGI_KEY"], "Content-Type": "application/json"},\n    data=json.dumps(${json.replaceAll(/\b(true|false|null)\b(?=([^"]*"[^"]*")*[^"]*$)/g, (w) => ({ true: 'True', false: 'False', null: 'None' })[w]!)}).encode(),\n)\nprint(json.load(urllib.request.urlopen(request))["result"]["stdout"])\n`,
  }
  const [name, setName] = useState('curl')
  return (
    <Dialog title="The same as code" onClose={onClose}>
      <div class="row spread">
        <div class="row">{Object.keys(texts).map((n) => <Button key={n} class="small" aria-pressed={n === name} onClick={() => setName(n)}>{n}</Button>)}</div>
        <Copy text={texts[name]} />
      </div>
      <pre tabIndex={0} aria-label={name}>{texts[name]}</pre>
      <p class="dim">The key is read from the environment: <code>ENGI_KEY=$(engi key create me)</code></p>
    </Dialog>
  )
}
