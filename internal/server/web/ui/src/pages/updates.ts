// What happens to an app, as it happens.

import { useEffect, useRef, useState } from 'preact/hooks'
import type { App, AppUpdate } from '../openapi'
import { problemOf, stream } from '../api'

const most = 300 // updates that are kept
const longest = 64 << 10 // characters of an answer that are kept

const pause = (ms: number) => new Promise((done) => setTimeout(done, ms))

// What an edit is about goes last, lines of output go first.
const lasting = ['edit', 'attempt', 'attempted', 'judged', 'edited']

/** Leaves something out of what is too long. */
function cut(all: AppUpdate[]): AppUpdate[] {
  if (all.length <= most) return all
  const lines = all.findIndex((u) => !u.seq)
  const i = lines < 0 ? all.findIndex((u) => !lasting.includes(u.type)) : lines
  return all.toSpliced(Math.max(i, 0), 1)
}

/** Adds what has happened: all of an edit or an apply, and what comes after it. */
function add(all: AppUpdate[], u: AppUpdate): AppUpdate[] {
  if (u.type === 'edit') return [u, ...all.filter((other) => other.edit === u.edit)] // what is not kept may come before it
  if (u.type === 'start' && !u.edit) return [u]
  if (u.type !== 'output') return cut([...all, u])
  const i = all.findLastIndex((other) => other.attempt === u.attempt) // attempts write at the same time
  if (all[i]?.type !== 'output' || all[i].round !== u.round) return cut([...all, u])
  return all.with(i, { ...all[i], text: ((all[i].text ?? '') + (u.text ?? '')).slice(-longest) })
}

/** Follows what happens to an app, from what is under way, and comes back to a broken stream; breaks counts that. */
export function useUpdates(a: App, path: string, seen: (u: AppUpdate) => void): [updates: AppUpdate[], breaks: number] {
  const [updates, setUpdates] = useState<AppUpdate[]>([])
  const [breaks, setBreaks] = useState(0)
  const call = useRef(seen)
  call.current = seen
  useEffect(() => {
    const stop = new AbortController()
    let after = (a.editing || a.applying || 0) - 1
    void (async () => {
      for (let tries = 0; !stop.signal.aborted; tries++) {
        try {
          for await (const u of stream<AppUpdate>(`${path}/stream?after=${after}`, { signal: stop.signal }, () => { if (tries) setBreaks((n) => n + 1) })) {
            if (u.type === 'heartbeat') continue
            if (u.type === 'error' && !u.seq) break
            tries = 0
            after = Math.max(after, u.seq ?? 0)
            setUpdates((all) => add(all, u))
            call.current(u)
          }
        } catch (err) {
          if (problemOf(err).status === 404) return
        }
        if (!stop.signal.aborted) await pause(Math.min(500 * 2 ** tries, 10_000))
      }
    })()
    return () => stop.abort()
  }, [path])
  return [updates, breaks]
}

/** The files that the apply under way has put in place, and how. */
export function filesOf(updates: AppUpdate[]): Map<string, string> {
  const files = new Map<string, string>()
  for (const u of updates) {
    if (['start', 'done', 'error', 'rollback'].includes(u.type)) files.clear()
    if (u.type === 'file' && u.path) files.set(u.path, u.op ?? 'write')
  }
  return files
}

/** One of several attempts of an edit, which is made in a branch. */
export interface Attempt {
  number: number
  begun?: AppUpdate
  ended?: AppUpdate
  updates: AppUpdate[]
}

const taken = ['judged', 'edited'] // say which attempt was taken, and are not of one

/** Whether an update is of one of several attempts. */
export const ofAttempt = (u: AppUpdate) => Boolean(u.attempt) && !taken.includes(u.type)

/** The attempts that have begun, by number. */
export function attemptsOf(updates: AppUpdate[]): Attempt[] {
  const all = new Map<number, Attempt>()
  for (const u of updates) {
    if (!ofAttempt(u)) continue
    const x = all.get(u.attempt!) ?? { number: u.attempt!, updates: [] }
    all.set(x.number, x)
    if (u.type === 'attempt') x.begun = u
    else if (u.type === 'attempted') x.ended = u
    else x.updates.push(u)
  }
  return [...all.values()].sort((a, b) => a.number - b.number)
}
