// A code editor. CodeMirror is loaded when the first one is shown. It lives in a
// shadow root, where its styles need no permission of the page's policy.

import { useEffect, useRef, useState } from 'preact/hooks'
import type { Opened } from './codemirror'

const languages: Record<string, string> = { py: 'python', js: 'javascript', mjs: 'javascript', jsx: 'javascript', ts: 'typescript', tsx: 'typescript', go: 'go', sh: 'bash', bash: 'bash', sql: 'sql' }

/** The language of a file, by its name. */
export function languageOf(path: string): string {
  return languages[path.split('.').pop()!] ?? 'text'
}

interface EditorProps {
  label: string
  /** What it begins with, for each language; later it says what it has by onChange. */
  text: string
  language: string
  /** What its text is compared with, line by line. */
  original?: string
  /** The line to go to, from 1. */
  line?: number
  /** The character that is wrong, from 1, and a word from there on. */
  wrong?: number
  onChange?: (text: string) => void
  onRun?: () => void
}

export function Editor({ label, text, language, original, line, wrong, onChange, onRun }: EditorProps) {
  const at = useRef<HTMLDivElement>(null)
  const calls = useRef({ onChange, onRun })
  calls.current = { onChange, onRun }
  const [editor, setEditor] = useState<Opened>()
  useEffect(() => {
    let opened: Opened | undefined
    let gone = false
    void (async () => {
      const { open } = await import('./codemirror')
      if (gone || !at.current) return
      opened = open(at.current, label, text, language, {
        change: (t) => calls.current.onChange?.(t), run: () => calls.current.onRun?.(), readOnly: !onChange,
      })
      setEditor(opened)
    })()
    return () => {
      gone = true
      opened?.view.destroy()
    }
  }, [language])
  useEffect(() => editor?.compare(original), [editor, original])
  useEffect(() => { if (line) editor?.goTo(line) }, [editor, line])
  useEffect(() => editor?.mark(wrong), [editor, wrong])
  return <div class="editor" ref={at} />
}
