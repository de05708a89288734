// The one way to the server: the HTTP API that everybody uses, with types that
// are generated from its description. The cookie stands for a key.

import type { Problem } from './openapi'
import { signal } from '@preact/signals'

/** Who is signed in; undefined until that is known. */
export interface Session {
  signed_in: boolean
  key?: string
  name?: string
  owner?: string
  admin?: boolean
  scopes?: string[]
  expires_at?: string
}
export const session = signal<Session | undefined>(undefined)

/** A refusal of the server, with what to do about it. */
export class Refusal extends Error {
  constructor(readonly problem: Pick<Problem, 'detail' | 'remedy' | 'kind' | 'status'>) {
    super(problem.detail)
  }
}

export function problemOf(err: unknown): Pick<Problem, 'detail' | 'remedy' | 'kind' | 'status'> {
  if (err instanceof Refusal) return err.problem
  const offline = err instanceof TypeError
  return {
    detail: offline ? 'the server does not answer' : String(err), kind: offline ? 'unavailable' : 'internal', status: 0,
    remedy: offline ? 'check that engi runs; this page goes on by itself once it does' : 'load the page again',
  }
}

const marked = { 'Engi-Dashboard': '1' } // see ownPage in internal/server/web

interface Ask {
  method?: string
  body?: unknown // JSON
  raw?: BodyInit // instead of body
  headers?: Record<string, string>
  signal?: AbortSignal
}

export async function ask(path: string, q: Ask = {}): Promise<Response> {
  const json = q.body !== undefined
  const resp = await fetch(path, {
    method: q.method ?? 'GET', signal: q.signal, credentials: 'same-origin', cache: 'no-store',
    headers: { Accept: 'application/json', ...(json ? { 'Content-Type': 'application/json' } : {}), ...marked, ...q.headers },
    body: json ? JSON.stringify(q.body) : q.raw,
  })
  if (resp.ok) return resp
  let problem: Problem
  try {
    problem = (await resp.json()) as Problem
  } catch {
    problem = { detail: `the server answered ${resp.status}`, kind: 'internal', status: resp.status, remedy: 'look at its log' } as Problem
  }
  if (resp.status === 401 && session.peek()?.signed_in) session.value = { signed_in: false }
  throw new Refusal(problem)
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await (await ask(path, { signal })).json()) as T
}

export async function list<T>(path: string, signal?: AbortSignal): Promise<T[]> {
  return (await get<{ items: T[] }>(path, signal)).items
}

export async function send<T = void>(method: string, path: string, body?: unknown, headers?: Record<string, string>): Promise<T> {
  const resp = await ask(path, { method, body, headers })
  const text = await resp.text()
  return (text ? JSON.parse(text) : undefined) as T
}

/** The lines of a stream. It ends with the stream, and throws if that breaks. */
export async function* stream<T>(path: string, q: Ask = {}, opened?: () => void): AsyncGenerator<T> {
  const resp = await ask(path, { ...q, headers: { Accept: 'application/x-ndjson', ...q.headers } })
  opened?.()
  let rest = ''
  const decoder = new TextDecoder()
  const reader = resp.body!.getReader()
  for (;;) {
    const { done, value } = await reader.read()
    if (done) break
    rest += decoder.decode(value, { stream: true })
    const lines = rest.split('\n')
    rest = lines.pop()!
    for (const line of lines) if (line) yield JSON.parse(line) as T
  }
  if (rest) yield JSON.parse(rest) as T
}

export async function whoami(): Promise<void> {
  session.value = await (await ask('/dashboard/session')).json()
}

export async function signIn(key: string): Promise<void> {
  session.value = await send<Session>('POST', '/dashboard/session', { key })
}

export async function signOut(): Promise<void> {
  session.value = await send<Session>('DELETE', '/dashboard/session')
}

/** May the key do this? The server decides; this only hides what it would refuse. */
export function may(scope: string, write = true): boolean {
  const s = session.value
  if (!s?.signed_in) return false
  if (s.admin || s.scopes?.includes(scope)) return true
  if (!s.scopes?.length) return scope !== 'approvals' || !write
  return !write && s.scopes.includes('read')
}

export const segment = encodeURIComponent
