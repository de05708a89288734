import { Sandbox, SandboxError, Secret, SecretNotFoundError, Volume, VolumeNotFoundError, VolumePathNotFoundError, VolumeError } from 'e2b'
import { randomBytes } from 'node:crypto'
import { about, assert, box, fails, run, scenario, until } from './scenario.mjs'

about('Volumes')

const name = (p) => `${p}-${Math.random().toString(36).slice(2)}`
const volume = async (t) => {
  const v = await Volume.create(name('vol'))
  t.after(() => Volume.destroy(v.volumeId).catch(() => {}))
  return v
}

scenario('create, list, look, destroy', async (t) => {
  const v = await volume(t)
  assert.ok((await Volume.list()).some((x) => x.volumeId === v.volumeId && x.name === v.name))
  const i = await Volume.getInfo(v.volumeId)
  assert.deepEqual([i.name, i.token], [v.name, v.token])
  assert.equal(await Volume.destroy(v.volumeId), true)
  assert.equal(await Volume.destroy(v.volumeId), false)
  await fails(() => Volume.getInfo(v.volumeId), VolumeNotFoundError)
  await fails(() => Volume.connect(v.volumeId), VolumeNotFoundError)
})

scenario('files from outside', async (t) => {
  const v = await volume(t)
  const made = await v.writeFile('/a/b.txt', 'hello wörld')
  assert.deepEqual([made.path, made.size, made.type], ['/a/b.txt', 12, 'file'])
  assert.equal(await v.readFile('/a/b.txt'), 'hello wörld')
  const data = randomBytes(3_000_000)
  await v.writeFile('/big', new Blob([data]).stream())
  assert.ok(Buffer.from(await v.readFile('/big', { format: 'bytes' })).equals(data))
  assert.equal(await v.exists('/a/b.txt'), true)
  assert.equal(await v.exists('/none'), false)
  await fails(() => v.readFile('/none'), VolumePathNotFoundError)
  await fails(() => v.getInfo('/none'), VolumePathNotFoundError)
})

scenario('directories, attributes, removal', async (t) => {
  const v = await volume(t)
  const d = await v.makeDir('/d/e', { mode: 0o750, force: true })
  assert.deepEqual([d.type, d.mode & 0o777], ['directory', 0o750])
  await v.writeFile('/d/e/f', 'x', { mode: 0o600, uid: 1000, gid: 1000 })
  const names = (l) => l.map((e) => e.path).sort()
  assert.deepEqual(names(await v.list('/d')), ['/d/e'])
  assert.deepEqual(names(await v.list('/d', { depth: 2 })), ['/d/e', '/d/e/f'])
  let i = await v.getInfo('/d/e/f')
  assert.deepEqual([i.mode & 0o777, i.uid, i.gid], [0o600, 1000, 1000])
  i = await v.updateMetadata('/d/e/f', { mode: 0o644 })
  assert.equal(i.mode & 0o777, 0o644)
  assert.ok(Math.abs(Date.now() - i.mtime) < 60_000)
  await v.remove('/d')
  assert.equal(await v.exists('/d/e/f'), false)
})

scenario('paths do not lead out of it', async (t) => {
  const v = await volume(t)
  await v.writeFile('/../../../../escape', 'in')
  assert.deepEqual((await v.list('/')).map((e) => e.path).filter((p) => p !== '/lost+found'), ['/escape'])
})

scenario('only with its token', async (t) => {
  const v = await volume(t)
  const w = await volume(t)
  for (const token of ['', w.token, process.env.E2B_API_KEY]) {
    const r = await fetch(`${process.env.E2B_VOLUME_API_URL}/volumecontent/${v.volumeId}/path?path=/`, { headers: { Authorization: `Bearer ${token}` } })
    assert.equal(r.status, 401)
  }
})

