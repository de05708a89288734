// Markdown as models write it, as elements and never as HTML: what looks like
// HTML is shown as it is. Of CommonMark it has what models use, with the tables of
// GitHub.

import type { ComponentChildren } from 'preact'
import { Copy } from './ui'

type Children = ComponentChildren

/** Where links may lead: nothing that runs. */
const linkable = /^(https?:\/\/|mailto:)/i

const inlines = /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|!?\[((?:[^[\]\\]|\\.|\[[^[\]]*\])*)\]\(\s*<?([^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*)>?(?:\s+"[^"]*")?\s*\)|<(https?:\/\/[^\s<>]+)>|(https?:\/\/[^\s<>"'`]*[^\s<>"'`.,;:!?)\]*_])|(\*\*|__)(?=\S)([\s\S]*?\S)\7|~~(?=\S)([\s\S]*?\S)~~|(\*|\b_)(?=[^\s*_])((?:[^*_]|\*\*|__)*?[^\s*_])\10(?![\w])|\\([!-/:-@[-`{-~])| {2,}\n/

function inline(text: string, depth = 0): Children[] {
  const out: Children[] = []
  while (text) {
    const m = depth < 6 && text.length < 10_000 ? inlines.exec(text) : null
    if (!m) {
      out.push(text)
      break
    }
    if (m.index > 0) out.push(text.slice(0, m.index))
    const [all, ticks, code, label, to, pointed, bare, , strong, struck, , emphasis, escaped] = m
    const url = to ?? pointed ?? bare
    if (ticks) out.push(<code class="chip">{code.trim() || code}</code>)
    else if (url !== undefined) {
      const shown = label ? inline(label, depth + 1) : url
      out.push(linkable.test(url) ? <a href={url} target="_blank" rel="noopener noreferrer">{shown}</a> : all)
    } else if (strong) out.push(<strong>{inline(strong, depth + 1)}</strong>)
    else if (struck) out.push(<del>{inline(struck, depth + 1)}</del>)
    else if (emphasis) out.push(<em>{inline(emphasis, depth + 1)}</em>)
    else out.push(escaped ?? <br />)
    text = text.slice(m.index + all.length)
  }
  return out
}

const fence = /^( {0,3})(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/
const item = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)/
const rule = /^ {0,3}([-*_])(\s*\1){2,}\s*$/
const heading = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/
const divider = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/
const indentOf = (line: string) => line.length - line.trimStart().length

function cells(line: string): string[] {
  const inner = line.trim().replace(/^\|/, '').replace(/(^|[^\\])\|$/, '$1')
  return inner.split(/(?<!\\)\|/).map((c) => c.trim().replaceAll('\\|', '|'))
}

function blocks(lines: string[], depth = 0): Children[] {
  const out: Children[] = []
  let i = 0
  const special = (l: string, next = '') => fence.test(l) || heading.test(l) || item.test(l) || rule.test(l) || l.startsWith('>') || (l.includes('|') && next.includes('-') && divider.test(next))
  while (i < lines.length) {
    const line = lines[i]
    const fenced = fence.exec(line)
    const titled = heading.exec(line)
    const listed = depth < 8 ? item.exec(line) : null
    if (!line.trim()) {
      i++
    } else if (fenced) {
      const [, indent, mark, language] = fenced
      let end = i + 1
      while (end < lines.length && !(lines[end].trim().startsWith(mark) && /^[`~]+$/.test(lines[end].trim()))) end++
      const code = lines.slice(i + 1, end).map((l) => (indentOf(l) >= indent.length ? l.slice(indent.length) : l)).join('\n')
      out.push(<div class="code"><header><span class="dim">{language || 'text'}</span><Copy text={code} /></header><pre tabIndex={0}><code>{code}</code></pre></div>)
      i = end + 1
    } else if (titled) {
      out.push(<p class="heading" role="heading" aria-level={Math.min(6, titled[1].length + 2)}>{inline(titled[2])}</p>)
      i++
    } else if (rule.test(line)) {
      out.push(<hr />)
      i++
    } else if (line.startsWith('>') && depth < 8) {
      let end = i
      while (end < lines.length && lines[end].startsWith('>')) end++
      out.push(<blockquote>{blocks(lines.slice(i, end).map((l) => l.replace(/^> ?/, '')), depth + 1)}</blockquote>)
      i = end
    } else if (listed) {
      const ordered = /\d/.test(listed[2])
      const items: string[][] = []
      while (i < lines.length) {
        const m = item.exec(lines[i])
        if (!m || /\d/.test(m[2]) !== ordered || indentOf(lines[i]) > indentOf(line) + 1 || rule.test(lines[i])) break
        const width = Math.min(m[0].length, m[1].length + m[2].length + 4)
        const own = [lines[i].slice(m[0].length)]
        let blank = false
        for (i++; i < lines.length; i++) {
          const l = lines[i]
          if (l.trim() && indentOf(l) < Math.min(width, indentOf(line) + 2) && (blank || special(l))) break
          blank = !l.trim()
          own.push(l.slice(Math.min(width, indentOf(l))))
        }
        items.push(own)
      }
      const shown = items.map((own) => <li>{blocks(own, depth + 1)}</li>)
      out.push(ordered ? <ol start={parseInt(listed[2])}>{shown}</ol> : <ul>{shown}</ul>)
    } else if (line.includes('|') && (lines[i + 1] ?? '').includes('-') && divider.test(lines[i + 1])) {
      const align = cells(lines[i + 1]).map((c) => (c.endsWith(':') ? (c.startsWith(':') ? 'center' : 'right') : 'left'))
      const head = cells(line)
      let end = i + 2
      while (end < lines.length && lines[end].includes('|')) end++
      const row = (l: string) => head.map((_, n) => <td class={align[n]}>{inline(cells(l)[n] ?? '')}</td>)
      out.push(
        <div class="scroll" role="region" aria-label="Table" tabIndex={0}><table>
          <thead><tr>{head.map((h, n) => <th class={align[n]}>{inline(h)}</th>)}</tr></thead>
          <tbody>{lines.slice(i + 2, end).map((l) => <tr>{row(l)}</tr>)}</tbody>
        </table></div>)
      i = end
    } else {
      let end = i + 1
      while (end < lines.length && lines[end].trim() && !special(lines[end], lines[end + 1])) end++
      out.push(<p>{inline(lines.slice(i, end).map((l) => l.trimStart()).join('\n'))}</p>)
      i = end
    }
  }
  return out
}

export function Markdown({ text }: { text: string }) {
  return <div class="markdown">{blocks(text.replaceAll('\r\n', '\n').replaceAll('\t', '    ').split('\n'))}</div>
}
