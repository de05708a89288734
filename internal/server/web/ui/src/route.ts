// The address is the state: a page and its parts are after the #, filters and
// tabs after its ?. So each view is a link, and Back goes back.

import { computed, signal } from '@preact/signals'

const hash = signal(location.hash)
addEventListener('hashchange', () => { hash.value = location.hash })

export const route = computed(() => {
  const [path, query] = hash.value.replace(/^#\/?/, '').split('?')
  return { path: path.split('/').filter(Boolean).map(decodeURIComponent), query: new URLSearchParams(query) }
})

export function href(...path: string[]): string {
  return '#/' + path.map(encodeURIComponent).join('/')
}

export function go(to: string): void {
  location.hash = to
  hash.value = location.hash // its event comes later
}

/** Changes parameters of the address without a new entry in the history. */
export function setQuery(changes: Record<string, string | undefined>): void {
  const query = new URLSearchParams(route.peek().query)
  for (const [name, value] of Object.entries(changes)) {
    if (value) query.set(name, value)
    else query.delete(name)
  }
  const text = query.toString()
  history.replaceState(null, '', href(...route.peek().path) + (text ? '?' + text : ''))
  hash.value = location.hash
}
