import { FileNotFoundError, FileType, FilesystemEventType, InvalidArgumentError, Sandbox, SandboxError, NotEnoughSpaceError, getSignature } from 'e2b'
import { createHash, randomBytes } from 'node:crypto'
import { about, assert, box, fails, run, scenario, shared, sleep, until } from './scenario.mjs'

about('Files')
const sandbox = shared()
const dir = async () => {
  const s = await sandbox()
  return [s, `/tmp/d${Math.random().toString(36).slice(2)}`]
}

scenario('write and read text', async () => {
  const [s, d] = await dir()
  const i = await s.files.write(`${d}/a/b.txt`, 'grüße 😀')
  assert.deepEqual([i.name, i.path, i.type], ['b.txt', `${d}/a/b.txt`, 'file'])
  assert.equal(await s.files.read(`${d}/a/b.txt`), 'grüße 😀')
  await s.files.write(`${d}/a/b.txt`, 'x')
  assert.equal(await s.files.read(`${d}/a/b.txt`), 'x')
})

scenario('bytes, blobs and streams', async () => {
  const [s, d] = await dir()
  const data = randomBytes(200_000)
  await s.files.write(`${d}/1`, data.buffer.slice(data.byteOffset, data.byteOffset + data.length))
  assert.ok(Buffer.from(await s.files.read(`${d}/1`, { format: 'bytes' })).equals(data))
  await s.files.write(`${d}/2`, new Blob([data]))
  assert.ok(Buffer.from(await (await s.files.read(`${d}/2`, { format: 'blob' })).arrayBuffer()).equals(data))
  await s.files.write(`${d}/3`, new Blob([data]).stream())
  const parts = []
  for await (const p of await s.files.read(`${d}/3`, { format: 'stream' })) parts.push(p)
  assert.ok(Buffer.concat(parts).equals(data))
})

scenario('compressed on the way', async () => {
  const [s, d] = await dir()
  const text = 'all work and no play '.repeat(10_000)
  await s.files.write(`${d}/z`, text, { gzip: true })
  assert.equal(await s.files.read(`${d}/z`, { gzip: true }), text)
  assert.equal((await s.commands.run(`wc -c < ${d}/z`)).stdout.trim(), String(text.length))
})

scenario('an empty file', async () => {
  const [s, d] = await dir()
  await s.files.write(`${d}/e`, '')
  assert.equal(await s.files.read(`${d}/e`), '')
  assert.equal((await s.files.read(`${d}/e`, { format: 'bytes' })).length, 0)
  assert.equal((await s.files.getInfo(`${d}/e`)).size, 0)
})

scenario('many in one request', async () => {
  const [s, d] = await dir()
  const made = await s.files.write([{ path: `${d}/x/1`, data: 'one' }, { path: `${d}/y/2 ü+q`, data: 'two' }])
  assert.deepEqual(made.map((m) => m.path), [`${d}/x/1`, `${d}/y/2 ü+q`])
  assert.equal(await s.files.read(`${d}/y/2 ü+q`), 'two')
  assert.deepEqual(await s.files.writeFiles([]), [])
})

scenario('relative paths and other users', async () => {
  const s = await sandbox()
  await s.files.write('rel/a', 'mine')
  assert.equal((await s.commands.run('cat ~/rel/a; stat -c %U:%G:%a ~/rel ~/rel/a')).stdout, 'mineuser:user:755\nuser:user:644\n')
  await s.files.write('rel-root', 'roots', { user: 'root' })
  assert.equal((await s.commands.run('cat /root/rel-root; stat -c %U /root/rel-root', { user: 'root' })).stdout, 'rootsroot\n')
  assert.equal(await s.files.read('rel-root', { user: 'root' }), 'roots')
})

scenario('what cannot be read', async () => {
  const [s, d] = await dir()
  await fails(() => s.files.read(`${d}/none`), FileNotFoundError)
  await s.files.makeDir(d)
  await fails(() => s.files.read(d), InvalidArgumentError)
  await fails(() => s.files.write(d, 'x'), InvalidArgumentError)
})

scenario('information about a file', async () => {
  const [s, d] = await dir()
  await s.files.write(`${d}/f`, '12345')
  const i = await s.files.getInfo(`${d}/f`)
  assert.deepEqual([i.name, i.path, i.type, i.size, i.mode, i.permissions, i.owner, i.group],
    ['f', `${d}/f`, FileType.FILE, 5, 0o644, '-rw-r--r--', 'user', 'user'])
  assert.ok(Math.abs(Date.now() - i.modifiedTime) < 60_000)
  await fails(() => s.files.getInfo(`${d}/none`), FileNotFoundError)
  assert.equal((await s.files.getInfo(d)).type, FileType.DIR)
})

