// Terminals of a sandbox or a session: several, side by side, shared by links. And
// the page that such a link opens, for who has no key.

import { useEffect, useState } from 'preact/hooks'
import type { Terminal, TerminalLink } from '../openapi'
import { get, list, problemOf, Refusal, segment, send } from '../api'
import { useLive } from '../live'
import { href, route, setQuery } from '../route'
import { Act, Ago, Button, Card, Choose, Dialog, Empty, Field, textOf, toast, Toasts, Trouble } from '../ui'
import { TerminalPane } from '../terminal'
import icon from '../icon.svg'

const panes = 4 // side by side

const nameOf = (t: Terminal) => `${t.args?.[0]?.split('/').pop() ?? 'terminal'} ${t.id.slice(4, 8)}`

/** base is the path of a sandbox or a session; which terminals are open is in the address. */
export function Terminals({ base, write }: { base: string; write: boolean }) {
  const path = `${base}/terminals`
  const found = useLive((stop) => list<Terminal>(path, stop), ['terminal.', 'sandbox.'], [path])
  const [sharing, setSharing] = useState<Terminal>()
  const [fresh, setFresh] = useState<string>()
  const all = found.data?.toReversed() ?? []
  const open = (route.value.query.get('open') ?? '').split('.').filter((id) => all.some((t) => t.id === id))
  const show = (ids: string[]) => setQuery({ open: ids.join('.') })
  const start = async (beside: string[]) => {
    const t = await send<Terminal>('POST', path, {})
    setFresh(t.id)
    found.reload()
    show([...beside, t.id].slice(-panes))
  }
  return (
    <>
      <Trouble of={found.problem} again={found.reload} />
      {found.data && <div class="row" role="group" aria-label="Terminals">
        {all.map((t) => (
          <Button key={t.id} class="small mono" aria-pressed={open.includes(t.id)} onClick={() => show([t.id])}>{nameOf(t)}{(t.viewers?.length ?? 0) > 0 && <span class="badge">{t.viewers!.length}<span class="hidden"> look</span></span>}</Button>
        ))}
        {write && <>
          <Act class="small" kind={all.length ? undefined : 'primary'} act={() => start([])}>New terminal</Act>
          {open.length > 0 && <Act class="small" disabled={open.length >= panes} act={() => start(open)}>Split</Act>}
          {open.length > 0 && open.length < panes && all.length > open.length && (
            <Choose label="Show beside" of={all.filter((t) => !open.includes(t.id)).map((t) => [t.id, nameOf(t)])} choose={(id) => show([...open, id])} />
          )}
        </>}
      </div>}
      {found.data && all.length === 0 && <Empty title="No terminals"><p>A terminal keeps running when you leave. Come back later, also from another browser, and its screen is as you left it.</p></Empty>}
      {all.length > 0 && open.length === 0 && <p class="dim">Choose a terminal, or start one.</p>}
      {!write && open.length > 0 && <p class="notice">This key may list terminals, but not open them.</p>}
      {write && <div class={open.length > 1 ? 'panes split' : 'panes'}>
        {all.filter((t) => open.includes(t.id)).map((t) => (
          <TerminalPane key={t.id} label={nameOf(t)} path={`${path}/${segment(t.id)}/attach`} exists={() => get(`${path}/${segment(t.id)}`)} focus={t.id === fresh}
            actions={<>
              <Button class="small" onClick={() => setSharing(t)}>Share</Button>
              <Button class="small" onClick={() => show(open.filter((id) => id !== t.id))}>Hide</Button>
              <Act class="small" kind="danger" ask={`Ends the program of ${nameOf(t)}.`} act={async () => {
                await send('DELETE', `${path}/${segment(t.id)}`)
                found.reload()
              }}>End</Act>
            </>} />
        ))}
      </div>}
      {write && open.length > 0 && <p class="dim small">The terminal receives all keys: <kbd>Ctrl F6</kbd> leaves it.</p>}
      {sharing && <Share of={sharing} path={`${path}/${segment(sharing.id)}/links`} onClose={() => setSharing(undefined)} />}
    </>
  )
}

function Share({ of: t, path, onClose }: { of: Terminal; path: string; onClose: () => void }) {
  const found = useLive((stop) => list<TerminalLink>(path, stop), ['terminal.'], [path])
  const [problem, setProblem] = useState<ReturnType<typeof problemOf>>()
  const [url, setURL] = useState<string>()
  return (
    <Dialog title={`Share ${nameOf(t)}`} onClose={onClose}>
      <form onSubmit={async (e) => {
        e.preventDefault()
        setProblem(undefined)
        const form = new FormData(e.currentTarget)
        try {
          const link = await send<TerminalLink>('POST', path, { ttl: textOf(form, 'ttl'), name: textOf(form, 'name'), write: form.get('write') === 'yes' })
          const made = `${location.origin}/${href('shared', link.secret ?? '')}`
          setURL(made)
          found.reload()
          await navigator.clipboard.writeText(made).then(() => toast('Copied the link'), () => {}) // it is shown, too
        } catch (err) {
          setProblem(problemOf(err))
        }
      }}>
        <Field label="Who has the link"><select name="write"><option value="">may look</option><option value="yes">may type, too</option></select></Field>
        <Field label="Valid for"><select name="ttl"><option value="15m">15 minutes</option><option value="1h" selected>an hour</option><option value="8h">8 hours</option><option value="7d">a week</option></select></Field>
        <Field label="Name" hint="Optional: name of the link's viewers, which other viewers see."><input name="name" placeholder="guest" maxLength={64} /></Field>
        <Trouble of={problem} />
        <footer><Button kind="primary" type="submit">Make a link</Button></footer>
      </form>
      {url && <><p>The link is shown only once. It opens without a key, and gives access to this terminal only.</p><pre tabIndex={0} aria-label="Link">{url}</pre></>}
      {found.data && found.data.length > 0 && <ul class="findings plainlist">
        {found.data.map((l) => (
          <li key={l.id} class="row spread">
            <span>{l.name || 'guest'} <span class="dim">{l.write ? 'may type' : 'may look'}, ends <Ago at={l.expires_at} /></span></span>
            <Act class="small" kind="danger" act={async () => {
              await send('DELETE', `${path}/${segment(l.id)}`)
              found.reload()
            }} done="The link no longer works">Take back</Act>
          </li>
        ))}
      </ul>}
    </Dialog>
  )
}

/** What a link opens. Its secret is behind the #, which browsers send nowhere. */
export function Shared({ secret }: { secret: string }) {
  useEffect(() => { document.title = 'Shared terminal · engi' }, [])
  return (
    <div class="frame alone">
      <main>
        <span class="brand"><img src={icon} alt="" />engi</span>
        <h1 class="hidden">Shared terminal</h1>
        <Card>
          <TerminalPane label="Shared terminal" path="/shared/terminal" secret={secret} focus readOnly exists={async () => {
            if (!(await fetch('/readyz')).ok) throw new Refusal({ detail: 'the server is not ready', kind: 'unavailable', status: 0, remedy: 'wait' })
            throw new Refusal({ detail: 'this link opens nothing', kind: 'denied', status: 0, remedy: 'it has expired or was taken back, or its terminal has ended: ask for another' })
          }} />
        </Card>
      </main>
      <Toasts />
    </div>
  )
}
