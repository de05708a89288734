// Pages about things that are mostly made, listed and removed: sessions,
// templates, volumes, secrets, keys and SSH keys.

import { useState } from 'preact/hooks'
import type { Event, GitPushed, Key, Operation, OperationUpdate, Secret, Session, SshKey, SshServer, Template, Volume } from '../openapi'
import { get, list, may, problemOf, segment, send, session, stream } from '../api'
import { useLive } from '../live'
import { href, route, setQuery } from '../route'
import { Act, Ago, Button, bytes, Card, Copy, Dialog, Empty, Facts, Field, FormDialog, Id, Page, State, Table, Tabs, textOf, toast, Trouble } from '../ui'
import { Subject } from './events'
import { Terminals } from './terminals'

/** A button that opens the form of a page; that it is open is in the address. */
function Make({ name, scope }: { name: string; scope: string }) {
  return <Button kind="primary" disabled={!may(scope)} onClick={() => setQuery({ new: '1' })}>{name}</Button>
}
const making = () => route.value.query.get('new') === '1'
const made = () => setQuery({ new: undefined })

export function Sessions({ id }: { id?: string }) {
  const found = useLive((stop) => list<Session>('/v1/sessions', stop), ['session.'])
  const shown = found.data?.find((s) => s.id === id)
  return (
    <Page title="Sessions" about="Long-lived contexts for code. A session gets a sandbox when code runs, and keeps its files without one."
      actions={<Make name="New session" scope="sandboxes" />}>
      <Trouble of={found.problem} again={found.reload} />
      {!(found.problem && !found.data) && <Table name="Sessions" rows={found.data} id={(s) => s.id}
        empty={<Empty title="No sessions"><p>Create one here or with <code>engi session create</code>. Its code keeps its files and packages between runs.</p></Empty>}
        columns={[
          { head: 'Session', cell: (s) => <a href={href('sessions', s.id)} aria-current={s.id === id ? 'true' : undefined}>{s.name || <Id of={s.id} />}</a>, by: (s) => s.name || s.id },
          { head: 'State', cell: (s) => <State of={s.state} />, by: (s) => s.state },
          { head: 'Sandbox', cell: (s) => <Subject of={s.sandbox_id} />, by: (s) => s.sandbox_id, wide: true },
          { head: 'Keeps', cell: (s) => s.persistence, by: (s) => s.persistence, wide: true },
          { head: 'Used', cell: (s) => <Ago at={s.used_at} />, by: (s) => s.used_at, number: true },
          { head: '', cell: (s) => may('sandboxes') && s.state !== 'terminated' && <div class="row">
            {s.sandbox_id && <Act class="small" act={() => send('POST', `/v1/sessions/${segment(s.id)}/release`)} done="Its sandbox is destroyed; its files stay">Release</Act>}
            <Act class="small" kind="danger" ask={`Ends the session ${s.name || s.id} and deletes its files.`} act={() => send('DELETE', `/v1/sessions/${segment(s.id)}`)}>Terminate</Act>
          </div> },
        ]} />}
      {shown && <Card title={shown.name || shown.id} key={shown.id}>
        <Tabs of={[
          { id: 'about', name: 'About', show: () => <Facts of={[
            ['Session', <Id of={shown.id} />], ['State', <State of={shown.state} />], ['Mode', shown.mode], ['Keeps', shown.persistence], ['Template', shown.template ?? 'the default'], ['Sandbox', <Subject of={shown.sandbox_id} />],
            ['Created', <Ago at={shown.created_at} />], ['Ends', <Ago at={shown.expires_at} />], ['Sleeps after', shown.dormancy], ['Network', shown.network?.mode ?? 'none'], ['Space for files', bytes(shown.capacity)],
            ['Connect', <code>engi ssh {shown.name || shown.id}</code>], ['Events', <a href={`${href('events')}?subject=${segment(shown.id)}`}>what happened to it</a>],
          ]} /> },
          ...(shown.git ? [{ id: 'git', name: 'Git', show: () => <Repository of={shown} /> }] : []),
          { id: 'terminal', name: 'Terminal', show: () => (shown.state === 'terminated' ? <p class="dim">The session has ended.</p> : <Terminals base={`/v1/sessions/${segment(shown.id)}`} write={may('sandboxes')} />) },
        ]} />
      </Card>}
      {making() && (
        <FormDialog title="New session" action="Create" onClose={made} submit={async (form) => {
          await send('POST', '/v1/sessions', { name: textOf(form, 'name'), mode: textOf(form, 'mode'), persistence: textOf(form, 'persistence') })
          found.reload()
        }}>
          <Field label="Name" hint="Optional, for people."><input name="name" /></Field>
          <Field label="Sandbox"><select name="mode"><option value="lazy">When code runs</option><option value="warm">At once</option></select></Field>
          <Field label="What it keeps"><select name="persistence"><option value="session">Files, while it lives</option><option value="snapshot">Memory and files</option><option value="none">Nothing</option></select></Field>
        </FormDialog>
      )}
    </Page>
  )
}