scenario('mounted in a sandbox, and it outlives it', async (t) => {
  const v = await volume(t)
  await v.writeFile('/from-outside', 'hi', { uid: 1000, gid: 1000 })
  const s = await box(t, { volumeMounts: { '/data': v } })
  assert.equal(await s.files.read('/data/from-outside'), 'hi')
  await s.commands.run('echo inside | sudo tee /data/from-inside')
  assert.deepEqual((await s.getInfo()).volumeMounts?.map((m) => [m.name, m.path]) ?? [[v.name, '/data']], [[v.name, '/data']])
  await s.kill()
  assert.equal(await v.readFile('/from-inside'), 'inside\n')
  const again = await box(t, { volumeMounts: { '/data': v.name } })
  assert.equal(await again.files.read('/data/from-inside'), 'inside\n')
})

scenario('one sandbox at a time, and not removed while it is mounted', async (t) => {
  const v = await volume(t)
  const s = await box(t, { volumeMounts: { '/data': v } })
  await fails(() => Sandbox.create('base', { volumeMounts: { '/data': v } }), SandboxError, /409/)
  await fails(() => Volume.destroy(v.volumeId), VolumeError, /409/)
  await s.kill()
  assert.equal(await Volume.destroy(v.volumeId), true)
})

scenario('names are unique, and others do not see it', async (t) => {
  const v = await volume(t)
  await fails(() => Volume.create(v.name), VolumeError, /409/)
  const apiKey = process.env.SCENARIO_OTHER_KEY
  await fails(() => Volume.getInfo(v.volumeId, { apiKey }), VolumeNotFoundError)
  assert.equal(await Volume.destroy(v.volumeId, { apiKey }), false)
  await fails(() => Sandbox.create('base', { volumeMounts: { '/data': v.name }, apiKey }), SandboxError)
})

about('Secrets')

const secret = async (t, value = 'shh', opts) => {
  const c = await Secret.create(name('sec'), value, opts)
  t.after(() => Secret.destroy(c.secretId))
  return c
}

scenario('create, update, list, destroy; never the value', async (t) => {
  const c = await secret(t, 'the-value', { metadata: { team: 'a' } })
  assert.equal(c.version, 1)
  assert.deepEqual(c.metadata, { team: 'a' })
  const u = await Secret.update(c.name, 'another-value')
  assert.deepEqual([u.version, u.metadata, u.secretId], [2, { team: 'a' }, c.secretId])
  const byId = await Secret.getInfo(c.secretId)
  assert.equal(byId.name, c.name)
  assert.ok(!JSON.stringify(byId).includes('value'))
  assert.equal(await Secret.exists(c.name), true)
  assert.equal(await Secret.destroy(c.name), true)
  assert.equal(await Secret.destroy(c.name), false)
  assert.equal(await Secret.exists(c.name), false)
  await fails(() => Secret.getInfo(c.name), SecretNotFoundError)
})

scenario('list in pages', async (t) => {
  const made = []
  for (let i = 0; i < 3; i++) made.push((await secret(t)).secretId)
  const pages = Secret.list({ limit: 2 })
  const seen = []
  while (pages.hasNext) seen.push(...(await pages.nextItems()).map((c) => c.secretId))
  for (const id of made) assert.ok(seen.includes(id))
  assert.equal(new Set(seen).size, seen.length)
})

scenario('names are unique, and others do not see it', async (t) => {
  const c = await secret(t)
  await fails(() => Secret.create(c.name, 'x'), Error, /409/)
  const apiKey = process.env.SCENARIO_OTHER_KEY
  await fails(() => Secret.getInfo(c.secretId, { apiKey }), SecretNotFoundError)
  assert.equal(await Secret.exists(c.name, { apiKey }), false)
  await fails(() => Secret.update(c.secretId, 'x', { apiKey }), SecretNotFoundError)
})

scenario('a value does not enter the sandbox', async (t) => {
  const c = await secret(t, 'never-inside-42')
  const s = await box(t, { network: { rules: { 'api.example.com': [{ transform: { headers: { Authorization: `Bearer \${e2b.secrets.${c.name}}` } } }] } } })
  assert.equal((await s.commands.run('env; cat /.engi/guest.json 2>/dev/null | grep -c never-inside || true')).stdout.includes('never-inside-42'), false)
  assert.match((await s.getInfo()).network.rules['api.example.com'][0].transform.headers.Authorization, /\$\{e2b\.secrets\./)
})

await run(3)
