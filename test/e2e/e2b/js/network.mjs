// What leaves sandboxes. The hosts one.test, api.one.test and two.test
// (93.184.216.2) are servers of the test; proxy.test is a SOCKS5 proxy that
// asks from 93.184.216.3.
import { Sandbox, SandboxError, Secret } from 'e2b'
import { about, after, assert, box, fails, run, scenario } from './scenario.mjs'

const all = '0.0.0.0/0'
const value = process.env.SCENARIO_SECRET

const secret = (() => {
  let made
  after(async () => made && Secret.destroy((await made).secretId))
  return () => (made ??= Secret.create(`key-${Math.random().toString(36).slice(2)}`, value))
})()

/** what a host answers to a sandbox; nothing if it cannot be reached */
async function ask(s, url, options = '') {
  const r = await s.commands.run(`curl -sS -m 10 ${options} ${url} 2>/tmp/why || true`)
  return r.stdout.trim()
}

about('Network: what leaves a sandbox')

scenario('a new sandbox has the internet', async (t) => {
  const s = await box(t)
  assert.equal(await ask(s, 'http://one.test/'), 'hello from one.test')
  assert.equal(await ask(s, 'http://two.test/'), 'hello from two.test')
})

scenario('but not metadata services, the host, nor private networks', async (t) => {
  const s = await box(t)
  for (const url of ['http://169.254.169.254/', 'http://198.18.77.4/', 'http://10.88.0.1/', 'http://10.0.0.1/', 'http://[fd00:e1::1]/']) {
    assert.equal(await ask(s, url, '-k --connect-timeout 3'), '', url)
  }
})

scenario('allowInternetAccess false cuts everything off', async (t) => {
  const s = await box(t, { allowInternetAccess: false })
  assert.equal(await ask(s, 'http://one.test/'), '')
  assert.equal(await ask(s, 'http://93.184.216.2/'), '')
})

scenario('names in allowOut are all that is reached', async (t) => {
  const s = await box(t, { network: { allowOut: ['one.test'], denyOut: [all] } })
  assert.equal(await ask(s, 'http://one.test/'), 'hello from one.test')
  assert.equal(await ask(s, 'http://api.one.test/'), '')
  assert.equal(await ask(s, 'http://two.test/'), '')
})

scenario('names with a wildcard', async (t) => {
  const s = await box(t, { network: { allowOut: ['*.one.test'], denyOut: [all] } })
  assert.equal(await ask(s, 'http://api.one.test/'), 'hello from api.one.test')
  assert.equal(await ask(s, 'http://two.test/'), '')
})

scenario('a host cannot be had by the name of another', async (t) => {
  const s = await box(t, { network: { allowOut: ['one.test'], denyOut: [all] } })
  assert.doesNotMatch(await ask(s, 'http://one.test/', '-H "Host: two.test"'), /hello/)
  assert.equal(await ask(s, 'https://api.one.test/', '-k --resolve api.one.test:443:93.184.216.1'), '')
})

scenario('addresses in allowOut are reached without a name', async (t) => {
  const s = await box(t, { network: { allowOut: ['93.184.216.2'], denyOut: [all] } })
  assert.equal(await ask(s, 'http://93.184.216.2/'), 'hello from 93.184.216.2')
  assert.equal(await ask(s, 'http://93.184.216.1/'), '')
  assert.equal(await ask(s, 'http://one.test/'), '')
})

scenario('denyOut takes away, and allowOut wins over it', async (t) => {
  const s = await box(t, { network: { denyOut: ['93.184.216.2'] } })
  assert.equal(await ask(s, 'http://two.test/'), '')
  assert.equal(await ask(s, 'http://one.test/'), 'hello from one.test')
  const b = await box(t, { network: { allowOut: ['93.184.216.2'], denyOut: ['93.184.216.0/24'] } })
  assert.equal(await ask(b, 'http://93.184.216.2/'), 'hello from 93.184.216.2')
})

scenario('updateNetwork opens and closes while it runs', async (t) => {
  const s = await box(t, { network: { denyOut: [all] } })
  assert.equal(await ask(s, 'http://one.test/'), '')
  await s.updateNetwork({ allowOut: ['one.test'], denyOut: [all] })
  assert.equal(await ask(s, 'http://one.test/'), 'hello from one.test')
  assert.equal(await ask(s, 'http://two.test/'), '')
  await s.updateNetwork({})
  assert.equal(await ask(s, 'http://two.test/'), 'hello from two.test')
  await s.updateNetwork({ allowInternetAccess: false })
  assert.equal(await ask(s, 'http://one.test/'), '')
})

scenario('rules put headers into requests', async (t) => {
  const rules = { 'one.test': [{ transform: { headers: { 'X-Team': 'blue' } } }] }
  const s = await box(t, { network: { rules } })
  assert.equal(await ask(s, 'http://one.test/team'), 'blue')
  assert.equal(await ask(s, 'https://one.test/team'), 'blue')
  assert.equal(await ask(s, 'http://two.test/team'), '')
})

scenario('a secret goes out and never comes in', async (t) => {
  const { name } = await secret()
  const rules = { 'one.test': [{ transform: { headers: { Authorization: `Bearer \${e2b.secrets.${name}}` } } }] }
  const s = await box(t, { network: { allowOut: ['one.test', 'two.test'], denyOut: [all], rules } })
  assert.equal(await ask(s, 'https://one.test/secret'), 'right')
  assert.equal(await ask(s, 'http://one.test/secret'), 'wrong', 'without encryption')
  assert.equal(await ask(s, 'http://two.test/secret'), 'wrong')
  const found = await s.commands.run(`env; grep -rl ${value.slice(0, 6)} /etc /home /tmp /proc/self/environ 2>/dev/null || true`)
  assert.ok(!found.stdout.includes(value), found.stdout)
  assert.ok(!JSON.stringify(await s.getInfo()).includes(value))
})

scenario('everything goes through an egress proxy', async (t) => {
  const egressProxy = { address: 'proxy.test:1080', username: 'u', password: 'very-secret' }
  const s = await box(t, { network: { egressProxy } })
  assert.equal(await ask(s, 'http://one.test/from'), '93.184.216.3')
  const plain = await box(t)
  assert.notEqual(await ask(plain, 'http://one.test/from'), '93.184.216.3')
})

scenario('a policy survives a pause', async (t) => {
  const s = await box(t, { network: { allowOut: ['one.test'], denyOut: [all] } })
  await s.pause()
  const again = await Sandbox.connect(s.sandboxId, { timeoutMs: 120_000 })
  assert.equal(await ask(again, 'http://one.test/'), 'hello from one.test')
  assert.equal(await ask(again, 'http://two.test/'), '')
})

scenario('what no egress gateway could enforce is refused', async () => {
  await fails(() => Sandbox.create('base', { network: { rules: { 'one.test': [{ transform: { headers: { A: '${e2b.identity.tokens.x}' } } }] } } }), SandboxError, /400/)
  await fails(() => Sandbox.create('base', { network: { egressProxy: { address: 'nowhere' } } }), SandboxError, /400/)
})

await run()
