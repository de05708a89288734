// The last package of version 1, which knows a domain only and speaks https.
import { Sandbox, CommandExitError, NotFoundError } from 'e2b-1.13.2'
import { about, assert, fails, run, scenario, until } from './scenario.mjs'

about('Version 1, by domain')

const box = async (t, opts = {}) => {
  const s = await Sandbox.create('base', { timeoutMs: 120_000, ...opts })
  t.after(() => Sandbox.kill(s.sandboxId))
  return s
}

scenario('create, run, kill', async (t) => {
  const s = await box(t)
  assert.equal((await s.commands.run('echo $USER')).stdout, 'user\n')
  const err = await fails(() => s.commands.run('exit 3'), CommandExitError)
  assert.equal(err.exitCode, 3)
  assert.equal(await s.isRunning(), true)
  assert.equal(await Sandbox.kill(s.sandboxId), true)
  assert.equal(await Sandbox.kill(s.sandboxId), false)
})

scenario('connect and list', async (t) => {
  const mark = `m${Math.random()}`
  const s = await box(t, { metadata: { mark } })
  await s.files.write('f', 'here')
  const c = await Sandbox.connect(s.sandboxId)
  assert.equal(await c.files.read('f'), 'here')
  const found = await Sandbox.list({ query: { metadata: { mark } } })
  assert.deepEqual(found.map((x) => x.metadata), [{ mark }])
})

scenario('files and directories', async (t) => {
  const s = await box(t)
  await s.files.write([{ path: '/tmp/a/1', data: 'one' }, { path: '/tmp/a/2', data: 'zwei ü' }])
  assert.deepEqual((await s.files.list('/tmp/a')).map((e) => e.name), ['1', '2'])
  assert.equal(await s.files.read('/tmp/a/2'), 'zwei ü')
  assert.equal(await s.files.exists('/tmp/a/3'), false)
  await fails(() => s.files.read('/tmp/a/3'), NotFoundError)
  await s.files.remove('/tmp/a')
})

scenario('watch, terminal and standard input', async (t) => {
  const s = await box(t)
  await s.files.makeDir('/tmp/w')
  const seen = []
  const w = await s.files.watchDir('/tmp/w', (e) => seen.push(e))
  await s.files.write('/tmp/w/x', '1')
  await until(() => seen.some((e) => e.name === 'x'), 'the event')
  await w.stop()
  let out = ''
  const p = await s.pty.create({ cols: 80, rows: 24, onData: (d) => { out += new TextDecoder().decode(d) } })
  await s.pty.sendInput(p.pid, new TextEncoder().encode('echo $((6*7))\n'))
  await until(() => out.includes('42'), 'the answer')
  await s.pty.kill(p.pid)
  const h = await s.commands.run('head -n 1', { background: true })
  await s.commands.sendStdin(h.pid, 'line\n')
  assert.equal((await h.wait()).stdout, 'line\n')
})

scenario('a port, by name and https', async (t) => {
  const s = await box(t)
  const h = await s.commands.run('mkdir -p /tmp/w && cd /tmp/w && echo old > index.html && python3 -m http.server 8000 --bind 127.0.0.1', { background: true, timeoutMs: 0 })
  h.wait().catch(() => {})
  const at = `https://${s.getHost(8000)}/`
  await until(async () => (await fetch(at)).status === 200, 'the server')
  assert.equal(await (await fetch(at)).text(), 'old\n')
})

scenario('a deadline', async (t) => {
  const s = await box(t)
  await s.setTimeout(2000)
  await until(async () => !(await s.isRunning()), 'the end')
})

await run(2)
