// Server-Sent Events of a response, by the rules of the HTML standard.

export interface Message {
  id: string
  kind: string
  data: string
}

const most = 8 << 20 // characters of one event

/** The events of a body, whose bytes may be cut anywhere. Half an event at the end is none. It says when it has heard anything. */
export async function* messages(body: ReadableStream<Uint8Array>, heard: () => void): AsyncGenerator<Message> {
  const reader = body.getReader()
  const decoder = new TextDecoder()
  let rest = ''
  let m: Message = { id: '', kind: '', data: '' }
  try {
    for (;;) {
      const { done, value } = await reader.read()
      if (done) return
      heard()
      rest += decoder.decode(value, { stream: true })
      const lines = rest.split(/\r\n|\n|\r(?=[^])/) // a CR that ends it may be half of a line's end
      rest = lines.pop()!
      if (rest.length + m.data.length > most) throw new Error('the server sends an event without an end')
      for (const line of lines) {
        const [, name, text] = /^([^:]*)(?::? ?([^]*))$/.exec(line)!
        if (!line) {
          if (m.data) yield m
          m = { id: '', kind: '', data: '' }
        } else if (name === 'data') m.data += (m.data && '\n') + text
        else if (name === 'event') m.kind = text
        else if (name === 'id') m.id = text
      }
    }
  } finally {
    void reader.cancel().catch(() => {})
  }
}
