// Makes a workspace in the dashboard: files and their history, services, databases, and who
// else works on it.
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { becomes, browser, equal, input, step as tell } from './chromium.mjs'

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8')
const wide = { width: 1280, height: 860 }
const faults = []
let broken = false

/** A step; what follows one that fails is not tried, as it needs that. */
const step = (name, steps) => tell(name, async () => {
  if (broken) throw new Error('a step before it has failed')
  broken = true
  const said = await steps()
  broken = false
  return said
})

/** A page of somebody who has signed in. */
async function visitor(who) {
  const page = await (await browser.newContext({ viewport: wide, reducedMotion: 'reduce' })).newPage()
  page.setDefaultTimeout(20_000) // sandboxes and the browser share the processors
  page.on('pageerror', (e) => faults.push(e.stack))
  // What is refused is told on the page; a service that stops does not answer.
  page.on('console', (m) => { if (m.type() === 'error' && !/status of (403|404|409|503)|ERR_FAILED/.test(m.text())) faults.push(m.text()) })
  await page.goto(input.url)
  await page.getByLabel('API key').fill(input.keys[who])
  await page.getByRole('button', { name: 'Sign in' }).click()
  await page.getByRole('heading', { name: 'Home', level: 1 }).waitFor()
  return page
}

/** Asks the API without the browser. */
async function api(method, path, body, type = 'application/json') {
  const resp = await fetch(`${input.url}/v1/${path}`, { method, body: type === 'application/json' && body ? JSON.stringify(body) : body, headers: { Accept: 'application/json', Authorization: `Bearer ${input.keys.ann}`, ...(body === undefined ? {} : { 'Content-Type': type }) } })
  const text = await resp.text()
  if (!resp.ok) throw new Error(`${method} ${path}: ${resp.status} ${text}`)
  return text ? JSON.parse(text) : undefined
}
const put = (path, text) => api('PUT', path, text, 'application/octet-stream')

const page = await visitor('ann')

/** Has axe look at the page, in light and in dark; and at the same on a phone, which scrolls one way only. */
async function accessible(what) {
  if (!await page.evaluate(() => Boolean(globalThis.axe))) await page.evaluate(axe)
  for (const colorScheme of ['dark', 'light']) {
    await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' })
    const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'], iframes: false }))
    if (violations.length) throw new Error(`${what}, ${colorScheme}: ` + violations.map((v) => `${v.id}: ${v.nodes.map((n) => `${n.html} ${n.any.map((a) => a.message)}`).join('; ')}`).join('\n'))
    await page.screenshot({ path: `${input.shots}/workspace-${what}-${colorScheme}.png` })
  }
  await page.setViewportSize({ width: 390, height: 844 })
  await becomes(() => page.evaluate(() => document.documentElement.scrollWidth), 390, `the width of ${what} on a phone`)
  await page.screenshot({ path: `${input.shots}/workspace-${what}-phone.png`, fullPage: true })
  await page.setViewportSize(wide)
}

const button = (name, of = page) => of.getByRole('button', { name, exact: true })
const tab = (name, of = page) => of.getByRole('tab', { name, exact: true }).click()
const yes = () => button('Yes, do it').click()

/** Puts text into an editor as a keyboard does, but at once. */
async function write(label, text) {
  await page.getByRole('textbox', { name: label, exact: true }).click()
  await page.keyboard.press('ControlOrMeta+a')
  await page.keyboard.press('Delete')
  await page.keyboard.insertText(text)
}
const lines = (label) => page.getByRole('textbox', { name: label, exact: true }).locator('.cm-line').allTextContents()

/** Runs a query, which ends with some status. */
async function ask(text, status) {
  await write('Query', text)
  await page.keyboard.press('Control+Enter')
  if (status) await page.locator('[role=status]', { hasText: status }).waitFor()
}
const rows = () => page.getByRole('region', { name: 'Rows' }).locator('tbody tr')
const cells = async (n) => rows().nth(n).locator('td').allTextContents()

let shop = ''

