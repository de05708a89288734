// Files as a tree. A directory is drawn once it is open, and of a large one not all.

import { useState } from 'preact/hooks'
import type { AppFile } from '../openapi'
import { setQuery } from '../route'
import { Button, bytes, visible } from '../ui'

const many = 300 // files, of more of which directories are closed at first
const most = 1000 // that are drawn of a directory

/** What has become of files. */
export const marks: Record<string, string> = { create: 'new', write: 'changed', remove: 'removed' }

/** A file of the tree. op is how the last revision, or what is under way, has changed it. */
export interface Leaf { path: string; size?: AppFile['size']; op?: string; now?: boolean }

export function Tree({ label, files, open }: { label: string; files: Leaf[]; open?: string }) {
  return <nav class="tree" aria-label={label}><Branch files={files.toSorted((a, b) => (a.path < b.path ? -1 : 1))} below="" open={open} closed={files.length > many} /></nav>
}

interface BranchProps { files: Leaf[]; below: string; open?: string; closed: boolean }

/** What is in a directory: its directories, then its files. */
function Branch({ files, below, open, closed }: BranchProps) {
  const dirs = new Map<string, Leaf[]>()
  const here: Leaf[] = []
  for (const f of files) {
    const rest = f.path.slice(below.length)
    const end = rest.indexOf('/')
    if (end < 0) here.push(f)
    else if (dirs.has(rest.slice(0, end))) dirs.get(rest.slice(0, end))!.push(f)
    else dirs.set(rest.slice(0, end), [f])
  }
  const left = dirs.size + here.length - most
  return (
    <ul>
      {[...dirs].slice(0, most).map(([name, inside]) => <li key={name}><Directory name={name} files={inside} below={`${below}${name}/`} open={open} closed={closed} /></li>)}
      {here.slice(0, Math.max(0, most - dirs.size)).map((f) => <li key={f.path} class="leaf">
        <Button kind="plain" class="mono" title={f.size === undefined ? undefined : bytes(f.size)} aria-current={f.path === open ? 'true' : undefined} onClick={() => setQuery({ file: f.path, line: undefined })}>{visible(f.path.slice(below.length))}</Button>
        {f.op && <span class={`mark ${f.now ? 'busy' : f.op}`}>{marks[f.op]}</span>}
      </li>)}
      {left > 0 && <li class="dim">and {left} more</li>}
    </ul>
  )
}

function Directory({ name, ...branch }: BranchProps & { name: string }) {
  const [shown, setShown] = useState(!branch.closed || Boolean(branch.open?.startsWith(branch.below)))
  return (
    <details open={shown} onToggle={(e) => setShown(e.currentTarget.open)}>
      <summary class="mono">{visible(name)}/</summary>
      {shown && <Branch {...branch} />}
    </details>
  )
}
