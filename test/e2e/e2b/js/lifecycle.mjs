import { Sandbox, SandboxError, SandboxNotFoundError, TimeoutError } from 'e2b'
import { about, assert, box, fails, run, scenario, sleep, until } from './scenario.mjs'

about('Pause, resume, auto-pause')

const all = async (pages) => {
  const items = []
  while (pages.hasNext) items.push(...(await pages.nextItems()))
  return items
}
// A counter that keeps its count in memory only.
const counter = `python3 -u -c "
import os, time
n = 0
while True:
    n += 1
    open('/tmp/count.new', 'w').write(str(n)); os.replace('/tmp/count.new', '/tmp/count')
    time.sleep(0.05)"`
const count = async (s) => Number(await s.files.read('/tmp/count'))
const boot = async (s) => (await s.commands.run('cat /proc/sys/kernel/random/boot_id')).stdout.trim()

scenario('a paused sandbox is listed, does not run, and wakes by connect with its processes', async (t) => {
  const mark = { life: `p${Math.random()}` }
  const s = await box(t, { metadata: mark })
  const h = await s.commands.run(counter, { background: true, timeoutMs: 0 })
  h.wait().catch(() => {})
  await until(async () => (await s.files.exists('/tmp/count')) && (await count(s)) > 5, 'the count')
  const before = await count(s)
  assert.equal(await s.pause(), true)
  assert.equal((await s.getInfo()).state, 'paused')
  assert.equal(await s.isRunning(), false)
  const listed = async (state) => (await all(Sandbox.list({ query: { metadata: mark, state: [state] } }))).length
  assert.deepEqual([await listed('paused'), await listed('running')], [1, 0])
  const c = await s.connect()
  assert.equal(c.sandboxId, s.sandboxId)
  assert.ok(await s.isRunning())
  assert.ok((await s.commands.list()).some((p) => p.pid === h.pid), 'the process is gone')
  const now = await count(s)
  assert.ok(now >= before, `${now} after ${before}`)
  await until(async () => (await count(s)) > now + 3, 'it to go on')
})

scenario('pause twice', async (t) => {
  const s = await box(t)
  assert.equal(await s.pause(), true)
  assert.equal(await s.pause(), false)
})

scenario('pause what is gone', async (t) => {
  const s = await box(t)
  await s.kill()
  await fails(() => s.pause(), SandboxNotFoundError)
})

scenario('kill a paused sandbox', async (t) => {
  const s = await box(t)
  await s.files.write('f', 'x')
  await s.pause()
  assert.equal(await s.kill(), true)
  await fails(() => Sandbox.connect(s.sandboxId), SandboxNotFoundError)
})

scenario('what was written and is in memory is the same after waking', async (t) => {
  const s = await box(t)
  await s.commands.run('head -c 20000000 /dev/urandom > ~/data && sha256sum ~/data > ~/sum')
  await s.pause()
  await Sandbox.connect(s.sandboxId)
  assert.match((await s.commands.run('sha256sum -c ~/sum')).stdout, /OK/)
  const skew = Math.abs(Number((await s.commands.run('date +%s')).stdout) - Date.now() / 1000)
  assert.ok(skew < 5, `the clock is ${skew} s off`)
})

scenario('pause without memory boots anew on the same disk', async (t) => {
  const s = await box(t)
  const first = await boot(s)
  await s.files.write('kept', 'yes')
  const h = await s.commands.run('sleep 1000', { background: true, timeoutMs: 0 })
  h.wait().catch(() => {})
  assert.equal(await s.pause({ keepMemory: false }), true)
  assert.equal((await s.getInfo()).state, 'paused')
  await s.connect()
  assert.equal(await s.files.read('kept'), 'yes')
  assert.notEqual(await boot(s), first)
  assert.ok(!(await s.commands.list()).some((p) => p.args.includes('sleep 1000')))
})

scenario('variables of the sandbox survive both', async (t) => {
  const s = await box(t, { envs: { KEEP: 'me' } })
  await s.pause()
  await s.connect()
  assert.equal((await s.commands.run('echo $KEEP')).stdout, 'me\n')
  await s.pause({ keepMemory: false })
  await s.connect()
  assert.equal((await s.commands.run('echo $KEEP')).stdout, 'me\n')
})