scenario('symbolic links', async () => {
  const [s, d] = await dir()
  await s.files.write(`${d}/target`, 'content')
  await s.commands.run(`chmod 640 ${d}/target; mkdir ${d}/sub; ln -s target ${d}/link; ln -s sub ${d}/way; ln -s none ${d}/broken`)
  const i = await s.files.getInfo(`${d}/link`)
  assert.deepEqual([i.symlinkTarget, i.type, i.mode], [`${d}/target`, FileType.FILE, 0o640])
  assert.equal((await s.files.getInfo(`${d}/way`)).type, FileType.DIR)
  assert.equal((await s.files.getInfo(`${d}/broken`)).type, FileType.SYMLINK)
  assert.deepEqual((await s.files.list(d)).map((e) => e.name), ['broken', 'link', 'sub', 'target', 'way'])
  assert.equal(await s.files.read(`${d}/link`), 'content')
})

scenario('metadata of files', async () => {
  const [s, d] = await dir()
  const made = await s.files.write(`${d}/m`, 'x', { metadata: { source: 'upload', kind: 'test' } })
  assert.deepEqual(made.metadata, { source: 'upload', kind: 'test' })
  assert.deepEqual((await s.files.getInfo(`${d}/m`)).metadata, { source: 'upload', kind: 'test' })
  assert.equal((await s.files.write(`${d}/m`, 'y')).metadata, undefined)
  assert.equal((await s.files.getInfo(`${d}/m`)).metadata, undefined)
})

scenario('files that are generated when they are read', async () => {
  const [s] = await dir()
  assert.match(await s.files.read('/proc/self/status'), /^Name:/)
  assert.match(await s.files.read('/proc/meminfo', { gzip: true }), /^MemTotal:/)
})

scenario('make directories', async () => {
  const [s, d] = await dir()
  assert.equal(await s.files.makeDir(`${d}/a/b/c`), true)
  assert.equal(await s.files.makeDir(`${d}/a/b/c`), false)
  assert.equal((await s.commands.run(`stat -c %U:%a ${d}/a/b`)).stdout, 'user:755\n')
})

scenario('list a directory', async () => {
  const [s, d] = await dir()
  for (const p of ['b/1', 'b/c/2', 'a']) await s.files.write(`${d}/${p}`, p)
  const names = async (opts) => (await s.files.list(d, opts)).map((e) => e.path.slice(d.length + 1))
  assert.deepEqual(await names(), ['a', 'b'])
  assert.deepEqual(await names({ depth: 2 }), ['a', 'b', 'b/1', 'b/c'])
  assert.deepEqual(await names({ depth: 9 }), ['a', 'b', 'b/1', 'b/c', 'b/c/2'])
  await fails(() => s.files.list(`${d}/none`), FileNotFoundError)
  await fails(() => s.files.list(`${d}/a`), InvalidArgumentError)
  await fails(() => s.files.list(d, { depth: 0 }), InvalidArgumentError)
})

scenario('exists, rename, remove', async () => {
  const [s, d] = await dir()
  await s.files.write(`${d}/a`, '1')
  assert.equal(await s.files.exists(`${d}/a`), true)
  const moved = await s.files.rename(`${d}/a`, `${d}/sub/b`)
  assert.equal(moved.path, `${d}/sub/b`)
  assert.equal(await s.files.exists(`${d}/a`), false)
  assert.equal(await s.files.read(`${d}/sub/b`), '1')
  await fails(() => s.files.rename(`${d}/none`, `${d}/x`), FileNotFoundError)
  await s.files.remove(d)
  assert.equal(await s.files.exists(d), false)
  await s.files.remove(`${d}/gone`)
})

scenario('64 MiB there and back, with the same hash', async () => {
  const [s, d] = await dir()
  const data = randomBytes(64 << 20)
  const sum = createHash('sha256').update(data).digest('hex')
  await s.files.write(`${d}/big`, new Blob([data]).stream())
  assert.equal((await s.commands.run(`sha256sum < ${d}/big`)).stdout.split(' ')[0], sum)
  const h = createHash('sha256')
  for await (const p of await s.files.read(`${d}/big`, { format: 'stream' })) h.update(p)
  assert.equal(h.digest('hex'), sum)
  await s.files.remove(d)
})

scenario('paths that cannot be', async () => {
  const s = await sandbox()
  await fails(() => s.files.read('/tmp/../../../../etc/nothing-here'), FileNotFoundError)
  await fails(() => s.files.read('/proc/none/x'), FileNotFoundError)
  await fails(() => s.files.write('/x'.repeat(5000), 'x'), SandboxError)
})

about('Watching files')

const watch = async (d, opts) => {
  const s = await sandbox()
  const seen = []
  const w = await s.files.watchDir(d, (e) => seen.push(e), opts)
  return [s, seen, w]
}
const has = (seen, type, name) => until(() => seen.find((e) => e.type === type && e.name === name), `${type} of ${name}: ${JSON.stringify(seen)}`)

scenario('creation, writing and removal', async () => {
  const [s0, d] = await dir()
  await s0.files.makeDir(d)
  const [s, seen, w] = await watch(d)
  await s.files.write(`${d}/f`, 'one')
  await has(seen, FilesystemEventType.CREATE, 'f')
  await has(seen, FilesystemEventType.WRITE, 'f')
  await s.files.remove(`${d}/f`)
  await has(seen, FilesystemEventType.REMOVE, 'f')
  await w.stop()
})

