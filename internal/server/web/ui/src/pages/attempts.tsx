// Several attempts of an edit, side by side: the page of each while there is its branch,
// what its model writes, what was wrong, and which one was taken.

import { useEffect, useState } from 'preact/hooks'
import type { App, AppUpdate } from '../openapi'
import { get, segment } from '../api'
import { href } from '../route'
import { Card, State } from '../ui'
import { Happened, resultOf } from './change'
import { Frame, usePage, Visit } from './preview'
import { type Attempt, attemptsOf } from './updates'

export function Attempts({ of: updates }: { of: AppUpdate[] }) {
  const all = attemptsOf(updates)
  if (!all.length) return null
  const judged = updates.find((u) => u.type === 'judged')
  const ended = updates.find((u) => u.type === 'edited')
  return (
    <Card title="Attempts" actions={<span class="dim">{all.length}</span>}>
      {judged && <p class="verdict" role="status"><strong>Attempt {judged.attempt} is taken.</strong> {judged.text}</p>}
      <div class="attempts">
        {all.map((x) => <One key={`${x.number} ${updates[0]?.edit}`} of={x} ended={Boolean(ended)} taken={judged && judged.attempt === x.number} />)}
      </div>
    </Card>
  )
}

// Its page is loaded again once it has ended: what was changed while it was loaded, it has missed.
function One({ of: x, ended, taken }: { of: Attempt; ended: boolean; taken?: boolean }) {
  const { branch, name, model } = x.begun ?? x.ended ?? {}
  const address = x.begun?.preview_url
  const page = usePage(branch, address)
  const [kept, setKept] = useState<boolean>() // as an app of its own; undefined until that is known
  useEffect(() => {
    if (!ended || !branch) return
    const stop = new AbortController()
    get<App>(`/v1/apps/${segment(branch)}`, stop.signal).then((a) => setKept(!a.attempt_of), () => { if (!stop.signal.aborted) setKept(false) })
    return () => stop.abort()
  }, [ended, branch])
  const there = address && (!ended || kept)
  const answer = x.updates.findLast((u) => u.type === 'output')
  const state = taken ? 'taken' : x.ended ? (x.ended.error ? 'not well' : 'well') : x.begun ? 'working' : 'starting'
  return (
    <section class={`attempt ${taken ? 'taken' : ''}`} aria-label={`Attempt ${x.number}`}>
      <header>
        <h3>Attempt {x.number}{model && <span class="dim"> {model}</span>}</h3>
        <State of={state} />
      </header>
      {there && page
        ? <Frame key={x.ended?.type} src={page} title={`The page of attempt ${x.number}`} />
        : <p class="none dim">{ended ? 'Its branch was removed when the edit ended.' : x.ended ? 'It has no page.' : 'Its page is loading.'}</p>}
      {there && <div class="row">
        <Visit id={branch!} address={address} class="small">Open in a tab<span class="hidden"> attempt {x.number}</span></Visit>
        {kept && <a class="button small" href={href('apps', branch!)}>{name}</a>}
      </div>}
      {(x.updates.length > 0 || x.ended) && <div class="done" role="log" tabIndex={0} aria-label={`Steps of attempt ${x.number}`}>
        {x.updates.map((u, i) => <Happened key={i} of={u} open={u === answer && !x.ended} />)}
        {x.ended && <div class="result">{resultOf(x.ended)}</div>}
      </div>}
    </section>
  )
}