try {
  await step('an empty list says what a workspace is', async () => {
    await page.goto(`${input.url}/#/workspaces`)
    await page.getByText('There is no workspace').waitFor()
    await page.getByText('files whose every change is a revision').waitFor()
    await accessible('empty')
  })
  await step('create one with services', async () => {
    await button('New workspace').first().click()
    await page.getByLabel('Name').fill('shop')
    await page.getByRole('checkbox', { name: 'PostgreSQL' }).check()
    await page.getByRole('checkbox', { name: 'Redis' }).check()
    await accessible('create')
    await button('Create').click()
    await page.getByRole('heading', { name: 'shop', level: 1 }).waitFor()
    shop = (await api('GET', 'workspaces/shop')).id
    await becomes(() => page.url(), `${input.url}/#/workspaces/${shop}?tab=services`, 'the address')
    for (const name of ['postgres', 'redis']) await page.getByRole('row', { name: new RegExp(`^${name}`) }).getByText('healthy', { exact: true }).waitFor({ timeout: 120_000 })
    await page.getByText('postgres.workspace.internal:5432').waitFor()
    await accessible('services')
  })
  await step('a service prints', async () => {
    await button('Log of postgres').click()
    await page.getByRole('log', { name: 'Log of postgres' }).filter({ hasText: 'database system is ready to accept connections' }).waitFor()
    await button('Close').click()
  })
  await step('how a service is reached', async () => {
    await becomes(() => page.getByText('postgresql://').count(), 0, 'passwords that nobody asked for')
    await button('Connection of postgres').click()
    const dialog = page.getByRole('dialog', { name: 'Connection of postgres' })
    const { url } = await api('GET', `workspaces/${shop}/services/postgres/connection`)
    await becomes(() => dialog.getByLabel('Connection', { exact: true }).textContent(), url, 'the connection')
    await page.keyboard.press('Escape')
    await dialog.waitFor({ state: 'detached' })
    await becomes(() => page.getByText('postgresql://').count(), 0, 'passwords after that')
  })

  await step('write a file', async () => {
    await tab('Files')
    await page.getByText('There is no file yet.').waitFor()
    await button('New file').click()
    await page.getByRole('textbox', { name: 'Name' }).fill('docs/README.md')
    await button('Create').click()
    await write('docs/README.md', '# Shop\n\nBoots\n')
    await page.getByLabel('Message of the revision').fill('Sell boots')
    await button('Save').click()
    await page.getByText('revision 2', { exact: true }).waitFor()
    await page.getByRole('navigation', { name: 'Files of the workspace' }).getByText('changed').waitFor()
    await becomes(async () => await (await fetch(`${input.url}/v1/workspaces/${shop}/files?path=docs/README.md`, { headers: { Authorization: `Bearer ${input.keys.ann}` } })).text(), '# Shop\n\nBoots\n', 'the file')
  })
  await step('a second revision, and what is not saved', async () => {
    await write('docs/README.md', '# Store\n\nBoots\n')
    await page.getByLabel('Compare').selectOption('saved')
    await page.locator('.editor .cm-deletedChunk', { hasText: '# Shop' }).waitFor()
    await page.getByText('not saved', { exact: true }).waitFor()
    await accessible('files')
    await button('Save').click()
    await page.getByText('revision 3', { exact: true }).waitFor()
    await page.getByLabel('Compare').selectOption('lines')
    await page.getByLabel('Lines of docs/README.md').filter({ hasText: '3 # Store' }).waitFor()
    await becomes(async () => (await page.getByLabel('Lines of docs/README.md').textContent()).split('\n').slice(0, 3), ['3 # Store', '2 ', '  Boots'], 'who wrote the lines')
    await page.getByLabel('Compare').selectOption('')
  })
  await step('somebody else has written it: nothing is overwritten', async () => {
    await write('docs/README.md', '# Mine\n')
    await put(`workspaces/${shop}/files?path=docs/README.md`, '# Theirs\n')
    const told = page.getByRole('alert').getByText('Somebody else has changed it, as of revision 4.')
    await told.waitFor()
    await becomes(() => lines('docs/README.md'), ['# Mine', ''], 'what was written here')
    await becomes(() => button('Save').isDisabled(), true, 'Save does nothing')
    await button('Compare').click()
    await page.locator('.editor .cm-deletedChunk', { hasText: '# Theirs' }).waitFor()
    await accessible('conflict')
    await button('Take theirs').click()
    await yes()
    await page.locator('.editor .cm-line', { hasText: '# Theirs' }).waitFor()
    await told.waitFor({ state: 'detached' })
    await page.getByLabel('Compare').selectOption('')
  })
  await step('a conflict that only the server knows of', async () => {
    await write('docs/README.md', '# Mine again\n')
    await page.evaluate(async (path) => { // saved before the page has heard of the other revision
      const { ok } = await fetch(path, { method: 'PUT', body: '# Theirs again\n', headers: { 'Engi-Dashboard': '1', 'Content-Type': 'application/octet-stream' } })
      if (!ok) throw new Error('it is not written')
      ;[...document.querySelectorAll('button')].find((b) => b.textContent === 'Save').click()
    }, `/v1/workspaces/${shop}/files?path=docs/README.md`)
    await page.locator('.toast').getByText('has changed since revision 4').waitFor()
    await page.getByRole('alert').getByText('as of revision 5').waitFor()
    await becomes(() => lines('docs/README.md'), ['# Mine again', ''], 'what was written here')
    equal((await api('GET', `workspaces/${shop}`)).revision, 5, 'revisions')
    await button('Keep mine, to save it over theirs').click()
    await button('Save').click()
    await page.getByText('revision 6', { exact: true }).waitFor()
  })
  await step('history: a diff, and the way back', async () => {
    await tab('History')
    await button('Changes of revision 3').click()
    const diff = page.getByLabel('Changes of revision 3', { exact: true })
    await diff.locator('.added', { hasText: '+# Store' }).waitFor()
    await diff.locator('.err', { hasText: '-# Shop' }).waitFor()
    await button('Changes since').click()
    await page.getByLabel('Changes since revision 3', { exact: true }).locator('.added', { hasText: '+# Mine again' }).waitFor()
    await accessible('history')
    await button('Restore docs/README.md').click()
    await page.getByText('(as in revision 3)').waitFor()
    await button('Restore revision 1').click()
    await page.getByText('(as in revision 1)').waitFor()
    equal((await api('GET', `workspaces/${shop}`)).revision, 8, 'revisions')
    await button('Restore revision 2').click()
    await page.getByText('(as in revision 2)').waitFor()
  })
  await step('names and texts of others are text', async () => {
    await api('POST', `workspaces/${shop}/files`, { files: [{ path: '<img src=x onerror=alert(1)>.md', content: '<b>bold</b>\n' }, { path: 'a\u202etxt.exe', content: '' }], message: '<i>\u202eno</i>' })
    await page.getByText('<i>\\u{202e}no</i>').waitFor()
    await tab('Files')
    await button('a\\u{202e}txt.exe').waitFor()
    await button('<img src=x onerror=alert(1)>.md').click()
    await page.locator('.editor .cm-line', { hasText: '<b>bold</b>' }).waitFor()
    await becomes(() => page.locator('img[src=x], main i, main b').count(), 0, 'elements that they have made')
  })
  await step('start it, and see what programs write', async () => {
    await button('Start shop').click()
    await page.locator('header.page').getByText('running').waitFor({ timeout: 120_000 })
    const { sandbox_id: sandbox } = await api('GET', `workspaces/${shop}`)
    await put(`sandboxes/${sandbox}/files?path=/workspace/made.sql`, 'select 1;\n')
    await button('Look again').click()
    await button('made.sql').click()
    await page.locator('.editor .cm-line', { hasText: 'select 1;' }).waitFor()
    await becomes(() => page.getByRole('link', { name: 'Terminal' }).getAttribute('href'), `#/sandboxes/${sandbox}?tab=terminal`, 'where its terminal is')
    await button('Remove').last().click()
    await yes()
    await button('made.sql').waitFor({ state: 'detached' })
  })
  /** Returns a field of the form that creates an app. */
  const field = (form, name, role = 'textbox') => form.getByRole(role, { name: new RegExp(`^${name}`) })
  await step('an app in its sandbox', async () => {
    await tab('Apps')
    await page.getByText('This workspace has no apps').waitFor()
    await button('New app').click()
    const form = page.getByRole('dialog', { name: 'New app in shop' })
    await field(form, 'Name').fill('web')
    await becomes(() => form.getByLabel('Template').isDisabled(), false, 'no template for an app with a sandbox of its own')
    await field(form, 'Directory').fill('web')
    await becomes(() => form.getByLabel('Template').isDisabled(), true, 'no template for an app in the sandbox of the workspace')
    await button('Create', form).click()
    await becomes(() => form.locator('input:invalid').evaluateAll((all) => all.map((el) => el.name)), ['start', 'port'], 'what is missing')
    await field(form, 'Start command').fill('echo "<h1>Boots at port $PORT</h1>" > index.html; exec python3 -m http.server "$PORT"')
    await field(form, 'Port', 'spinbutton').fill('8000')
    await accessible('app, creating')
    await button('Create', form).click()
    await page.getByRole('heading', { name: 'web', level: 1 }).waitFor({ timeout: 120_000 })
    await page.frameLocator('iframe[title="The page of web"]').getByRole('heading', { name: 'Boots at port 8000' }).waitFor()
    const [app, { sandbox_id: sandbox }] = [await api('GET', 'apps/web'), await api('GET', `workspaces/${shop}`)]
    equal([app.workspace_id, app.directory, app.port, app.sandbox_id], [shop, 'web', 8000, sandbox], 'where the app is')
  })
  await step('the app is offered nothing that needs a sandbox of its own', async () => {
    await page.getByText('Model and limits').click()
    await page.getByText('Several attempts need a sandbox each').waitFor()
    await becomes(() => page.getByLabel('Attempts').count(), 0, 'fields for attempts')
    await tab('History')
    await page.getByText('This app has no snapshots and no branches').waitFor()
    await button('Changes of revision 1').waitFor()
    await becomes(() => button('Keep a snapshot').count(), 0, 'buttons for snapshots')
    await accessible('app')
    await tab('Status')
    await page.getByText('not measured').waitFor()
  })
  await step('apps of the workspace are listed, and an app is removed without its files', async () => {
    await page.goto(`${input.url}/#/apps?new=1`)
    const form = page.getByRole('dialog', { name: 'New app' })
    await form.getByLabel('Workspace').selectOption('shop')
    await field(form, 'Directory').fill('api')
    await field(form, 'Start command').fill('true')
    await field(form, 'Port', 'spinbutton').fill('8000')
    await button('Create', form).click()
    await form.getByRole('alert').getByText('port 8000 belongs to app').waitFor()
    await button('Cancel', form).click()
    await page.getByRole('link', { name: 'web', exact: true }).click()
    await page.getByRole('link', { name: 'Workspace', exact: true }).click()
    await tab('Apps')
    await page.getByRole('cell', { name: 'web', exact: true }).first().waitFor()
    await accessible('apps')
    await button('Remove web').click()
    await page.getByText('Its files stay in the workspace.').waitFor()
    await yes()
    await page.getByText('This workspace has no apps').waitFor()
    equal((await api('GET', `workspaces/${shop}/files/list?path=web`)).items.map((f) => f.path), ['web/index.html'], 'files of the app that was removed')
  })

  await step('ask a database', async () => {
    await tab('Databases')
    await ask("create table orders (id int primary key, day date not null, total numeric(9,2), note text);\ninsert into orders values (1, '2026-01-01', 19.50, 'a cart'), (2, '2026-01-02', 7.25, null), (3, '2026-01-05', 12, ''), (4, '2026-01-06', 24.1, '<b>7d0e5c1b93</b>\u202e')", /affected|Done/)
    await button('orders').click()
    await page.getByRole('region', { name: 'Columns' }).getByText('numeric(9,2)').waitFor()
    await page.getByRole('list', { name: 'Constraints and indexes' }).getByText('PRIMARY KEY (id)').waitFor()
    await ask('select * from orders order by id', '4 rows in')
    await becomes(async () => [await cells(0), await cells(1), await cells(2), await cells(3)], [
      ['1', '2026-01-01', '19.50', 'a cart'], ['2', '2026-01-02', '7.25', 'NULL'], ['3', '2026-01-05', '12.00', "''"], ['4', '2026-01-06', '24.10', '<b>7d0e5c1b93</b>\\u{202e}'],
    ], 'the rows')
    await becomes(() => rows().nth(1).locator('.null').count(), 1, 'NULLs')
    await accessible('sql')
  })
  await step('as a plot', async () => {
    await button('Plot').click()
    await page.getByRole('img', { name: 'id, total by day: 4 points' }).locator('canvas').waitFor()
    await page.getByLabel('Above').selectOption('total')
    await page.getByRole('img', { name: 'total by day: 4 points' }).locator('canvas').waitFor()
    await accessible('plot')
    await page.locator('.toasts:not(:has(.toast))').waitFor({ state: 'attached' }) // no picture of what comes and goes
    await page.setViewportSize({ ...wide, height: 900 })
    await page.screenshot({ path: `${input.shots}/workspace.png` }) // docs/dashboard-workspace.png
    await page.setViewportSize(wide)
    await page.getByLabel('Across').selectOption('by note')
    await page.getByLabel('Above').selectOption('total')
    await page.getByRole('img', { name: 'total by note: 4 points' }).locator('canvas').waitFor()
    await page.screenshot({ path: `${input.shots}/workspace-bars.png` })
    await button('Table').click()
  })
  await step('an error with its place', async () => {
    await ask("select 'ü😀' as smile,\n  missing from orders")
    await page.getByRole('alert').getByText('column "missing" does not exist').waitFor()
    await page.getByText('(42703)').waitFor()
    await becomes(() => page.getByLabel('Position of the error').locator('mark').textContent(), 'missing', 'what is marked below')
    await becomes(() => page.locator('.editor .cm-wrong').textContent(), 'missing', 'what is marked in the text')
    await accessible('error')
    await page.getByRole('textbox', { name: 'Query' }).press('End')
    await page.keyboard.type(' ')
    await becomes(() => page.locator('.editor .cm-wrong').count(), 0, 'marks once it has changed')
  })
  await step('explain', async () => {
    await write('Query', 'select * from orders where id = 1')
    await button('Explain').click()
    await page.getByLabel('Plan', { exact: true }).filter({ hasText: '(id = 1)' }).waitFor()
  })
  await step('read only', async () => {
    await page.getByLabel('Read only').check()
    await ask('delete from orders')
    await page.getByRole('alert').getByText('read-only transaction').waitFor()
    await page.getByLabel('Read only').uncheck()
    await ask('select count(*) from orders', 'One row in')
    await becomes(() => cells(0), ['4'], 'orders')
  })
  await step('many rows, and long values', async () => {
    await page.getByLabel('Rows at most').selectOption('10000')
    await ask("select i, 'row ' || i, repeat('long ', 100) from generate_series(1, 20000) i", /^10,000 rows in .* more/)
    await becomes(() => rows().count(), 200, 'rows that are drawn')
    await page.getByText('9,800 rows are not shown.').waitFor()
    await button('Show 200 more').click()
    await becomes(() => rows().count(), 400, 'rows after that')
    await button('all 500 characters').first().click()
    await becomes(async () => (await page.getByRole('dialog').locator('pre').textContent()).length, 500, 'the whole value')
    await page.keyboard.press('Escape')
    await page.getByLabel('Rows at most').selectOption('1000')
  })
  await step('a query that is cancelled', async () => {
    await ask('select pg_sleep(600)')
    await button('Cancel').click()
    await page.getByRole('alert').getByText('It was cancelled.').waitFor()
    for (const end = Date.now() + 20_000; ; await new Promise((next) => setTimeout(next, 200))) {
      const { rows } = await api('POST', `workspaces/${shop}/query`, { text: "select count(*) from pg_stat_activity where query like 'select pg_sleep%'" })
      if (rows[0][0] === 0) break
      if (Date.now() > end) throw new Error('it goes on in the server')
    }
  })
  await step('redis', async () => {
    await button('redis healthy').click()
    const command = page.getByLabel('Command')
    const replies = page.getByRole('log', { name: 'Replies' })
    const line = async (text, reply) => {
      await command.fill(text)
      await command.press('Enter')
      await replies.locator('.line', { hasText: reply }).last().waitFor()
    }
    await line('SET greeting "hello \\"you\\"\\n"', 'OK')
    await line('GET greeting', 'hello "you"')
    await line('GET none', '(nil)')
    await line("RPUSH list 'a b' c", '(integer) 2')
    await line('LRANGE list 0 -1', '1) "a b"')
    await line('NOPE', '(error) ERR unknown command')
    await line('GET "open', 'GET "open')
    await page.getByText('A quote is not closed').waitFor()
    await command.press('ArrowUp')
    await command.press('ArrowUp')
    await becomes(() => command.inputValue(), 'NOPE', 'an earlier command')
    await accessible('redis')
  })

  const bob = await visitor('bob')
  await step('show its files as a page', async () => {
    await api('POST', `workspaces/${shop}/files`, { files: [{ path: 'site/index.html', content: '<h1>Our boots</h1>' }] })
    await tab('Preview')
    await page.getByText('No preview').waitFor()
    await button('Choose').click()
    await page.getByLabel('Directory').fill('site')
    await accessible('preview, choosing')
    await button('Show').click()
    await page.getByText('files of the last revision below site').waitFor()
    await accessible('preview')
    const [shown] = await Promise.all([page.context().waitForEvent('page'), button('Open by a link to the preview').click()])
    await shown.getByRole('heading', { name: 'Our boots' }).waitFor()
    await becomes(() => shown.url(), (await api('GET', `workspaces/${shop}`)).preview.url, 'the address, without the link')
    await shown.close()
    await button('End').click()
    await yes()
    await page.getByText('No preview').waitFor()
  })
  await step('share it', async () => {
    await tab('About')
    await page.getByText('Nobody but its owner.').waitFor()
    await button('Share').click()
    await page.getByRole('dialog').getByRole('textbox').fill('bob')
    await page.getByLabel('Role').selectOption('reviewer')
    await page.getByRole('dialog').getByRole('button', { name: 'Share' }).click()
    await page.getByRole('cell', { name: 'bob', exact: true }).waitFor()
    await accessible('about')
    await bob.goto(`${input.url}/#/workspaces`)
    await bob.getByRole('row', { name: /shop/ }).getByText('of ann').waitFor()
    await becomes(() => bob.getByRole('button', { name: /Start|Stop|Remove/ }).count(), 0, 'what he may not do')
  })
  await step('a reviewer queries, and changes nothing', async () => {
    await bob.getByRole('link', { name: 'shop' }).click()
    await button('Look again', bob).waitFor()
    await becomes(() => bob.getByRole('button', { name: /New file|Start|Stop|Save/ }).count(), 0, 'what changes files')
    await becomes(() => bob.getByRole('tab', { name: 'Apps' }).count(), 0, 'tabs for apps, which only the owner has')
    await tab('Services', bob)
    await button('Log of postgres', bob).waitFor()
    await becomes(() => bob.getByRole('button', { name: /Connection|Restart|Add a service/ }).count(), 0, 'what changes services')
    await tab('Databases', bob)
    await becomes(async () => [await bob.getByLabel('Read only').isChecked(), await bob.getByLabel('Read only').isDisabled()], [true, true], 'Read only')
    await bob.getByRole('textbox', { name: 'Query' }).click()
    await bob.keyboard.press('Control+Enter')
    await bob.getByRole('cell', { name: '42' }).waitFor()
    await button('redis healthy', bob).click()
    await bob.getByText('Commands of Redis are for editors').waitFor()
  })
  await step('what is denied is told in words', async () => {
    await api('PATCH', `workspaces/${shop}`, { collaborators: [{ owner: 'bob', role: 'editor' }] })
    await bob.reload()
    await tab('Services', bob)
    await button('Connection of postgres', bob).waitFor()
    await bob.route(`**/v1/workspaces/${shop}`, (r) => r.abort()) // the page does not hear of it yet
    await api('PATCH', `workspaces/${shop}`, { collaborators: [{ owner: 'bob', role: 'viewer' }] })
    await button('Connection of postgres', bob).click() // which is there still
    await bob.locator('.toast').getByText('viewer').waitFor()
    await becomes(() => bob.getByText('postgresql://').count(), 0, 'passwords')
    await bob.unroute(`**/v1/workspaces/${shop}`)
    await button('Connection of postgres', bob).waitFor({ state: 'detached' })
    await tab('Databases', bob)
    await bob.getByText('Databases are for reviewers and editors').waitFor()
    await bob.context().close()
  })

  await step('a service goes with its data', async () => {
    await tab('Services')
    await button('Remove redis').click()
    await page.getByText('with all its data').waitFor()
    await yes()
    await page.getByRole('row', { name: /^redis/ }).waitFor({ state: 'detached' })
  })
  await step('stop it, and start a database again', async () => {
    await button('Stop shop').click()
    await page.locator('header.page').getByText('stopped').waitFor({ timeout: 60_000 })
    await tab('Databases')
    await page.getByText('postgres is stopped').waitFor()
    await button('Start it').click()
    await button('postgres healthy').waitFor({ timeout: 60_000 })
    await ask('select note from orders where id = 1', 'One row in')
    await becomes(() => cells(0), ['a cart'], 'what was there before')
  })
  await step('remove it', async () => {
    await page.goto(`${input.url}/#/workspaces`)
    await button('Remove shop').waitFor()
    await accessible('list')
    await button('Remove shop').click()
    await yes()
    await page.getByText('There is no workspace').waitFor()
    equal((await api('GET', 'workspaces')).items, [], 'workspaces')
    equal(faults, [], 'what the pages complain of')
  })
} finally {
  await browser.close()
}
