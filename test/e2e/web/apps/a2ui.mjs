// A program that shows the surface of a session with A2UI's renderer, and sends what
// people do on it.
import '@a2ui/lit/v0_9'
import { basicCatalog } from '@a2ui/lit/v0_9'
import { MessageProcessor } from '@a2ui/web_core/v0_9'

const post = (path, body) => fetch(path, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) })
const { id } = await (await post('/v1/sessions', {})).json()
const ui = `/v1/sessions/${id}/page`
globalThis.sent = []
globalThis.act = (action, data) => post(`${ui}/actions`, { action, data })

const processor = new MessageProcessor([basicCatalog], ({ name, context }) => {
  sent.push([name, context])
  void act(name, context)
})
const element = document.body.appendChild(document.createElement('a2ui-surface'))
processor.onSurfaceCreated((surface) => { element.surface = surface })

const follow = async () => {
  const { body } = await fetch(`${ui}/stream?format=a2ui`, { headers: { Accept: 'application/x-ndjson' } })
  let rest = ''
  const reader = body.pipeThrough(new TextDecoderStream()).getReader()
  for (;;) {
    const { done, value } = await reader.read()
    if (done) return
    const lines = (rest + value).split('\n')
    rest = lines.pop()
    processor.processMessages(lines.filter(Boolean).map((line) => JSON.parse(line)))
  }
}
void follow()
globalThis.ready = true