scenario('the deadline pauses, if so wanted', async (t) => {
  const s = await box(t, { timeoutMs: 3000, lifecycle: { onTimeout: 'pause' } })
  await s.files.write('before', 'the deadline')
  await until(async () => (await s.getInfo()).state === 'paused', 'the pause')
  assert.equal(await s.isRunning(), false)
  await s.connect({ timeoutMs: 60_000 })
  assert.equal(await s.files.read('before'), 'the deadline')
})

scenario('use from outside wakes it, if so wanted', async (t) => {
  const s = await box(t, { lifecycle: { onTimeout: 'pause', autoResume: true } })
  await s.files.write('f', 'still here')
  await s.pause()
  assert.equal((await s.getInfo()).state, 'paused')
  assert.equal(await s.files.read('f'), 'still here')
  assert.equal((await s.getInfo()).state, 'running')
})

scenario('use from outside does not wake it otherwise', async (t) => {
  const s = await box(t, { lifecycle: { onTimeout: 'pause' } })
  await s.pause()
  await fails(() => s.commands.run('true'), SandboxError)
  assert.equal((await s.getInfo()).state, 'paused')
})

scenario('a resumed sandbox is listed as started since', async (t) => {
  const mark = { life: `s${Math.random()}` }
  const s = await box(t, { metadata: mark })
  await box(t, { metadata: mark })
  await s.pause()
  await sleep(1500)
  const since = new Date()
  await Sandbox.connect(s.sandboxId)
  const query = { metadata: mark, startedAfter: since }
  assert.deepEqual((await all(Sandbox.list({ query }))).map((x) => x.sandboxId), [s.sandboxId])
})

scenario('resume by the older path', async (t) => {
  const s = await box(t)
  const call = () => fetch(`${process.env.E2B_API_URL}/sandboxes/${s.sandboxId}/resume`, {
    method: 'POST', headers: { 'X-API-KEY': process.env.E2B_API_KEY }, body: JSON.stringify({ timeout: 60 }) })
  assert.equal((await call()).status, 409)
  await s.pause()
  assert.equal((await call()).status, 201)
  assert.ok(await s.isRunning())
})

about('Snapshots and forks')

scenario('a snapshot starts others, again and again', async (t) => {
  const s = await box(t)
  await s.files.write('where', 'snapshot')
  const h = await s.commands.run(counter, { background: true, timeoutMs: 0 })
  h.wait().catch(() => {})
  await until(async () => (await s.files.exists('/tmp/count')) && (await count(s)) > 5, 'the count')
  const p = await s.createSnapshot()
  t.after(() => Sandbox.deleteSnapshot(p.snapshotId))
  assert.ok(await s.isRunning())
  await s.files.write('where', 'original')
  for (let i = 0; i < 2; i++) {
    const c = await box(t, { template: p.snapshotId })
    assert.notEqual(c.sandboxId, s.sandboxId)
    assert.equal(await c.files.read('where'), 'snapshot')
    const n = await count(c)
    await until(async () => (await count(c)) > n, 'the copy to count')
    await c.files.write('where', `copy ${i}`)
  }
  assert.equal(await s.files.read('where'), 'original')
})

scenario('snapshots are listed, by sandbox and by name, and deleted', async (t) => {
  const s = await box(t)
  const name = `snap-${Math.random().toString(36).slice(2)}`
  const a = await s.createSnapshot()
  const b = await s.createSnapshot({ name })
  assert.deepEqual(b.names, [name])
  const mine = (await all(s.listSnapshots())).map((p) => p.snapshotId)
  assert.deepEqual(mine.sort(), [a.snapshotId, b.snapshotId].sort())
  const named = await all(Sandbox.listSnapshots({ name }))
  assert.deepEqual(named.map((p) => p.snapshotId), [b.snapshotId])
  assert.equal((await all(Sandbox.listSnapshots({ sandboxId: s.sandboxId, limit: 1 }))).length, 2)
  const c = await box(t, { template: name })
  assert.ok(await c.isRunning())
  for (const p of [a, b]) assert.equal(await Sandbox.deleteSnapshot(p.snapshotId), true)
  assert.equal(await Sandbox.deleteSnapshot(a.snapshotId), false)
  assert.equal((await all(s.listSnapshots())).length, 0)
  await fails(() => Sandbox.create(name), SandboxError)
})