scenario('rename and mode', async () => {
  const [s0, d] = await dir()
  await s0.files.write(`${d}/a`, '1')
  const [s, seen, w] = await watch(d)
  await s.commands.run(`chmod 600 ${d}/a`)
  await has(seen, FilesystemEventType.CHMOD, 'a')
  await s.files.rename(`${d}/a`, `${d}/b`)
  await has(seen, FilesystemEventType.RENAME, 'a')
  await has(seen, FilesystemEventType.CREATE, 'b')
  await w.stop()
})

scenario('below, if asked for', async () => {
  const [s0, d] = await dir()
  await s0.files.makeDir(`${d}/sub`)
  const [s, deep, w] = await watch(d, { recursive: true })
  const [, flat, w2] = await watch(d)
  await s.files.write(`${d}/sub/f`, '1')
  await has(deep, FilesystemEventType.WRITE, 'sub/f')
  await s.files.write(`${d}/new/deep/g`, '1')
  await has(deep, FilesystemEventType.CREATE, 'new/deep/g')
  assert.ok(!flat.some((e) => e.name.includes('/')), JSON.stringify(flat))
  await w.stop()
  await w2.stop()
})

scenario('with the entry', async () => {
  const [s0, d] = await dir()
  await s0.files.makeDir(d)
  const [s, seen, w] = await watch(d, { includeEntry: true })
  await s.files.write(`${d}/f`, 'abc')
  const e = await until(() => seen.find((x) => x.name === 'f' && x.entry?.size === 3), 'the entry')
  assert.equal(e.entry.path, `${d}/f`)
  await w.stop()
})

scenario('after stop, nothing', async () => {
  const [s0, d] = await dir()
  await s0.files.makeDir(d)
  const [s, seen, w] = await watch(d)
  await w.stop()
  await s.files.write(`${d}/f`, 'abc')
  await sleep(500)
  assert.equal(seen.length, 0)
})

scenario('what cannot be watched', async () => {
  const [s, d] = await dir()
  await fails(() => s.files.watchDir(`${d}/none`, () => {}), FileNotFoundError)
  await s.files.write(`${d}/f`, '')
  await fails(() => s.files.watchDir(`${d}/f`, () => {}), InvalidArgumentError)
})

about('Signed URLs')

const post = async (url, content) => {
  const form = new FormData()
  form.append('file', new Blob([content]), 'ignored')
  return fetch(url, { method: 'POST', body: form })
}

scenario('the published example', async () => {
  const { signature } = await getSignature({ path: 'hello.txt', operation: 'read', user: 'user', envdAccessToken: '0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0' })
  assert.equal(signature, 'v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E')
})

scenario('download and upload without the token', async () => {
  const [s, d] = await dir()
  await s.files.write(`${d}/f`, 'signed')
  const r = await fetch(await s.downloadUrl(`${d}/f`))
  assert.deepEqual([r.status, await r.text()], [200, 'signed'])
  const up = await post(await s.uploadUrl(`${d}/up`), 'sent')
  assert.equal(up.status, 200, await up.text())
  assert.equal(await s.files.read(`${d}/up`), 'sent')
})

scenario('for another user, and for a while', async () => {
  const s = await sandbox()
  await s.files.write('of-root', 'r', { user: 'root' })
  const r = await fetch(await s.downloadUrl('of-root', { user: 'root', useSignatureExpiration: 60 }))
  assert.deepEqual([r.status, await r.text()], [200, 'r'])
})

scenario('too late', async () => {
  const [s, d] = await dir()
  await s.files.write(`${d}/f`, 'x')
  const url = await s.downloadUrl(`${d}/f`, { useSignatureExpiration: 1 })
  await sleep(1600)
  const r = await fetch(url)
  assert.equal(r.status, 401)
  assert.deepEqual(await r.json().then((b) => [b.code, /signature is already expired/.test(b.message)]), [401, true])
})

scenario('a signature for something else', async () => {
  const [s, d] = await dir()
  await s.files.write(`${d}/f`, 'x')
  const url = new URL(await s.downloadUrl(`${d}/f`))
  url.searchParams.set('path', '/etc/shadow')
  assert.equal((await fetch(url)).status, 401)
  const read = await s.downloadUrl(`${d}/f`)
  assert.equal((await post(read, 'no')).status, 401)
})

scenario('by the name of the sandbox', async () => {
  const [s, d] = await dir()
  await s.files.write(`${d}/f`, 'named')
  const url = new URL(await s.downloadUrl(`${d}/f`))
  const origin = new URL(process.env.E2B_SANDBOX_URL)
  const r = await fetch(`http://49983-${s.sandboxId}.localhost:${origin.port}/files${url.search}`)
  assert.deepEqual([r.status, await r.text()], [200, 'named'])
})

await run(3)
