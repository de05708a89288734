# Describes a matplotlib figure as data, in the format of E2B's clients.
import re

from matplotlib import axes as mpl_axes
from matplotlib import dates as mpl_dates
from matplotlib import patches as mpl_patches
from matplotlib.collections import PathCollection
from matplotlib.container import BarContainer

MOST = 20_000  # points of a chart, at most


def number(value):
    try:
        value = float(value)
    except (TypeError, ValueError):
        return str(value)
    return value if value == value and abs(value) != float("inf") else None


def unit(label):
    found = re.search(r"\s\(([^()]+)\)|\[([^\[\]]+)\]", label or "")
    return (found[1] if found[1] is not None else found[2]) if found else None


def is_date(axis):
    converter = axis.get_converter() if hasattr(axis, "get_converter") else axis.converter
    return isinstance(converter, (mpl_dates.DateConverter, mpl_dates.ConciseDateConverter)) or \
        type(converter).__name__ in ("_SwitchableDateConverter", "DatetimeConverter", "PeriodConverter") or \
        isinstance(axis.get_major_locator(), mpl_dates.DateLocator)


def categories(axis):
    """The category names by position, or None."""
    mapping = getattr(axis.units, "_mapping", None)
    return {position: str(name) for name, position in mapping.items()} if mapping else None


def scale(axis):
    if is_date(axis):
        return "datetime"
    if categories(axis):
        return "categorical"
    name = axis.get_scale()
    return name if name in ("linear", "log", "symlog", "logit", "function", "functionlog", "asinh") else "linear"


def reader(axis):
    """Returns a function that turns a coordinate back into the user's value."""
    if is_date(axis):
        def date(value):
            try:
                return mpl_dates.num2date(value).replace(tzinfo=None).isoformat()
            except (TypeError, ValueError, OverflowError):
                return str(value)
        return date
    names = categories(axis)
    if names:
        return lambda value: names.get(value, number(value))
    return number


def flat(ax):
    x, y = ax.get_xlabel(), ax.get_ylabel()
    return {"title": ax.get_title() or None, "x_label": x or None, "y_label": y or None, "x_unit": unit(x), "y_unit": unit(y)}


def points(ax, kind, series):
    chart = {"type": kind, **flat(ax)}
    for name, axis in (("x", ax.xaxis), ("y", ax.yaxis)):
        read = reader(axis)
        chart[name + "_ticks"] = [read(t) for t in axis.get_ticklocs()]
        chart[name + "_tick_labels"] = [t.get_text() for t in axis.get_ticklabels()]
        chart[name + "_scale"] = scale(axis)
    read_x, read_y = reader(ax.xaxis), reader(ax.yaxis)
    chart["elements"] = [{"label": label, "points": [[read_x(x), read_y(y)] for x, y in pairs[:MOST]]}
                         for label, pairs in series]
    return chart


def line(ax):
    return points(ax, "line", [(str(l.get_label()), list(zip(l.get_xdata(orig=False), l.get_ydata(orig=False))))
                               for l in ax.get_lines()])


def scatter(ax):
    series = []
    for c in ax.collections:
        if isinstance(c, PathCollection):
            label = str(c.get_label())
            series.append(("" if label.startswith("_child") else label, [tuple(p) for p in c.get_offsets()]))
    return points(ax, "scatter", series)


def bar(ax):
    elements = []
    for box in ax.containers:
        if not isinstance(box, BarContainer):
            continue
        flat_bars = getattr(box, "orientation", "vertical") == "horizontal"
        axis = ax.yaxis if flat_bars else ax.xaxis
        names = dict(zip(axis.get_ticklocs(), (t.get_text() for t in axis.get_ticklabels())))
        read = reader(axis)
        group = str(box.get_label())
        places = sorted(names)
        for i, patch in enumerate(box.patches):
            at = patch.get_y() + patch.get_height() / 2 if flat_bars else patch.get_x() + patch.get_width() / 2
            near = min(names, key=lambda t: abs(t - at), default=None)
            if near is not None and abs(near - at) < 0.5 * abs(patch.get_height() if flat_bars else patch.get_width()):
                label = names[near]
            elif len(places) == len(box.patches):  # one of several bars per category
                label = names[places[i]]
            else:
                label = str(read(at))
            elements.append({"label": label, "group": "" if group.startswith("_container") else group,
                             "value": number(patch.get_width() if flat_bars else patch.get_height())})
    return {"type": "bar", **flat(ax), "elements": elements[:MOST]}


