// What agents look things up in: the documents and modules, and the
// tool servers.

import { useEffect, useState } from 'preact/hooks'
import type { CodeModule, Document, Finding, ToolServer } from '../openapi'
import { get, list, may, problemOf, segment, send } from '../api'
import { useLive } from '../live'
import { Markdown } from '../markdown'
import { route, setQuery } from '../route'
import { Act, Ago, Button, bytes, Card, Choice, Empty, Field, FormDialog, Page, State, Table, textOf, Trouble } from '../ui'

export function Docs() {
  const query = route.value.query
  const text = query.get('search') ?? ''
  const about = query.get('package') ?? ''
  const found = useLive(async (stop) => ({ documents: await list<Document>('/v1/docs', stop), modules: await list<CodeModule>('/v1/modules', stop) }), [])
  const [answer, setAnswer] = useState<Finding>()
  const [problem, setProblem] = useState<ReturnType<typeof problemOf>>()
  useEffect(() => {
    setProblem(undefined)
    if (!text) return setAnswer(undefined)
    const stop = new AbortController()
    const q = new URLSearchParams({ query: text, limit: '10', ...(about ? { package: about } : {}) })
    get<Finding>(`/v1/docs/search?${q}`, stop.signal).then(setAnswer, (err) => { if (!stop.signal.aborted) setProblem(problemOf(err)) })
    return () => stop.abort()
  }, [text, about])
  const packages = [...new Set(found.data?.documents.map((d) => d.package ?? '').filter(Boolean))].toSorted()
  const titleOf = (d: Document) => `${d.package ? `${d.package}: ` : ''}${d.title}`
  return (
    <Page title="Docs" about="Documentation and code modules that agents search before they write code."
      actions={<Button kind="primary" disabled={!may('docs')} onClick={() => setQuery({ new: '1' })}>Add a document</Button>}>
      <Trouble of={found.problem} again={found.reload} />
      {!found.problem && <>
        <form class="row" role="search" onSubmit={(e) => {
          e.preventDefault()
          setQuery({ search: textOf(new FormData(e.currentTarget), 'search') })
        }}>
          <input class="grow" type="search" name="search" aria-label="Search the docs" placeholder="What do you want to do or know?" defaultValue={text} />
          {packages.length > 0 && <Choice name="package" label="Package" of={[['', 'All packages'], ...packages.map((p): [string, string] => [p, p])]} />}
          <Button type="submit">Search</Button>
        </form>
        <Trouble of={problem} />
        {answer && text && <Card title={answer.hits?.length ? `${answer.hits.length} found` : 'No results'} actions={<span class="dim">{answer.embedder ? `by words and by meaning (${answer.embedder})` : 'by words'}</span>}>
          {answer.note && <p class="dim">{answer.note}</p>}
          {answer.hits?.map((h, i) => (
            <article class="hit" key={i}>
              <header>
                <strong>{h.module ? <code>{h.module.path}</code> : [h.title, ...(h.headings ?? [])].filter((x, n, all) => x && x !== all[n - 1]).join(' › ')}</strong>
                <span class="dim">{h.module ? 'module' : h.package}</span>
                {h.url && /^https?:/.test(h.url) && <a href={h.url} target="_blank" rel="noopener noreferrer">source</a>}
              </header>
              {h.module ? <pre tabIndex={0} aria-label={h.module.path}>{h.text}</pre> : <Markdown text={h.text} />}
            </article>
          ))}
        </Card>}
        <Table name="Documents" rows={found.data?.documents} id={(d) => d.id}
          empty={<Empty title="No documentation yet"><p>Add documentation as Markdown or by its URL, or with <code>engi docs add</code>. You and your agents can then search it.</p></Empty>}
          columns={[
            { head: 'Document', cell: (d) => <><strong>{d.title}</strong>{d.error && <div class="dim">{d.error.detail}</div>}</>, by: titleOf },
            { head: 'Package', cell: (d) => d.package || <span class="dim">–</span>, by: (d) => d.package },
            { head: 'State', cell: (d) => <State of={d.state} />, by: (d) => d.state },
            { head: 'Whose', cell: (d) => d.owner || 'everybody’s', by: (d) => d.owner, wide: true },
            { head: 'Passages', cell: (d) => d.chunks, by: (d) => d.chunks, number: true, wide: true },
            { head: 'Size', cell: (d) => bytes(d.bytes), by: (d) => Number(d.bytes), number: true, wide: true },
            { head: 'Changed', cell: (d) => <Ago at={d.changed_at} />, by: (d) => d.changed_at, number: true, wide: true },
            { head: '', cell: (d) => may('docs') && <div class="row">
              {d.fetched && <Act class="small" act={async () => {
                await send('POST', `/v1/docs/${segment(d.id)}/refresh`)
                found.reload()
              }}>Refresh</Act>}
              <Act class="small" kind="danger" ask={`${titleOf(d)} is found no more.`} act={async () => {
                await send('DELETE', `/v1/docs/${segment(d.id)}`)
                found.reload()
              }}>Remove</Act>
            </div> },
          ]} />
        {found.data && found.data.modules.length > 0 && <Card title="Modules for all sessions"><Table name="Modules" rows={found.data.modules} id={(m) => `${m.session_id} ${m.path}`} prefix="m" empty={null} columns={[
          { head: 'Module', cell: (m) => <code>{m.path}</code>, by: (m) => m.path },
          { head: 'About', cell: (m) => m.description, by: (m) => m.description },
          { head: 'Saved', cell: (m) => <Ago at={m.saved_at} />, by: (m) => m.saved_at, number: true, wide: true },
        ]} /></Card>}
      </>}
      {query.get('new') && (
        <FormDialog title="Add a document" action="Add" onClose={() => setQuery({ new: undefined })} submit={async (form) => {
          await send('POST', '/v1/docs', { package: textOf(form, 'package'), title: textOf(form, 'title'), url: textOf(form, 'url'), text: textOf(form, 'text') })
          found.reload()
        }}>
          <Field label="Text" hint="Markdown or plain text. Or enter a URL instead."><textarea name="text" rows={7} /></Field>
          <Field label="Address" hint="Downloaded now and at each refresh, if the node's operator allows it."><input name="url" type="url" placeholder="https://example.com/sdk.md" /></Field>
          <Field label="Package" hint="Optional: the package that the document describes."><input name="package" placeholder="@linear/sdk" /></Field>
          <Field label="Title" hint="Empty means the document's first heading."><input name="title" /></Field>
        </FormDialog>
      )}
    </Page>
  )
}

