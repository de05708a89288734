import { CommandExitError, Sandbox, SandboxError, TimeoutError, InvalidArgumentError, AuthenticationError, NotFoundError, SandboxNotFoundError } from 'e2b'
import { about, assert, box, fails, run, scenario, shared, until } from './scenario.mjs'

about('Commands')
const sandbox = shared({ envs: { FROM_SANDBOX: 'yes' } })

scenario('run and get output', async () => {
  const s = await sandbox()
  const r = await s.commands.run('echo out; echo err >&2')
  assert.deepEqual([r.exitCode, r.stdout, r.stderr, r.error], [0, 'out\n', 'err\n', undefined])
})

scenario('an exit code is an error with output', async () => {
  const s = await sandbox()
  const err = await fails(() => s.commands.run('echo before; echo why >&2; exit 3'), CommandExitError)
  assert.deepEqual([err.exitCode, err.stdout, err.stderr, err.error], [3, 'before\n', 'why\n', 'exit status 3'])
})

scenario('a process that a signal ended', async () => {
  const s = await sandbox()
  const err = await fails(() => s.commands.run('kill -9 $$'), CommandExitError)
  assert.equal(err.exitCode, -1)
  assert.match(err.error, /signal: killed/)
})

scenario('user, home and directory', async () => {
  const s = await sandbox()
  assert.equal((await s.commands.run('echo $USER $HOME $PWD; id -un')).stdout, 'user /home/user /home/user\nuser\n')
  assert.equal((await s.commands.run('echo $USER $HOME $PWD; id -un', { user: 'root' })).stdout, 'root /root /root\nroot\n')
  assert.equal((await s.commands.run('pwd', { cwd: '/tmp' })).stdout, '/tmp\n')
  assert.equal((await s.commands.run('sudo id -u')).stdout, '0\n')
})

scenario('a directory that is not there', async () => {
  const s = await sandbox()
  await fails(() => s.commands.run('pwd', { cwd: '/no/such' }), InvalidArgumentError, /cwd '\/no\/such' does not exist/)
})

scenario('a user that is not there', async () => {
  const s = await sandbox()
  await fails(() => s.commands.run('true', { user: 'root123' }), AuthenticationError, /invalid username: 'root123'/)
})

scenario('variables of sandbox and command', async () => {
  const s = await sandbox()
  assert.equal((await s.commands.run('echo $FROM_SANDBOX $HERE', { envs: { HERE: 'a b' } })).stdout, 'yes a b\n')
})

scenario('output comes while it runs', async () => {
  const s = await sandbox()
  const seen = []
  const begun = Date.now()
  await s.commands.run('for i in 1 2 3; do echo $i; sleep 0.4; done', { onStdout: (d) => seen.push([d, Date.now() - begun]) })
  assert.equal(seen.map(([d]) => d).join(''), '1\n2\n3\n')
  assert.ok(seen.length >= 3 && seen.at(-1)[1] - seen[0][1] > 500, JSON.stringify(seen))
})

scenario('characters are whole wherever output is cut', async () => {
  const s = await sandbox()
  const r = await s.commands.run(`python3 -c "
import sys, time
for b in 'äöü€😀'.encode():
    sys.stdout.buffer.write(bytes([b])); sys.stdout.buffer.flush(); time.sleep(0.01)"`)
  assert.equal(r.stdout, 'äöü€😀')
})

scenario('much output', async () => {
  const s = await sandbox()
  const r = await s.commands.run('seq 1 300000')
  assert.equal(r.stdout.length, 1988895)
  assert.ok(r.stdout.endsWith('\n300000\n'))
})

scenario('in the background, then wait', async () => {
  const s = await sandbox()
  const h = await s.commands.run('sleep 0.5; echo done', { background: true })
  assert.ok(h.pid > 1)
  const r = await h.wait()
  assert.deepEqual([r.exitCode, r.stdout], [0, 'done\n'])
})

scenario('list and kill', async () => {
  const s = await sandbox()
  const h = await s.commands.run('sleep 1000', { background: true })
  const p = (await s.commands.list()).find((x) => x.pid === h.pid)
  assert.deepEqual([p.cmd, p.args], ['/bin/bash', ['-l', '-c', 'sleep 1000']])
  assert.equal(await h.kill(), true)
  const err = await fails(() => h.wait(), CommandExitError)
  assert.equal(err.exitCode, -1)
  assert.equal(await s.commands.kill(h.pid), false)
  assert.ok(!(await s.commands.list()).some((x) => x.pid === h.pid))
})

scenario('kill what is not there', async () => {
  const s = await sandbox()
  assert.equal(await s.commands.kill(999999), false)
})

scenario('connect to a running command', async () => {
  const s = await sandbox()
  const h = await s.commands.run('until [ -e /tmp/seen ]; do sleep 0.05; done; for i in $(seq 40); do echo $i; sleep 0.02; done; exit 4', { background: true })
  const c = await s.commands.connect(h.pid)
  await s.files.write('/tmp/seen', '')
  const err = await fails(() => c.wait(), CommandExitError)
  assert.equal(err.exitCode, 4)
  assert.match(err.stdout, /^1\n2\n.*39\n40\n$/s)
})

