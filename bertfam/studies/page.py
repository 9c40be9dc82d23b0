"""HTML page of a study's report: self-contained, without scripts, with all text escaped."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bertfam.pages.document import document, html_table, html_text
from bertfam.pages.dot_plot import DotRow, dot_plot
from bertfam.studies.tables import ABOUT_TESTS, TESTS, sections


def page(report: Mapping[str, Any]) -> str:
    """Return the report as an HTML page.

    Each score has a plot: a dot for each seed, a bar at the mean, and the 95 % interval. The claims have one of their
    differences, in standard deviations of single seeds.
    """
    return document(f"Study {report['study']}", "".join(_body(report)))


def _body(report: Mapping[str, Any]) -> Iterator[str]:
    yield f"<header><h1>{html_text(report['study'])}</h1><p>{html_text(report['question'])}</p>"
    yield f"<p>{html_text(report['equal'])}</p></header><main>"
    yield from (f"<p class='note'>{html_text(note)}</p>" for note in report["notes"])
    for title, table in sections(report).items():
        about = f"<p class='note'>{html_text(ABOUT_TESTS)}</p>" if title in TESTS else ""
        yield f"<h2>{html_text(title)}</h2>{about}{html_table(table)}"
        if title == "Verdicts":
            yield _effects(report["claims"])
        if title == "Scores":
            yield from (_plot(score, by_arm) for score, by_arm in report["scores"].items())
    yield "</main>"


def _plot(score: str, by_arm: Mapping[str, Any]) -> str:
    """Return the drawing of a score."""
    every = [
        value for own in by_arm.values() for value in (*own["values"].values(), own["low"], own["high"]) if value is not None
    ]
    rows = [
        DotRow(arm, own["mean"], list(own["values"].values()), _interval(own["low"], own["high"])) for arm, own in by_arm.items()
    ]
    low, high = min(every), max(every)
    return dot_plot(f"{score}: each seed, mean and 95 % interval", rows, low, high, marked=(low, high))


def _effects(claims: Sequence[Mapping[str, Any]]) -> str:
    """Return the drawing of the claims' differences, in standard deviations of single seeds."""
    rows, ends = [], [0.0]
    for claim in claims:
        own = claim.get("difference")
        if own and own["effect"]:
            unit = own["mean"] / own["effect"]
            interval = own["low"] / unit, own["high"] / unit
            rows.append(DotRow(f"{claim['arms'][0]} ({claim['score']})", own["effect"], interval=interval))
            ends += interval
    if not rows:
        return ""
    title = "effect against the noise of seeds, with 95 % interval; right of 0 agrees with the claim"
    return dot_plot(title, rows, min(ends), max(ends), marked=(0.0,), line=0.0)


def _interval(low: float | None, high: float | None) -> tuple[float, float] | None:
    return None if low is None or high is None else (low, high)
