import { BuildError, Sandbox, SandboxError, Template, TemplateError, waitForFile, waitForPort } from 'e2b'
import { mkdtempSync, mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { about, after, assert, box, fails, run, scenario, sleep, until } from './scenario.mjs'

about('Templates')

const name = (p = 'tpl') => `${p}-${Math.random().toString(36).slice(2)}`
const call = (method, path, body) => fetch(process.env.E2B_API_URL + path, {
  method, headers: { 'X-API-KEY': process.env.E2B_API_KEY, 'Content-Type': 'application/json' }, body: body && JSON.stringify(body) })
const build = async (t, template, opts = {}) => {
  const n = opts.name ?? name()
  const logs = []
  const b = await Template.build(template, n, { onBuildLogs: (l) => logs.push(l), ...opts })
  if (!opts.name) t.after(() => call('DELETE', `/templates/${b.templateId}`))
  return [n, b, logs]
}
const files = (tree) => {
  const dir = mkdtempSync(join(tmpdir(), 'engi-files-'))
  after(() => rmSync(dir, { recursive: true }))
  for (const [p, data] of Object.entries(tree)) {
    mkdirSync(join(dir, p, '..'), { recursive: true })
    writeFileSync(join(dir, p), data)
  }
  return dir
}

scenario('from a template, with commands, variables, directory and user', async (t) => {
  const [n, b, logs] = await build(t, Template().fromTemplate('base')
    .setEnvs({ STAGE: 'build', SPACED: 'a b' })
    .runCmd('sudo mkdir -p /opt/app && sudo chown user /opt/app')
    .setWorkdir('/opt/app')
    .runCmd(['echo "$STAGE $SPACED" > made', 'id -un >> made', 'pwd >> made'])
    .runCmd('id -un > /opt/root-made', { user: 'root' }))
  assert.ok(b.templateId && b.buildId)
  assert.ok(logs.length > 3 && logs.every((l) => l.timestamp instanceof Date && l.level))
  const s = await box(t, { template: n })
  assert.equal(await s.files.read('/opt/app/made'), 'build a b\nuser\n/opt/app\n')
  assert.equal(await s.files.read('/opt/root-made'), 'root\n')
  assert.equal((await s.commands.run('echo $STAGE')).stdout, 'build\n')
  assert.equal((await s.getInfo()).templateId, b.templateId)
})

scenario('files are copied, with owner and mode', async (t) => {
  const dir = files({ 'one.txt': 'one', 'tree/a/b.txt': 'deep', 'tree/c.sh': 'echo run' })
  const [n] = await build(t, Template({ fileContextPath: dir }).fromTemplate('base')
    .copy('one.txt', '/opt/one.txt', { user: 'root', mode: 0o600 })
    .copy('tree', '/home/user/tree'))
  const s = await box(t, { template: n })
  assert.equal((await s.commands.run('stat -c "%U %a" /opt/one.txt', { user: 'root' })).stdout, 'root 600\n')
  assert.equal(await s.files.read('/home/user/tree/a/b.txt'), 'deep')
  assert.equal((await s.commands.run('sh /home/user/tree/c.sh')).stdout, 'run\n')
})

scenario('the same files are not sent again', async (t) => {
  const dir = files({ 'f.txt': `content ${Math.random()}` })
  const template = () => Template({ fileContextPath: dir }).fromTemplate('base').copy('f.txt', '/opt/f.txt')
  const [, first] = await build(t, template())
  const begun = Date.now()
  const [n] = await build(t, template())
  assert.ok(Date.now() - begun < 20_000)
  const s = await box(t, { template: n })
  assert.match(await s.files.read('/opt/f.txt'), /^content/)
})

scenario('steps that have not changed are not repeated', async (t) => {
  const at = Math.random()
  const template = () => Template().fromTemplate('base').runCmd(`echo ${at}; cat /proc/sys/kernel/random/uuid | sudo tee /opt/once`)
  const read = async (n) => {
    const s = await box(t, { template: n })
    return s.files.read('/opt/once')
  }
  const [a] = await build(t, template())
  const [b] = await build(t, template())
  assert.equal(await read(a), await read(b))
  const [c] = await build(t, template(), { skipCache: true })
  assert.notEqual(await read(a), await read(c))
})

scenario('the start command runs in every sandbox, and the build waits until it is ready', async (t) => {
  const [n, , logs] = await build(t, Template().fromTemplate('base')
    .setStartCmd('mkdir -p /tmp/w && cd /tmp/w && echo from-the-template > index.html && exec python3 -m http.server 8100 --bind 127.0.0.1', waitForPort(8100)))
  for (let i = 0; i < 2; i++) {
    const s = await box(t, { template: n })
    const r = await fetch(`${process.env.SCENARIO_SCHEME || 'http'}://${s.getHost(8100)}/`)
    assert.deepEqual([r.status, await r.text()], [200, 'from-the-template\n'])
  }
  assert.ok(logs.some((l) => /start command/.test(l.message)))
})

scenario('a start command that fails ends the build', async (t) => {
  const n = name()
  await fails(() => Template.build(Template().fromTemplate('base').setStartCmd('echo broken; exit 7', waitForFile('/never')), n), BuildError, /exit status 7/)
  assert.equal(await Template.exists(n), false)
})

scenario('a command that fails ends the build, with its output in the log', async () => {
  const logs = []
  await fails(() => Template.build(Template().fromTemplate('base').runCmd('echo to-the-log; exit 5'), name(), { onBuildLogs: (l) => logs.push(l.message) }),
    BuildError, /exit status 5/)
  assert.ok(logs.some((m) => m.includes('to-the-log')), JSON.stringify(logs))
})

scenario('a user that is not there ends the build, in the words that clients know', async () => {
  await fails(() => Template.build(Template().fromTemplate('base').runCmd('whoami', { user: 'root123' }), name()), BuildError,
    /failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'/)
})

scenario('in the background, with its status', async (t) => {
  const n = name()
  const b = await Template.buildInBackground(Template().fromTemplate('base').runCmd('sleep 1; echo slow'), n)
  t.after(() => call('DELETE', `/templates/${b.templateId}`))
  const seen = new Set()
  await until(async () => {
    const s = await Template.getBuildStatus(b)
    seen.add(s.status)
    assert.ok(Array.isArray(s.logs) && Array.isArray(s.logEntries))
    return s.status === 'ready'
  }, 'the build', 60_000)
  assert.ok(seen.has('building'), [...seen].join())
  const list = await (await call('GET', '/templates')).json()
  const mine = list.find((x) => x.templateID === b.templateId)
  assert.deepEqual([mine.aliases, mine.buildStatus], [[n], 'ready'])
})

scenario('names: exists, and not for others', async (t) => {
  const [n] = await build(t, Template().fromTemplate('base').runCmd('true'))
  assert.equal(await Template.exists(n), true)
  assert.equal(await Template.aliasExists(n), true)
  assert.equal(await Template.exists(name('none')), false)
  assert.equal(await Template.exists('base'), true)
  const apiKey = process.env.SCENARIO_OTHER_KEY
  assert.equal(await Template.exists(n, { apiKey }), false)
  await fails(() => Sandbox.create(n, { apiKey }), SandboxError, /404/)
})

scenario('tags', async (t) => {
  const n = name()
  const [, one] = await build(t, Template().fromTemplate('base').runCmd('echo 1 | sudo tee /opt/v'), { name: n, tags: ['v1', 'stable'] })
  t.after(() => call('DELETE', `/templates/${one.templateId}`))
  const [, two] = await build(t, Template().fromTemplate('base').runCmd('echo 2 | sudo tee /opt/v'), { name: `${n}:v2` })
  assert.equal(two.templateId, one.templateId)
  const read = async (ref) => {
    const s = await box(t, { template: ref })
    return (await s.files.read('/opt/v')).trim()
  }
  assert.deepEqual([await read(`${n}:v1`), await read(`${n}:v2`), await read(`${n}:stable`)], ['1', '2', '1'])
  const set = await Template.assignTags(`${n}:v2`, 'stable')
  assert.deepEqual([set.buildId, set.tags], [two.buildId, ['stable']])
  assert.equal(await read(`${n}:stable`), '2')
  const tags = await Template.getTags(n)
  assert.deepEqual(tags.map((x) => x.tag).sort(), ['stable', 'v1', 'v2'])
  await Template.removeTags(n, 'v1')
  assert.ok(!(await Template.getTags(n)).some((x) => x.tag === 'v1'))
  await fails(() => Sandbox.create(`${n}:v1`), SandboxError, /404/)
  await fails(() => Template.assignTags(`${n}:none`, 'x'), TemplateError)
})

scenario('a template from a template of ours', async (t) => {
  const [n] = await build(t, Template().fromTemplate('base').runCmd('echo below | sudo tee /opt/below'))
  const [m] = await build(t, Template().fromTemplate(n).runCmd('cat /opt/below | sudo tee /opt/above'))
  const s = await box(t, { template: m })
  assert.equal(await s.files.read('/opt/above'), 'below\n')
})

scenario('deleted', async (t) => {
  const n = name()
  const [, b] = await build(t, Template().fromTemplate('base').runCmd('true'), { name: n })
  assert.equal((await call('DELETE', `/templates/${b.templateId}`)).status, 204)
  assert.equal(await Template.exists(n), false)
  await fails(() => Sandbox.create(n), SandboxError, /404/)
  assert.equal((await call('DELETE', `/templates/${b.templateId}`)).status, 404)
})

scenario('processors and memory', async (t) => {
  const [n] = await build(t, Template().fromTemplate('base').runCmd('true'), { cpuCount: 1, memoryMB: 768 })
  const s = await box(t, { template: n })
  const i = await s.getInfo()
  assert.deepEqual([i.cpuCount, i.memoryMB], [1, 768])
})

scenario('what cannot be built', async () => {
  await fails(() => Template.build(Template().fromTemplate('no-such-template').runCmd('true'), name()), BuildError, /404|not found/)
  await fails(() => Template.build(Template().fromTemplate('base').runCmd('true'), 'Bad Name!'), Error, /400/)
})

if (process.env.SCENARIO_IMAGE) {
  scenario('from an image of a registry', async (t) => {
    const [n] = await build(t, Template().fromImage(process.env.SCENARIO_IMAGE).runCmd('echo built: $FROM_IMAGE > /srv/built', { user: 'root' }))
    const s = await box(t, { template: n })
    assert.equal((await s.commands.run('cat /image /srv/built; echo $FROM_IMAGE')).stdout, 'an image\nbuilt: yes\nyes\n')
  })
}

scenario('the usual image is a template here', async (t) => {
  const [n] = await build(t, Template().fromBaseImage().runCmd('python3 --version'))
  const s = await box(t, { template: n })
  assert.match((await s.commands.run('python3 --version')).stdout, /^Python 3/)
})

scenario('a Dockerfile', async (t) => {
  const [n] = await build(t, Template().fromDockerfile(`FROM e2bdev/base
ENV WHO=docker
WORKDIR /opt/df
RUN echo "made by $WHO" | sudo tee made
`))
  const s = await box(t, { template: n })
  assert.equal(await s.files.read('/opt/df/made'), 'made by docker\n')
})

await run(2)