export function Tools() {
  const found = useLive((stop) => list<ToolServer>('/v1/mcp-servers', stop), ['tool.', 'run.'], [], 10_000)
  return (
    <Page title="Tool servers" about="MCP servers whose tools agents may use. The node's operator configures them. Each row shows the server's state at its last use.">
      <Trouble of={found.problem} again={found.reload} />
      <Table name="Tool servers" rows={found.data} id={(s) => s.name}
        empty={<Empty title="No tool servers"><p>Configure one in <code>config.toml</code>, with <code>[[mcp.servers]]</code>: its <code>name</code>, and a <code>url</code> or a <code>command</code> that runs in a sandbox, so that agents can use its tools.</p></Empty>}
        columns={[
          { head: 'Server', cell: (s) => <strong>{s.name}</strong>, by: (s) => s.name },
          { head: 'Reached', cell: (s) => (s.kind === 'url' ? 'over the network' : 'in a sandbox'), by: (s) => s.kind, wide: true },
          { head: 'State', cell: (s) => <><State of={s.state} />{s.error && <div class="dim">{s.error}</div>}</>, by: (s) => s.state },
          { head: 'Tools', cell: (s) => <>
            {s.tools?.map((t) => <code key={t} class="chip">{t}</code>)}
            {!s.tools?.length && <span class="dim">{s.state === 'unused' ? 'known when an agent has used it' : '–'}</span>}
            {s.left_out?.map((t) => <div key={t} class="dim">left out: {t}</div>)}
          </>, by: (s) => s.tools?.join(' ') },
          { head: 'Asked', cell: (s) => <Ago at={s.checked_at} />, by: (s) => s.checked_at, number: true, wide: true },
        ]} />
    </Page>
  )
}
