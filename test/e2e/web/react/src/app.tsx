// An ordinary app of React: a chat with the AI SDK's hook, and a page with engi's hook
// and element, all of one session.

import { useChat } from '@ai-sdk/react'
import { DefaultChatTransport, type UIMessage } from 'ai'
import { StrictMode, useEffect, useRef, useState, type DetailedHTMLProps, type HTMLAttributes } from 'react'
import { createRoot } from 'react-dom/client'
import type { EngiUI } from '@engi-dev/ui/element'
import { useEngiUI } from '@engi-dev/ui/react'

declare module 'react' {
  namespace JSX {
    interface IntrinsicElements {
      'engi-ui': DetailedHTMLProps<HTMLAttributes<EngiUI>, EngiUI> & { session: string; base?: string; 'api-key'?: string; onstate?: (e: CustomEvent<string>) => void }
    }
  }
}

const query = new URLSearchParams(location.search)
const [base, session, apiKey] = ['base', 'session', 'key'].map((name) => query.get(name)!)

type Message = UIMessage<unknown, { html: { seq?: number; html: string }; patch: { seq: number; patches: { selector: string; text?: string }[] }; action: { seq: number } }>

/** What outlives a reload, unless it is another tab. */
const kept = JSON.parse(sessionStorage.getItem(session) ?? '{"seq":0,"messages":[]}') as { seq: number; messages: Message[] }

function Chat() {
  const seq = useRef(kept.seq)
  const [told, setTold] = useState<string[]>([])
  const at = `${base}/v1/sessions/${session}/page`
  const { messages, sendMessage, resumeStream, status, error } = useChat<Message>({
    messages: kept.messages,
    resume: true,
    onData: ({ type, data }) => {
      seq.current = data.seq ?? seq.current
      setTold((all) => [...all, type])
    },
    transport: new DefaultChatTransport({
      api: `${at}/actions?format=ai-sdk`,
      headers: { Authorization: `Bearer ${apiKey}` },
      prepareSendMessagesRequest: ({ messages }) => {
        const part = messages.at(-1)!.parts[0]
        return { body: { action: part.type === 'text' ? part.text : '' } }
      },
      prepareReconnectToStreamRequest: () => ({ api: `${at}/stream?format=ai-sdk&after=${seq.current}` }),
    }),
  })
  useEffect(() => { sessionStorage.setItem(session, JSON.stringify({ seq: seq.current, messages })) }, [messages])
  return (
    <>
      <output id="status">{status}</output> <output id="error">{error?.message}</output> <output id="told">{told.join(' ')}</output>
      {messages.map((m) => (
        <ol key={m.id} className={m.role}>
          {m.parts.map((p, i) => (
            <li key={i} className={p.type}>
              {p.type === 'text' ? p.text : p.type === 'data-html' ? p.data.html : p.type === 'data-patch' ? p.data.patches.map((x) => `${x.selector}=${x.text}`).join() : ''}
            </li>
          ))}
        </ol>
      ))}
      <form onSubmit={(e) => {
        e.preventDefault()
        void sendMessage({ text: new FormData(e.currentTarget).get('text') as string })
      }}><input name="text" /></form>
      <button onClick={() => void resumeStream()}>Resume</button>
    </>
  )
}

function Page() {
  const [updates, setUpdates] = useState(0)
  const [elementState, setElementState] = useState('')
  const page = useEngiUI({ session, base, key: apiKey, onupdate: () => setUpdates((n) => n + 1) })
  return (
    <>
      <output id="state">{page.state}</output> <output id="element-state">{elementState}</output> <output id="error">{page.error?.message}</output> <output id="updates">{updates}</output>
      <button onClick={() => void page.send('count')}>Count</button> <button onClick={() => void page.cancel()}>Cancel</button>
      <div id="hook" ref={page.ref} />
      <engi-ui session={session} base={base} api-key={apiKey} onstate={(e) => setElementState(e.detail)} />
    </>
  )
}

function App() {
  const [shown, setShown] = useState(true)
  useEffect(() => { void import('@engi-dev/ui/element') }, [])
  return (
    <>
      <label><input type="checkbox" checked={shown} onChange={(e) => setShown(e.target.checked)} /> shown</label>
      {shown && (query.get('view') === 'chat' ? <Chat /> : <Page />)}
    </>
  )
}

createRoot(document.getElementById('app')!).render(<StrictMode><App /></StrictMode>)