/** What the session has cloned and pushed. */
function Repository({ of: s }: { of: Session }) {
  const done = useLive((stop) => (may('events', false) ? list<Event>(`/v1/events?type=session.git_*&subject=${segment(s.id)}&limit=50`, stop) : Promise.resolve([])), ['session.git_'], [s.id])
  const git = s.git!
  const what = (e: Event) => e.type.replace('session.git_', '')
  const of = (e: Event) => (e.data ?? {}) as { branch?: string; commit?: string; wanted?: string; error?: string; remedy?: string }
  const more = (e: Event) => (of(e).wanted ? `others had pushed to ${of(e).wanted}` : [of(e).error, of(e).remedy].filter(Boolean).join(': '))
  return (
    <>
      <Facts of={[
        ['Repository', <code>{git.url}</code>], ['Directory', <code>/workspace/{git.dir}</code>], ['Cloned from', git.ref ? <code>{git.ref}</code> : 'its default branch'],
        ['Pushes to', git.push ? <code>{git.push.branch || `engi/${s.name || s.id}`}</code> : 'nothing'], ['Pushes', git.push?.on_release ? 'on release, and on demand' : git.push ? 'on demand' : 'never'],
        ['Password', git.secret ? <>secret <code>{git.secret}</code>, at the egress gateway</> : 'none'],
      ]} />
      <Trouble of={done.problem} again={done.reload} />
      <Table name="Clones and pushes" rows={done.data} id={(e) => e.id ?? String(e.seq)} prefix="g"
        tools={git.push && may('sandboxes') && s.state !== 'terminated' && <Act class="small" act={async () => {
          const p = await send<GitPushed>('POST', `/v1/sessions/${segment(s.id)}/git/push`, {})
          toast(p.unchanged ? `${p.branch} has it already` : `Pushed to ${p.branch}`)
        }}>Push</Act>}
        empty={<Empty title="Not cloned yet"><p>The repository is cloned when the session gets a sandbox.</p></Empty>}
        columns={[
          { head: 'What', cell: (e) => <State of={what(e)} />, by: what },
          { head: 'Branch', cell: (e) => (of(e).branch ? <code>{of(e).branch}</code> : <span class="dim">–</span>), by: (e) => of(e).branch },
          { head: 'Commit', cell: (e) => (of(e).commit ? <code title={of(e).commit}>{of(e).commit!.slice(0, 12)}</code> : <span class="dim">–</span>), by: (e) => of(e).commit },
          { head: 'Why', cell: (e) => more(e) || <span class="dim">–</span>, by: more, wide: true },
          { head: 'When', cell: (e) => <Ago at={e.created_at} />, by: (e) => e.created_at, number: true },
        ]} />
    </>
  )
}

