import { Sandbox, SandboxNotFoundError, AuthenticationError, SandboxError } from 'e2b'
import { about, assert, box, fails, run, scenario, sleep, until } from './scenario.mjs'

about('Sandboxes: create, list, end')

const all = async (opts) => {
  const pages = Sandbox.list(opts)
  const items = []
  while (pages.hasNext) items.push(...(await pages.nextItems()))
  return items
}
const mark = () => `m${Math.random().toString(36).slice(2)}`

scenario('create with defaults and look at it', async (t) => {
  const s = await Sandbox.create()
  t.after(() => s.kill())
  assert.match(s.sandboxId, /^[a-z0-9]{20,40}$/)
  const info = await s.getInfo()
  assert.equal(info.sandboxId, s.sandboxId)
  assert.equal(info.state, 'running')
  assert.equal(info.name ?? 'base', 'base')
  const left = info.endAt - Date.now()
  assert.ok(left > 250_000 && left < 310_000, `ends in ${left} ms`)
  assert.ok(info.cpuCount >= 1 && info.memoryMB > 0)
  assert.ok(await s.isRunning())
})

scenario('metadata comes back and selects, whatever is in it', async (t) => {
  const odd = { 'k e': 'v&1=2', path: 'a/b%20c', ünï: 'ö + ?', [mark()]: 'x' }
  const s = await box(t, { metadata: odd })
  await box(t, { metadata: { 'k e': 'other' } })
  assert.deepEqual((await s.getInfo()).metadata, odd)
  const found = await all({ query: { metadata: odd } })
  assert.deepEqual(found.map((x) => x.sandboxId), [s.sandboxId])
  assert.deepEqual(found[0].metadata, odd)
})

scenario('list is newest first and in pages', async (t) => {
  const run = mark()
  const ids = []
  for (let i = 0; i < 3; i++) ids.unshift((await box(t, { metadata: { run } })).sandboxId)
  assert.deepEqual((await all({ query: { metadata: { run } } })).map((x) => x.sandboxId), ids)
  const pages = Sandbox.list({ limit: 1, query: { metadata: { run } } })
  const seen = []
  for (let n = 0; pages.hasNext && n < 5; n++) {
    const page = await pages.nextItems()
    assert.ok(page.length <= 1)
    seen.push(...page.map((x) => x.sandboxId))
  }
  assert.deepEqual(seen, ids)
})

scenario('list oldest first', async (t) => {
  const run = mark()
  const a = await box(t, { metadata: { run } })
  const b = await box(t, { metadata: { run } })
  const found = await all({ order: 'asc', query: { metadata: { run } } })
  assert.deepEqual(found.map((x) => x.sandboxId), [a.sandboxId, b.sandboxId])
})

scenario('list by state', async (t) => {
  const run = mark()
  const s = await box(t, { metadata: { run } })
  const by = async (...state) => (await all({ query: { metadata: { run }, state } })).length
  assert.equal(await by('running'), 1)
  assert.equal(await by('paused'), 0)
  assert.equal(await by('running', 'paused'), 1)
  await s.kill()
  assert.equal(await by('running', 'paused'), 0)
})

scenario('kill, and kill again', async (t) => {
  const s = await box(t)
  assert.equal(await s.kill(), true)
  assert.equal(await Sandbox.kill(s.sandboxId), false)
  assert.equal(await s.isRunning(), false)
  await fails(() => Sandbox.getInfo(s.sandboxId), SandboxNotFoundError)
})

scenario('an unknown sandbox', async () => {
  const id = 'a'.repeat(26)
  assert.equal(await Sandbox.kill(id), false)
  assert.equal(await Sandbox.kill('nosuch'), false)
  await fails(() => Sandbox.connect(id), SandboxNotFoundError)
  await fails(() => Sandbox.setTimeout(id, 1000), SandboxNotFoundError)
})

scenario('setTimeout makes the deadline nearer and farther', async (t) => {
  const s = await box(t)
  await s.setTimeout(30_000)
  let left = (await s.getInfo()).endAt - Date.now()
  assert.ok(left > 20_000 && left < 32_000, `${left}`)
  await s.setTimeout(200_000)
  left = (await s.getInfo()).endAt - Date.now()
  assert.ok(left > 190_000 && left < 202_000, `${left}`)
})

scenario('connect makes it only farther', async (t) => {
  const s = await box(t, { timeoutMs: 100_000 })
  const before = (await s.getInfo()).endAt.getTime()
  const c = await Sandbox.connect(s.sandboxId, { timeoutMs: 10_000 })
  assert.equal((await c.getInfo()).endAt.getTime(), before)
  await Sandbox.connect(s.sandboxId, { timeoutMs: 300_000 })
  assert.ok((await s.getInfo()).endAt.getTime() > before + 100_000)
})

scenario('a connected sandbox is the same one', async (t) => {
  const s = await box(t)
  await s.files.write('here', 'yes')
  const c = await Sandbox.connect(s.sandboxId)
  assert.equal(await c.files.read('here'), 'yes')
  assert.equal((await c.commands.run('cat here')).stdout, 'yes')
})