scenario('snapshots of other owners do not exist', async (t) => {
  const s = await box(t)
  const p = await s.createSnapshot()
  t.after(() => Sandbox.deleteSnapshot(p.snapshotId))
  const apiKey = process.env.SCENARIO_OTHER_KEY
  await fails(() => Sandbox.create(p.snapshotId, { apiKey }), SandboxError, /404/)
  assert.equal(await Sandbox.deleteSnapshot(p.snapshotId, { apiKey }), false)
  await fails(() => Sandbox.createSnapshot(s.sandboxId, { apiKey }), SandboxNotFoundError)
})

scenario('fork gives independent copies with memory', async (t) => {
  const s = await box(t)
  await s.files.write('who', 'parent')
  const h = await s.commands.run(counter, { background: true, timeoutMs: 0 })
  h.wait().catch(() => {})
  await until(async () => (await s.files.exists('/tmp/count')) && (await count(s)) > 5, 'the count')
  const copies = await s.fork({ count: 2, timeoutMs: 60_000 })
  assert.equal(copies.length, 2)
  for (const c of copies) {
    assert.ok(c instanceof Sandbox, String(c))
    t.after(() => c.kill())
  }
  assert.equal(new Set([s, ...copies].map((c) => c.sandboxId)).size, 3)
  for (const c of copies) {
    assert.equal(await c.files.read('who'), 'parent')
    await c.files.write('who', c.sandboxId)
    const n = await count(c)
    await until(async () => (await count(c)) > n, 'the copy to count')
  }
  assert.equal(await s.files.read('who'), 'parent')
  const random = await Promise.all(copies.map(async (c) => (await c.commands.run('cat /proc/sys/kernel/random/uuid')).stdout))
  assert.notEqual(random[0], random[1])
})

scenario('fork of what is gone', async (t) => {
  const s = await box(t)
  await s.kill()
  await fails(() => s.fork(), SandboxNotFoundError)
})

about('Lifecycle events')

const events = async (path, apiKey = process.env.E2B_API_KEY) => {
  const r = await fetch(`${process.env.E2B_API_URL}/events/sandboxes${path}`, { headers: { 'X-API-Key': apiKey } })
  assert.equal(r.status, 200)
  return r.json()
}
const types = (list) => list.map((e) => e.type.replace('sandbox.lifecycle.', ''))

scenario('a life is told from its creation to its end, which it outlives', async (t) => {
  const s = await box(t, { metadata: { life: 'told' } })
  await s.setTimeout(300_000)
  const p = await s.createSnapshot()
  t.after(() => Sandbox.deleteSnapshot(p.snapshotId))
  await s.pause()
  await s.connect()
  await s.kill()
  const list = await events(`/${s.sandboxId}?orderAsc=true&limit=100`)
  const told = types(list)
  assert.deepEqual(told.filter((x) => x !== 'updated'), ['created', 'checkpointed', 'paused', 'resumed', 'killed'])
  assert.ok(told.includes('updated'))
  for (const e of list) {
    assert.equal(e.version, 'v2')
    assert.equal(e.sandboxId, s.sandboxId)
    assert.equal(e.sandboxTemplateId, 'base')
    assert.equal(e.eventData.sandbox_metadata.life, 'told')
    const execution = e.eventData.execution
    assert.equal(Boolean(execution), /paused|killed/.test(e.type), e.type)
    if (execution) assert.ok(execution.execution_time >= 0 && execution.execution_time < 120_000 && execution.memory_mb > 0, JSON.stringify(execution))
  }
  const of = (type) => list.find((e) => e.type === `sandbox.lifecycle.${type}`)
  assert.equal(of('created').sandboxExecutionId, of('paused').sandboxExecutionId)
  assert.equal(of('resumed').sandboxExecutionId, of('killed').sandboxExecutionId)
  assert.notEqual(of('paused').sandboxExecutionId, of('killed').sandboxExecutionId)
  assert.deepEqual(types(await events(`/${s.sandboxId}?limit=2`)), ['killed', 'resumed'])
  assert.deepEqual(types(await events(`/${s.sandboxId}?types=sandbox.lifecycle.paused&types=sandbox.lifecycle.created`)), ['paused', 'created'])
  assert.ok((await events('?limit=100&types=sandbox.lifecycle.killed')).some((e) => e.id === of('killed').id))
  assert.deepEqual(await events(`/${s.sandboxId}`, process.env.SCENARIO_OTHER_KEY), [])
})

await run(2)