export function Templates() {
  const found = useLive((stop) => list<Template>('/v1/templates', stop), ['template.', 'operation.'])
  const builds = useLive((stop) => list<Operation>('/v1/operations?limit=20', stop), ['operation.'])
  const [watched, setWatched] = useState<{ name: string; log: string; problem?: ReturnType<typeof problemOf>; done: boolean }>()
  const watch = async (name: string, operation: string) => {
    let log = ''
    const show = (more: Partial<NonNullable<typeof watched>>) => setWatched((w) => ({ name, done: false, ...w, log, ...more }))
    setWatched({ name, log, done: false })
    try {
      for await (const u of stream<OperationUpdate>(`/v1/operations/${segment(operation)}/events`)) {
        if (u.type === 'log') log += (u.log ?? '') + '\n'
        if (u.type === 'progress' && u.name) log = log.endsWith(`== ${u.name}\n`) ? log : `${log}== ${u.name}\n`
        show(u.error ? { problem: { detail: u.error.detail, remedy: u.error.remedy, kind: u.error.kind, status: u.error.status } } : {})
      }
    } catch (err) {
      show({ problem: problemOf(err) })
    }
    show({ done: true })
  }
  const admin = session.value?.admin
  const build = async (name: string, definition?: string) => {
    const op = await send<Operation>('POST', '/v1/templates', { name, definition, async: true }, { Prefer: 'respond-async' })
    void watch(name, op.id)
  }
  return (
    <Page title="Templates" about="File systems that sandboxes start from." actions={admin && <Make name="Build a template" scope="templates" />}>
      <Trouble of={found.problem} again={found.reload} />
      <Table name="Templates" rows={found.data} id={(t) => t.name}
        empty={<Empty title="No templates"><p>Run <code>engi template build base</code>.</p></Empty>}
        columns={[
          { head: 'Template', cell: (t) => <strong>{t.name}</strong>, by: (t) => t.name },
          { head: 'State', cell: (t) => <State of={t.built ? 'built' : 'not built'} />, by: (t) => String(t.built) },
          { head: 'Languages', cell: (t) => Object.keys(t.languages ?? {}).join(', ') || <span class="dim">–</span>, by: (t) => Object.keys(t.languages ?? {}).join(' '), wide: true },
          { head: 'Digest', cell: (t) => (t.digest ? <Id of={t.digest} /> : <span class="dim">–</span>), by: (t) => t.digest, wide: true },
          { head: 'Size', cell: (t) => (t.bytes ? bytes(t.bytes) : <span class="dim">–</span>), by: (t) => Number(t.bytes ?? 0), number: true },
          { head: 'Built', cell: (t) => <Ago at={t.built_at} />, by: (t) => t.built_at, number: true, wide: true },
          { head: '', cell: (t) => admin && <div class="row">
            {!t.built && <Act class="small" act={() => build(t.name)}>Build</Act>}
            {t.built && <Act class="small" kind="danger" ask={`Removes the template ${t.name}. Sandboxes that use it keep running.`} act={() => send('DELETE', `/v1/templates/${segment(t.name)}`)}>Remove</Act>}
          </div> },
        ]} />
      {builds.data && builds.data.length > 0 && <Card title="Builds"><Table name="Builds" rows={builds.data} id={(o) => o.id} prefix="b" empty={null} columns={[
        { head: 'Build', cell: (o) => <Button kind="plain" onClick={() => watch(o.subject, o.id)}>{o.subject}</Button>, by: (o) => o.subject },
        { head: 'State', cell: (o) => <State of={o.state} />, by: (o) => o.state },
        { head: 'Why', cell: (o) => o.error?.detail ?? '–', by: (o) => o.error?.detail, wide: true },
        { head: 'Started', cell: (o) => <Ago at={o.created_at} />, by: (o) => o.created_at, number: true },
      ]} /></Card>}
      {watched && <Dialog title={`Build of ${watched.name}`} onClose={() => setWatched(undefined)}>
        <State of={watched.problem ? 'failed' : watched.done ? 'done' : 'running'} />
        <pre class="output" tabIndex={0} aria-label="Log of the build" aria-live="polite">{watched.log || 'No output yet.'}</pre>
        <Trouble of={watched.problem} />
      </Dialog>}
      {making() && (
        <FormDialog title="Build a template" action="Build" onClose={made} submit={(form) => build(textOf(form, 'name')!, textOf(form, 'definition'))}>
          <Field label="Name"><input name="name" required placeholder="tools" /></Field>
          <Field label="Definition" hint="YAML, as described in docs/templates.md. Empty means the built-in template of this name."><textarea name="definition" rows={8} placeholder={'base: template:base\ncommands:\n  - npm install -g typescript'} /></Field>
        </FormDialog>
      )}
    </Page>
  )
}

