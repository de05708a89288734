#!/usr/bin/env node
// Runs the engi of this platform, which is in a package of its own.
'use strict'
const { spawn } = require('node:child_process')
const { constants } = require('node:os')

const name = `@engi-dev/engi-${process.platform}-${process.arch}`
let program
try {
  program = require.resolve(`${name}/bin/engi`)
} catch {
  console.error(`engi: there is no engi for ${process.platform} on ${process.arch} here.`)
  console.error(`It runs on Linux (x64, arm64). There, install ${name}: npm may have been told to leave optional packages out.`)
  process.exit(125)
}
const child = spawn(program, process.argv.slice(2), { stdio: 'inherit' })
for (const signal of ['SIGTERM', 'SIGHUP', 'SIGINT', 'SIGQUIT']) {
  // Those of the terminal reach engi by themselves; this process waits for it.
  process.on(signal, () => { if (signal === 'SIGTERM' || signal === 'SIGHUP') child.kill(signal) })
}
child.on('error', error => {
  console.error(`engi: ${error.message}`)
  process.exit(125)
})
child.on('exit', (code, signal) => process.exit(signal ? 128 + constants.signals[signal] : code))
