// On a node that restricts sandboxes: network.max = restricted, with one.test in
// network.allow. The hosts are those of network.mjs.
import { about, assert, box, run, scenario } from './scenario.mjs'

/** what a host answers to a sandbox; nothing if it cannot be reached */
async function ask(s, host) {
  const r = await s.commands.run(`curl -sS -m 10 http://${host}/ 2>/tmp/why || true`)
  return r.stdout.trim()
}

about('Network: on a node that restricts sandboxes')

scenario('a new sandbox reaches what the node allows', async (t) => {
  const s = await box(t)
  assert.equal(await ask(s, 'one.test'), 'hello from one.test')
  assert.equal(await ask(s, 'two.test'), '')
  await s.updateNetwork({ denyOut: ['0.0.0.0/0'] })
  assert.equal(await ask(s, 'one.test'), '')
  await s.updateNetwork({})
  assert.equal(await ask(s, 'one.test'), 'hello from one.test')
})

scenario('and nothing of that if it asks for less', async (t) => {
  assert.equal(await ask(await box(t, { allowInternetAccess: false }), 'one.test'), '')
  const s = await box(t, { network: { allowOut: ['two.test'], denyOut: ['0.0.0.0/0'] } })
  assert.deepEqual([await ask(s, 'one.test'), await ask(s, 'two.test')], ['', 'hello from two.test'])
})

await run(2)
