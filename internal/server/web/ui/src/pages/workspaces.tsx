// Workspaces: files with a history, services like databases, and who works on them. The
// list, and one with all that is in it.

import { useState } from 'preact/hooks'
import type { Collaborator, Template, Workspace, WorkspaceUpdate } from '../openapi'
import { get, list, may, segment, send, session } from '../api'
import { type Loaded, useLive } from '../live'
import { go, href, route, setQuery } from '../route'
import { Act, Ago, begin, Button, Card, Empty, Facts, Field, FormDialog, Id, Page, State, Table, Tabs, textOf, Trouble } from '../ui'
import { List } from './apps'
import { Databases } from './databases'
import { History } from './revisions'
import { Preview } from './shown'
import { Services, types } from './services'
import { Files } from './workspacefiles'

export function Workspaces({ id }: { id?: string }) {
  return id ? <One id={id} /> : <All />
}

const roles = ['viewer', 'reviewer', 'editor', 'owner'] as const
type Role = (typeof roles)[number]

/** What whoever looks may do in a workspace. The server decides; this only hides what it would refuse. */
function roleOf(w: Workspace): Role {
  const s = session.value
  if (s?.admin || (w.owner ?? '') === (s?.owner ?? '')) return 'owner'
  return w.collaborators?.find((c) => c.owner === s?.owner)?.role ?? 'viewer'
}
const atLeast = (w: Workspace, role: Role) => roles.indexOf(roleOf(w)) >= roles.indexOf(role)

/** A workspace with what one may do in it: the parts of its page have it. */
export interface Part {
  of: Workspace
  path: string
  /** May change files, services and databases. */
  edit: boolean
  /** May query databases. */
  query: boolean
  /** Has the page look at the workspace again. */
  changed: () => void
}

const remove = (w: Workspace) => send('DELETE', `/v1/workspaces/${segment(w.id)}`)
const removal = (w: Workspace) => `The workspace ${w.name} is deleted, with its files, its history and the data of its services. Apps in its sandbox do not start any more.`
const serves = (w: Workspace) => w.services?.some((s) => s.state !== 'stopped')
const runs = (w: Workspace) => w.state === 'running' || w.state === 'starting'

/** What starts and stops a workspace. Services run without its sandbox, too. */
function Power({ of: w, small }: { of: Workspace; small?: boolean }) {
  const act = (what: string) => () => send('POST', `/v1/workspaces/${segment(w.id)}/${what}`)
  const name = <span class="hidden"> {w.name}</span>
  const cls = small ? 'small' : undefined
  return (
    <>
      {(!runs(w) || w.services?.some((s) => s.state === 'stopped')) && <Act class={cls} act={act('start')}>Start{name}</Act>}
      {(runs(w) || serves(w)) && <Act class={cls} act={act('stop')} done="Its sandboxes are gone; files and the data of services stay">Stop{name}</Act>}
    </>
  )
}

