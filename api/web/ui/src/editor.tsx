// A code editor. CodeMirror is loaded when the first one is shown. It lives in a
// shadow root, where its styles need no permission of the page's policy.

import { useEffect, useRef } from 'preact/hooks'
import type { EditorView } from '@codemirror/view'

interface EditorProps {
  label: string
  /** What it begins with, for each language; later it says what it has by onChange. */
  text: string
  language: string
  onChange?: (text: string) => void
  onRun?: () => void
}

export function Editor({ label, text, language, onChange, onRun }: EditorProps) {
  const at = useRef<HTMLDivElement>(null)
  const calls = useRef({ onChange, onRun })
  calls.current = { onChange, onRun }
  useEffect(() => {
    let view: EditorView | undefined
    let gone = false
    void (async () => {
      const { open } = await import('./codemirror')
      if (gone || !at.current) return
      view = open(at.current, label, text, language, {
        change: (t) => calls.current.onChange?.(t), run: () => calls.current.onRun?.(), readOnly: !onChange,
      })
    })()
    return () => {
      gone = true
      view?.destroy()
    }
  }, [language])
  return <div class="editor" ref={at} />
}
