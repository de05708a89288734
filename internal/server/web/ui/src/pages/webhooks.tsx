// Where events are sent, and how that went.

import { useState } from 'preact/hooks'
import type { Webhook, WebhookDelivery } from '../openapi'
import { list, may, segment, send } from '../api'
import { useLive } from '../live'
import { href, route, setQuery } from '../route'
import { Act, Ago, Button, Card, Copy, Dialog, Empty, Field, FormDialog, Id, Page, State, Table, textOf, Trouble } from '../ui'

export function Webhooks({ id }: { id?: string }) {
  const found = useLive((stop) => list<Webhook>('/v1/webhooks', stop), ['webhook.'])
  const [fresh, setFresh] = useState<Webhook>()
  const stateOf = (w: Webhook) => (w.enabled ? 'in force' : 'disabled')
  const shown = found.data?.find((w) => w.id === id)
  return (
    <Page title="Webhooks" about="URLs to which events are sent. Each request is signed, and repeated until it is accepted."
      actions={<Button kind="primary" disabled={!may('events')} onClick={() => setQuery({ new: '1' })}>New webhook</Button>}>
      <Trouble of={found.problem} again={found.reload} />
      {!(found.problem && !found.data) && <Table name="Webhooks" rows={found.data} id={(w) => w.id}
        empty={<Empty title="No webhooks"><p>Enter a URL and the types of events to send. Each delivery is listed here with its answer.</p></Empty>}
        columns={[
          { head: 'Webhook', cell: (w) => <><a href={href('webhooks', w.id)} aria-current={w.id === id ? 'true' : undefined}>{w.name || w.url}</a>{w.name && <div class="dim">{w.url}</div>}</>, by: (w) => `${w.name ?? ''} ${w.url}` },
          { head: 'Gets', cell: (w) => (w.types?.length ? w.types.map((t) => <code key={t} class="chip">{t}</code>) : w.format === 'approval' ? 'approvals' : 'everything'), by: (w) => w.types?.join(' '), wide: true },
          { head: 'State', cell: (w) => <><State of={stateOf(w)} />{w.reason && <div class="dim">{w.reason}</div>}</>, by: stateOf },
          { head: 'Made', cell: (w) => <Ago at={w.created_at} />, by: (w) => w.created_at, number: true, wide: true },
          { head: '', cell: (w) => may('events') && <div class="row">
            <Act class="small" act={async () => {
              await send('PATCH', `/v1/webhooks/${segment(w.id)}`, { enabled: !w.enabled })
              found.reload()
            }}>{w.enabled ? 'Disable' : 'Enable'}</Act>
            <Act class="small" kind="danger" ask={`${w.name || w.url} gets nothing more, not even what waits.`} act={async () => {
              await send('DELETE', `/v1/webhooks/${segment(w.id)}`)
              found.reload()
            }}>Delete</Act>
          </div> },
        ]} />}
      {shown && <Deliveries of={shown} key={shown.id} />}
      {fresh && <Dialog title="The new webhook" onClose={() => setFresh(undefined)}>
        <p>Its requests are signed with this secret, as <a href="https://www.standardwebhooks.com" target="_blank" rel="noopener noreferrer">Standard Webhooks</a> describe. The secret is shown only once.</p>
        <pre tabIndex={0} aria-label="Secret of the webhook">{fresh.secret}</pre>
        <footer><Copy text={fresh.secret ?? ''} /></footer>
      </Dialog>}
      {route.value.query.get('new') && (
        <FormDialog title="New webhook" action="Create" onClose={() => setQuery({ new: undefined })} submit={async (form) => {
          setFresh(await send<Webhook>('POST', '/v1/webhooks', { url: textOf(form, 'url'), name: textOf(form, 'name'), types: textOf(form, 'types')?.split(/[\s,]+/) }))
          found.reload()
        }}>
          <Field label="Address"><input name="url" type="url" required placeholder="https://example.com/hooks/engi" /></Field>
          <Field label="Types" hint="Types of events, separated by commas; sandbox.* means all types with this prefix. Empty means all."><input name="types" placeholder="execution.done, sandbox.*" /></Field>
          <Field label="Name" hint="Optional."><input name="name" placeholder="deploys" /></Field>
        </FormDialog>
      )}
    </Page>
  )
}

function Deliveries({ of: w }: { of: Webhook }) {
  const path = `/v1/webhooks/${segment(w.id)}/deliveries`
  const found = useLive((stop) => list<WebhookDelivery>(`${path}?limit=200`, stop), ['webhook.', 'function.'], [path], 3000)
  return (
    <Card title={`Deliveries to ${w.name || w.url}`}>
      <Trouble of={found.problem} again={found.reload} />
      <Table name="Deliveries" rows={found.data} id={(d) => d.id} prefix="d"
        empty={<Empty title="No deliveries yet"><p>The webhook receives all events from now on.</p></Empty>}
        columns={[
          { head: 'Event', cell: (d) => <a href={`${href('events')}?event=${segment(d.event_id)}`}><Id of={d.event_id} /></a>, by: (d) => d.event_id },
          { head: 'State', cell: (d) => <State of={d.state} />, by: (d) => d.state },
          { head: 'Answer', cell: (d) => d.status || d.error?.detail || '–', by: (d) => d.status ?? d.error?.detail },
          { head: 'Attempts', cell: (d) => d.attempts, by: (d) => d.attempts, number: true, wide: true },
          { head: 'Began', cell: (d) => <Ago at={d.created_at} />, by: (d) => d.created_at, number: true, wide: true },
          { head: '', cell: (d) => may('events') && <div class="row"><Act class="small" done="It is sent again" act={async () => {
            await send('POST', path, { event_id: d.event_id })
            found.reload()
          }}>Send again</Act></div> },
        ]} />
    </Card>
  )
}
