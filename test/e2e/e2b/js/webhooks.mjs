// Webhooks of both kinds, to a receiver in this process. Signatures are checked
// by the package of Standard Webhooks, and for E2B's as E2B's docs say.
import { createHash } from 'node:crypto'
import { createServer } from 'node:http'
import { Sandbox } from 'e2b'
import { Webhook } from 'standardwebhooks'
import { about, after, assert, box, run, scenario, until } from './scenario.mjs'

const got = {} // by path: what arrived
const receiver = createServer((q, r) => {
  let body = ''
  q.on('data', (d) => (body += d))
  q.on('end', () => {
    (got[q.url] ??= []).push({ headers: q.headers, body })
    // The first attempt at /flaky fails.
    r.writeHead(q.url === '/flaky' && got[q.url].length === 1 ? 503 : 204, { 'Retry-After': '1' }).end()
  })
})
await new Promise((ok) => receiver.listen(0, '127.0.0.1', ok))
after(() => receiver.close())
const url = (path) => `http://127.0.0.1:${receiver.address().port}${path}`

async function api(method, path, body, status = 200) {
  const r = await fetch(process.env.E2B_API_URL + path, {
    method, headers: { 'X-API-Key': process.env.E2B_API_KEY, 'Content-Type': 'application/json' }, body: body && JSON.stringify(body),
  })
  const text = await r.text()
  assert.equal(r.status, status, `${method} ${path}: ${r.status} ${text}`)
  return text ? JSON.parse(text) : undefined
}

about('Webhooks')

scenario('events arrive signed, and again after a failure', async (t) => {
  const hook = await api('POST', '/v1/webhooks', { url: url('/flaky'), types: ['orders/*'] }, 201)
  t.after(() => api('DELETE', `/v1/webhooks/${hook.id}`, undefined, 204))
  const sent = await api('POST', '/v1/events', { type: 'orders/paid', data: { name: 'Zoë' } }, 202)
  await until(() => got['/flaky']?.length === 2, 'the second attempt')
  for (const { headers, body } of got['/flaky']) {
    const event = new Webhook(hook.secret).verify(body, headers)
    assert.equal(event.id, sent.id)
    assert.equal(event.data.name, 'Zoë')
    assert.throws(() => new Webhook(hook.secret).verify(body + ' ', headers))
  }
  const [delivery] = (await until(async () => {
    const { items } = await api('GET', `/v1/webhooks/${hook.id}/deliveries`)
    return items[0]?.state === 'done' && { items }
  }, 'the record of the delivery')).items
  assert.equal(delivery.event_id, sent.id)
  assert.equal(delivery.attempts, 2)
  assert.equal(delivery.status, 204)
})

scenario("E2B's webhooks tell of a sandbox's life", async (t) => {
  const signatureSecret = 'a secret of ours'
  const events = ['created', 'paused', 'resumed', 'killed'].map((x) => `sandbox.lifecycle.${x}`)
  const hook = await api('POST', '/events/webhooks', { name: 'lives', url: url('/lives'), events, signatureSecret }, 201)
  t.after(() => api('DELETE', `/events/webhooks/${hook.id}`))
  const s = await box(t)
  await s.pause()
  await s.connect()
  await s.kill()
  const mine = () => (got['/lives'] ?? []).filter((x) => JSON.parse(x.body).sandboxId === s.sandboxId)
  await until(() => mine().length === 4, 'the four events')
  assert.deepEqual(mine().map((x) => JSON.parse(x.body).type).sort(), [...events].sort())
  for (const { headers, body } of mine()) {
    assert.equal(headers['e2b-signature'], createHash('sha256').update(signatureSecret + body).digest('base64').replace(/=+$/, ''))
    assert.equal(headers['e2b-webhook-id'], hook.id)
    assert.equal(headers['e2b-signature-version'], 'v1')
    assert.ok(headers['e2b-delivery-id'])
  }
})

scenario('private addresses get nothing', async (t) => {
  const hook = await api('POST', '/v1/webhooks', { url: 'http://169.254.169.254/latest/meta-data/', types: ['probe/*'] }, 201)
  t.after(() => api('DELETE', `/v1/webhooks/${hook.id}`, undefined, 204))
  await api('POST', '/v1/events', { type: 'probe/metadata' }, 202)
  const delivery = await until(async () => (await api('GET', `/v1/webhooks/${hook.id}/deliveries`)).items.find((x) => x.state === 'failed'), 'the refusal')
  assert.equal(delivery.error.kind, 'denied')
  assert.equal(delivery.attempts, 1)
})

await run(3)
