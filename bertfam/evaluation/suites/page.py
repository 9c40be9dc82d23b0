"""HTML page of a report: self-contained, without scripts, with all text escaped."""

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bertfam.data.preview.page_style import STYLE
from bertfam.evaluation.suites.tables import ABOUT_TESTS, comparison_rows, median_rows, rows, setting_rows

_TABLES = """
table { border-collapse: collapse; margin: .6rem 0; } th, td { border: 1px solid var(--line); padding: .2rem .6rem;
  text-align: start; overflow-wrap: anywhere; } th { background: var(--card); } svg circle { fill: var(--c1); opacity: .75; }
svg .mean { stroke: var(--c3); stroke-width: 3; } svg .name { text-anchor: end; }
"""
_LEFT, _WIDTH, _ROW = 210, 640, 26  # of the plots, in units of the drawing


def page(report: Mapping[str, Any]) -> str:
    """Return the report as an HTML page, with a plot of each task: a dot for each seed, and a bar at the mean."""
    title = f"Evaluation on {report['suite']}"
    body = "".join(_body(report, title))
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{_text(title)}</title>"
        f"<meta name='viewport' content='width=device-width, initial-scale=1'><style>{STYLE}{_TABLES}</style></head>"
        f"<body>{body}</body></html>\n"
    )


def _body(report: Mapping[str, Any], title: str) -> Iterator[str]:
    yield f"<header><h1>{_text(title)}</h1><dl class='about'>"
    yield from (f"<div><dt>{_text(label)}</dt><dd>{_text(words)}</dd></div>" for label, words in report["models"].items())
    yield "</dl></header><main><h2>Scores</h2>"
    yield _table(rows(report))
    yield from (f"<p class='note'>{_text(note)}</p>" for task in report["tasks"].values() for note in task["notes"])
    yield from (_plot(name, task) for name, task in report["tasks"].items() if task["scores"])
    if len(tests := comparison_rows(report)) > 1:
        yield f"<h2>Tests</h2><p class='note'>{_text(ABOUT_TESTS)}</p>{_table(tests)}"
    yield f"<h2>Over seeds</h2>{_table(median_rows(report))}"
    if settings := setting_rows(report):
        yield f"<h2>Settings</h2>{_table(settings)}"
    yield f"<h2>Versions</h2>{_table([['', 'version'], *map(list, report['versions'].items())])}</main>"


def _table(table: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{_text(cell)}</th>" for cell in table[0])
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in table[1:])
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _plot(name: str, task: Mapping[str, Any]) -> str:
    """Return the drawing of a task's first score."""
    metric = task["metrics"][0]
    scores = {label: own[metric] for label, own in task["scores"].items() if metric in own}
    values = [value for score in scores.values() for value in score["values"].values()]
    if not values:
        return ""
    low, high = min(0.0, *values), max(1.0, *values) if max(values) <= 1 else 100.0
    marks = "".join(_row(place, label, score, low, high) for place, (label, score) in enumerate(scores.items()))
    height = _ROW * len(scores) + 30
    axis = "".join(
        f"<text class='axis' x='{_x(value, low, high):.1f}' y='{height - 6}'>{value:g}</text>" for value in (low, high)
    )
    return (
        f"<figure><svg viewBox='0 0 {_LEFT + _WIDTH + 50} {height}' role='img'><title>{_text(f'{name}: {metric}')}</title>{marks}"
        f"{axis}</svg><figcaption>{_text(f'{name}: {metric}')}</figcaption></figure>"
    )


def _row(place: int, label: str, score: Mapping[str, Any], low: float, high: float) -> str:
    y = _ROW * place + _ROW / 2
    x = _x(score["mean"], low, high)
    dots = "".join(f"<circle cx='{_x(value, low, high):.1f}' cy='{y}' r='5'/>" for value in score["values"].values())
    line = f"<line x1='{_LEFT}' x2='{_LEFT + _WIDTH}' y1='{y}' y2='{y}'/>"
    mean = f"<line class='mean' x1='{x:.1f}' x2='{x:.1f}' y1='{y - 9}' y2='{y + 9}'/>"
    return f"<text class='name' x='{_LEFT - 12}' y='{y + 4}'>{_text(label[:28])}</text>{line}{dots}{mean}"


def _x(value: float, low: float, high: float) -> float:
    return _LEFT + _WIDTH * (value - low) / (high - low)


def _text(text: str) -> str:
    return html.escape(str(text))
