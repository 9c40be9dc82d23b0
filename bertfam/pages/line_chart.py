"""Line charts as inline SVG, which need no script: one drawing serves phones, desktops, print and screen readers."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bertfam.pages.document import html_table, html_text

COLORS = 8  # of the style sheet
_WIDTH, _HEIGHT = 400, 220  # of a drawing, which a phone shows at about this size
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 12, 10, 34
_LEAST = 1e-300  # length of an axis, whose fifth still has a logarithm
_LOG_RATIO = 50  # of the greatest value to the least one, from which on the axis is logarithmic, where that is allowed
_SIGNS = ("&#9472;", "&#9679;", "&#9476;", "&#8943;")  # of the kinds of lines, in a legend
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))

STYLE = """
:root { --s0: #0b62c4; --s1: #c2410c; --s2: #15803d; --s3: #a21caf; --s4: #0e7490; --s5: #854d0e; --s6: #be123c; --s7: #4338ca; }
@media screen and (prefers-color-scheme: dark) { :root { --s0: #6ea8fe; --s1: #f79a5e; --s2: #5fd39b; --s3: #e88bf5;
  --s4: #5ed3e6; --s5: #e0b050; --s6: #ff8fa3; --s7: #a5a0ff; } }
.s0 { --own: var(--s0); } .s1 { --own: var(--s1); } .s2 { --own: var(--s2); } .s3 { --own: var(--s3); }
.s4 { --own: var(--s4); } .s5 { --own: var(--s5); } .s6 { --own: var(--s6); } .s7 { --own: var(--s7); }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); gap: 1.2rem 1rem; }
.chart { margin: 0; min-width: 0; break-inside: avoid; } .chart figcaption { color: var(--front); font-weight: 600; }
.chart svg { max-width: none; touch-action: pan-y; }
.chart svg:focus-visible { outline: 2px solid var(--c1); border-radius: 4px; }
.chart svg text { font-size: 11px; } .chart svg .y { text-anchor: end; } .chart path { fill: none; stroke: var(--own); }
.chart path.k0 { stroke-width: 1.3; } .chart path.k1 { stroke-width: 2.2; }
.chart path.k2 { stroke-width: 2; stroke-dasharray: 6 3; }
.chart path.k3 { stroke-width: 1.6; stroke-dasharray: 2 3; } .chart circle { fill: var(--own); opacity: 1; }
.chart .seam { stroke: var(--own); stroke-dasharray: 3 3; } .chart .cursor { stroke: var(--front); opacity: .6; }
.keys { display: block; font-weight: normal; } .keys span { margin-inline-end: .8rem; }
.keys i { color: var(--own); font-style: normal; }
.chart output { display: block; font-size: .8rem; color: var(--quiet); overflow-wrap: anywhere; }
.chart summary { font-size: .8rem; color: var(--quiet); cursor: pointer; } .chart table { font-size: .8rem; }
"""


@dataclass(frozen=True)
class Line:
    """Line of a chart.

    Attributes:
      name: its name.
      run: number of the run that it belongs to, whose lines are shown or hidden together.
      color: number of its colour.
      kind: its stroke: 0 thin, 1 thick with a dot at each point, 2 dashed, 3 dotted.
      points: (x, y) in the order of x; y is None where there is no finite value.
    """

    name: str
    run: int
    color: int
    kind: int
    points: Sequence[tuple[float, float | None]]

    @property
    def finite(self) -> list[tuple[float, float]]:
        """The points that have a value."""
        return [(x, y) for x, y in self.points if y is not None]


@dataclass(frozen=True)
class Seam:
    """Vertical line at which a run was started again.

    Attributes:
      run: number of the run.
      color: number of its colour.
      x: the place.
      words: description of the start.
    """

    run: int
    color: int
    x: float
    words: str


@dataclass(frozen=True)
class Chart:
    """Chart of a metric.

    Attributes:
      title: its title.
      x_name: name of the horizontal axis.
      lines: its lines; those without a finite value are not drawn.
      seams: starts of the runs.
      may_be_log: True if the vertical axis may be logarithmic.
      is_inspection: True for norms and activations of single layers.
    """

    title: str
    x_name: str
    lines: Sequence[Line]
    seams: Sequence[Seam] = ()
    may_be_log: bool = False
    is_inspection: bool = False


@dataclass(frozen=True)
class _Axis:
    """Axis of values; `place` returns the share of its length, from 0 to 1."""

    low: float
    high: float
    is_log: bool = False

    def place(self, value: float) -> float:
        low, high, value = map(math.log, (self.low, self.high, value)) if self.is_log else (self.low, self.high, value)
        return (value - low) / (high - low)

    @property
    def ticks(self) -> list[float]:
        if self.is_log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            every = [10.0**power * one for power in powers for one in (1, 2, 5)]
            inside = [value for value in every if self.low <= value <= self.high]
            whole = [value for value in inside if f"{value:e}".startswith("1.0")]
            return whole if len(whole) > 2 else inside
        rough = (self.high - self.low) / 5
        size = 10.0 ** math.floor(math.log10(rough))
        step = next(size * one for one in (1, 2, 5, 10) if size * one >= rough * 0.999)
        return [step * place for place in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


def _axis(values: Sequence[float], *, may_be_log: bool = False) -> _Axis:
    low, high = min(values), max(values)
    if may_be_log and low > 0 and high > _LOG_RATIO * low:
        return _Axis(low, high, is_log=True)
    if high - low <= max(1e-9 * max(abs(low), abs(high)), _LEAST):  # all alike
        margin = abs(high) / 10
        return _Axis(low - margin, high + margin) if margin > _LEAST else _Axis(0.0, 1.0)
    return _Axis(low, high)


def thinned(points: Sequence[tuple[float, float | None]], most: int) -> list[tuple[float, float | None]]:
    """Return at most about `most` of the points: of each of equal parts the first, the least and the greatest, and the last one.

    Points without a value are kept as one gap where a part has them only.
    """
    if len(points) <= most:
        return list(points)
    kept = [0, len(points) - 1]
    parts = max(most // 3, 1)
    for part in range(parts):
        places = range(len(points) * part // parts, len(points) * (part + 1) // parts)
        with_value = [(value, place) for place in places if (value := points[place][1]) is not None]
        kept += [places[0], *((min(with_value)[1], max(with_value)[1]) if with_value else ())]
    return [points[place] for place in sorted(set(kept))]


def short(value: float) -> str:
    """Format a number in a few characters: 12k, 0.25, 3e-05."""
    for size, unit in _UNITS:
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}"
    return f"{0.0 if abs(value) < 1e-12 else value:.4g}"


def figure(chart: Chart, number: int) -> str:
    """Return a chart as HTML.

    Args:
      chart: the chart, with at least one finite value.
      number: its number on the page, by which a script finds its data.
    """
    lines = [line for line in chart.lines if line.finite]
    places = [place for line in lines for place, _ in line.finite]
    x = _axis([0.0, *places] if 0 < min(places) < max(places) / 5 else places)
    y = _axis([value for line in lines for _, value in line.finite], may_be_log=chart.may_be_log)
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def across(value: float) -> float:
        return _LEFT + width * x.place(value)

    def down(value: float) -> float:
        return _TOP + height * (1 - y.place(value))

    parts = [*_grid(x, y, across, down), f"<text class='axis' x='{_LEFT + width / 2}' y='{_HEIGHT - 3}'>{chart.x_name}</text>"]
    for seam in chart.seams:
        if x.low < seam.x < x.high:
            place = f"x1='{across(seam.x):.1f}' x2='{across(seam.x):.1f}' y1='{_TOP}' y2='{_TOP + height}'"
            parts.append(
                f"<g class='r{seam.run} s{seam.color}'><title>{html_text(seam.words)}</title><line class='seam' {place}/></g>"
            )
    parts += [_drawn(line, chart.x_name, across, down) for line in lines]
    about = html_text(f"{chart.title}. " + ". ".join(_words(line, chart.x_name) for line in lines[:COLORS]))
    scale = "<small> logarithmic axis</small>" if y.is_log else ""
    return (
        f"<figure class='chart' data-chart='{number}'><figcaption>{html_text(chart.title)}{scale}</figcaption>"
        f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img' tabindex='0' aria-label='{about}' data-left='{_LEFT}' "
        f"data-width='{width}' data-low='{x.low!r}' data-high='{x.high!r}' data-top='{_TOP}' data-bottom='{_TOP + height}'>"
        f"{''.join(parts)}</svg><output aria-live='polite'></output>"
        f"<details><summary>Values</summary>{html_table(_summary(lines, chart.x_name))}</details></figure>"
    )


def with_legends(charts: Sequence[Chart]) -> str:
    """Return charts side by side as HTML, each with the names of its lines in their colours."""
    figures = []
    for number, chart in enumerate(charts):
        before, end, after = figure(chart, number).partition("</figcaption>")
        figures.append(f"{before}<small class='keys'>{''.join(map(_key, chart.lines))}</small>{end}{after}")
    return f"<div class='charts'>{''.join(figures)}</div>"


def _key(line: Line) -> str:
    return f"<span class='s{line.color}'><i>{_SIGNS[line.kind]}</i>&nbsp;{html_text(line.name)}</span>"


def _grid(x: _Axis, y: _Axis, across: Callable[[float], float], down: Callable[[float], float]) -> Iterator[str]:
    for value in y.ticks:
        place = down(value)
        yield f"<line x1='{_LEFT}' x2='{_WIDTH - _RIGHT}' y1='{place:.1f}' y2='{place:.1f}'/>"
        yield f"<text class='axis y' x='{_LEFT - 5}' y='{place + 4:.1f}'>{short(value)}</text>"
    for value in x.ticks:
        if value != round(value) and x.high - x.low >= 1:  # updates, layers and heads are whole
            continue
        yield f"<text class='axis' x='{across(value):.1f}' y='{_HEIGHT - _BOTTOM + 15}'>{short(value)}</text>"


def _drawn(line: Line, x_name: str, across: Callable[[float], float], down: Callable[[float], float]) -> str:
    """Return a line as a path, with dots at the points of its second kind and at points between two gaps."""
    path, dots, before = [], [], None
    for place, (x, y) in enumerate(line.points):
        if y is not None:
            spot = f"{across(x):.1f} {down(y):.1f}"
            path.append(f"{'M' if before is None else 'L'}{spot}")
            is_alone = before is None and (place + 1 == len(line.points) or line.points[place + 1][1] is None)
            if is_alone or line.kind == 1:
                words = html_text(f"{line.name}, {x_name} {x:,.0f}: {y:.4g}")
                dots.append("<circle cx='{}' cy='{}' r='2.6'><title>{}</title></circle>".format(*spot.split(), words))
        before = y
    dots = dots if len(dots) <= 60 else []
    return (
        f"<g class='r{line.run} s{line.color}'><title>{html_text(line.name)}</title>"
        f"<path class='k{line.kind}' d='{''.join(path)}'/>{''.join(dots)}</g>"
    )


def _words(line: Line, x_name: str) -> str:
    """Describe a line for those who do not see it."""
    (first_x, first), (last_x, last) = line.finite[0], line.finite[-1]
    low, high = min(value for _, value in line.finite), max(value for _, value in line.finite)
    return (
        f"{line.name}: from {first:.4g} at {x_name} {first_x:,.0f} to {last:.4g} at {last_x:,.0f}; "
        f"least {low:.4g}, greatest {high:.4g}"
    )


def _summary(lines: Sequence[Line], x_name: str) -> list[list[str]]:
    def cell(point: tuple[float, float]) -> str:
        return f"{point[1]:.4g} ({point[0]:,.0f})"

    rows = []
    for line in lines:
        by_value = sorted(line.finite, key=lambda point: point[1])
        rows.append([line.name, *map(cell, (line.finite[0], line.finite[-1], by_value[0], by_value[-1]))])
    return [["", f"first ({x_name})", "last", "least", "greatest"], *rows]


def chart_data(chart: Chart) -> dict[str, Any]:
    """Return the data of a chart as JSON values."""
    lines = [
        {"name": line.name, "run": line.run, "x": [x for x, _ in line.points], "y": [_rounded(y) for _, y in line.points]}
        for line in chart.lines
        if line.finite
    ]
    return {"title": chart.title, "x_name": chart.x_name, "lines": lines, "seams": [[seam.run, seam.x] for seam in chart.seams]}


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.8g}")
