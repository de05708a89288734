// The same as a hook of React, or of what has its hooks.

import { useCallback, useEffect, useRef, useState } from 'react'
import { mount, type Options, type State, type UI } from './index'

export interface EngiUI {
  /** Of the element that shows the page. */
  ref: (element: HTMLElement | null) => void
  state: State
  error?: Error
  send: UI['send']
  cancel: UI['cancel']
}

/** Shows the page of a session in the element that gets its ref. */
export function useEngiUI(options: Options): EngiUI {
  const [host, setHost] = useState<HTMLElement | null>(null)
  const [state, setState] = useState<State>('connecting')
  const [error, setError] = useState<Error>()
  const ui = useRef<UI | undefined>(undefined)
  const latest = useRef(options)
  useEffect(() => { latest.current = options })
  const { session, base, key, agent, model } = options
  useEffect(() => {
    if (!host || !session) return
    setError(undefined)
    setState('connecting')
    let over = false
    const shown = ui.current = mount(host, {
      session, base, key, agent, model,
      onupdate: (u) => latest.current.onupdate?.(u),
      onstate: (s) => {
        if (!over) setState(s)
        latest.current.onstate?.(s)
      },
      onerror: (e) => {
        if (!over) setError(e)
        latest.current.onerror?.(e)
      },
    })
    return () => {
      over = true
      ui.current = undefined
      shown.close()
    }
  }, [host, session, base, key, agent, model])
  const none = () => Promise.reject(new Error('no page is shown'))
  return {
    ref: setHost, state, error,
    send: useCallback<UI['send']>((action, data) => ui.current?.send(action, data) ?? none(), []),
    cancel: useCallback(() => ui.current?.cancel() ?? none(), []),
  }
}
