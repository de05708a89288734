// A small plot, of lines or of bars. uPlot is loaded when the first one is shown.

import { useEffect, useRef } from 'preact/hooks'
import type uPlot from 'uplot'

interface PlotProps {
  label: string
  x: number[] // seconds; days since 1970 if days
  lines: { name: string; y: (number | null)[] }[]
  format: (v: number) => string
  days?: boolean // bars, one for each day
}

const dayName = (day: number) => new Date(day * 86_400_000).toLocaleDateString([], { day: 'numeric', month: 'short', timeZone: 'UTC' })

const colours = ['--accent', '--busy', '--good']

export function Plot({ label, x, lines, format, days }: PlotProps) {
  const at = useRef<HTMLDivElement>(null)
  const plot = useRef<uPlot>(undefined)
  const last = useRef<uPlot.AlignedData>(undefined)
  // Of a single point uPlot shows the whole day.
  last.current = (x.length === 1 ? [[x[0] - 60, x[0]], ...lines.map((l) => [null, l.y[0] ?? null])] : [x, ...lines.map((l) => l.y)]) as uPlot.AlignedData
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
      plot.current = new U({
        width: el.clientWidth, height: 132, cursor: { show: false }, legend: { show: false }, pxAlign: false, padding: [6, 4, 0, 0],
        scales: { x: days ? { time: false, range: (_u, min, max) => [min - 0.6, max + 0.6] } : { range: minute }, y: { range: (_u, _min, max) => [0, max > 0 ? max * 1.15 : 1] } },
        axes: [
          days ? { ...across, incrs: [1, 2, 7, 14], values: (_u, ticks) => ticks.map(dayName) } : { ...across, values: (_u, ticks) => ticks.map((t) => new Date(t * 1000).toLocaleTimeString([], { hour12: false })) },
          { ...axis, size: 58, space: 34, grid: { stroke: colour('--line'), width: 1 }, values: (_u, ticks) => ticks.map(format) },
        ],
        series: [{}, ...lines.map((_, i) => ({ stroke: colour(colours[i]), width: 1.5, points: { show: false }, ...(days && { width: 0, fill: colour(colours[i]), paths: U.paths.bars!({ size: [0.7, 40] }) }) }))],
      }, last.current!, el)
      sizes = new ResizeObserver(() => plot.current?.setSize({ width: el.clientWidth, height: 132 }))
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
  const latest = lines.map((l) => `${l.name} ${l.y.length && l.y.at(-1) != null ? format(l.y.at(-1)!) : 'unknown'}`).join(', ')
  return (
    <>
      <div class="plot" role="img" aria-label={`${label}: ${latest}`} ref={at} />
      <div class="legend">{lines.map((l, i) => <span key={l.name} class={`c${i}`}>{l.name} {l.y.length && l.y.at(-1) != null ? format(l.y.at(-1)!) : '–'}</span>)}</div>
    </>
  )
}
