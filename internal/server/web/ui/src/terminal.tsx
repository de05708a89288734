// A terminal on a page. xterm.js is loaded when the first one is shown.

import { useEffect, useRef, useState } from 'preact/hooks'
import type { ComponentChildren } from 'preact'
import type { TerminalViewer } from './openapi'
import { problemOf } from './api'
import { Attachment, type TerminalMessage } from './attach'
import { State, toast, Trouble } from './ui'
import type { Screen } from './xterm'

interface PaneProps {
  label: string
  /** Of the WebSocket. */
  path: string
  /** Of a link, for who has no key. */
  secret?: string
  exists: () => Promise<unknown>
  actions?: ComponentChildren
  /** Takes the keyboard when it appears. */
  focus?: boolean
  readOnly?: boolean
}

export function TerminalPane({ label, path, secret, exists, actions, focus, readOnly }: PaneProps) {
  const at = useRef<HTMLDivElement>(null)
  const head = useRef<HTMLElement>(null)
  const [state, setState] = useState<string>('connecting')
  const [problem, setProblem] = useState<ReturnType<typeof problemOf>>()
  const [viewers, setViewers] = useState<TerminalViewer[]>([])
  const [me, setMe] = useState<{ id?: string; looks: boolean }>({ looks: readOnly ?? false })
  const [tries, setTries] = useState(0)
  useEffect(() => {
    let screen: Screen | undefined
    let attachment: Attachment | undefined
    let sizes: ResizeObserver | undefined
    let gone = false
    let looks = true
    /** Gives the terminal the size of this pane, for all. */
    const claim = () => {
      const size = screen?.fit()
      if (!screen || !size || looks || screen.replaying || (size.cols === screen.term.cols && size.rows === screen.term.rows)) return
      screen.term.resize(size.cols, size.rows)
      attachment?.resize(size.cols, size.rows)
    }
    const hear = (m: TerminalMessage) => {
      const term = screen!.term
      if (m.type === 'attached') {
        looks = m.read_only ?? false
        setMe({ id: m.viewer, looks })
        term.options.disableStdin = looks
        term.write('', () => {
          screen!.replaying = true
          if (m.cols && m.rows) term.resize(m.cols, m.rows)
        })
      }
      if (m.type === 'replayed') {
        term.write('', () => {
          if (gone) return
          screen!.replaying = false
          claim()
        })
      }
      if (m.type === 'size' && m.cols && m.rows) term.write('', () => { if (!gone) term.resize(m.cols!, m.rows!) })
      if (m.type === 'presence') setViewers(m.viewers ?? [])
      if (m.type === 'exit') {
        const e = m.exit
        setState(e?.cause === 'exited' ? (e.exit_code ? `exit code ${e.exit_code}` : 'done') : (e?.cause ?? 'ended'))
      }
    }
    void (async () => {
      const { open } = await import('./xterm')
      await document.fonts.ready
      if (gone || !at.current) return
      screen = open(at.current, label)
      const term = screen.term
      attachment = new Attachment(path, secret, {
        output: (data, done) => term.write(data, done),
        message: hear, exists,
        state: (s, p) => {
          setProblem(p)
          if (s !== 'ended') setState(s)
          else {
            setViewers([])
            term.options.disableStdin = true
            if (p) setState('left')
          }
        },
      })
      const type = (data: Uint8Array) => {
        if (!looks && !attachment!.type(data)) toast('the program has not taken what was typed before', 'type more slowly, or end it')
      }
      term.onData((text) => type(new TextEncoder().encode(text)))
      term.onBinary((text) => type(Uint8Array.from(text, (c) => c.charCodeAt(0))))
      term.textarea?.addEventListener('focus', claim)
      let timer = 0
      sizes = new ResizeObserver(() => {
        clearTimeout(timer)
        timer = window.setTimeout(claim, 60)
      })
      sizes.observe(at.current)
      if (focus) term.focus()
    })()
    return () => {
      gone = true
      sizes?.disconnect()
      attachment?.close()
      screen?.dispose()
    }
  }, [path, secret, tries])
  const others = viewers.filter((v) => v.id !== me.id)
  return (
    <section class="pane" aria-label={label}>
      <header ref={head}>
        <strong class="grow">{label}</strong>
        {others.length > 0 && <span class="present">with {others.map((v) => (v.name || 'the owner') + (v.read_only ? ' (looks)' : '')).join(', ')}</span>}
        {me.looks && <span class="dim">read-only</span>}
        <State of={state} />
        {actions}
      </header>
      {problem && <Trouble of={problem} again={() => setTries(tries + 1)} />}
      <div class="screen" ref={at} onKeyDown={(e) => {
        if (e.ctrlKey && e.key === 'F6') {
          e.preventDefault()
          head.current?.querySelector('button')?.focus()
        }
      }} />
    </section>
  )
}
