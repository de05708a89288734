// What is done on the pages, and which there are.

/** Where the pages are that everybody looks at: {name, address, ready}. */
export function pages({ made }) {
  return [
    { name: 'sandboxes', address: 'sandboxes', ready: 'td' },
    { name: 'sandbox', address: `sandboxes/${made.sandbox}`, ready: '.plot canvas' },
    { name: 'terminal', address: `sandboxes/${made.sandbox}?tab=terminal&open=${made.terminals.join('.')}`, ready: '.split .xterm-rows >> text=total' },
    { name: 'files', address: `sandboxes/${made.sandbox}?tab=files&dir=/workspace&file=/workspace/hello.py`, ready: '.editor' },
    { name: 'network', address: `sandboxes/${made.sandbox}?tab=network`, ready: 'td' },
    { name: 'snapshots', address: `sandboxes/${made.sandbox}?tab=snapshots`, ready: '.tree' },
    { name: 'home', address: '', ready: '.plot canvas' },
    { name: 'run', address: `run/${made.execution}`, ready: 'iframe.shown, td, img.shown' },
    { name: 'sessions', address: 'sessions', ready: 'td' },
    { name: 'git', address: `sessions/${made.repository}?tab=git`, ready: '.state >> text=conflict' },
    { name: 'workspaces', address: 'workspaces', ready: '.empty, td' },
    { name: 'apps', address: 'apps', ready: 'td' },
    { name: 'app', address: `apps/${made.app}?tab=history`, ready: 'td' },
    { name: 'templates', address: 'templates', ready: 'td' },
    { name: 'volumes', address: 'volumes', ready: 'td' },
    { name: 'agents', address: `agents/${made.run}`, ready: '.call' },
    { name: 'pages', address: 'pages', ready: '.card' },
    { name: 'page', address: `pages/${made.page}`, ready: 'engi-ui #todos li' },
    { name: 'docs', address: 'docs?search=list+tickets', ready: '.hit' },
    { name: 'tools', address: 'tools', ready: 'td' },
    { name: 'webhooks', address: `webhooks/${made.webhook}`, ready: '.card td' },
    { name: 'usage', address: 'usage', ready: '.numbers' },
    { name: 'functions', address: 'functions', ready: '.empty, td' },
    { name: 'approvals', address: 'approvals', ready: '.empty, td' },
    { name: 'secrets', address: 'secrets', ready: 'td' },
    { name: 'keys', address: 'keys', ready: 'text=SHA256:' },
    { name: 'events', address: 'events?type=execution.*', ready: 'td' },
  ]
}

const program = `import sys, time
print("first line", flush=True)
print("careful", file=sys.stderr, flush=True)
time.sleep(0.5)
open("numbers.csv", "w").write('n,text\\n1,"a, ""quoted"" cell"\\n')
open("page.html", "w").write('<h1>From inside</h1><script>document.body.append(String(6 * 7)); fetch("/v1/keys").catch(() => document.body.append("alone"))</script>')
open("dot.png", "wb").write(bytes.fromhex("89504e470d0a1a0a0000000d4948445200000001000000010806000000" + "1f15c4890000000d49444154789c6360f8cfc0000003010100c9fe92ef0000000049454e44ae426082"))
print("last line")
`

/** Puts text into an editor as a keyboard does, but at once. */
async function write(page, label, text) {
  const editor = page.getByRole('textbox', { name: label, exact: true })
  await editor.click()
  await page.keyboard.press('ControlOrMeta+a')
  await page.keyboard.press('Delete')
  await page.keyboard.insertText(text)
}

