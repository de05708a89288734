// The page of an app in a frame, and the choice of an element in it. The page is of
// another origin and may be hostile: what it says is bounded, and text.

import type { ComponentChildren, RefObject } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import type { App, AppElement, AppLink } from '../openapi'
import { may, segment, send } from '../api'
import { Button, Card, Empty } from '../ui'

const sizes = [['', 'Full width'], ['tablet', 'Tablet, 768'], ['phone', 'Phone, 390']] as const

/** Where the page of an app is for who is signed in: by a link, if it is private. */
async function pageOf(id: string, address: string): Promise<string> {
  if (!may('sandboxes')) return address
  const link = await send<AppLink>('POST', `/v1/apps/${segment(id)}/link`, { ttl: '12h' }).catch(() => undefined)
  return link?.private ? link.url : address
}

/** The same once it is known. It is found out again when again changes. */
export function usePage(id?: string, address?: string, again?: string): string | undefined {
  const [page, setPage] = useState<string>()
  useEffect(() => {
    let gone = false
    setPage(undefined)
    if (id && address) void pageOf(id, address).then((found) => { if (!gone) setPage(found) })
    return () => { gone = true }
  }, [id, address, again])
  return page
}

/** Opens the page of an app in a tab. */
export function Visit({ id, address, class: cls, children }: { id: string; address: string; class?: string; children: ComponentChildren }) {
  return (
    <a class={`button ${cls ?? ''}`} href={address} target="_blank" rel="noopener noreferrer" onClick={(e) => {
      if (!may('sandboxes')) return
      const tab = open('about:blank') // at once: browsers open none for what comes later
      if (!tab) return
      e.preventDefault()
      tab.opener = null
      void pageOf(id, address).then((page) => tab.location.replace(page))
    }}>{children}</a>
  )
}

/** A page of an app. It may be hostile. */
export function Frame({ frame, ...rest }: { frame?: RefObject<HTMLIFrameElement | null>; src: string; title: string; class?: string; onLoad?: () => void }) {
  // Without a referrer, a private page is not shown to anybody's frame.
  return <iframe ref={frame} {...rest} class={`shown ${rest.class ?? ''}`} referrerpolicy="strict-origin" sandbox="allow-scripts allow-same-origin allow-forms allow-popups allow-modals" />
}

/** What a page says that was picked. */
function elementOf(said: unknown): AppElement | undefined {
  if (typeof said !== 'object' || !said) return undefined
  const e = said as Record<string, unknown>
  const text = (name: string, most: number) => { const v = e[name]; return typeof v === 'string' && v ? v.slice(0, most) : undefined }
  const line = Number.isSafeInteger(e.line) && Number(e.line) > 0 && Number(e.line) < 1e6 ? Number(e.line) : undefined
  const found = { selector: text('selector', 500), text: text('text', 500), html: text('html', 2000), path: text('path', 300) }
  return found.selector ? { ...found, line: found.path ? line : undefined } : undefined
}

/** The page of an app in its frame, which is loaded again whenever fresh changes. */
export function Preview({ of: a, write, fresh, picked }: { of: App; write: boolean; fresh: number; picked: (element: AppElement) => void }) {
  const shown = usePage(a.id, a.preview_url, a.sandbox_id) // what another sandbox shows is loaded anew
  const [width, setWidth] = useState('')
  const [again, setAgain] = useState(0)
  const [able, setAble] = useState(false) // its page lets elements be picked
  const [picking, setPicking] = useState(false)
  const asked = useRef(false) // the same, for what hears the page
  const frame = useRef<HTMLIFrameElement>(null)
  const call = useRef(picked)
  call.current = picked
  // Only the app is spoken to, and heard, wherever the frame has gone.
  const expected = shown && new URL(shown).origin
  const say = (type: string) => { if (expected) frame.current?.contentWindow?.postMessage({ type }, expected) }
  useEffect(() => {
    if (!expected) return
    const hear = ({ source, origin, data }: MessageEvent) => {
      if (!source || source !== frame.current?.contentWindow || origin !== expected) return
      if (data?.type === 'engi:picker') setAble(true)
      if (data?.type !== 'engi:picked') return
      const element = asked.current ? elementOf(data.element) : undefined
      setPicking(asked.current = false)
      say('engi:stop')
      if (element) call.current(element)
    }
    addEventListener('message', hear)
    return () => removeEventListener('message', hear)
  }, [expected])
  const pick = (on: boolean) => {
    setPicking(asked.current = on)
    say(on ? 'engi:pick' : 'engi:stop')
  }
  return (
    <Card title="Preview" actions={a.preview_url && <span class="row">
      {write && able && <Button class="small" aria-pressed={picking} title="Click an element of the page, and describe its change" onClick={() => pick(!picking)}
        onKeyDown={(e) => { if (e.key === 'Escape') pick(false) }}>{picking ? 'Click it in the page' : 'Pick an element'}</Button>}
      <select class="auto small" aria-label="Width of the page" value={width} onChange={(e) => setWidth(e.currentTarget.value)}>
        {sizes.map(([v, name]) => <option key={v} value={v}>{name}</option>)}
      </select>
      <Button class="small" onClick={() => setAgain((n) => n + 1)}>Reload</Button>
    </span>}>
      {a.preview_url
        ? <div class={`device ${picking ? 'picking' : ''}`}>{shown && <Frame key={`${again} ${fresh}`} frame={frame} class={width} src={shown} title={`The page of ${a.name}`}
          onLoad={() => {
            setAble(false)
            setPicking(asked.current = false)
            say('engi:hello')
          }} />}</div>
        : <Empty title={a.state === 'starting' ? 'The server is starting' : 'The server is not running'}><p>{a.state === 'starting' ? 'Its page is loading.' : 'Start the app to see its page. Its files and its history are below.'}</p></Empty>}
    </Card>
  )
}