def pie(ax):
    wedges = [p for p in ax.patches if isinstance(p, mpl_patches.Wedge)]
    texts = [t.get_text() for t in ax.texts]
    elements = []
    for i, w in enumerate(wedges):
        label = str(w.get_label())
        if not label or label.startswith("_"):
            label = texts[i] if i < len(texts) else ""
        elements.append({"label": label, "angle": number(round(abs(w.theta2 - w.theta1), 4)), "radius": number(w.r)})
    return {"type": "pie", "title": ax.get_title() or None, "elements": elements}


def boxes(ax):
    """The boxes of a box plot: closed or filled shapes with whiskers."""
    across, found = True, []
    shapes = [(p.get_path().vertices, p) for p in ax.patches if isinstance(p, mpl_patches.PathPatch)]
    lines = [(l.get_xydata(), l) for l in ax.get_lines()]
    shapes += [(v, l) for v, l in lines if len(v) == 5 and (v[0] == v[4]).all()]
    for v, _ in shapes:
        xs, ys = sorted(set(v[:5, 0])), sorted(set(v[:5, 1]))
        if len(xs) >= 2 and len(ys) >= 2:
            found.append((xs[0], xs[-1], ys[0], ys[-1]))
    if not found:
        return None
    whiskers = [v for v, _ in lines if len(v) == 2]
    # In a vertical plot a whisker has the x of its box's center.
    upright = sum(1 for v in whiskers for b in found if v[0][0] == v[1][0] and abs(v[0][0] - (b[0] + b[1]) / 2) < 1e-9)
    flat_ones = sum(1 for v in whiskers for b in found if v[0][1] == v[1][1] and abs(v[0][1] - (b[2] + b[3]) / 2) < 1e-9)
    across = upright >= flat_ones
    axis = ax.xaxis if across else ax.yaxis
    names = dict(zip(axis.get_ticklocs(), (t.get_text() for t in axis.get_ticklabels())))
    elements = []
    for x0, x1, y0, y1 in found:
        low, high, mid = (y0, y1, (x0 + x1) / 2) if across else (x0, x1, (y0 + y1) / 2)
        width = abs(x1 - x0) if across else abs(y1 - y0)
        place, along = (0, 1) if across else (1, 0)
        ends, median, outliers = [low, high], (low + high) / 2, []
        for v, l in lines:
            if len(v) == 0:
                continue
            at = v[:, place]
            if len(v) == 2 and at[0] == at[1] and abs(at[0] - mid) < 1e-9:
                ends += [v[0][along], v[1][along]]
            elif len(v) == 2 and v[0][along] == v[1][along] and low <= v[0][along] <= high and abs(at.mean() - mid) < 1e-9 \
                    and abs(abs(at[1] - at[0]) - width) < 1e-6:
                median = v[0][along]
            elif l.get_linestyle() in ("None", "none", "", " ") and abs(at - mid).max() < 1e-9:
                outliers += [number(o) for o in v[:, along]]
        near = min(names, key=lambda t: abs(t - mid), default=None)
        label = names[near] if near is not None and abs(near - mid) < 1e-6 else str(number(mid))
        elements.append({"label": label, "min": number(min(ends)), "first_quartile": number(low), "median": number(median),
                         "third_quartile": number(high), "max": number(max(ends)), "outliers": outliers[:MOST]})
    return {"type": "box_and_whisker", **flat(ax), "elements": elements}


def describe_axes(ax):
    if any(isinstance(p, mpl_patches.Wedge) for p in ax.patches):
        return pie(ax)
    if any(isinstance(c, BarContainer) for c in ax.containers):
        return bar(ax)
    whole = [l for l in ax.get_lines() if len(l.get_xdata()) == 5] or \
        [p for p in ax.patches if isinstance(p, mpl_patches.PathPatch)]
    if whole and len(ax.get_lines()) >= 4 * len(whole):
        box = boxes(ax)
        if box:
            return box
    if any(isinstance(c, PathCollection) for c in ax.collections):
        return scatter(ax)
    if ax.get_lines():
        return line(ax)
    return {"type": "unknown", "title": ax.get_title() or None, "elements": []}


def describe(figure):
    """The chart in a figure, or None."""
    figure.canvas.draw_idle()
    charts = [describe_axes(ax) for ax in figure.axes
              if isinstance(ax, mpl_axes.Axes) and ax.get_visible() and ax.get_label() != "<colorbar>"]
    if not charts:
        return None
    if len(charts) == 1:
        return charts[0]
    title = figure._suptitle.get_text() if figure._suptitle is not None else None
    return {"type": "superchart", "title": title or None, "elements": charts}