function All() {
  const found = useLive((stop) => list<Workspace>('/v1/workspaces', stop), ['workspace.'], [], 10_000) // events of others do not come
  const make = () => <Button kind="primary" onClick={() => setQuery({ new: '1' })} disabled={!may('sandboxes')}>New workspace</Button>
  return (
    <Page title="Workspaces" about="Files with a history, services like databases, and who works on them." actions={make()}>
      <Trouble of={found.problem} again={found.reload} />
      {!(found.problem && !found.data) && <Table name="Workspaces" rows={found.data} id={(w) => w.id}
        empty={<Empty title="There is no workspace">
          <p>A workspace is files whose every change is a revision, and services that are real servers: PostgreSQL, MariaDB, Redis, nginx. Programs in its sandbox reach them by name, and their data
            outlives all sandboxes. Create one here, or with <code>engi workspace create shop --service postgres</code>.</p>
          {make()}
        </Empty>}
        columns={[
          { head: 'Workspace', cell: (w) => <a href={href('workspaces', w.id)}>{w.name}</a>, by: (w) => w.name },
          { head: 'State', cell: (w) => <State of={w.state} />, by: (w) => w.state },
          { head: 'Services', cell: (w) => (w.services?.length ? w.services.map((s) => <div key={s.name}>{s.name} <State of={s.state} /></div>) : <span class="dim">–</span>), by: (w) => w.services?.map((s) => `${s.name} ${s.state}`).join(' '), wide: true },
          { head: 'You are', cell: (w) => <>{roleOf(w)}{roleOf(w) !== 'owner' && <span class="dim"> of {w.owner}</span>}{Boolean(w.collaborators?.length) && <span class="dim">, {w.collaborators!.length} work on it</span>}</>, by: (w) => `${roleOf(w)} ${w.owner}`, wide: true },
          { head: 'Template', cell: (w) => w.template, by: (w) => w.template, wide: true },
          { head: 'Revision', cell: (w) => w.revision, by: (w) => w.revision, number: true, wide: true },
          { head: 'Used', cell: (w) => <Ago at={w.used_at ?? w.created_at} />, by: (w) => w.used_at ?? w.created_at, number: true, wide: true },
          { head: '', cell: (w) => may('sandboxes') && atLeast(w, 'editor') && <div class="row">
            <Power of={w} small />
            {atLeast(w, 'owner') && <Act class="small" kind="danger" ask={removal(w)} act={() => remove(w)}>Remove<span class="hidden"> {w.name}</span></Act>}
          </div> },
        ]} />}
      {route.value.query.get('new') && <Create onClose={() => setQuery({ new: undefined })} />}
    </Page>
  )
}

function Create({ onClose }: { onClose: () => void }) {
  const templates = useLive((stop) => list<Template>('/v1/templates', stop).catch(() => []), []) // a key may not see them
  return (
    <FormDialog title="New workspace" action="Create" onClose={onClose} submit={async (form) => {
      const name = textOf(form, 'name')
      const made = await begin(send<Workspace>('POST', '/v1/workspaces', { name, template: textOf(form, 'template'), services: form.getAll('service').map((type) => ({ type })) }))
      // It is there before its services are, but only its name is known then.
      const w = made ?? (name ? await get<Workspace>(`/v1/workspaces/${segment(name)}`).catch(() => undefined) : undefined) // else the list has it
      if (w) go(`${href('workspaces', w.id)}${w.services?.length ? '?tab=services' : ''}`)
    }}>
      <Field label="Name" hint="Letters, digits and -. Empty means a generated name."><input name="name" maxLength={63} placeholder="shop" /></Field>
      <fieldset>
        <legend>Services</legend>
        {types.map(([type, server]) => <label key={type} class="check"><input type="checkbox" name="service" value={type} /> {server}{type !== server.toLowerCase() && <span class="dim"> {type}</span>}</label>)}
        <small class="dim">More, and other versions, can be added later. The first service of a type takes minutes if its template must be built.</small>
      </fieldset>
      <Field label="Template" hint="Of the sandbox that has the working copy while it runs.">
        <select name="template">
          <option value="">base</option>
          {templates.data?.filter((t) => t.built && t.name !== 'base' && !t.name.startsWith('service-')).map((t) => <option key={t.name}>{t.name}</option>)}
        </select>
      </Field>
    </FormDialog>
  )
}

function One({ id }: { id: string }) {
  const path = `/v1/workspaces/${segment(id)}`
  const found = useLive((stop) => get<Workspace>(path, stop), ['workspace.'], [id], 10_000)
  if (found.data) return <Whole of={found.data} path={path} found={found} />
  return <Page title="Workspace"><Trouble of={found.problem} again={found.reload} />{!found.problem && <div class="loading" role="status">Loading the workspace</div>}</Page>
}

