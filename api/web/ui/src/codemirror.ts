import { defaultKeymap, history, historyKeymap, indentWithTab } from '@codemirror/commands'
import { javascript } from '@codemirror/lang-javascript'
import { python } from '@codemirror/lang-python'
import { bracketMatching, HighlightStyle, indentOnInput, indentUnit, StreamLanguage, syntaxHighlighting } from '@codemirror/language'
import { go } from '@codemirror/legacy-modes/mode/go'
import { shell } from '@codemirror/legacy-modes/mode/shell'
import { EditorState, type Extension } from '@codemirror/state'
import { drawSelection, EditorView, highlightActiveLine, keymap, lineNumbers } from '@codemirror/view'
import { tags as t } from '@lezer/highlight'

const languages: Record<string, () => Extension> = {
  python: () => [python(), indentUnit.of('    ')],
  javascript: () => javascript(),
  typescript: () => javascript({ typescript: true }),
  go: () => [StreamLanguage.define(go), indentUnit.of('\t')],
  bash: () => StreamLanguage.define(shell),
}

const theme = EditorView.theme({
  '&': { height: '100%', fontSize: '12.5px', color: 'var(--text)' },
  '.cm-scroller': { fontFamily: 'var(--mono)', lineHeight: '1.6' },
  '.cm-content': { caretColor: 'var(--text)', padding: '8px 0' },
  '.cm-gutters': { background: 'transparent', border: '0', color: 'var(--dim)' },
  '.cm-activeLine, .cm-activeLineGutter': { background: 'transparent' },
  '&.cm-focused .cm-activeLine': { background: 'var(--hover)' },
  '.cm-cursor': { borderLeftColor: 'var(--text)' },
  '&.cm-focused': { outline: '2px solid var(--accent)', outlineOffset: '-2px' },
  '&.cm-focused .cm-selectionBackground, .cm-selectionBackground': { background: 'var(--accent-soft) !important' },
})

const colours = HighlightStyle.define([
  { tag: [t.keyword, t.moduleKeyword, t.controlKeyword], color: 'var(--accent)' },
  { tag: [t.string, t.special(t.string), t.regexp], color: 'var(--good)' },
  { tag: [t.number, t.bool, t.null], color: 'var(--busy)' },
  { tag: t.comment, color: 'var(--dim)', fontStyle: 'italic' },
  { tag: t.invalid, color: 'var(--bad)' },
])

interface Calls {
  change: (text: string) => void
  run: () => void
  readOnly: boolean
}

export function open(host: HTMLElement, label: string, doc: string, language: string, calls: Calls): EditorView {
  const root = host.shadowRoot ?? host.attachShadow({ mode: 'open' })
  return new EditorView({
    root, parent: root as unknown as Element,
    state: EditorState.create({
      doc,
      extensions: [
        lineNumbers(), history(), drawSelection(), indentOnInput(), bracketMatching(), highlightActiveLine(), syntaxHighlighting(colours), theme,
        languages[language]?.() ?? [],
        keymap.of([{ key: 'Mod-Enter', run: () => (calls.run(), true) }, ...defaultKeymap, ...historyKeymap, indentWithTab]),
        EditorView.contentAttributes.of({ 'aria-label': label }),
        EditorView.editable.of(!calls.readOnly), EditorState.readOnly.of(calls.readOnly),
        EditorView.updateListener.of((u) => { if (u.docChanged) calls.change(u.state.doc.toString()) }),
      ],
    }),
  })
}
