"""HTML page of a report: self-contained, without scripts, with all text escaped."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from bertfam.evaluation.suites.tables import ABOUT_TESTS, comparison_rows, median_rows, rows, setting_rows
from bertfam.pages.document import document, html_table, html_text
from bertfam.pages.dot_plot import DotRow, dot_plot


def page(report: Mapping[str, Any]) -> str:
    """Return the report as an HTML page, with a plot of each task: a dot for each seed, and a bar at the mean."""
    title = f"Evaluation on {report['suite']}"
    return document(title, "".join(_body(report, title)))


def _body(report: Mapping[str, Any], title: str) -> Iterator[str]:
    yield f"<header><h1>{html_text(title)}</h1><dl class='about'>"
    yield from (f"<div><dt>{html_text(label)}</dt><dd>{html_text(words)}</dd></div>" for label, words in report["models"].items())
    yield "</dl></header><main><h2>Scores</h2>"
    yield html_table(rows(report))
    yield from (f"<p class='note'>{html_text(note)}</p>" for task in report["tasks"].values() for note in task["notes"])
    yield from (_plot(name, task) for name, task in report["tasks"].items() if task["scores"])
    if len(tests := comparison_rows(report)) > 1:
        yield f"<h2>Tests</h2><p class='note'>{html_text(ABOUT_TESTS)}</p>{html_table(tests)}"
    yield f"<h2>Over seeds</h2>{html_table(median_rows(report))}"
    if settings := setting_rows(report):
        yield f"<h2>Settings</h2>{html_table(settings)}"
    yield f"<h2>Versions</h2>{html_table([['', 'version'], *map(list, report['versions'].items())])}</main>"


def _plot(name: str, task: Mapping[str, Any]) -> str:
    """Return the drawing of a task's first score."""
    metric = task["metrics"][0]
    scores = {label: own[metric] for label, own in task["scores"].items() if metric in own and math.isfinite(own[metric]["mean"])}
    values = [value for score in scores.values() for value in score["values"].values()]
    if not values:
        return ""
    low, high = min(0.0, *values), 1.0 if max(values) <= 1 else max(100.0, *values)
    drawn = [DotRow(label, score["mean"], list(score["values"].values())) for label, score in scores.items()]
    return dot_plot(f"{name}: {metric}", drawn, low, high, marked=(low, high))
