// A view of a terminal, by the protocol of docs/terminals.md: it survives broken
// connections and restarts of the server, and nothing that is shown or typed is
// lost or doubled.

import type { Exit, Problem, TerminalViewer } from './openapi'
import { problemOf } from './api'

/** A text message of the server. */
export interface TerminalMessage {
  type: string
  offset?: number
  input?: number
  end?: number
  viewer?: string
  read_only?: boolean
  cols?: number
  rows?: number
  viewers?: TerminalViewer[]
  exit?: Exit
  error?: Problem
}

interface Calls {
  /** Output, or where that is not kept what paints the screen; calls done when it is shown. */
  output: (data: Uint8Array, done: () => void) => void
  message: (m: TerminalMessage) => void
  state: (s: 'connecting' | 'live' | 'ended', problem?: ReturnType<typeof problemOf>) => void
  /** Whether there is still something to come back to; throws the refusal if not. */
  exists: () => Promise<unknown>
}

const most = 64 << 10 // bytes of input in a message
const waiting = 1 << 20 // bytes of input that are not acknowledged
const backlog = 4 << 20 // bytes of output that are not shown yet

export class Attachment {
  private socket?: WebSocket
  private client = Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, '0')).join('')
  private at = -1 // offset of the next byte of output
  private painting = false // the next binary message is the screen
  private pending = new Uint8Array(0) // input that is not acknowledged
  private taken = 0 // number of its first byte
  private sent = 0 // number of the next byte to send
  private size?: { cols: number; rows: number }
  private shown = 0 // bytes of output that are being shown
  private behind = false // comes back when all of that is shown
  private tries = 0
  private refused = 0 // times in a row, by a server that is there
  private timer = 0
  private over = false

  constructor(private path: string, private secret: string | undefined, private calls: Calls) {
    this.dial()
  }

  private dial() {
    const url = new URL(this.path, location.href)
    url.protocol = location.protocol.replace('http', 'ws')
    url.search = String(new URLSearchParams({ offset: String(this.at), client: this.client }))
    const socket = new WebSocket(url, ['engi.terminal.v1', ...(this.secret ? [`engi.secret.${this.secret}`] : [])])
    socket.binaryType = 'arraybuffer'
    this.socket = socket
    this.calls.state('connecting')
    let told: Problem | undefined
    let opened = false
    socket.onopen = () => { opened = true }
    socket.onmessage = (e: MessageEvent<ArrayBuffer | string>) => {
      if (socket !== this.socket) return
      if (typeof e.data !== 'string') return this.show(new Uint8Array(e.data))
      const m = JSON.parse(e.data) as TerminalMessage
      if (m.type === 'error') told = m.error
      this.hear(m)
    }
    socket.onclose = (e) => {
      if (socket !== this.socket || this.over) return
      this.socket = undefined
      if (this.behind) return // show dials
      if (told && e.code === 1000) return this.end(told)
      void this.again(opened)
    }
  }

  /** Dials again, later and later, as long as that may help. */
  private async again(opened: boolean) {
    this.refused = opened ? 0 : this.refused + 1
    this.tries = opened ? 0 : this.tries + 1
    this.calls.state('connecting')
    if (!opened) {
      try {
        await this.calls.exists()
        if (this.refused >= 3) return this.end({ detail: 'the server refuses this terminal', kind: 'unavailable', status: 0, remedy: 'look at its log' })
      } catch (err) {
        const p = problemOf(err)
        if (p.kind !== 'unavailable' && p.kind !== 'exhausted') return this.end(p)
        this.refused = 0
      }
    }
    if (!this.over) this.timer = window.setTimeout(() => this.dial(), Math.min(250 * 2 ** this.tries, 10_000))
  }

  private show(data: Uint8Array) {
    if (!this.painting) this.at += data.length
    this.painting = false
    this.shown += data.length
    this.calls.output(data, () => {
      this.shown -= data.length
      if (this.behind && this.shown === 0) {
        this.behind = false
        if (!this.over) this.dial()
      }
    })
    // A page cannot make the server wait, and must not hold all there is: it
    // leaves, and comes back to where it was, or to the screen.
    if (this.shown > backlog) {
      this.behind = true
      this.socket?.close()
      this.socket = undefined
    }
  }

  private hear(m: TerminalMessage) {
    if (m.type === 'attached') {
      this.acknowledged(m.input ?? 0)
      if (this.taken !== m.input) return this.end({ detail: 'the terminal has lost input that it had taken', kind: 'conflict', status: 0, remedy: 'attach again' })
      this.sent = this.taken
      this.refused = this.tries = 0
      this.calls.state('live')
    }
    if (m.type === 'ack') this.acknowledged(m.input ?? 0)
    if (m.type === 'output' || m.type === 'screen') {
      this.painting = m.type === 'screen'
      this.at = m.offset ?? this.at
    }
    this.calls.message(m)
    if (m.type === 'attached') {
      if (this.size && !m.read_only) this.resize(this.size.cols, this.size.rows)
      this.send()
    }
    if (m.type === 'exit') this.end()
  }

  private acknowledged(next: number) {
    const n = Math.min(next - this.taken, this.pending.length)
    if (n <= 0) return
    this.pending = this.pending.slice(n)
    this.taken += n
    this.sent = Math.max(this.sent, this.taken)
  }

  private send() {
    while (this.socket?.readyState === WebSocket.OPEN && this.sent < this.taken + this.pending.length) {
      const rest = this.pending.subarray(this.sent - this.taken, this.sent - this.taken + most)
      const message = new Uint8Array(8 + rest.length)
      new DataView(message.buffer).setBigUint64(0, BigInt(this.sent))
      message.set(rest, 8)
      this.socket.send(message)
      this.sent += rest.length
    }
  }

  /** Sends what was typed, once, also if the connection breaks. Reports whether it could be kept. */
  type(data: Uint8Array): boolean {
    if (this.over || this.pending.length + data.length > waiting) return false
    const all = new Uint8Array(this.pending.length + data.length)
    all.set(this.pending)
    all.set(data, this.pending.length)
    this.pending = all
    this.send()
    return true
  }

  resize(cols: number, rows: number) {
    this.size = { cols, rows }
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify({ type: 'resize', cols, rows }))
  }

  private end(problem?: ReturnType<typeof problemOf>) {
    if (this.over) return
    this.close()
    this.calls.state('ended', problem)
  }

  /** Leaves; the program goes on. */
  close() {
    this.over = true
    clearTimeout(this.timer)
    const socket = this.socket
    // A browser complains of a connection that is closed before it is there.
    if (socket?.readyState === WebSocket.CONNECTING) socket.onopen = () => socket.close()
    else socket?.close()
  }
}
