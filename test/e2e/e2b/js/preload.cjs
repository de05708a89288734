// Names below localhost and the domain of the tests are this machine, as they
// are for browsers; Node on Linux asks the resolver instead.
const dns = require('node:dns')
const domain = process.env.SCENARIO_DOMAIN || 'localhost'
const lookup = dns.lookup
dns.lookup = function (host, options, done) {
  if (typeof options === 'function') [done, options] = [options, {}]
  if (host === domain || host.endsWith('.' + domain) || host.endsWith('.localhost')) {
    const here = { address: '127.0.0.1', family: 4 }
    return process.nextTick(() => (options && options.all ? done(null, [here]) : done(null, here.address, 4)))
  }
  return lookup.call(dns, host, options, done)
}
