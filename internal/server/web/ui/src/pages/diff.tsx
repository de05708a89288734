// What is different between two revisions, as git writes it.

import { Button, Card, visible } from '../ui'

const most = 5000 // lines that are shown

const kindOf = (line: string) => (/^(\+\+\+|---|@@|diff |index )/.test(line) ? 'dim' : line[0] === '+' ? 'added' : line[0] === '-' ? 'err' : undefined)

export function Diff({ title, text, onClose }: { title: string; text: string; onClose: () => void }) {
  const lines = text.split('\n')
  return (
    <Card title={title} actions={<Button kind="plain" onClick={onClose}>Close</Button>}>
      <pre class="output" tabIndex={0} aria-label={title}>
        {text ? lines.slice(0, most).map((l, i) => <span key={i} class={kindOf(l)}>{visible(l)}{'\n'}</span>) : 'It changed no files.'}
      </pre>
      {lines.length > most && <p class="dim">{lines.length - most} more lines are not shown.</p>}
    </Card>
  )
}
