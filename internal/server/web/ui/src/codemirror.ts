import { defaultKeymap, history, historyKeymap, indentWithTab } from '@codemirror/commands'
import { javascript } from '@codemirror/lang-javascript'
import { python } from '@codemirror/lang-python'
import { bracketMatching, HighlightStyle, indentOnInput, indentUnit, StreamLanguage, syntaxHighlighting } from '@codemirror/language'
import { go } from '@codemirror/legacy-modes/mode/go'
import { mySQL, pgSQL } from '@codemirror/legacy-modes/mode/sql'
import { shell } from '@codemirror/legacy-modes/mode/shell'
import { unifiedMergeView } from '@codemirror/merge'
import { Compartment, EditorState, type Extension, StateEffect, StateField } from '@codemirror/state'
import { Decoration, drawSelection, EditorView, highlightActiveLine, keymap, lineNumbers } from '@codemirror/view'
import { tags as t } from '@lezer/highlight'

const languages: Record<string, () => Extension> = {
  python: () => [python(), indentUnit.of('    ')],
  javascript: () => javascript(),
  typescript: () => javascript({ typescript: true }),
  go: () => [StreamLanguage.define(go), indentUnit.of('\t')],
  bash: () => StreamLanguage.define(shell),
  sql: () => StreamLanguage.define(pgSQL),
  mysql: () => StreamLanguage.define(mySQL),
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
  '.cm-wrong': { background: 'var(--bad-soft)', textDecoration: 'underline wavy var(--bad)' },
  '.cm-changedLine, .cm-insertedLine': { background: 'var(--good-soft) !important' },
  '.cm-deletedChunk': { background: 'var(--bad-soft) !important', color: 'var(--text)' },
  '.cm-changedText, .cm-deletedText': { background: 'none !important', textDecoration: 'none' },
  '.cm-changedLineGutter': { background: 'var(--good) !important' },
  '.cm-deletedLineGutter': { background: 'var(--bad) !important' },
  '.cm-collapsedLines': { background: 'var(--hover) !important', color: 'var(--dim) !important' },
})

const colours = HighlightStyle.define([
  { tag: [t.keyword, t.moduleKeyword, t.controlKeyword], color: 'var(--accent)' },
  { tag: [t.string, t.special(t.string), t.regexp], color: 'var(--good)' },
  { tag: [t.number, t.bool, t.null], color: 'var(--busy)' },
  { tag: t.comment, color: 'var(--dim)', fontStyle: 'italic' },
  { tag: t.invalid, color: 'var(--bad)' },
])

const setWrong = StateEffect.define<{ from: number; to: number } | undefined>()

/** Marks what is wrong in a text, until that changes. */
const wrong = StateField.define({
  create: () => Decoration.none,
  update: (marks, tr) => {
    for (const e of tr.effects) if (e.is(setWrong)) return e.value ? Decoration.set(Decoration.mark({ class: 'cm-wrong' }).range(e.value.from, e.value.to)) : Decoration.none
    return tr.docChanged ? Decoration.none : marks
  },
  provide: (f) => EditorView.decorations.from(f),
})

interface Calls {
  change: (text: string) => void
  run: () => void
  readOnly: boolean
}

export interface Opened {
  view: EditorView
  /** Shows what is different from a text, or nothing. */
  compare: (original?: string) => void
  goTo: (line: number) => void
  /** Marks the word at a character, from 1, or nothing. */
  mark: (character?: number) => void
}

export function open(host: HTMLElement, label: string, doc: string, language: string, calls: Calls): Opened {
  const root = host.shadowRoot ?? host.attachShadow({ mode: 'open' })
  const compared = new Compartment()
  const view = new EditorView({
    root, parent: root as unknown as Element,
    state: EditorState.create({
      doc,
      extensions: [
        lineNumbers(), history(), drawSelection(), indentOnInput(), bracketMatching(), highlightActiveLine(), wrong, syntaxHighlighting(colours), theme,
        languages[language]?.() ?? [], compared.of([]),
        keymap.of([{ key: 'Mod-Enter', run: () => (calls.run(), true) }, ...defaultKeymap, ...historyKeymap, indentWithTab]),
        EditorView.contentAttributes.of({ 'aria-label': label }),
        EditorView.editable.of(!calls.readOnly), EditorState.readOnly.of(calls.readOnly),
        EditorView.updateListener.of((u) => { if (u.docChanged) calls.change(u.state.doc.toString()) }),
      ],
    }),
  })
  return {
    view,
    compare: (original) => view.dispatch({ effects: compared.reconfigure(original === undefined ? [] : unifiedMergeView({ original, mergeControls: false, highlightChanges: false, syntaxHighlightDeletions: false })) }),
    goTo: (line) => {
      const { from } = view.state.doc.line(Math.min(Math.max(line, 1), view.state.doc.lines))
      view.dispatch({ selection: { anchor: from }, effects: EditorView.scrollIntoView(from, { y: 'center' }) })
      view.focus()
    },
    mark: (character) => {
      const text = view.state.doc.toString()
      const from = character ? [...text].slice(0, character - 1).join('').length : text.length
      const to = from + (/^(\w+|.)/u.exec(text.slice(from))?.[0].length ?? 0)
      view.dispatch({ effects: setWrong.of(to > from ? { from, to } : undefined) })
    },
  }
}
