// What a workspace shows at an address of its own: its files, or a server in its sandbox.

import { useState } from 'preact/hooks'
import type { Link, PreviewRequest } from '../openapi'
import { send } from '../api'
import { Act, Button, Card, Empty, Facts, Field, FormDialog, textOf } from '../ui'
import type { Part } from './workspaces'

/** An address, and for what is private a link to it, which is opened. */
export function Visit({ url, path, service, edit, open }: { url: string; path: string; service?: string; edit: boolean; open?: boolean }) {
  return (
    <span class="row">
      <a href={url} target="_blank" rel="noreferrer"><code>{url}</code></a>
      {edit && !open && <Act class="small" act={async () => {
        const { url } = await send<Link>('POST', `${path}/link`, { service, ttl: '1h' })
        window.open(url, '_blank', 'noreferrer')
      }}>Open by a link<span class="hidden"> to {service ?? 'the preview'}</span></Act>}
    </span>
  )
}

const kinds: Record<string, string> = { static: 'files of the last revision', proxy: 'a server in the sandbox', websocket: 'a server of WebSockets in the sandbox' }

export function Preview({ of: w, path, edit, own, changed }: Part & { own: boolean }) {
  const [choosing, setChoosing] = useState(false)
  const p = w.preview
  const show = async (preview: PreviewRequest) => {
    await send('PATCH', path, { preview })
    changed()
  }
  const choose = () => <Button class="small" onClick={() => setChoosing(true)}>Choose</Button>
  return (
    <>
      {!p && <Empty title="No preview">
        <p>A workspace can serve its files as pages, which needs no sandbox, or a server in its sandbox. The URL stays the same.</p>
        {edit && choose()}
      </Empty>}
      {p && <Card title="Preview" actions={edit && <span class="row">{choose()}<Act class="small" kind="danger" ask="Its URL no longer shows a page." act={() => show({ type: 'none' })}>End</Act></span>}>
        <Facts of={[
          ['Address', p.url ? <Visit url={p.url} path={path} edit={edit} open={p.public || p.type === 'websocket'} /> : 'none: this node has no previews'],
          ['Shows', `${kinds[p.type] ?? p.type}${p.root ? ` below ${p.root}` : ''}${p.port ? `, port ${p.port}` : ''}${p.port && !w.sandbox_id ? ', once the workspace runs' : ''}`],
          ['For', p.public ? 'everybody who has the address' : 'who works in the workspace, by their keys, and who has a link'],
        ]} />
      </Card>}
      {choosing && (
        <FormDialog title="What it shows" action="Show" onClose={() => setChoosing(false)} submit={(form) => {
          const port = Number(textOf(form, 'port') ?? 0)
          const root = textOf(form, 'root')
          return show({ type: port ? (form.has('websocket') ? 'websocket' : 'proxy') : 'static', port, root: port ? undefined : root, public: form.has('public') })
        }}>
          <Field label="Directory" hint="Directory with the files to serve, if no port is set. Empty means all files."><input name="root" maxLength={512} placeholder="dist" defaultValue={p?.root} /></Field>
          <Field label="Port" hint="Port of a server in the sandbox, to serve instead of files."><input name="port" type="number" min={1} max={65535} placeholder="3000" defaultValue={p?.port} /></Field>
          <label class="check"><input type="checkbox" name="websocket" defaultChecked={p?.type === 'websocket'} /> The server speaks WebSockets</label>
          {own && <label class="check"><input type="checkbox" name="public" defaultChecked={p?.public} /> For everyone with the URL</label>}
        </FormDialog>
      )}
    </>
  )
}
