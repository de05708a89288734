import { FitAddon } from '@xterm/addon-fit'
import { type ITheme, Terminal } from '@xterm/xterm'
import '@xterm/xterm/css/xterm.css'

const light: ITheme = {
  black: '#16181d', red: '#b4232f', green: '#146c43', yellow: '#825607', blue: '#3047c0', magenta: '#8a2a9b', cyan: '#0b6b78', white: '#5c6270',
  brightBlack: '#5c6270', brightRed: '#c2303b', brightGreen: '#18794e', brightYellow: '#96640a', brightBlue: '#3b50c9', brightMagenta: '#9c36b5', brightCyan: '#0c7b8a', brightWhite: '#16181d',
}
const dark: ITheme = {
  black: '#3a3e47', red: '#ff8589', green: '#4cc38a', yellow: '#e2a336', blue: '#8b9bf4', magenta: '#d08bec', cyan: '#5cc5d3', white: '#c9cbd2',
  brightBlack: '#9ba1ad', brightRed: '#ffa5a8', brightGreen: '#7ad9aa', brightYellow: '#f0c06a', brightBlue: '#aab6f8', brightMagenta: '#e0aef4', brightCyan: '#8adbe6', brightWhite: '#ffffff',
}

/** The colours of the page. */
function themeOf(host: HTMLElement): ITheme {
  const style = getComputedStyle(host)
  const of = (name: string) => style.getPropertyValue(name).trim()
  const chosen = document.documentElement.dataset.theme
  const isDark = chosen ? chosen === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches
  return {
    ...(isDark ? dark : light), background: of('--panel'), foreground: of('--text'), cursor: of('--accent'), cursorAccent: of('--panel'),
    selectionBackground: isDark ? '#3b4680' : '#c9d0f6', scrollbarSliderBackground: of('--line-strong'),
  }
}

export interface Screen {
  term: Terminal
  /** The size that fills the element; undefined if that is not shown. */
  fit: () => { cols: number; rows: number } | undefined
  /** Until it is false, queries in the output stay unanswered. */
  replaying: boolean
  dispose: () => void
}

/** Shows a terminal in an element. */
export function open(host: HTMLElement, label: string): Screen {
  const fit = new FitAddon()
  const term = new Terminal({
    theme: themeOf(host), fontFamily: getComputedStyle(host).getPropertyValue('--mono'), fontSize: 12.5, minimumContrastRatio: 4.5, scrollback: 10_000, macOptionIsMeta: true,
  })
  term.loadAddon(fit)
  term.open(host)
  term.textarea?.setAttribute('aria-label', label)
  const screen: Screen = {
    term, fit: () => fit.proposeDimensions(), replaying: true,
    dispose: () => {
      themes.disconnect()
      system.removeEventListener('change', paint)
      term.dispose()
    },
  }
  const paint = () => { term.options.theme = themeOf(host) }
  const themes = new MutationObserver(paint)
  themes.observe(document.documentElement, { attributeFilter: ['data-theme'] })
  const system = matchMedia('(prefers-color-scheme: dark)')
  system.addEventListener('change', paint)

  // Old queries were answered when they were new.
  const swallow = () => screen.replaying
  for (const id of [{ final: 'c' }, { prefix: '>', final: 'c' }, { final: 'n' }, { prefix: '?', final: 'n' }, { intermediates: '$', final: 'p' }, { prefix: '?', intermediates: '$', final: 'p' }, { final: 't' }]) {
    term.parser.registerCsiHandler(id, swallow)
  }
  for (const colours of [4, 10, 11, 12]) term.parser.registerOscHandler(colours, (data) => screen.replaying && data.includes('?'))
  term.parser.registerDcsHandler({ intermediates: '$', final: 'q' }, swallow)

  term.attachCustomKeyEventHandler((e) => {
    if (e.type !== 'keydown' || !e.ctrlKey) return true
    if (e.key === 'F6') return false // leaves, see TerminalPane
    const copies = e.code === 'KeyC' && (e.shiftKey || term.hasSelection())
    if (copies && term.hasSelection()) {
      void navigator.clipboard.writeText(term.getSelection())
      term.clearSelection()
    }
    if (copies) e.preventDefault()
    return !copies && !(e.code === 'KeyV' && e.shiftKey) // the browser pastes
  })
  return screen
}
