// Preloaded into a node that waits for its program. It leaves no trace when the
// program starts.
'use strict';
{
  const fs = require('fs');
  const here = __dirname;
  // Nearly every program uses these, and node loads them lazily.
  process.stdout;
  process.stderr;
  require('util').format('%s %o', 'a', { b: [1] });
  const go = fs.openSync(here + '/go', 'r');
  fs.writeFileSync(here + '/ready', 'r');
  const data = fs.readFileSync(go);
  fs.closeSync(go);
  if (data.length < 2 || data[data.length - 1] !== 0 || data[data.length - 2] !== 0) process.reallyExit(1);
  const text = data.toString('utf8', 0, data.length - 2);
  const cut = text.indexOf('\0\0');
  process.argv.push(...text.slice(0, cut).split('\0').slice(1));
  for (const v of text.slice(cut + 2).split('\0').slice(1)) {
    const i = v.indexOf('=');
    process.env[v.slice(0, i)] = v.slice(i + 1);
  }
  if (process.env.ENGI_NODE_OPTIONS === undefined) delete process.env.NODE_OPTIONS;
  else process.env.NODE_OPTIONS = process.env.ENGI_NODE_OPTIONS;
  delete process.env.ENGI_NODE_OPTIONS;
  delete process.env.ENGI_PRELOAD;
  delete require.cache[__filename];
  // At its end node frees its heap piece by piece, which takes longer than most
  // programs run. process.reallyExit does not, so a program that ends with code
  // 0 ends that way, by the last of its exit listeners. Any other end, for which
  // node may print something, is left to node.
  if (process.env.NODE_OPTIONS === undefined && process.execArgv.length === 0) {
    const last = (code) => {
      if (code === 0 && !process.exitCode && process.listeners('exit').at(-1) === last) process.reallyExit(0);
    };
    process.on('beforeExit', () => {
      process.removeListener('exit', last);
      process.on('exit', last);
    });
  }
  const Module = require('module');
  for (const k of Object.keys(Module._pathCache)) if (k.includes(here) || Module._pathCache[k].startsWith(here)) delete Module._pathCache[k];
  if (module.parent) module.parent.children.splice(module.parent.children.indexOf(module), 1);
}