export function Volumes() {
  const found = useLive((stop) => list<Volume>('/v1/volumes', stop), ['volume.'])
  return (
    <Page title="Volumes" about="Directories that outlive sandboxes, each with a size limit." actions={<Make name="New volume" scope="volumes" />}>
      <Trouble of={found.problem} again={found.reload} />
      <Table name="Volumes" rows={found.data} id={(v) => v.id}
        empty={<Empty title="No volumes"><p>Create a volume, and mount it when you create a sandbox: its files outlive the sandbox.</p></Empty>}
        columns={[
          { head: 'Volume', cell: (v) => <strong>{v.name}</strong>, by: (v) => v.name },
          { head: 'Used by', cell: (v) => <Subject of={v.sandbox_id} />, by: (v) => v.sandbox_id },
          { head: 'Used', cell: (v) => bytes(v.used), by: (v) => Number(v.used), number: true },
          { head: 'Capacity', cell: (v) => bytes(v.capacity), by: (v) => Number(v.capacity), number: true, wide: true },
          { head: 'Created', cell: (v) => <Ago at={v.created_at} />, by: (v) => v.created_at, number: true, wide: true },
          { head: '', cell: (v) => may('volumes') && <div class="row"><Act class="small" kind="danger" disabled={Boolean(v.sandbox_id)} ask={`Removes the volume ${v.name} with its files.`} act={() => send('DELETE', `/v1/volumes/${segment(v.name)}`)}>Remove</Act></div> },
        ]} />
      {making() && (
        <FormDialog title="New volume" action="Create" onClose={made} submit={async (form) => {
          await send('POST', '/v1/volumes', { name: textOf(form, 'name'), capacity: textOf(form, 'capacity') })
          found.reload()
        }}>
          <Field label="Name"><input name="name" required placeholder="data" /></Field>
          <Field label="Capacity" hint="Empty means the node's default."><input name="capacity" placeholder="1GiB" /></Field>
        </FormDialog>
      )}
    </Page>
  )
}

