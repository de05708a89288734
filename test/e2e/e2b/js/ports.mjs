import { Sandbox } from 'e2b'
import { about, assert, box, fails, run, scenario, shared, sleep, until } from './scenario.mjs'

about('Ports and hosts')
const sandbox = shared()
const scheme = process.env.SCENARIO_SCHEME || 'http' // applications put https before it
const url = (s, port, path = '/') => `${scheme}://${s.getHost(port)}${path}`
const serve = async (t, s, port, what) => {
  const h = await s.commands.run(what ?? `mkdir -p /tmp/w && cd /tmp/w && echo page > index.html && python3 -m http.server ${port} --bind 127.0.0.1`, { background: true, timeoutMs: 0 })
  h.wait().catch(() => {})
  t.after(() => h.kill())
  await until(async () => (await fetch(url(s, port))).status !== 502, 'the server')
}

scenario('getHost names a service inside', async (t) => {
  const s = await sandbox()
  assert.ok(s.getHost(3000).startsWith(`3000-${s.sandboxId}.`))
  await serve(t, s, 8001)
  const r = await fetch(url(s, 8001))
  assert.deepEqual([r.status, await r.text()], [200, 'page\n'])
  assert.equal((await fetch(url(s, 8001, '/none'))).status, 404)
})

scenario('by headers, where names do not resolve', async (t) => {
  const s = await sandbox()
  await serve(t, s, 8002)
  const r = await fetch(process.env.E2B_SANDBOX_URL, { headers: { 'E2b-Sandbox-Id': s.sandboxId, 'E2b-Sandbox-Port': '8002' } })
  assert.deepEqual([r.status, await r.text()], [200, 'page\n'])
})

scenario('nothing listens there', async () => {
  const s = await sandbox()
  const r = await fetch(url(s, 4321))
  assert.equal(r.status, 502)
  const b = await r.json()
  assert.deepEqual([b.message, b.sandboxId, b.port, b.code], ['The sandbox is running but port is not open', s.sandboxId, 4321, 502])
})

scenario('a sandbox that is gone', async (t) => {
  const s = await box(t)
  const host = url(s, 3000)
  await s.kill()
  const r = await fetch(host)
  assert.equal(r.status, 502)
  const b = await r.json()
  assert.deepEqual([b.message, b.sandboxId, b.code], ['The sandbox was not found', s.sandboxId, 502])
})

const echo = (port) => `python3 -u -c "
import http.server, json
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        b = json.dumps(dict(self.headers)).encode()
        self.send_response(200); self.send_header('Content-Length', str(len(b))); self.end_headers(); self.wfile.write(b)
    def do_POST(self):
        b = self.rfile.read(int(self.headers['Content-Length']))
        self.send_response(201); self.send_header('Content-Length', str(len(b))); self.end_headers(); self.wfile.write(b[::-1])
http.server.HTTPServer(('127.0.0.1', ${port}), H).serve_forever()"`

scenario('the service sees itself as localhost, and no credentials of ours', async (t) => {
  const s = await sandbox()
  await serve(t, s, 8003, echo(8003))
  const seen = await (await fetch(url(s, 8003), { headers: { 'X-API-KEY': process.env.E2B_API_KEY, 'X-Mine': 'kept' } })).json()
  const low = Object.fromEntries(Object.entries(seen).map(([k, v]) => [k.toLowerCase(), v]))
  assert.equal(low.host, 'localhost:8003')
  assert.equal(low['x-mine'], 'kept')
  assert.ok(!JSON.stringify(seen).includes(process.env.E2B_API_KEY))
  const r = await fetch(url(s, 8003), { method: 'POST', body: 'abc' })
  assert.deepEqual([r.status, await r.text()], [201, 'cba'])
})

scenario('another Host, if so wanted', async (t) => {
  const s = await box(t, { network: { maskRequestHost: 'my.app:${PORT}' } })
  await serve(t, s, 8004, echo(8004))
  const seen = await (await fetch(url(s, 8004))).json()
  assert.equal(seen.Host ?? seen.host, 'my.app:8004')
})

scenario('private ports need the traffic token; the agent does not', async (t) => {
  const s = await box(t, { network: { allowPublicTraffic: false } })
  assert.ok(s.trafficAccessToken)
  assert.equal((await s.commands.run('echo in')).stdout, 'in\n')
  const h = await s.commands.run(echo(8005), { background: true, timeoutMs: 0 })
  h.wait().catch(() => {})
  const token = { headers: { 'e2b-traffic-access-token': s.trafficAccessToken } }
  await until(async () => (await fetch(url(s, 8005), token)).status === 200, 'the server')
  assert.equal((await fetch(url(s, 8005))).status, 403)
  assert.equal((await fetch(url(s, 8005), { headers: { 'e2b-traffic-access-token': 'wrong' } })).status, 403)
  const seen = await (await fetch(url(s, 8005), token)).text()
  assert.ok(!seen.includes(s.trafficAccessToken))
})

scenario('an answer in pieces comes in pieces', async (t) => {
  const s = await sandbox()
  await serve(t, s, 8006, `node -e "
require('http').createServer((q, r) => { r.write('first\\n'); setTimeout(() => r.end('second\\n'), 1000) }).listen(8006, '127.0.0.1')"`)
  const begun = Date.now()
  const r = await fetch(url(s, 8006))
  const seen = []
  for await (const c of r.body) seen.push([Buffer.from(c).toString(), Date.now() - begun])
  assert.equal(seen.map(([d]) => d).join(''), 'first\nsecond\n')
  assert.ok(seen.length >= 2 && seen.at(-1)[1] - seen[0][1] > 500, JSON.stringify(seen))
})

scenario('a request wakes a paused sandbox', async (t) => {
  const s = await box(t, { lifecycle: { onTimeout: 'pause', autoResume: true } })
  const h = await s.commands.run(echo(8007), { background: true, timeoutMs: 0 })
  h.wait().catch(() => {})
  await until(async () => (await fetch(url(s, 8007))).status === 200, 'the server')
  await s.pause()
  assert.equal((await s.getInfo()).state, 'paused')
  const r = await fetch(url(s, 8007))
  assert.equal(r.status, 200)
  assert.equal((await s.getInfo()).state, 'running')
})

await run(3)
