"""Dot plots as SVG: a row for each name, with a dot for each value, an interval, and a bar at the mean."""

from collections.abc import Sequence
from typing import NamedTuple

from bertfam.pages.document import html_text

_LEFT, _WIDTH, _ROW = 260, 560, 26  # in units of the drawing
_NAME = 36  # letters of a name that are drawn


class DotRow(NamedTuple):
    """Row of a dot plot.

    Attributes:
      name: its name.
      mean: place of the bar.
      values: places of the dots.
      interval: ends of the interval; None: none is drawn.
    """

    name: str
    mean: float
    values: Sequence[float] = ()
    interval: tuple[float, float] | None = None


def dot_plot(
    title: str, rows: Sequence[DotRow], low: float, high: float, *, marked: Sequence[float], line: float | None = None
) -> str:
    """Return the drawing of rows, with a caption.

    Args:
      title: the caption.
      rows: the rows, from top to bottom.
      low: left end of the axis.
      high: its right end.
      marked: values that are written below it.
      line: value at which a line crosses all rows; None: none.
    """

    def x(value: float) -> float:
        return _LEFT + _WIDTH * (value - low) / ((high - low) or 1.0)

    marks = [] if line is None else [f"<line x1='{x(line):.1f}' x2='{x(line):.1f}' y1='0' y2='{_ROW * len(rows)}'/>"]
    for place, row in enumerate(rows):
        y = _ROW * place + _ROW / 2
        marks.append(f"<text class='name' x='{_LEFT - 12}' y='{y + 4}'>{html_text(row.name[:_NAME])}</text>")
        marks.append(f"<line x1='{_LEFT}' x2='{_LEFT + _WIDTH}' y1='{y}' y2='{y}'/>")
        if row.interval:
            start, end = map(x, row.interval)
            marks.append(f"<rect x='{start:.1f}' y='{y - 5}' width='{max(end - start, 1):.1f}' height='10' opacity='.3'/>")
        marks += [f"<circle cx='{x(value):.1f}' cy='{y}' r='4'/>" for value in row.values]
        marks.append(f"<line class='mean' x1='{x(row.mean):.1f}' x2='{x(row.mean):.1f}' y1='{y - 9}' y2='{y + 9}'/>")
    height = _ROW * len(rows) + 24
    marks += [f"<text class='axis' x='{x(value):.1f}' y='{height - 6}'>{value:.4g}</text>" for value in marked]
    title, size = html_text(title), f"0 0 {_LEFT + _WIDTH + 60} {height}"
    drawing = f"<svg viewBox='{size}' role='img'><title>{title}</title>{''.join(marks)}</svg>"
    return f"<figure>{drawing}<figcaption>{title}</figcaption></figure>"