scenario('it ends at its deadline', async (t) => {
  const s = await box(t, { timeoutMs: 3_000 })
  assert.equal(await s.isRunning(), true)
  await until(async () => !(await s.isRunning()), 'the end')
  await fails(() => s.commands.run('true'), SandboxError)
  await fails(() => Sandbox.connect(s.sandboxId), SandboxNotFoundError)
})

scenario('an unknown template is refused', async () => {
  await fails(() => Sandbox.create('no-such-template'), SandboxError, /404.*not found/)
})

scenario('a wrong key is refused', async () => {
  for (const apiKey of ['e2b_00', 'engi_' + 'a'.repeat(52), 'x']) {
    await fails(() => Sandbox.create('base', { apiKey }), AuthenticationError)
  }
})

scenario('a key in the spelling that old packages check', async (t) => {
  const apiKey = 'e2b_' + Buffer.from(process.env.E2B_API_KEY).toString('hex')
  const s = await box(t, { apiKey })
  assert.ok(await s.isRunning())
})

scenario('sandboxes of other owners do not exist', async (t) => {
  const s = await box(t)
  const apiKey = process.env.SCENARIO_OTHER_KEY
  await fails(() => Sandbox.getInfo(s.sandboxId, { apiKey }), SandboxNotFoundError)
  await fails(() => Sandbox.connect(s.sandboxId, { apiKey }), SandboxNotFoundError)
  assert.equal(await Sandbox.kill(s.sandboxId, { apiKey }), false)
  assert.ok(!(await all({ apiKey })).some((x) => x.sandboxId === s.sandboxId))
  assert.ok(await s.isRunning())
})

scenario('the paths of version 1', async (t) => {
  const call = (method, path, body) => fetch(process.env.E2B_API_URL + path, {
    method, headers: { 'X-API-KEY': process.env.E2B_API_KEY, 'Content-Type': 'application/json' }, body: body && JSON.stringify(body) })
  const r = await call('POST', '/sandboxes', { templateID: 'base', timeout: 60, metadata: { v: 'one' } })
  assert.equal(r.status, 201)
  const s = await r.json()
  t.after(() => call('DELETE', `/sandboxes/${s.sandboxID}`))
  assert.equal(s.envdAccessToken, undefined)
  assert.equal(typeof s.clientID, 'string')
  const list = await (await call('GET', '/sandboxes?metadata=v%3Done')).json()
  assert.deepEqual(list.map((x) => x.sandboxID), [s.sandboxID])
  assert.equal((await call('POST', `/sandboxes/${s.sandboxID}/refreshes`, { duration: 100 })).status, 204)
  assert.equal((await call('POST', `/sandboxes/${s.sandboxID}/connect`, { timeout: 60 })).status, 200)
  const with1 = await call('POST', '/sandboxes', { templateID: 'base', secure: true })
  const secure = await with1.json()
  t.after(() => call('DELETE', `/sandboxes/${secure.sandboxID}`))
  assert.match(secure.envdAccessToken, /^[0-9a-f]{64}$/)
  // Tools that look: logs, many metrics, teams.
  const { logs } = await (await call('GET', `/sandboxes/${s.sandboxID}/logs`)).json()
  assert.deepEqual([logs.length > 0, logs.every(({ line }) => JSON.parse(line).level === 'info' && JSON.parse(line).logger === 'engi')], [true, true])
  const many = await (await call('GET', `/sandboxes/metrics?sandbox_ids=${s.sandboxID}`)).json()
  assert.ok(many.sandboxes[s.sandboxID].memTotal > 0)
  assert.equal((await (await call('GET', '/teams')).json()).length, 1)
  const gone = await call('GET', '/sandboxes/nosuch')
  assert.equal(gone.status, 404)
  assert.equal((await gone.json()).code, 404)
})

about('Sandboxes: environment, access, network policy')

scenario('variables given at creation', async (t) => {
  const s = await box(t, { envs: { GREETING: 'hello wörld', EMPTY: '' } })
  assert.equal((await s.commands.run('echo "$GREETING/${EMPTY-unset}/"')).stdout, 'hello wörld//\n')
  assert.equal((await s.commands.run('echo $GREETING', { envs: { GREETING: 'mine' } })).stdout, 'mine\n')
})

scenario('the inside needs the access token', async (t) => {
  const s = await box(t)
  const at = (path, headers = {}, init = {}) => fetch(process.env.E2B_SANDBOX_URL + path, {
    ...init, headers: { 'E2b-Sandbox-Id': s.sandboxId, 'E2b-Sandbox-Port': '49983', ...headers } })
  assert.equal((await at('/health')).status, 204)
  assert.equal((await at('/envs')).status, 401)
  assert.equal((await at('/files?path=/etc/hostname')).status, 401)
  const r = await at('/process.Process/List', { 'Content-Type': 'application/json', 'X-Access-Token': 'wrong' }, { method: 'POST', body: '{}' })
  assert.equal(r.status, 401)
  assert.equal((await r.json()).code, 401)
})