scenario('it runs on without its client, and can be found again', async () => {
  const s = await sandbox()
  const h = await s.commands.run('sleep 1; echo late > /tmp/late; until [ -e /tmp/found ]; do sleep 0.05; done; echo end', { background: true })
  await h.disconnect()
  await until(async () => (await s.files.exists('/tmp/late')), 'the file')
  const again = await Sandbox.connect(s.sandboxId)
  const c = await again.commands.connect(h.pid) // gets what comes from now on
  await s.files.write('/tmp/found', '')
  assert.equal((await c.wait()).stdout, 'end\n')
})

scenario('connect to what is not there', async () => {
  const s = await sandbox()
  await fails(() => s.commands.connect(999999), NotFoundError)
})

scenario('standard input', async () => {
  const s = await sandbox()
  const h = await s.commands.run('cat; echo bye', { background: true, stdin: true })
  await h.sendStdin('hello\n')
  await s.commands.sendStdin(h.pid, 'wörld\n')
  await h.closeStdin()
  assert.equal((await h.wait()).stdout, 'hello\nwörld\nbye\n')
})

scenario('no standard input unless asked for', async () => {
  const s = await sandbox()
  assert.equal((await s.commands.run('wc -c')).stdout.trim(), '0')
  const h = await s.commands.run('sleep 1000', { background: true })
  await fails(() => h.sendStdin('x'), SandboxError, /stdin not enabled or closed/)
  await h.kill()
})

scenario('a command that takes too long', async () => {
  const s = await sandbox()
  await fails(() => s.commands.run('echo $$ > /tmp/slow; exec sleep 100', { timeoutMs: 1000 }), TimeoutError)
  await until(async () => (await s.commands.run('kill -0 $(cat /tmp/slow) 2>/dev/null && echo alive || echo gone')).stdout === 'gone\n', 'its end')
})

scenario('no limit', async () => {
  const s = await sandbox()
  assert.equal((await s.commands.run('sleep 0.3; echo ok', { timeoutMs: 0 })).stdout, 'ok\n')
})

scenario('killing the sandbox breaks a running command with the right error', async (t) => {
  const s = await box(t)
  let runs = false
  const running = s.commands.run('echo up; sleep 100', { onStdout: () => { runs = true } })
  running.catch(() => {})
  await until(() => runs, 'the command')
  await s.kill()
  await fails(() => running, TimeoutError, /killed|end of life/)
})

scenario('a command in a sandbox that is gone', async (t) => {
  const s = await box(t)
  await s.kill()
  await fails(() => s.commands.run('true'), SandboxNotFoundError)
})

scenario('many at the same time', async () => {
  const s = await sandbox()
  const all = await Promise.all(Array.from({ length: 30 }, (_, i) => s.commands.run(`echo ${i}`)))
  assert.deepEqual(all.map((r) => r.stdout), Array.from({ length: 30 }, (_, i) => `${i}\n`))
})

about('Terminals')

const text = () => {
  const d = new TextDecoder()
  const t = { out: '', onData: (b) => { t.out += d.decode(b, { stream: true }) } }
  return t
}
const send = (s, pid, line) => s.pty.sendInput(pid, new TextEncoder().encode(line))

scenario('a shell in a terminal', async () => {
  const s = await sandbox()
  const t = text()
  const h = await s.pty.create({ cols: 80, rows: 24, onData: t.onData, envs: { MINE: 'abc' }, cwd: '/' })
  await send(s, h.pid, 'echo $MINE-$PWD-$TERM; test -t 0 && echo it-is-a-tty\n')
  await until(() => t.out.includes('abc-/-xterm-256color') && t.out.includes('\nit-is-a-tty'), 'the answer')
  await send(s, h.pid, 'exit\n')
  assert.equal((await h.wait()).exitCode, 0)
})

scenario('its size, and a new one', async () => {
  const s = await sandbox()
  const t = text()
  const h = await s.pty.create({ cols: 80, rows: 24, onData: t.onData })
  await send(s, h.pid, 'echo size=$(tput cols)x$(tput lines)\n')
  await until(() => t.out.includes('size=80x24'), 'the size')
  await s.pty.resize(h.pid, { cols: 100, rows: 30 })
  await send(s, h.pid, 'echo size=$(tput cols)x$(tput lines)\n')
  await until(() => t.out.includes('size=100x30'), 'the new size')
  await s.pty.kill(h.pid)
})

scenario('kill it', async () => {
  const s = await sandbox()
  const h = await s.pty.create({ cols: 80, rows: 24, onData: () => {} })
  assert.equal(await s.pty.kill(h.pid), true)
  await fails(() => h.wait(), CommandExitError)
  assert.equal(await s.pty.kill(h.pid), false)
})

scenario('come back to it', async () => {
  const s = await sandbox()
  const h = await s.pty.create({ cols: 80, rows: 24, onData: () => {} })
  await send(s, h.pid, 'KEPT=still-here\n')
  await h.disconnect()
  const t = text()
  const c = await s.pty.connect(h.pid, { onData: t.onData })
  await send(s, c.pid, 'echo got-$KEPT\n')
  await until(() => t.out.includes('got-still-here'), 'the answer')
  await s.pty.kill(c.pid)
})

