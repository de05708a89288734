// Preloaded into a node that waits for its program. Nothing of it is left
// when the program starts.
'use strict';
{
  const fs = require('fs');
  const here = __dirname;
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
  delete process.env.ENGI_HOOK;
  delete require.cache[__filename];
  const Module = require('module');
  for (const k of Object.keys(Module._pathCache)) if (k.includes(here) || Module._pathCache[k].startsWith(here)) delete Module._pathCache[k];
  if (module.parent) module.parent.children.splice(module.parent.children.indexOf(module), 1);
}