scenario('a sandbox that is not secure', async (t) => {
  const r = await fetch(process.env.E2B_API_URL + '/sandboxes', {
    method: 'POST', headers: { 'X-API-KEY': process.env.E2B_API_KEY }, body: JSON.stringify({ templateID: 'base', timeout: 60 }) })
  const { sandboxID } = await r.json()
  t.after(() => Sandbox.kill(sandboxID))
  const files = await fetch(process.env.E2B_SANDBOX_URL + '/files?path=/etc/debian_version', {
    headers: { 'E2b-Sandbox-Id': sandboxID, 'E2b-Sandbox-Port': '49983' } })
  assert.equal(files.status, 200)
  assert.match(await files.text(), /^12/)
})

scenario('requests for a sandbox that is gone answer 502', async (t) => {
  const s = await box(t)
  await s.kill()
  for (const id of [s.sandboxId, 'a'.repeat(26), 'nosuch']) {
    const r = await fetch(process.env.E2B_SANDBOX_URL + '/health', { headers: { 'E2b-Sandbox-Id': id, 'E2b-Sandbox-Port': '49983' } })
    assert.equal(r.status, 502)
    const said = await r.json()
    assert.deepEqual([said.sandboxId, said.code, said.message], [id, 502, 'The sandbox was not found'])
  }
})

scenario('the network policy is kept and shown, without passwords', async (t) => {
  const s = await box(t, {
    allowInternetAccess: false,
    network: {
      allowOut: ['1.1.1.1', 'example.com'], denyOut: ['0.0.0.0/0'], maskRequestHost: 'app.test:${PORT}',
      egressProxy: { address: 'proxy.test:1080', username: 'u', password: 'very-secret' },
      rules: { 'api.example.com': [{ transform: { headers: { 'X-A': 'b' } } }] },
    },
  })
  const info = await s.getInfo()
  assert.equal(info.allowInternetAccess, false)
  assert.deepEqual(info.network.allowOut, ['1.1.1.1', 'example.com'])
  assert.deepEqual(info.network.denyOut, ['0.0.0.0/0'])
  assert.equal(info.network.maskRequestHost, 'app.test:${PORT}')
  assert.ok(!JSON.stringify(info).includes('very-secret'))
  assert.equal(info.network.egressProxy.address, 'proxy.test:1080')
  assert.equal(info.network.rules['api.example.com'][0].transform.headers['X-A'], 'b')
})

scenario('updateNetwork replaces the policy', async (t) => {
  const s = await box(t, { network: { denyOut: ['10.0.0.0/8'] } })
  await s.updateNetwork({ allowOut: ['8.8.8.8/32'], denyOut: ['0.0.0.0/0'] })
  let info = await s.getInfo()
  assert.deepEqual([info.network.allowOut, info.network.denyOut], [['8.8.8.8/32'], ['0.0.0.0/0']])
  await s.updateNetwork({})
  info = await s.getInfo()
  assert.deepEqual([info.network.allowOut ?? [], info.network.denyOut ?? []], [[], []])
})

scenario('a name to allow needs all else denied', async () => {
  await fails(() => Sandbox.create('base', { network: { allowOut: ['example.com'] } }), SandboxError, /400/)
  await fails(() => Sandbox.create('base', { network: { denyOut: ['example.com'] } }), SandboxError, /400/)
})

scenario('what happens at the deadline is shown', async (t) => {
  const s = await box(t, { lifecycle: { onTimeout: 'pause', autoResume: true } })
  assert.deepEqual((await s.getInfo()).lifecycle, { onTimeout: 'pause', autoResume: true })
  const k = await box(t)
  assert.deepEqual((await k.getInfo()).lifecycle, { onTimeout: 'kill', autoResume: false })
})

about('Metrics')

scenario('metrics are there within seconds and make sense', async (t) => {
  const s = await box(t)
  const m = await until(async () => {
    const all = await s.getMetrics()
    return all.length && all
  }, 'a metric', 30_000)
  const last = m.at(-1)
  assert.ok(last.timestamp instanceof Date && Math.abs(Date.now() - last.timestamp) < 60_000)
  assert.ok(last.cpuCount >= 1 && last.cpuUsedPct >= 0)
  assert.ok(last.memUsed > 0 && last.memUsed <= last.memTotal, `memory ${last.memUsed} of ${last.memTotal}`)
  assert.ok(last.diskTotal > 0 && last.diskUsed >= 0)
})

scenario('metrics of a time', async (t) => {
  const s = await box(t)
  await until(async () => (await s.getMetrics()).length, 'a metric', 30_000)
  const later = await s.getMetrics({ start: new Date(Date.now() + 3600_000) })
  assert.equal(later.length, 0)
  const before = await s.getMetrics({ end: new Date(Date.now() - 3600_000) })
  assert.equal(before.length, 0)
  await fails(() => Sandbox.getMetrics('a'.repeat(26)), SandboxNotFoundError)
})

await run()