export function Secrets() {
  const found = useLive((stop) => list<Secret>('/v1/secrets', stop), ['secret.'])
  const [changed, setChanged] = useState<Secret>()
  return (
    <Page title="Secrets" about="Values that the egress gateway inserts into requests. They never enter a sandbox, and are never shown again." actions={<Make name="New secret" scope="secrets" />}>
      <Trouble of={found.problem} again={found.reload} />
      <Table name="Secrets" rows={found.data} id={(s) => s.id}
        empty={<Empty title="No secrets"><p>Store a secret here, then grant it to hosts in a sandbox's network policy.</p></Empty>}
        columns={[
          { head: 'Secret', cell: (s) => <strong>{s.name}</strong>, by: (s) => s.name },
          { head: 'Goes to', cell: (s) => s.hosts?.map((h) => <code key={h} class="chip">{h}</code>) ?? <span class="dim">every host of a grant</span>, by: (s) => s.hosts?.join(' ') },
          { head: 'Version', cell: (s) => s.version, by: (s) => s.version, number: true, wide: true },
          { head: 'Changed', cell: (s) => <Ago at={s.updated_at} />, by: (s) => s.updated_at, number: true },
          { head: '', cell: (s) => may('secrets') && <div class="row">
            <Button class="small" onClick={() => setChanged(s)}>Replace</Button>
            <Act class="small" kind="danger" ask={`Removes the secret ${s.name}.`} act={() => send('DELETE', `/v1/secrets/${segment(s.name)}`)}>Remove</Act>
          </div> },
        ]} />
      {(making() || changed) && (
        <FormDialog title={changed ? `Replace ${changed.name}` : 'New secret'} action={changed ? 'Replace' : 'Store'} onClose={() => {
          setChanged(undefined)
          made()
        }} submit={async (form) => {
          const value = String(form.get('value'))
          const hosts = textOf(form, 'hosts')?.split(/[\s,]+/)
          if (changed) await send('PUT', `/v1/secrets/${segment(changed.name)}`, { value })
          else await send('POST', '/v1/secrets', { name: textOf(form, 'name'), value, hosts })
          found.reload()
        }}>
          {!changed && <Field label="Name"><input name="name" required placeholder="OPENAI_API_KEY" autocomplete="off" /></Field>}
          <Field label="Value" hint="The value cannot be read again."><input name="value" type="password" required autocomplete="new-password" /></Field>
          {!changed && <Field label="Hosts" hint="Hosts that may receive the secret, separated by commas. Empty allows every host of a grant."><input name="hosts" placeholder="api.openai.com" /></Field>}
        </FormDialog>
      )}
    </Page>
  )
}

const scopes = ['executions', 'sandboxes', 'templates', 'volumes', 'secrets', 'keys', 'agents', 'docs', 'events', 'approvals', 'read']

export function Keys() {
  const found = useLive((stop) => list<Key>('/v1/keys', stop), ['key.'])
  const [fresh, setFresh] = useState<Key>()
  const admin = session.value?.admin
  const stateOf = (k: Key) => (k.revoked_at ? 'revoked' : k.expires_at && Date.parse(k.expires_at) < Date.now() ? 'expired' : 'in force')
  return (
    <Page title="Keys" about="Keys of the API. This browser is signed in with one of them, and is signed out when it is revoked." actions={admin && <Make name="New key" scope="keys" />}>
      <Trouble of={found.problem} again={found.reload} />
      <Table name="Keys" rows={found.data} id={(k) => k.id} empty={<Empty title="There is no key"><p>An administrator can create a key with <code>engi key create</code>.</p></Empty>}
        columns={[
          { head: 'Name', cell: (k) => <><strong>{k.name || 'unnamed'}</strong>{k.id === session.value?.key && <span class="dim"> this browser</span>}</>, by: (k) => k.name },
          { head: 'Key', cell: (k) => <Id of={k.id} />, by: (k) => k.id, wide: true },
          { head: 'Owner', cell: (k) => (k.admin ? 'administrator' : k.owner), by: (k) => k.owner },
          { head: 'For', cell: (k) => k.scopes?.join(', ') ?? <span class="dim">all except administration and approvals</span>, by: (k) => k.scopes?.join(' '), wide: true },
          { head: 'State', cell: (k) => <State of={stateOf(k)} />, by: stateOf },
          { head: 'Expires', cell: (k) => (k.expires_at ? <Ago at={k.expires_at} /> : <span class="dim">never</span>), by: (k) => k.expires_at, number: true, wide: true },
          { head: '', cell: (k) => may('keys') && stateOf(k) === 'in force' && <div class="row"><Act class="small" kind="danger" done="It is revoked"
            ask={k.id === session.value?.key ? 'This browser uses this key, and is signed out at once.' : `${k.name || k.id} ends at once, with all browsers and streams that use it.`}
            act={() => send('DELETE', `/v1/keys/${segment(k.id)}`)}>Revoke</Act></div> },
        ]} />
      {may('keys', false) && <SSHKeys />}
      {fresh && <Dialog title="The new key" onClose={() => setFresh(undefined)}>
        <p>The secret is shown only once; engi does not store it.</p>
        <pre tabIndex={0} aria-label="Secret of the key">{fresh.secret}</pre>
        <footer><Copy text={fresh.secret ?? ''} /></footer>
      </Dialog>}
      {making() && (
        <FormDialog title="New key" action="Create" onClose={made} submit={async (form) => {
          setFresh(await send<Key>('POST', '/v1/keys', { name: textOf(form, 'name'), owner: textOf(form, 'owner'), expires_in: textOf(form, 'expires'), scopes: form.getAll('scope') }))
          found.reload()
        }}>
          <Field label="Name"><input name="name" required placeholder="ci" /></Field>
          <Field label="Owner" hint="Owner of the key's objects. Empty means default."><input name="owner" placeholder="team-a" /></Field>
          <Field label="Valid for" hint="For example 30d. Empty means until the key is revoked."><input name="expires" placeholder="30d" /></Field>
          <fieldset><legend>For</legend><p class="dim">None means all except administration and approvals.</p>
            <div class="row">{scopes.map((s) => <label key={s} class="check"><input type="checkbox" name="scope" value={s} />{s}</label>)}</div>
          </fieldset>
        </FormDialog>
      )}
    </Page>
  )
}

function SSHKeys() {
  const found = useLive((stop) => list<SshKey>('/v1/ssh-keys', stop), ['ssh_key.'])
  const server = useLive((stop) => (may('sandboxes', false) ? get<SshServer>('/v1/ssh-server', stop) : Promise.resolve(undefined)), [])
  const [, host, port] = /^\[?(.*?)\]?:(\d+)$/.exec(server.data?.address ?? '') ?? []
  const at = ['', '0.0.0.0', '::'].includes(host) ? location.hostname : host
  const add = may('keys') && may('sandboxes')
  return (
    <Card title="SSH keys" actions={<Button class="small" disabled={!add} onClick={() => setQuery({ new: 'ssh' })}>Add SSH key</Button>}>
      <Trouble of={found.problem ?? server.problem} again={found.reload} />
      {server.data && <p>Connect with <code>engi ssh SESSION</code>, which needs none of these, or with {port ? <code>ssh -p {port} SESSION@{at}</code> : <>any client once <code>ssh.listen</code> is set</>}. The host key of this node is <code>{server.data.fingerprint}</code>.</p>}
      <Table name="Public keys" rows={found.data} id={(k) => k.id} prefix="s"
        empty={<Empty title="No SSH keys"><p>The holder of the private key can connect to the owner's sessions, sandboxes and workspaces with <code>ssh</code>, <code>scp</code> and editors. <code>engi ssh</code> needs none.</p></Empty>}
        columns={[
          { head: 'Name', cell: (k) => <strong>{k.name || 'unnamed'}</strong>, by: (k) => k.name },
          { head: 'Fingerprint', cell: (k) => <code title={k.public_key}>{k.fingerprint}</code>, by: (k) => k.fingerprint, wide: true },
          { head: 'Owner', cell: (k) => k.owner || '–', by: (k) => k.owner },
          { head: 'Used', cell: (k) => (k.used_at ? <Ago at={k.used_at} /> : <span class="dim">never</span>), by: (k) => k.used_at, number: true },
          { head: 'Added', cell: (k) => <Ago at={k.created_at} />, by: (k) => k.created_at, number: true, wide: true },
          { head: '', cell: (k) => may('keys') && <div class="row"><Act class="small" kind="danger" ask={`${k.name || k.fingerprint} opens nothing any more, and its connections end.`} act={() => send('DELETE', `/v1/ssh-keys/${segment(k.id)}`)} done="It is deleted">Delete</Act></div> },
        ]} />
      {route.value.query.get('new') === 'ssh' && (
        <FormDialog title="Add SSH key" action="Add" onClose={made} submit={async (form) => {
          await send('POST', '/v1/ssh-keys', { public_key: textOf(form, 'key'), name: textOf(form, 'name') })
          found.reload()
        }}>
          <Field label="Public key" hint="The line in id_ed25519.pub. The private key stays with you."><textarea name="key" required rows={4} spellcheck={false} placeholder="ssh-ed25519 AAAA… you@laptop" /></Field>
          <Field label="Name" hint="Empty means the comment in the line."><input name="name" placeholder="laptop" /></Field>
        </FormDialog>
      )}
    </Card>
  )
}