/** Uses every page. */
export async function use(t) {
  const { page, step, equal, open, api, visitor, input } = t
  t.made = { execution: 'exe_none', sandbox: 'sbx_none', run: 'run_none', repository: 'ses_none', terminals: [], webhook: 'whk_none', page: 'ses_none', app: 'app_none' }

  await step('run a program', async () => {
    t.expect(/\/v1\/keys.*violates/) // by page.html, below
    await open(page, 'run')
    await write(page, 'Program', program)
    await page.getByRole('button', { name: /^Run/ }).click()
    const output = page.getByLabel('Output', { exact: true })
    await output.getByText('first line').waitFor()
    await output.locator('.err').getByText('careful').waitFor()
    await output.getByText('last line').waitFor()
    await page.getByText('done', { exact: true }).first().waitFor()
    t.made.execution = (await api('GET', '/v1/executions?limit=1')).items[0].id
    await page.getByRole('link', { name: t.made.execution }).first().waitFor()
  })
  await step('look at artifacts', async () => {
    await page.getByRole('button', { name: /^numbers.csv/ }).click()
    await page.getByRole('cell', { name: 'a, "quoted" cell' }).waitFor()
    await page.getByRole('button', { name: /^dot.png/ }).click()
    await page.waitForFunction(() => document.querySelector('img.shown')?.naturalWidth === 1)
    await page.getByRole('button', { name: /^page.html/ }).click()
    const inside = page.frameLocator('iframe.shown')
    await inside.getByRole('heading', { name: 'From inside' }).waitFor()
    await inside.getByText('42').waitFor()
    // It has neither an origin nor a network.
    await inside.getByText('alone').waitFor()
    const frame = page.frames().find((f) => f.url().endsWith('/dashboard/frame'))
    equal(await frame.evaluate(() => origin), 'null', 'the origin of the frame')
    const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('link', { name: 'Download page.html' }).click()])
    equal(download.suggestedFilename(), 'page.html', 'the name of the download')
  })
  await step('the program in other words', async () => {
    await page.getByRole('button', { name: 'As code' }).click()
    for (const name of ['curl', 'Go', 'JavaScript', 'Python']) {
      await page.getByRole('dialog').getByRole('button', { name, exact: true }).click()
      await page.getByRole('dialog').locator('pre').getByText('first line').waitFor()
    }
    equal((await page.getByRole('dialog').textContent()).includes(input.admin), false, 'the key is in it')
    await page.keyboard.press('Escape')
  })
  await step('a program that fails', async () => {
    await page.getByLabel('Language').selectOption('bash')
    await write(page, 'Program', 'echo oops >&2; exit 3\n')
    await page.getByRole('textbox', { name: 'Program', exact: true }).press('Control+Enter')
    await page.locator('.state.bad', { hasText: 'exit code 3' }).first().waitFor()
  })
  await step('create a sandbox', async () => {
    await open(page, 'sandboxes')
    await page.getByRole('heading', { name: 'No sandboxes' }).waitFor()
    await page.getByRole('button', { name: 'New sandbox' }).first().click()
    const form = page.getByRole('dialog')
    await form.getByLabel('Memory').fill('nonsense')
    const faults = t.faults.length
    await form.getByRole('button', { name: 'Create' }).click()
    await form.getByRole('alert').waitFor()
    t.faults.splice(faults) // Chromium reports the status
    await form.getByLabel('Memory').fill('512MiB')
    await form.getByLabel('Network').selectOption('restricted')
    await form.getByLabel('Allowed').fill('allowed.example')
    await form.getByRole('button', { name: 'Create' }).click()
    await page.locator('.page .state', { hasText: 'running' }).waitFor()
    t.made.sandbox = new URL(page.url()).hash.split('/')[2]
    equal((await api('GET', `/v1/sandboxes/${t.made.sandbox}`)).network.allow.join(), 'allowed.example', 'what is allowed')
  })
  const box = `/v1/sandboxes/`
  await step('open a terminal and type', async () => {
    await page.addInitScript(() => { // to break connections, below
      globalThis.sockets = []
      globalThis.WebSocket = class extends WebSocket {
        constructor(...of) {
          super(...of)
          sockets.push(this)
        }
      }
    })
    await page.reload()
    await page.getByRole('tab', { name: 'Terminal' }).click()
    await page.getByRole('button', { name: 'New terminal' }).click()
    const pane = page.locator('.pane')
    await pane.locator('.state', { hasText: 'live' }).waitFor()
    await pane.locator('.xterm-rows').getByText(/[$#]/).first().waitFor()
    await page.keyboard.type('printf "\\033[38;2;10;120;200mcol%s\\033[0m\\n" oured; echo $((6*7))-rows:$(stty size)\n')
    await pane.getByText('42-rows:').waitFor()
    // Colours are set though the policy forbids attributes with styles.
    const colour = await pane.getByText('coloured', { exact: true }).last().evaluate((el) => getComputedStyle(el).color)
    equal(colour.startsWith('rgb('), true, 'a colour')
    equal(colour === await pane.getByText('42-rows:').evaluate((el) => getComputedStyle(el).color), false, 'the colour is that of other text')
    const [, rows, cols] = /42-rows:(\d+) (\d+)/.exec(await pane.getByText('42-rows:').textContent())
    equal(Number(rows) > 20 && Number(cols) > 90, true, `the size follows the pane: ${rows} ${cols}`)
  })
  await step('nothing typed is lost or doubled when connections break', async () => {
    // Lines typed before the shell has left its prompt end with a carriage return, which head
    // takes for no end of a line: it would wait for ever.
    await page.keyboard.type('stty -echo; echo ready for $((59+1)); head -n 60 > typed.txt; stty echo\n')
    await page.locator('.pane').getByText('ready for 60', { exact: true }).waitFor()
    const lines = Array.from({ length: 60 }, (_, i) => `line ${i}`)
    for (const [i, line] of lines.entries()) {
      // Chromium complains of a connection that is closed while it is being made.
      if (i % 15 === 7) await page.waitForFunction(() => {
        const open = sockets.filter((s) => s.readyState === WebSocket.OPEN)
        for (const s of open) s.close()
        return open.length > 0
      })
      await page.keyboard.type(line + '\n')
    }
    await page.keyboard.type('echo all of it: $(wc -l < typed.txt)\n')
    await page.locator('.pane').getByText('all of it: 60').waitFor()
    const file = await fetch(`${input.url}${box}${t.made.sandbox}/files?path=/workspace/typed.txt`, { headers: { Authorization: `Bearer ${input.admin}` } })
    equal(await file.text(), lines.join('\n') + '\n', 'what was typed')
    equal(await page.evaluate(() => sockets.length >= 2), true, 'it came back')
  })
  await step('split a terminal', async () => {
    await page.getByRole('button', { name: 'Split' }).click()
    await page.locator('.split .pane').nth(1).locator('.state', { hasText: 'live' }).waitFor()
    await page.locator('.split .pane').nth(1).locator('.xterm-rows').getByText(/[$#]/).first().waitFor()
    await page.keyboard.type('echo in the second $((1+1))\n')
    await page.locator('.pane').nth(1).getByText('in the second 2', { exact: true }).waitFor()
    equal(await page.locator('.pane').nth(0).getByText('in the second').count(), 0, 'panes of the first')
    await page.keyboard.press('Control+F6')
    equal(await page.evaluate(() => document.activeElement.textContent), 'Share', 'where the keyboard is')
  })
  await step('a terminal is there again after a reload', async () => {
    await page.reload()
    await page.locator('.pane').nth(0).getByText('all of it: 60').waitFor()
    await page.locator('.pane').nth(1).getByText('in the second 2', { exact: true }).waitFor()
  })
  await step('share a terminal', async () => {
    const share = async (write) => {
      await page.locator('.pane').first().getByRole('button', { name: 'Share' }).click()
      const form = page.getByRole('dialog')
      if (write) await form.getByLabel('Who has the link').selectOption('may type, too')
      await form.getByLabel('Name').fill(write ? 'writer' : 'boss')
      await form.getByRole('button', { name: 'Make a link' }).click()
      const link = await form.getByLabel('Link', { exact: true }).textContent()
      await form.getByRole('button', { name: 'Close' }).click()
      return link
    }
    const first = page.locator('.pane').first()
    const looks = await share(false)
    const boss = await visitor()
    const asked = []
    boss.on('request', (r) => asked.push(r.url()))
    boss.on('websocket', (s) => asked.push(s.url()))
    await boss.goto(looks)
    await boss.getByText('all of it: 60').waitFor()
    await boss.getByText('read-only').waitFor()
    await first.getByText('with boss (looks)').waitFor()
    await boss.getByText('with the owner').waitFor()
    await boss.locator('.screen').click()
    await boss.keyboard.type('echo evil\n')
    const types = await share(true)
    const writer = await visitor()
    await writer.goto(types)
    await writer.getByText('all of it: 60').waitFor()
    await writer.locator('.pane .state', { hasText: 'live' }).waitFor()
    await writer.keyboard.type('echo typed by $((2*21))\n')
    await first.getByText('typed by 42', { exact: true }).waitFor()
    await boss.getByText('typed by 42', { exact: true }).waitFor()
    equal(await first.getByText('evil').count(), 0, 'what the reader typed')
    // Who is signed in may open a link, too.
    const own = await page.context().newPage()
    await own.goto(looks)
    await own.getByText('typed by 42', { exact: true }).waitFor()
    await own.getByText('read-only').waitFor()
    await own.close()
    const secret = new URL(looks).hash.split('/')[2]
    equal(asked.length > 3 && asked.every((u) => !u.includes(secret)), true, `no address has the secret: ${asked.join(' ')}`)
    equal((await boss.context().cookies()).length, 0, 'cookies of a guest')
    for (const look of ['light', 'dark', 'phone']) {
      await boss.emulateMedia({ colorScheme: look === 'dark' ? 'dark' : 'light' })
      await boss.setViewportSize(look === 'phone' ? { width: 390, height: 844 } : { width: 1280, height: 800 })
      await boss.waitForTimeout(100)
      await boss.screenshot({ path: `${input.shots}/shared-${look}.png` })
      equal(await boss.evaluate(() => document.documentElement.scrollWidth <= innerWidth), true, `${look} fits`)
      if (look !== 'phone') await t.accessible(boss, look)
    }
    await first.getByRole('button', { name: 'Share' }).click()
    await page.getByRole('dialog').getByRole('listitem').filter({ hasText: 'boss' }).getByRole('button', { name: 'Take back' }).click()
    t.expect(/WebSocket connection to .*\/shared\/terminal/)
    await boss.getByText('the link has expired, was removed').waitFor()
    await boss.reload()
    await boss.getByText('this link opens nothing').waitFor()
    await page.keyboard.press('Escape')
    await boss.context().close()
    await writer.context().close()
  })
  await step('end a terminal', async () => {
    await page.locator('.pane').nth(1).getByRole('button', { name: 'End' }).click()
    await page.getByRole('button', { name: 'Yes, do it' }).click()
    await page.waitForFunction(() => document.querySelectorAll('.pane').length === 1)
  })
  await step('edit a file', async () => {
    await page.getByRole('tab', { name: 'Files' }).click()
    await page.getByRole('button', { name: 'New file' }).click()
    await page.getByLabel('Name', { exact: true }).fill('hello.py')
    await page.getByRole('button', { name: 'Create' }).click()
    await write(page, 'hello.py', 'print("hello from a file")\n')
    await page.getByRole('button', { name: 'Changes' }).click()
    await page.getByLabel('Changes', { exact: true }).getByText('+ print("hello from a file")').waitFor()
    await page.getByRole('button', { name: 'Save' }).click()
    await page.getByText('hello.py is saved').waitFor()
  })
  await step('upload and download', async () => {
    await page.locator('input[type=file]').setInputFiles({ name: 'up.bin', mimeType: 'application/octet-stream', buffer: Buffer.from([0, 1, 255, 10]) })
    await page.getByRole('button', { name: 'up.bin', exact: true }).waitFor()
    const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('link', { name: 'Download', exact: true }).click()])
    const { readFile } = await import('node:fs/promises')
    equal(await readFile(await download.path(), 'utf8'), 'print("hello from a file")\n', 'the file')
  })
  await step('drag a file out, and not in again', async () => {
    const put = async (path, text) => fetch(`${input.url}${box}${t.made.sandbox}/files?path=${encodeURIComponent(path)}`, { method: 'PUT', body: text, headers: { Authorization: `Bearer ${input.admin}`, 'Content-Type': 'application/octet-stream' } })
    await put('/workspace/a:b "ü"\n%.txt', 'dragged out\n')
    await put('/workspace/many things/one', 'one\n')
    await page.reload()
    await page.evaluate(() => addEventListener('dragstart', (e) => { globalThis.dragged = ['DownloadURL', 'text/uri-list'].map((type) => e.dataTransfer.getData(type)) }))
    const drag = async (name, kind, as) => {
      await page.getByRole('button', { name }).dragTo(page.getByRole('heading', { name: 'hello.py' }))
      const [download, uri] = await page.evaluate(() => globalThis.dragged)
      equal(download, `${kind}:${as}:${uri}`, 'what is dragged')
      return page.evaluate(async (u) => Array.from(new Uint8Array(await (await fetch(u)).arrayBuffer())), uri)
    }
    equal(Buffer.from(await drag(/^a:b/, 'application/octet-stream', 'a_b _ü__%.txt')).toString(), 'dragged out\n', 'the file')
    const { gunzipSync } = await import('node:zlib')
    equal(gunzipSync(Buffer.from(await drag(/^many/, 'application/gzip', 'many things.tar.gz'))).includes('many things/one'), true, 'the archive of a directory')
    equal(await page.locator('.files.drop').count(), 0, 'lists that would take it')
    // Some systems make a file of what is dragged out.
    await page.locator('.files').evaluate((el) => {
      for (const [name, mark] of [['twice.txt', true], ['once.txt', false]]) {
        const of = new DataTransfer()
        of.items.add(new File(['x'], name))
        if (mark) of.setData('application/x-engi-file', '/workspace/twice.txt')
        el.dispatchEvent(new DragEvent('drop', { dataTransfer: of, bubbles: true, cancelable: true }))
      }
    })
    await page.getByRole('button', { name: 'once.txt', exact: true }).waitFor()
    equal(await page.getByRole('button', { name: 'twice.txt', exact: true }).count(), 0, 'uploads of what was dragged out')
  })
  await step('run a command', async () => {
    await page.getByRole('tab', { name: 'Processes' }).click()
    await page.getByLabel('Command', { exact: true }).fill('python3 hello.py; wc -c < up.bin')
    await page.getByRole('button', { name: 'Run', exact: true }).click()
    await page.getByLabel('Output of the command').getByText('hello from a file').waitFor()
    await page.getByLabel('Output of the command').getByText('4').waitFor()
    await api('POST', `${box}${t.made.sandbox}/processes`, { command: 'echo "<h1>Served inside</h1>" > /tmp/index.html; cd /tmp && exec python3 -m http.server 8080', detach: true })
    await page.getByRole('cell', { name: 'running' }).waitFor()
  })
  await step('see a preview', async () => {
    await page.getByRole('tab', { name: 'Ports' }).click()
    await page.getByRole('button', { name: 'Show' }).click()
    await page.frameLocator('iframe[title=Preview]').getByRole('heading', { name: 'Served inside' }).waitFor()
    const frame = page.frames().find((f) => f.url().includes('8080-'))
    equal(new URL(frame.url()).origin === input.url, false, 'the preview has our origin')
    t.expect(/blocked by CORS policy|net::ERR_FAILED/) // by what the preview tries now
    equal(await frame.evaluate(async (target) => {
      try { return (await fetch(target + '/v1/keys', { credentials: 'include' })).ok } catch { return 'refused' }
    }, input.url), 'refused', 'the preview with our cookie')
  })
  await step('allow a host with one click', async () => {
    await api('POST', `${box}${t.made.sandbox}/processes`, { command: 'getent hosts denied.example || true' })
    await page.getByRole('tab', { name: 'Network' }).click()
    await page.getByRole('row', { name: /denied.example/ }).first().getByRole('button', { name: 'Allow' }).click()
    await page.getByText('denied.example is allowed from now on').waitFor()
    equal((await api('GET', `${box}${t.made.sandbox}/network`)).allow.join(), 'allowed.example,denied.example', 'the policy')
  })
  await step('decide on a request that waits, for exactly such requests', async () => {
    const { id } = await api('POST', '/v1/sandboxes', { network: { mode: 'restricted', requests: [{ action: 'ask', methods: ['POST'], host: 'tracker.demo', path: '/pay' }] } })
    const pay = async () => {
      await api('POST', `${box}${id}/processes`, { command: "curl -sk https://tracker.demo/pay -d amount=5 -o /dev/null -w '%{http_code}' > /tmp/status" })
      return (await fetch(`${input.url}${box}${id}/files?path=/tmp/status`, { headers: { Authorization: `Bearer ${input.admin}` } })).text()
    }
    const first = pay()
    await open(page, 'approvals')
    await page.getByRole('button', { name: 'POST tracker.demo/pay' }).click()
    const dialog = page.getByRole('dialog')
    await dialog.getByText('amount=5').waitFor()
    await dialog.getByLabel('Your decision is for').selectOption('similar')
    await dialog.getByText('Query and body are not compared').waitFor()
    await t.accessible(page, 'a request that waits')
    await dialog.getByLabel('Your decision is for').selectOption('exact')
    await dialog.getByRole('button', { name: 'Deny' }).click()
    equal(await first, '403', 'the request that was refused')
    equal(await pay(), '403', 'the same request again, which nobody was asked about')
    await page.getByLabel('State').selectOption('remembered')
    await page.getByRole('button', { name: 'POST tracker.demo/pay' }).click()
    await dialog.getByText('exactly this request, of this sandbox').waitFor()
    await page.keyboard.press('Escape')
    await page.getByRole('button', { name: 'Forget' }).click()
    await page.getByText('There is none').waitFor()
    await api('DELETE', box + id)
  })
  await step('snapshot, fork and restore', async () => {
    await page.getByRole('tab', { name: 'Snapshots' }).click()
    await page.getByRole('button', { name: 'Make a snapshot' }).click()
    await page.getByRole('dialog').getByLabel('Name').fill('first')
    await page.getByRole('button', { name: 'Make it' }).click()
    await page.locator('.tree').getByText('first', { exact: true }).waitFor()
    await page.getByRole('button', { name: 'Create a sandbox from it' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Create' }).click()
    await page.waitForURL((u) => !u.hash.includes(t.made.sandbox))
    const restored = new URL(page.url()).hash.split('/')[2].split('?')[0]
    const file = await fetch(`${input.url}${box}${restored}/files?path=/workspace/hello.py`, { headers: { Authorization: `Bearer ${input.admin}` } })
    equal(await file.text(), 'print("hello from a file")\n', 'the file in what was restored')
    await open(page, `sandboxes/${restored}?tab=snapshots`)
    await page.getByRole('button', { name: 'Fork' }).click()
    await page.getByText('This is the copy').waitFor()
    await page.waitForURL((u) => !u.hash.includes(restored))
    const copy = new URL(page.url()).hash.split('/')[2].split('?')[0]
    await page.getByRole('button', { name: 'Stop' }).click()
    await page.getByRole('button', { name: 'Yes, do it' }).click()
    await page.locator('.page .state', { hasText: 'stopped' }).waitFor()
    await api('DELETE', `${box}${restored}`)
    equal((await api('GET', `${box}${copy}`)).state, 'stopped', 'the copy')
  })
  /** Fills in the form of a page and sends it. */
  const form = async (address, button, fields, action) => {
    await open(page, address)
    await page.getByRole('button', { name: button }).click()
    for (const [label, value] of Object.entries(fields)) await page.getByRole('dialog').getByLabel(label).first().fill(value)
    await page.getByRole('dialog').getByRole('button', { name: action }).click()
  }
  await step('edit a file, and see what Vite makes of it', async () => {
    const { execFileSync } = await import('node:child_process')
    const { id } = await api('POST', '/v1/sandboxes', { template: 'base', memory: '1GiB', timeout: '1h' })
    const app = await fetch(`${input.url}${box}${id}/files/archive?path=/workspace/app`, {
      method: 'PUT', headers: { Authorization: `Bearer ${input.admin}`, 'Content-Type': 'application/x-tar' }, body: execFileSync('tar', ['-C', input.vite, '-c', '.'], { maxBuffer: 1 << 30 }),
    })
    equal(app.ok, true, `the upload: ${app.status}`)
    await api('POST', `${box}${id}/processes`, { command: 'exec node_modules/.bin/vite', dir: '/workspace/app', detach: true })
    await open(page, `sandboxes/${id}?tab=ports`)
    await page.getByRole('row', { name: /5173/ }).getByRole('button', { name: 'Show' }).click()
    const inside = page.frameLocator('iframe[title=Preview]')
    await inside.getByRole('heading', { name: 'Hello from inside' }).waitFor({ timeout: 60_000 })
    await inside.getByRole('button', { name: '0' }).click()
    const editor = await page.context().newPage()
    await open(editor, `sandboxes/${id}?tab=files&dir=/workspace/app/src&file=/workspace/app/src/App.jsx`)
    const source = await (await fetch(`${input.url}${box}${id}/files?path=/workspace/app/src/App.jsx`, { headers: { Authorization: `Bearer ${input.admin}` } })).text()
    await write(editor, 'App.jsx', source.replace('Hello from inside', 'Edited in the dashboard'))
    await editor.getByRole('button', { name: 'Save' }).click()
    await editor.getByText('App.jsx is saved').waitFor()
    await inside.getByRole('heading', { name: 'Edited in the dashboard' }).waitFor()
    await inside.getByRole('button', { name: '1' }).waitFor() // the page's state is still there: it was not loaded again
    await editor.close()
    await page.goto('about:blank')
    await api('DELETE', `${box}${id}`)
  })
  await step('watch a build', async () => {
    await form('templates', 'Build a template', { Name: 'watched', Definition: `base: template:base\ncommands:\n  - echo built in view $((6*7)) # ${Date.now()}\n` }, 'Build')
    const log = page.getByLabel('Log of the build')
    await log.getByText('built in view 42').waitFor({ timeout: 60_000 })
    await page.getByRole('dialog').locator('.state', { hasText: 'done' }).waitFor({ timeout: 60_000 })
    await page.keyboard.press('Escape')
    await page.getByRole('row', { name: /^watched/ }).first().getByRole('button', { name: 'Remove' }).click()
    await page.getByRole('button', { name: 'Yes, do it' }).click()
    await page.getByText('The template').waitFor({ state: 'detached' })
  })
  await step('a session, a volume and a secret', async () => {
    await form('sessions', 'New session', { Name: 'notebook' }, 'Create')
    await page.getByRole('link', { name: 'notebook' }).click()
    await page.getByRole('tab', { name: 'Terminal' }).click()
    await page.getByRole('button', { name: 'New terminal' }).click() // which gets it a sandbox
    await page.locator('.pane .xterm-rows').getByText(/[$#]/).first().waitFor()
    await page.keyboard.type('echo in a session $((40+2))\n')
    await page.locator('.pane').getByText('in a session 42', { exact: true }).waitFor()
    await form('volumes', 'New volume', { Name: 'data', Capacity: '16MiB' }, 'Create')
    await page.getByRole('cell', { name: 'data', exact: true }).waitFor()
    await form('secrets', 'New secret', { Name: 'TOKEN', Value: 'never to be seen', Hosts: 'api.example' }, 'Store')
    await page.getByRole('cell', { name: 'TOKEN', exact: true }).waitFor()
    equal((await page.content()).includes('never to be seen'), false, 'the value is on the page')
    await page.getByRole('button', { name: 'Replace' }).click()
    await page.getByRole('dialog').getByLabel('Value').fill('another')
    await page.getByRole('dialog').getByRole('button', { name: 'Replace' }).click()
    await page.getByRole('cell', { name: '2', exact: true }).waitFor()
  })
  await step('the repository of a session', async () => {
    const { execFileSync } = await import('node:child_process')
    const git = (...args) => execFileSync('git', ['-C', input.git.dir, '-c', 'safe.directory=*', '-c', 'user.name=Bob', '-c', 'user.email=bob@git.test', ...args]).toString().trim()
    await api('POST', '/v1/secrets', { name: 'git', value: input.git.password, hosts: [new URL(input.git.url).origin] })
    const { id } = await api('POST', '/v1/sessions', {
      name: 'fix', network: { mode: 'restricted', allow: [new URL(input.git.url).host] },
      git: { url: input.git.url, secret: 'git', user: input.git.user, push: { branch: 'fix/prices', author: 'Ann <ann@git.test>', message: 'Correct the prices' } },
    })
    t.made.repository = id
    await open(page, `sessions/${id}?tab=git`)
    await page.getByRole('heading', { name: 'Not cloned yet' }).waitFor()
    await page.getByRole('tab', { name: 'Terminal' }).click()
    await page.getByRole('button', { name: 'New terminal' }).click()
    await page.locator('.pane .xterm-rows').getByText(/[$#]/).first().waitFor()
    await page.keyboard.type('cd site; git log --oneline; echo 7 > prices\n')
    await page.locator('.pane').getByText('Sell tickets').waitFor()
    await page.getByRole('tab', { name: 'Git' }).click()
    await page.locator('.state', { hasText: 'cloned' }).waitFor()
    const push = async (what, branch) => {
      await page.getByRole('button', { name: 'Push', exact: true }).click()
      const row = page.getByRole('row', { name: new RegExp(`^${what} ${branch}`) })
      await row.locator('.state', { hasText: what }).waitFor()
      return row.locator('code').last().getAttribute('title')
    }
    const commit = await push('pushed', 'fix/prices')
    equal(git('rev-parse', 'fix/prices'), commit, 'the commit on the branch')
    git('update-ref', 'refs/heads/fix/prices', git('commit-tree', '-p', 'fix/prices', '-m', 'Theirs', 'fix/prices^{tree}'))
    const { sandbox_id: sandbox } = await api('GET', `/v1/sessions/${id}`)
    await api('POST', `${box}${sandbox}/processes`, { command: 'echo 8 > site/prices' })
    const other = await push('conflict', 'fix/prices-conflict-')
    equal(git('rev-parse', `fix/prices-conflict-${other.slice(0, 12)}`), other, 'the commit beside the branch')
    await page.getByText('others had pushed to fix/prices').waitFor()
  })
  await step('an SSH key, and the command that the page shows', async () => {
    const { execFile } = await import('node:child_process')
    const { mkdtemp, readFile, rm } = await import('node:fs/promises')
    const { tmpdir } = await import('node:os')
    const run = (await import('node:util')).promisify(execFile)
    const dir = await mkdtemp(`${tmpdir()}/engi-`)
    try {
      const add = async (name) => {
        await run('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-C', name, '-f', `${dir}/${name}`])
        await open(page, 'keys')
        await page.getByRole('button', { name: 'Add SSH key' }).click()
        await page.getByRole('dialog').getByLabel('Public key').fill(await readFile(`${dir}/${name}.pub`, 'utf8'))
        await page.getByRole('dialog').getByRole('button', { name: 'Add' }).click()
        return page.getByRole('row', { name: new RegExp(`^${name} SHA256:`) })
      }
      const row = await add('ann@laptop')
      await row.getByText('never').waitFor()
      const command = await page.locator('.card p code', { hasText: 'ssh -p' }).textContent()
      const ssh = (name) => run('ssh', ['-i', `${dir}/${name}`, '-o', 'BatchMode=yes', '-o', 'StrictHostKeyChecking=no', '-o', `UserKnownHostsFile=${dir}/hosts`, '-F', 'none', ...command.replace('SESSION', 'notebook').split(' ').slice(1), 'echo by ssh $((6*7))'])
      equal((await ssh('ann@laptop')).stdout, 'by ssh 42\n', 'what a program prints')
      equal((await run('ssh-keygen', ['-l', '-f', `${dir}/hosts`])).stdout.split(' ')[1], await page.locator('.card p code', { hasText: 'SHA256:' }).textContent(), 'the host key')
      const old = await add('old')
      await row.getByText('never').waitFor({ state: 'detached' })
      await old.getByRole('button', { name: 'Delete' }).click()
      await page.getByRole('button', { name: 'Yes, do it' }).click()
      await old.waitFor({ state: 'detached' })
      equal(await ssh('old').then(() => 'in', (err) => err.code), 255, 'with the deleted key')
    } finally {
      await rm(dir, { recursive: true })
    }
  })
  await step('make a key and revoke it', async () => {
    await form('keys', 'New key', { Name: 'for a day', 'Valid for': '1d' }, 'Create')
    const secret = await page.getByLabel('Secret of the key').textContent()
    equal((await fetch(`${input.url}/v1/keys`, { headers: { Authorization: `Bearer ${secret}` } })).status, 200, 'with the new key')
    await page.keyboard.press('Escape')
    await page.getByRole('row', { name: /for a day/ }).getByRole('button', { name: 'Revoke' }).click()
    await page.getByRole('button', { name: 'Yes, do it' }).click()
    await page.getByRole('row', { name: /for a day/ }).locator('.state', { hasText: 'revoked' }).waitFor()
    equal((await fetch(`${input.url}/v1/keys`, { headers: { Authorization: `Bearer ${secret}` } })).status, 401, 'with the revoked key')
  })
  await step('chat with an agent', async () => {
    await open(page, 'agents')
    await page.getByLabel('Message').fill('Run this:\n```python\nprint("code of", 6 * 7)\n```')
    await page.getByLabel('Message').press('Enter')
    await page.locator('.call').getByText('code of 42').first().waitFor()
    await page.getByRole('link', { name: /^run_/ }).first().waitFor()
    t.made.run = (await api('GET', '/v1/runs?limit=1')).items[0].id
    await page.locator('.card .state', { hasText: 'done' }).first().waitFor()
    await page.locator('.turn .markdown').first().waitFor()
    await page.getByLabel('Message').fill('hello')
    await page.getByLabel('Message').press('Enter')
    await page.locator('.turn .markdown').getByText('I am the demo model').waitFor()
  })
  await step('decide on tool calls of an agent', async () => {
    await open(page, 'agents')
    await page.getByLabel('Ask before each tool call').check()
    const ask = async (n) => {
      await page.getByLabel('Message').fill('Run this:\n```python\nprint("decided on", ' + n + ' * 6)\n```')
      await page.getByLabel('Message').press('Enter')
      await page.locator('.call .state', { hasText: 'waiting' }).waitFor()
    }
    await ask(7)
    await page.getByLabel('Reason').fill('not on a Friday')
    await t.accessible(page, 'a call that waits')
    await page.screenshot({ path: `${input.shots}/decide-light.png` })
    await page.getByRole('button', { name: 'Refuse' }).click()
    await page.locator('.call').getByText('not on a Friday').waitFor()
    await page.locator('.card .state', { hasText: 'done' }).first().waitFor()
    await ask(8)
    await page.reload() // it waits still
    await page.getByRole('row').locator('.state', { hasText: 'waiting' }).waitFor()
    await page.getByRole('row').filter({ has: page.locator('.state', { hasText: 'waiting' }) }).getByRole('link').click()
    await page.getByRole('button', { name: 'Allow' }).click()
    await page.locator('.call').getByText('decided on 48').first().waitFor()
    await page.locator('.card .state', { hasText: 'done' }).first().waitFor()
  })
  await step('what models cost is plotted', async () => {
    await open(page, '')
    const cost = (await api('GET', '/v1/usage')).models.reduce((sum, m) => sum + m.cost, 0)
    equal(cost > 0, true, `it cost something: ${cost}`)
    await page.getByRole('img', { name: `Cost of models per day: today ${Number(cost.toPrecision(3))}`, exact: true }).locator('canvas').waitFor()
  })
  const example = async (name) => {
    await open(page, 'pages')
    await page.getByRole('button', { name: `Try ${name}` }).click()
    await page.locator('engi-ui[state="idle"] [data-action]').first().waitFor()
  }
  const settled = () => page.locator('engi-ui[state="idle"]').waitFor()
  await step('a counter that a model draws, and back to what it was', async () => {
    await example('Counter')
    const count = (n) => page.locator('engi-ui #count', { hasText: new RegExp(`^${n}$`) }).waitFor()
    for (let n = 1; n <= 3; n++) {
      await page.getByRole('button', { name: 'More' }).click()
      await count(n)
      await settled()
    }
    for (const n of [2, 1]) {
      await page.getByRole('button', { name: 'Undo' }).click()
      await count(n)
    }
    await page.getByRole('button', { name: 'More' }).click()
    await count(2)
    const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Export' }).click()])
    const text = await (await import('node:fs/promises')).readFile(await download.path(), 'utf8')
    equal(/<p id="count">2<\/p>/.test(text) && !/<script/.test(text), true, `the file: ${text}`)
    const row = page.getByRole('row', { name: /demo-counter/ })
    await row.getByRole('button', { name: 'Restore the page before this action' }).click()
    await page.locator('engi-ui #count').waitFor({ state: 'detached' })
  })
  await step('a form that is checked', async () => {
    await example('Form')
    await page.locator('engi-ui').getByLabel('Name').fill('Ann')
    await page.getByRole('button', { name: 'Sign up' }).click()
    await page.locator('engi-ui [id^="error-"]', { hasText: /\w/ }).first().waitFor()
    equal(await page.locator('engi-ui').getByLabel('Name').inputValue(), 'Ann', 'what was typed')
  })
  await step('a chart of what code computed', async () => {
    await example('Chart')
    await page.locator('engi-ui svg rect').first().waitFor({ timeout: 60_000 })
    await settled()
    // The answer might be there before anybody can cancel it: the action is held back.
    const seen = t.faults.length
    let free
    const held = new Promise((done) => { free = done })
    await page.route('**/page/actions', async (r) => {
      await held
      await r.abort()
    })
    await page.getByRole('button', { name: 'The next thousand' }).click()
    await page.locator('engi-ui[state="working"]').waitFor()
    const [answer] = await Promise.all([page.waitForResponse('**/page/cancel'), page.getByRole('button', { name: 'Cancel' }).click()])
    equal(answer.status(), 204, 'the answer to cancelling')
    free()
    await page.waitForEvent('requestfailed', (r) => r.url().endsWith('/page/actions'))
    await page.unroute('**/page/actions')
    await page.locator('engi-ui [data-action][data-from="2000"]').waitFor() // it is sent again, being lost
    await settled()
    t.faults.splice(seen) // Chromium reports what was lost
  })
  await step('a board over a tracker, whose key is put in at the egress gateway', async () => {
    const seen = t.faults.length
    await open(page, 'pages')
    await page.getByRole('button', { name: 'Try Board' }).click()
    await page.locator('engi-ui').getByText('There is no tracker.').waitFor()
    t.faults.splice(seen) // Chromium reports that there is no such secret
    const { key, address, url } = input.tracker
    const { spawn } = await import('node:child_process')
    await api('POST', '/v1/secrets', { name: 'demo-tracker', value: key, hosts: [url] })
    const tracker = spawn('python3', ['../../../docs/tracker.py', address, new URL(url).port], { env: { ...process.env, TRACKER_KEY: key } })
    try {
      let asked = ''
      tracker.stderr.on('data', (text) => { asked += text })
      const ask = async (authorization) => fetch(`http://${address}:${new URL(url).port}/issues`, { headers: { authorization } }).catch(() => {})
      while (!await ask('')) await page.waitForTimeout(50)
      await example('Board')
      const column = (name) => page.locator('engi-ui').getByRole('region', { name, exact: true })
      const card = (name, title) => column(name).locator('article', { hasText: title })
      await card('Open', 'The login fails').waitFor()
      await card('Open', 'The login fails').getByRole('button', { name: 'Doing' }).click()
      await card('Doing', 'The login fails').waitFor()
      await settled()
      equal(await column('Open').locator('article').count(), 0, 'what is left in its column')
      await page.locator('engi-ui input').fill('Say <b>who</b> asks')
      await page.locator('engi-ui input').press('Enter')
      await card('Open', 'Say <b>who</b> asks').waitFor()
      await settled()
      await card('Open', 'Say').getByRole('button', { name: 'Done' }).click()
      await card('Done', 'Say').waitFor()
      // The tracker has seen the key, and changed.
      equal((await ask('Bearer wrong')).status, 401, 'the answer to another key')
      equal((await (await ask(`Bearer ${key}`)).json()).map((x) => `${x.state}: ${x.title}`).join('; '), 'doing: The login fails on Mondays; doing: Prices have too many digits; done: Say <b>who</b> asks', 'the issues')
      equal(/"POST \/issues HTTP\/1.1" 201/.test(asked), true, `what was asked for: ${asked}`)
      // Neither the sandbox nor the model has.
      const session = new URL(page.url()).hash.split('/')[2]
      const inside = await api('POST', `/v1/sessions/${session}/run_code`, { code: 'Deno.env.get("TRACKER_KEY")' })
      equal(inside.success && typeof inside.result === 'string' && inside.result !== '' && !inside.result.includes(key), true, `the variable: ${JSON.stringify(inside)}`)
      for (const what of [inside, await api('GET', `/v1/events?subject=${session}&limit=1000`), await api('GET', '/v1/runs')]) equal(JSON.stringify(what).includes(key), false, 'the key is in what the API shows')
    } finally {
      tracker.kill()
    }
  })
  await step('a list of things to do, in a session of one’s own', async () => {
    const { id } = await api('POST', '/v1/sessions', { name: 'page-of-mine' })
    t.made.page = id
    await open(page, 'pages')
    await page.getByRole('link', { name: 'page-of-mine' }).click()
    await page.getByLabel('Action').fill('demo-todo')
    await page.getByRole('button', { name: 'Send' }).click()
    for (const what of ['milk', '<b>bread</b>']) {
      await page.locator('engi-ui input').fill(what)
      await page.locator('engi-ui input').press('Enter')
      await page.locator('engi-ui li', { hasText: what }).waitFor()
      await page.waitForFunction(() => document.querySelector('engi-ui').shadowRoot.querySelector('input').value === '')
    }
    await page.locator('engi-ui li', { hasText: 'milk' }).getByRole('button', { name: 'Remove' }).click()
    await page.locator('engi-ui li', { hasText: 'milk' }).waitFor({ state: 'detached' })
    await settled()
  })
  await step('an app that a model writes', async () => {
    await open(page, 'apps')
    await page.getByRole('button', { name: 'New app' }).first().click()
    await page.getByRole('dialog').getByLabel('Name').fill('notes')
    await page.getByRole('dialog').getByLabel('Template').selectOption('node-api')
    await page.getByRole('button', { name: 'Create' }).click() // which builds the template
    await page.getByRole('heading', { name: 'notes', level: 1 }).waitFor({ timeout: 120_000 })
    t.made.app = (await api('GET', '/v1/apps')).items[0].id
    const shown = page.frameLocator('iframe[title="The page of notes"]')
    await shown.getByText('GET /api/notes').waitFor()
    const done = page.getByRole('log', { name: 'What is done' })
    equal(await page.getByRole('button', { name: 'Pick an element' }).count(), 0, 'ways to pick an element of a page that does not allow it')
    const seen = t.faults.length
    await page.getByLabel('What should change?').fill('Greet people')
    await page.getByRole('button', { name: 'Change it' }).click()
    await page.getByRole('alert').getByText('no language model is configured').waitFor()
    t.faults.splice(seen) // Chromium reports the status
    await page.getByRole('button', { name: 'Apply a text' }).click()
    await page.getByLabel("A model's text").fill("<edit path=\"server.js\">\n<<<<<<< SEARCH\n  'GET /': () => ({ routes: Object.keys(routes) }),\n=======\n  'GET /': () => ({ greeting: 'Good morning' }),\n>>>>>>> REPLACE\n</edit>")
    await page.getByRole('button', { name: 'Apply', exact: true }).click()
    await done.getByText('done: revision 2').waitFor()
    await page.getByRole('button', { name: 'Reload' }).click()
    await shown.getByText('Good morning').waitFor()
    await page.getByLabel('Width of the page').selectOption('phone')
    equal(await page.locator('iframe.shown').evaluate((frame) => frame.clientWidth), 390, 'the width of a phone')
    await page.getByLabel("A model's text").fill('<file path="server.js">\nimport x from \n</file>')
    await page.getByRole('button', { name: 'Apply', exact: true }).click()
    await done.locator('.err').waitFor()
    await page.getByLabel('Files of the app').getByText('server.js').click()
    await page.getByRole('textbox', { name: 'server.js' }).getByText('Good morning').waitFor()
    await page.getByRole('tab', { name: 'History' }).click()
    await page.getByRole('button', { name: 'Changes of revision 2' }).click()
    await page.getByLabel('Changes of revision 2').last().getByText("+  'GET /': () => ({ greeting: 'Good morning' }),").waitFor()
    await page.getByRole('button', { name: 'Go back to revision 1' }).click()
    await done.getByText('rolled back: revision 3').waitFor()
    await page.getByRole('button', { name: 'Reload' }).click()
    await shown.getByText('GET /api/notes').waitFor()
    await page.getByRole('tab', { name: 'Status' }).click()
    await page.locator('.facts .state', { hasText: 'ready' }).waitFor()
    await page.getByRole('tab', { name: 'Console' }).click()
    await page.getByLabel('Output of the server').getByText('listening on port 3000').first().waitFor()
  })
  await step('search the docs', async () => {
    const text = '# Tickets\n\n## List\n\nTo **list tickets**, call `list()`: <script>globalThis.evil = 1</script>\n\n```js\nimport { list } from "tickets" // <b>\n```\n\n' +
      '1. first\n   - inner\n2. second\n\n| state | n |\n|---|--:|\n| open | 7 |\n\nSee [the site](https://tickets.example/a_(b)), [not this](javascript:alert(1)) or https://tickets.example/c_d.\n'
    await form('docs', 'Add a document', { Text: text, Package: 'tickets' }, 'Add')
    await page.getByRole('cell', { name: 'Tickets', exact: true }).waitFor()
    await page.getByLabel('Search the docs').fill('how do I list tickets')
    await page.getByRole('button', { name: 'Search', exact: true }).click()
    const hit = page.locator('.hit .markdown').first()
    await hit.locator('strong', { hasText: 'list tickets' }).waitFor()
    equal(await page.locator('.hit pre', { hasText: 'import { list } from "tickets" // <b>' }).count(), 1, 'code')
    equal(await page.locator('.hit td.right', { hasText: '7' }).count(), 1, 'a cell of a table')
    equal(await page.locator('.hit ol > li > ul > li', { hasText: 'inner' }).count(), 1, 'a list in a list')
    equal(await page.locator('.hit script').count(), 0, 'HTML became an element')
    equal(await page.locator('.hit').getByText('<script>globalThis.evil = 1</script>').count(), 1, 'HTML as text')
    equal((await page.locator('.hit .markdown a').evaluateAll((all) => all.map((a) => a.getAttribute('href')))).join(' '), 'https://tickets.example/a_(b) https://tickets.example/c_d', 'links')
    equal(new URL(page.url()).hash, '#/docs?search=how+do+I+list+tickets', 'the address')
  })
  await step('a webhook, and a delivery again', async () => {
    const { createServer } = await import('node:http')
    const got = []
    const receiver = createServer((req, resp) => {
      got.push(req.headers['webhook-id'])
      resp.end()
    }).listen(0, '127.0.0.1')
    receiver.unref() // it keeps nothing waiting when this fails
    await new Promise((done) => receiver.once('listening', done))
    await form('webhooks', 'New webhook', { Address: `http://127.0.0.1:${receiver.address().port}/hook`, Types: 'execution.done', Name: 'receiver' }, 'Create')
    await page.getByLabel('Secret of the webhook').getByText('whsec_').waitFor()
    await page.keyboard.press('Escape')
    await page.getByRole('link', { name: 'receiver' }).click()
    await api('POST', '/v1/executions', { language: 'bash', code: 'true' })
    const row = page.locator('.card tbody tr').first()
    await row.locator('.state', { hasText: 'done' }).waitFor()
    await row.getByRole('button', { name: 'Send again' }).click()
    await page.getByText('It is sent again').waitFor()
    await page.waitForFunction(() => document.querySelectorAll('.card tbody tr').length === 2)
    for (let i = 0; got.length < 2 && i < 100; i++) await page.waitForTimeout(100)
    equal(got.length === 2 && got[0] === got[1], true, `the same event twice: ${got}`)
    t.made.webhook = new URL(page.url()).hash.split('/')[2]
    await page.getByRole('button', { name: 'Disable' }).click()
    await page.getByRole('cell', { name: 'disabled' }).waitFor()
    await form('webhooks', 'New webhook', { Address: 'https://example.com/', Name: 'mistake' }, 'Create')
    await page.getByLabel('Secret of the webhook').getByText('whsec_').waitFor()
    await page.keyboard.press('Escape')
    await page.getByRole('row', { name: /mistake/ }).getByRole('button', { name: 'Delete' }).click()
    await page.getByRole('button', { name: 'Yes, do it' }).click()
    await page.getByRole('row', { name: /mistake/ }).waitFor({ state: 'detached' })
    receiver.close()
  })
  await step('tool servers, usage, and what the doctor finds', async () => {
    await open(page, 'tools')
    await page.getByRole('row', { name: /tickets/ }).locator('.state', { hasText: /unused|failed/ }).waitFor() // an agent may have asked it
    await open(page, 'usage')
    await page.locator('.numbers > div', { hasText: 'Sandboxes' }).getByText('no limit').waitFor()
    await open(page, '')
    await page.getByText(/checks of the machine pass/).click()
    await page.locator('.checks li', { hasText: 'cache directory' }).locator('.state', { hasText: 'ok' }).waitFor()
    await page.route('**/v1/doctor', (r) => r.fulfill({ json: { items: [{ name: 'data directory', ok: false, detail: 'only 3 MiB free', fix: 'free some space' }] } }))
    await page.reload()
    const finding = page.locator('.findings li', { hasText: 'data directory: only 3 MiB free' })
    await finding.getByText('free some space').waitFor()
    await page.unroute('**/v1/doctor')
  })
  await step('events arrive, and the address keeps the filter', async () => {
    await open(page, 'events')
    const { id } = await api('POST', '/v1/executions', { language: 'bash', code: 'true' })
    await page.getByRole('link', { name: id }).first().waitFor()
    await page.getByLabel('Filter events').fill('done')
    await page.getByLabel('Type').selectOption('execution.*')
    equal(new URL(page.url()).hash, '#/events?q=done&type=execution.*', 'the address')
    await page.reload()
    await page.locator('td').first().waitFor()
    equal(await page.getByLabel('Filter events').inputValue(), 'done', 'the filter')
    equal(await page.locator('tbody tr').count() >= 3, true, 'rows of programs that are done')
    await page.getByRole('button', { name: 'execution.done' }).first().click()
    await page.getByRole('dialog').getByText('"exit_code"').waitFor()
    await page.keyboard.press('Escape')
  })
  await step('the command palette', async () => {
    await page.keyboard.press('Control+k')
    await page.getByRole('combobox', { name: 'Page, command or ID' }).fill('run page')
    await page.keyboard.press('Enter')
    await page.getByRole('heading', { name: 'Run', level: 1 }).waitFor()
    equal(await page.getByRole('dialog').count(), 0, 'dialogs')
  })
  await step('a sandbox to look at', async () => {
    t.made.sandbox = (await api('POST', '/v1/sandboxes', { template: 'base', timeout: '1h', metadata: { app: 'shop' }, network: { mode: 'restricted', allow: ['packages'] } })).id
    const at = `${box}${t.made.sandbox}`
    await api('POST', `${at}/processes`, { command: 'printf "import time\\n\\nprint(time.ctime())\\n" > hello.py; mkdir data; getent hosts denied.example || true' })
    await api('POST', `${at}/snapshot`, { name: 'before' })
    const { id: log } = await api('POST', `${at}/terminals`, { args: ['sh', '-c', 'ls -la --color=always /; exec sh'] })
    const { id: shell } = await api('POST', `${at}/terminals`, {})
    t.made.terminals = [log, shell]
  })
  await step('a key that only reads', async () => {
    const reader = await visitor()
    await reader.goto(input.url)
    await reader.getByLabel('API key').fill(input.reader.secret)
    await reader.getByRole('button', { name: 'Sign in' }).click()
    await reader.getByRole('heading', { name: 'Home', level: 1 }).waitFor()
    await reader.locator('.side .state.good').waitFor()
    equal((await fetch(`${input.url}/v1/doctor`, { headers: { Authorization: `Bearer ${input.reader.secret}` } })).status, 403, 'the doctor for others')
    await reader.context().close()
  })
}