scenario('interrupt with a key', async () => {
  const s = await sandbox()
  const t = text()
  const h = await s.pty.create({ cols: 80, rows: 24, onData: t.onData })
  // The numbers tell output from the echo of what was typed.
  await send(s, h.pid, `sh -c 'trap "echo got-$((40+2)); exit 7" INT; echo up-$((40+2)); while :; do sleep 0.1; done'; echo code=$?\n`)
  await until(() => t.out.includes('up-42'), 'the program')
  await send(s, h.pid, '\x03')
  await until(() => t.out.includes('got-42'), 'the interrupt')
  await until(() => t.out.includes('code=7'), 'the end of the program')
  await s.pty.kill(h.pid)
})

about('Git')

scenario('init, add, commit, status', async () => {
  const s = await sandbox()
  const at = '/tmp/g1'
  await s.git.init(at, { initialBranch: 'main' })
  await s.git.configureUser('Ann', 'ann@example.com', { scope: 'local', path: at })
  await s.files.write(`${at}/a.txt`, 'a')
  let st = await s.git.status(at)
  assert.equal(st.currentBranch, 'main')
  assert.equal(st.isClean, false)
  await s.git.add(at)
  await s.git.commit(at, 'first')
  st = await s.git.status(at)
  assert.equal(st.isClean, true)
})

scenario('branches', async () => {
  const s = await sandbox()
  const at = '/tmp/g2'
  await s.git.init(at, { initialBranch: 'main' })
  await s.git.commit(at, 'empty', { allowEmpty: true, authorName: 'Ann', authorEmail: 'ann@example.com' })
  await s.git.createBranch(at, 'feature')
  let b = await s.git.branches(at)
  assert.deepEqual([b.currentBranch, [...b.branches].sort()], ['feature', ['feature', 'main']])
  await s.git.checkoutBranch(at, 'main')
  await s.git.deleteBranch(at, 'feature')
  b = await s.git.branches(at)
  assert.deepEqual([b.currentBranch, b.branches], ['main', ['main']])
})

scenario('config, reset and restore', async () => {
  const s = await sandbox()
  const at = '/tmp/g3'
  await s.git.init(at)
  await s.git.setConfig('user.name', 'Bo', { scope: 'local', path: at })
  await s.git.setConfig('user.email', 'bo@example.com', { scope: 'local', path: at })
  assert.equal(await s.git.getConfig('user.name', { scope: 'local', path: at }), 'Bo')
  await s.files.write(`${at}/f`, 'one')
  await s.git.add(at)
  await s.git.commit(at, 'one')
  await s.files.write(`${at}/f`, 'two')
  await s.git.restore(at, { paths: ['f'] })
  assert.equal(await s.files.read(`${at}/f`), 'one')
  await s.files.write(`${at}/f`, 'three')
  await s.git.add(at)
  await s.git.reset(at, { mode: 'hard' })
  assert.equal(await s.files.read(`${at}/f`), 'one')
})

scenario('clone, push and pull', async (t) => {
  const s = await sandbox()
  await s.commands.run('rm -rf /tmp/srv && git init -q --bare -b main /tmp/srv/r.git && touch /tmp/srv/r.git/git-daemon-export-ok')
  const d = await s.commands.run('git daemon --reuseaddr --listen=127.0.0.1 --port=9418 --base-path=/tmp/srv --enable=receive-pack /tmp/srv', { background: true, timeoutMs: 0 })
  t.after(() => d.kill())
  await until(async () => (await s.commands.run('git ls-remote git://127.0.0.1/r.git >/dev/null 2>&1; echo $?')).stdout === '0\n', 'the daemon')
  await s.git.init('/tmp/g4', { initialBranch: 'main' })
  await s.git.remoteAdd('/tmp/g4', 'origin', 'git://127.0.0.1/r.git')
  assert.equal(await s.git.remoteGet('/tmp/g4', 'origin'), 'git://127.0.0.1/r.git')
  await s.files.write('/tmp/g4/x', '1')
  await s.git.add('/tmp/g4')
  await s.git.commit('/tmp/g4', 'one', { authorName: 'Ann', authorEmail: 'a@example.com' })
  await s.git.push('/tmp/g4', { remote: 'origin', branch: 'main', setUpstream: true })
  await s.git.clone('git://127.0.0.1/r.git', { path: '/tmp/g5' })
  assert.equal(await s.files.read('/tmp/g5/x'), '1')
  await s.files.write('/tmp/g4/x', '2')
  await s.git.add('/tmp/g4')
  await s.git.commit('/tmp/g4', 'two', { authorName: 'Ann', authorEmail: 'a@example.com' })
  await s.git.push('/tmp/g4', { remote: 'origin', branch: 'main' })
  await s.git.pull('/tmp/g5', { remote: 'origin', branch: 'main' })
  assert.equal(await s.files.read('/tmp/g5/x'), '2')
})

await run(4)
