// A small plot, of lines or of bars. uPlot is loaded when the first one is shown.

import { useEffect, useRef } from 'preact/hooks'
import type uPlot from 'uplot'

interface PlotProps {
  label: string
  x: number[] // seconds; days since 1970 if days
  lines: { name: string; y: (number | null)[] }[]
  format: (v: number) => string
  days?: boolean // bars, one for each day
  /** What x is, if it is not the time that has just passed; names are those of 0, 1 and so on. */
  scale?: 'time' | 'number' | string[]
}

const dayName = (day: number) => new Date(day * 86_400_000).toLocaleDateString([], { day: 'numeric', month: 'short', timeZone: 'UTC' })

const moment = (t: number, step: number) => new Date(t * 1000).toLocaleString([], step < 86_400 ? { hour12: false, hour: '2-digit', minute: '2-digit', second: step < 60 ? '2-digit' : undefined } : { day: 'numeric', month: 'short', year: '2-digit' })

const colours = ['--accent', '--busy', '--good']

export function Plot({ label, x, lines, format, days, scale }: PlotProps) {
  const at = useRef<HTMLDivElement>(null)
  const plot = useRef<uPlot>(undefined)
  const last = useRef<uPlot.AlignedData>(undefined)
  // Of a single point uPlot shows the whole day.
  last.current = (x.length === 1 && !scale ? [[x[0] - 60, x[0]], ...lines.map((l) => [null, l.y[0] ?? null])] : [x, ...lines.map((l) => l.y)]) as uPlot.AlignedData
  useEffect(() => {
    let gone = false
    let sizes: ResizeObserver | undefined
    const dark = matchMedia('(prefers-color-scheme: dark)')
    void (async () => {
      const [{ default: U }] = await Promise.all([import('uplot'), import('uplot/dist/uPlot.min.css')])
      const el = at.current
      if (gone || !el) return
      const colour = (name: string) => () => getComputedStyle(el).getPropertyValue(name)
      const axis = { stroke: colour('--dim'), font: '11px system-ui', ticks: { show: false } }
      const across = { ...axis, size: 22, grid: { show: false }, space: 70 }
      // A minute at least, also while there is nothing to show yet.
      const minute: uPlot.Scale.Range = (_u, min, max) => { const end = max || Date.now() / 1000; return [Math.min(min || end, end - 60), end] }
      const bars = days || Array.isArray(scale) && lines.length === 1
      const height = scale ? 260 : 132
      const names = Array.isArray(scale) ? scale : undefined
      plot.current = new U({
        width: el.clientWidth, height, cursor: { show: false }, legend: { show: false }, pxAlign: false, padding: [6, scale ? 32 : 4, 0, 0],
        scales: {
          x: days || names ? { time: false, range: (_u, min, max) => [min - 0.6, max + 0.6] } : scale ? { time: scale === 'time' } : { range: minute },
          y: scale && !bars ? {} : { range: (_u, min, max) => [Math.min(0, min * 1.15), max > 0 ? max * 1.15 : min < 0 ? 0 : 1] },
        },
        axes: [
          days ? { ...across, incrs: [1, 2, 7, 14], values: (_u, ticks) => ticks.map(dayName) }
          : names ? { ...across, incrs: [1, 2, 5, 10, 20, 50], values: (_u, ticks) => ticks.map((t) => names[t] ?? '') }
          : scale === 'time' ? { ...across, values: (_u, ticks, _axis, _space, step) => ticks.map((t) => moment(t, step)) }
          : scale ? across
          : { ...across, values: (_u, ticks) => ticks.map((t) => new Date(t * 1000).toLocaleTimeString([], { hour12: false })) },
          { ...axis, size: 58, space: 34, grid: { stroke: colour('--line'), width: 1 }, values: (_u, ticks) => ticks.map(format) },
        ],
        series: [{}, ...lines.map((_, i) => ({ stroke: colour(colours[i]), width: 1.5, points: { show: Boolean(scale) && !bars && x.length <= 60 }, ...(bars && { width: 0, fill: colour(colours[i]), paths: U.paths.bars!({ size: [0.7, 40] }) }) }))],
      }, last.current!, el)
      sizes = new ResizeObserver(() => plot.current?.setSize({ width: el.clientWidth, height }))
      sizes.observe(el)
    })()
    const redraw = () => plot.current?.redraw()
    dark.addEventListener('change', redraw)
    const theme = new MutationObserver(redraw)
    theme.observe(document.documentElement, { attributeFilter: ['data-theme'] })
    return () => {
      gone = true
      dark.removeEventListener('change', redraw)
      theme.disconnect()
      sizes?.disconnect()
      plot.current?.destroy()
      plot.current = undefined
    }
  }, [lines.length])
  useEffect(() => { plot.current?.setData(last.current!) })
  if (scale) {
    return (
      <>
        <div class="plot tall" role="img" aria-label={`${label}: ${x.length} points`} ref={at} />
        <div class="legend">{lines.map((l, i) => <span key={l.name} class={`c${i}`}>{l.name}</span>)}</div>
      </>
    )
  }
  const latest = lines.map((l) => `${l.name} ${l.y.length && l.y.at(-1) != null ? format(l.y.at(-1)!) : 'unknown'}`).join(', ')
  return (
    <>
      <div class="plot" role="img" aria-label={`${label}: ${latest}`} ref={at} />
      <div class="legend">{lines.map((l, i) => <span key={l.name} class={`c${i}`}>{l.name} {l.y.length && l.y.at(-1) != null ? format(l.y.at(-1)!) : '–'}</span>)}</div>
    </>
  )
}
