// The command palette: pages, things to start, and whatever has an ID.

import { signal } from '@preact/signals'
import { useEffect, useRef, useState } from 'preact/hooks'
import type { Sandbox, Workspace } from './openapi'
import { list, signOut } from './api'
import { pages } from './pages'
import { go, href } from './route'

export const palette = signal(false)

interface Command {
  name: string
  kind: string
  run: () => unknown
}

export function Palette() {
  return palette.value ? <Open /> : null
}

function Open() {
  const ref = useRef<HTMLDialogElement>(null)
  const [text, setText] = useState('')
  const [at, setAt] = useState(0)
  const [found, setFound] = useState<Command[]>([])
  useEffect(() => {
    ref.current?.showModal()
    const stop = new AbortController()
    const add = (more: Command[]) => setFound((f) => [...f, ...more])
    const ignore = () => {} // what the key may not list is not offered
    list<Sandbox>('/v1/sandboxes?owned=true&limit=100', stop.signal).then((xs) => add(xs.map((x) => ({ name: x.id, kind: `sandbox, ${x.state}`, run: () => go(href('sandboxes', x.id)) }))), ignore)
    list<Workspace>('/v1/workspaces?limit=100', stop.signal).then((xs) => add(xs.map((x) => ({ name: x.name, kind: `workspace, ${x.state}`, run: () => go(href('workspaces', x.id)) }))), ignore)
    return () => stop.abort()
  }, [])
  const all: Command[] = [
    ...pages.map((p) => ({ name: p.name, kind: 'page', run: () => go(p.id ? `#/${p.id}` : '#/') })),
    { name: 'Create a sandbox', kind: 'command', run: () => go('#/sandboxes?new=1') },
    { name: 'API description', kind: 'page', run: () => { location.href = '/docs' } },
    { name: 'Sign out', kind: 'command', run: signOut },
    ...found,
  ]
  const matching = (text: string) => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean)
    return all.filter((c) => words.every((w) => `${c.name} ${c.kind}`.toLowerCase().includes(w))).slice(0, 40)
  }
  const shown = matching(text)
  const chosen = Math.min(at, shown.length - 1)
  const run = (c?: Command) => {
    if (!c) return
    ref.current?.close()
    void c.run()
  }
  const move = (by: number) => {
    const next = (chosen + by + shown.length) % Math.max(1, shown.length)
    setAt(next)
    document.getElementById(`command-${next}`)?.scrollIntoView({ block: 'nearest' })
  }
  return (
    <dialog ref={ref} aria-label="Go to" onClose={() => { palette.value = false }} onClick={(e) => { if (e.target === ref.current) ref.current?.close() }}>
      <div class="palette">
        <input type="text" role="combobox" aria-label="Page, command or ID" aria-expanded={shown.length > 0} aria-controls="commands" aria-autocomplete="list" aria-activedescendant={shown.length ? `command-${chosen}` : undefined}
          placeholder="Page, command or ID" value={text}
          onInput={(e) => {
            setText(e.currentTarget.value)
            setAt(0)
          }}
          onKeyDown={(e) => {
            if (e.key === 'ArrowDown' || e.key === 'ArrowUp') {
              e.preventDefault()
              move(e.key === 'ArrowDown' ? 1 : -1)
            }
            // Who types fast has not seen the list yet.
            if (e.key === 'Enter') run(e.currentTarget.value === text ? shown[chosen] : matching(e.currentTarget.value)[0])
          }} />
        <ul id="commands" role="listbox" aria-label="Commands">
          {shown.map((c, i) => <li key={c.kind + c.name} id={`command-${i}`} role="option" aria-selected={i === chosen} onClick={() => run(c)}><span>{c.name}</span><span class="dim">{c.kind}</span></li>)}
        </ul>
        {shown.length === 0 && <p class="none dim" role="status">No page, command or ID matches</p>}
      </div>
    </dialog>
  )
}
