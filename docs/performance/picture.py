#!/usr/bin/env python3
"""Draw docs/performance.svg: processor time of one run, by who uses it.

    picture.py >../performance.svg

The numbers are read from the profiles beside it, which split.py makes.
"""

import pathlib
import re

# What is looked for in a line of split.py, the first that fits.
KINDS = [
    ("garbage collection", "#cf222e", r"garbage"),
    ("mapping and unmapping", "#8250df", r"mmap|exit of"),
    ("waiting and waking", "#bf8700", r"futex|sleep|Go scheduler|systrap|epoll|signals|seccomp|interrupts"),
    ("faults, files, system calls", "#0969da", r"faults|files|sockets|system calls|memory manager|clock"),
    ("programs", "#2da44e", r"^programs?$"),
    ("the rest", "#8c959f", r""),
]
WHO = {"guest": "programs inside", "sentry": "sandbox's kernel", "daemon and client": "node and client"}
PANELS = [("exec.txt", "One at a time"), ("burst.txt", "A hundred at once, on two processors")]


def read(name):
    """The bars of a profile: who, and the milliseconds of each kind."""
    bars, who = {}, None
    for line in open(pathlib.Path(__file__).with_name(name)):
        m = re.match(r"^( +)([\d.]+)  (\S.*)$", line)
        if m and len(m[1]) < 10:
            who = WHO.get(m[3])
            if who:
                bars[who] = [0.0] * len(KINDS)
        elif m and who:
            at = next(i for i, (_, _, p) in enumerate(KINDS) if re.search(p, m[3]))
            bars[who][at] += float(m[2])
        elif line.startswith("# ") and bars:
            break
    return [(who, bars[who]) for who in WHO.values()]


LEFT, SCALE, BAR = 170, 88, 30


def main():
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 920 400" role="img" aria-labelledby="t d" '
           'font-family="system-ui, sans-serif" font-size="15">',
           '  <title id="t">Where the time of an execution goes</title>',
           '  <desc id="d">Stacked bars of processor time per run, for programs inside, the sandbox\'s kernel, '
           'and the node with its client.</desc>',
           '  <style>text { fill: #24292f; } .small { font-size: 12.5px; fill: #57606a; } .in { font-size: 12px; fill: #ffffff; }'
           ' .line { stroke: #d0d7de; stroke-width: 1; }</style>',
           '  <rect fill="#ffffff" width="920" height="400"/>']
    y = 34
    for name, title in PANELS:
        bars = read(name)
        title += f": {sum(sum(parts) for _, parts in bars):.1f} ms of processor time per run"
        out.append(f'  <text x="20" y="{y}">{title}</text>')
        y += 14
        for ms in range(0, 9, 2):
            x = LEFT + ms * SCALE
            out.append(f'  <path class="line" d="M{x} {y} V{y + 3 * (BAR + 8)}"/>')
            out.append(f'  <text class="small" x="{x}" y="{y + 3 * (BAR + 8) + 14}" text-anchor="middle">{ms} ms</text>')
        for who, parts in bars:
            out.append(f'  <text class="small" x="{LEFT - 10}" y="{y + 20}" text-anchor="end">{who}</text>')
            x = LEFT
            for (_, colour, _), ms in zip(KINDS, parts):
                if ms < 0.02:
                    continue
                w = ms * SCALE
                out.append(f'  <rect x="{x:.1f}" y="{y}" width="{w:.1f}" height="{BAR}" fill="{colour}"/>')
                if w > 34:
                    out.append(f'  <text class="in" x="{x + w / 2:.1f}" y="{y + 20}" text-anchor="middle">{ms:.1f}</text>')
                x += w
            y += BAR + 8
        y += 52
    x = 20
    for name, colour, _ in KINDS:
        out.append(f'  <rect x="{x}" y="372" width="12" height="12" fill="{colour}"/>')
        out.append(f'  <text class="small" x="{x + 18}" y="383">{name}</text>')
        x += 36 + int(6.9 * len(name))
    out.append('</svg>')
    print("\n".join(out))


main()