function Whole({ of: w, path, found }: { of: Workspace; path: string; found: Loaded<Workspace> }) {
  const write = may('sandboxes')
  const own = atLeast(w, 'owner')
  const part: Part = { of: w, path, edit: write && atLeast(w, 'editor'), query: write && atLeast(w, 'reviewer'), changed: found.reload }
  return (
    <Page title={w.name} about={<><State of={w.state} /> revision {w.revision} from {w.template}{!own && <>, of {w.owner}, who has made you {roleOf(w)}</>}</>}
      actions={<>
        {own && w.sandbox_id && <a class="button" href={`${href('sandboxes', w.sandbox_id)}?tab=terminal`}>Terminal</a>}
        {part.edit && <Power of={w} />}
        {write && own && <Act kind="danger" ask={removal(w)} act={async () => { await remove(w); go(href('workspaces')) }}>Remove</Act>}
      </>}>
      <Trouble of={found.problem} again={found.reload} />
      {w.error && <Trouble of={w.error} />}
      <Tabs of={[
        { id: 'files', name: 'Files', show: () => <Files {...part} /> },
        { id: 'history', name: 'History', show: () => <History {...part} /> },
        { id: 'services', name: 'Services', show: () => <Services {...part} /> },
        { id: 'databases', name: 'Databases', show: () => <Databases {...part} /> },
        ...(own ? [{ id: 'apps', name: 'Apps', show: () => <List of={w} /> }] : []),
        { id: 'preview', name: 'Preview', show: () => <Preview {...part} own={own} /> },
        { id: 'about', name: 'About', show: () => <About {...part} own={own} write={write && own} /> },
      ]} />
    </Page>
  )
}

function About({ of: w, path, own, write, changed }: Part & { own: boolean; write: boolean }) {
  const [sharing, setSharing] = useState(false)
  const all = w.collaborators ?? []
  const change = async (what: WorkspaceUpdate) => {
    await send('PATCH', path, what)
    changed()
  }
  return (
    <>
      <Card title="About"><Facts of={[
        ['Workspace', <Id of={w.id} />], ['Owner', w.owner || '–'], ['State', <State of={w.state} />], ['Template', w.template], ['Revision', w.revision],
        ['Sandbox', w.sandbox_id ? (own ? <a href={href('sandboxes', w.sandbox_id)}><Id of={w.sandbox_id} /></a> : <Id of={w.sandbox_id} />) : 'none: it has one while it runs'],
        ['Created', <Ago at={w.created_at} />], ['Used', <Ago at={w.used_at} />], ['Metadata', Object.entries(w.metadata ?? {}).map(([k, v]) => `${k}=${v}`).join(', ') || '–'],
        ['Events', <a href={`${href('events')}?subject=${segment(w.id)}`}>what happened to it</a>],
      ]} /></Card>
      <Card title="Who works on it" actions={write && <Button class="small" onClick={() => setSharing(true)}>Share</Button>}>
        <Table name="Collaborators" rows={all} id={(c) => c.owner} prefix="c" empty={<p class="dim">Nobody but its owner.</p>}
          columns={[
            { head: 'Who', cell: (c) => c.owner, by: (c) => c.owner },
            { head: 'Role', cell: (c) => c.role, by: (c) => c.role },
            { head: '', cell: (c) => write && <div class="row"><Act class="small" kind="danger" ask={`${c.owner} does not see the workspace any more.`} act={() => change({ unshare: [c.owner] })}>Remove<span class="hidden"> {c.owner}</span></Act></div> },
          ]} />
      </Card>
      {sharing && (
        <FormDialog title="Share the workspace" action="Share" onClose={() => setSharing(false)} submit={(form) => change({ share: [{ owner: textOf(form, 'owner')!, role: textOf(form, 'role') as Collaborator['role'] }] })}>
          <Field label="With" hint="The owner of a key. They find it in their list."><input name="owner" required maxLength={128} placeholder="bob" /></Field>
          <Field label="Role">
            <select name="role">
              <option value="viewer">viewer: looks at files and services</option>
              <option value="reviewer">reviewer: also queries databases, without changing them</option>
              <option value="editor">editor: also changes files, services and databases</option>
            </select>
          </Field>
        </FormDialog>
      )}
    </>
  )
}
