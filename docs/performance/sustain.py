#!/usr/bin/env python3
"""Draw docs/sustain.svg: latency against the rate at which requests arrive.

    engi bench sustain --lang bash --json >sustain.json
    sustain.py >../sustain.svg
"""

import json
import math
import pathlib

COLOURS = {"engi": "#0969da", "runsc run": "#cf222e", "bwrap": "#bf8700", "fork+exec": "#2da44e"}
WIDTH, HEIGHT, TOP, GAP = 390, 250, 50, 70
LEFT = 60


def ticks(low, high):
    """Powers of ten from low to high, and 3 times them."""
    n = math.floor(math.log10(low))
    while 10 ** n <= high:
        yield from (t for t in (10 ** n, 3 * 10 ** n) if low <= t <= high)
        n += 1


def main():
    s = json.loads(pathlib.Path(__file__).with_name("sustain.json").read_text())
    points = [p for p in s["points"] if p["done"] and p["means"] in COLOURS]
    most = max(p["rate"] for p in points)
    values = [p["ms"][q] for p in points for q in ("p50", "p99")]
    low, high = min(values) * 0.8, max(values) * 1.25

    def y(ms):
        return TOP + HEIGHT * (1 - math.log(ms / low) / math.log(high / low))

    h = s["host"]
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 920 400" role="img" aria-labelledby="t d" '
           'font-family="system-ui, sans-serif" font-size="15">',
           '  <title id="t">Latency against the rate of arrivals</title>',
           '  <desc id="d">Two plots, of the median and of the 99th percentile of latency, against executions offered per '
           'second, for engi, runsc run, bwrap and bare processes.</desc>',
           '  <style>text { fill: #24292f; } .small { font-size: 12.5px; fill: #57606a; }'
           ' .grid { stroke: #d0d7de; stroke-width: 1; } .line { fill: none; stroke-width: 2; }</style>',
           '  <rect fill="#ffffff" width="920" height="400"/>']
    for panel, (q, title) in enumerate([("p50", "Median, ms"), ("p99", "99th percentile, ms")]):
        left = LEFT + panel * (WIDTH + GAP)

        def x(rate):
            return left + WIDTH * rate / most

        out.append(f'  <text x="{left}" y="{TOP - 18}">{title}</text>')
        for t in ticks(low, high):
            out.append(f'  <path class="grid" d="M{left} {y(t):.1f}H{left + WIDTH}"/>')
            out.append(f'  <text class="small" x="{left - 8}" y="{y(t) + 4:.1f}" text-anchor="end">{t:g}</text>')
        can = x(s["per_second"])
        out.append(f'  <path class="grid" stroke-dasharray="4 3" d="M{can:.1f} {TOP}V{TOP + HEIGHT}"/>')
        out.append(f'  <text class="small" x="{can:.1f}" y="{TOP - 4}" text-anchor="middle">'
                   f'{s["per_second"]:.1f}, what engi can do</text>')
        out.append(f'  <text class="small" x="{left}" y="{TOP + HEIGHT + 18}">0</text>')
        out.append(f'  <text class="small" x="{left + WIDTH}" y="{TOP + HEIGHT + 18}" text-anchor="end">{most:.1f} per second</text>')
        for means, colour in COLOURS.items():
            mine = sorted((p for p in points if p["means"] == means), key=lambda p: p["rate"])
            if mine:
                path = " ".join(f'{"L" if i else "M"}{x(p["rate"]):.1f} {y(p["ms"][q]):.1f}' for i, p in enumerate(mine))
                out.append(f'  <path class="line" stroke="{colour}" d="{path}"/>')
    at = LEFT
    for means, colour in COLOURS.items():
        out.append(f'  <rect x="{at}" y="346" width="12" height="12" fill="{colour}"/>')
        out.append(f'  <text class="small" x="{at + 18}" y="357">{means}</text>')
        at += 110
    out.append(f'  <text class="small" x="{LEFT}" y="382">{s["lang"]}, {s["seconds"]:g} s of arrivals for each point, {h["cpus"]} processors, '
               f'a load of {h["load"]} at the end: the machine had other work</text>')
    out.append('</svg>')
    print("\n".join(out))


main()
