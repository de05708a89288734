// Follows the event log once for all pages, and has them look again when
// something happened that they show.

import { signal } from '@preact/signals'
import { useEffect, useRef, useState } from 'preact/hooks'
import type { Event } from './openapi'
import { Refusal, problemOf, session, stream } from './api'

/** The latest events, the newest first. */
export const events = signal<Event[]>([])
/** Whether the log is followed; polling if the key may not read it. */
export const link = signal<'live' | 'connecting' | 'polling'>('connecting')

const keep = 200
const watchers = new Set<(e: Event | undefined) => void>()

const pause = (ms: number) => new Promise((done) => setTimeout(done, ms))

/** Follows the log until the browser is signed out. */
export async function follow(stop: AbortSignal): Promise<void> {
  let after = -1
  let tries = 0
  while (!stop.aborted) {
    try {
      const opened = () => {
        link.value = 'live'
        tries = 0
      }
      for await (const e of stream<Event>(`/v1/events?after=${after}`, { signal: stop }, opened)) {
        if (e.type === 'heartbeat' || e.type === 'error' || !e.seq) continue
        after = e.seq
        events.value = [e, ...events.value].slice(0, keep)
        for (const w of watchers) w(e)
      }
    } catch (err) {
      if (stop.aborted || !session.peek()?.signed_in) return
      if (err instanceof Refusal && err.problem.kind === 'denied') {
        link.value = 'polling'
        while (!stop.aborted) {
          await pause(5000)
          for (const w of watchers) w(undefined)
        }
        return
      }
    }
    link.value = 'connecting'
    await pause(Math.min(500 * 2 ** tries++, 10_000))
    for (const w of watchers) w(undefined)
  }
}

/** What a page has loaded. The old data stays while new is fetched. */
export interface Loaded<T> {
  data?: T
  problem?: ReturnType<typeof problemOf>
  reload: () => void
}

/**
 * Loads data, and again whenever an event comes whose type begins with one of the
 * prefixes. At most one request is under way.
 */
export function useLive<T>(load: (signal: AbortSignal) => Promise<T>, prefixes: string[], deps: unknown[] = [], every = 0): Loaded<T> {
  const [state, setState] = useState<{ data?: T; problem?: ReturnType<typeof problemOf> }>({})
  const again = useRef(() => {})
  useEffect(() => {
    const stop = new AbortController()
    let busy = false
    let dirty = false
    let timer = 0
    const run = async () => {
      if (busy) {
        dirty = true
        return
      }
      busy = true
      try {
        const data = await load(stop.signal)
        if (!stop.signal.aborted) setState({ data })
      } catch (err) {
        if (!stop.signal.aborted) setState((s) => ({ ...s, problem: problemOf(err) }))
      }
      busy = false
      if (dirty && !stop.signal.aborted) {
        dirty = false
        soon()
      }
    }
    const soon = () => {
      clearTimeout(timer)
      timer = window.setTimeout(run, 150)
    }
    again.current = run
    const watch = (e: Event | undefined) => {
      if (!e || prefixes.some((p) => (e.type ?? '').startsWith(p))) soon()
    }
    watchers.add(watch)
    const tick = every ? window.setInterval(() => { if (!document.hidden) void run() }, every) : 0
    void run()
    return () => {
      stop.abort()
      watchers.delete(watch)
      clearTimeout(timer)
      clearInterval(tick)
    }
  }, deps)
  return { ...state, reload: () => again.current() }
}
