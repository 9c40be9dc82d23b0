"""HTML page of one run, or of several overlaid: self-contained, readable without its script, with all text escaped."""

from collections.abc import Callable, Sequence
from importlib.resources import files

from bertfam.errors import UserError
from bertfam.pages.document import document, html_table, html_text
from bertfam.pages.line_chart import STYLE, Chart, chart_data, figure
from bertfam.plurals import plural
from bertfam.reports.configuration import differences, read_configuration, tables
from bertfam.reports.curves import MOST_CHARTS, Metrics, charts, read_metrics
from bertfam.reports.noise import noise_html
from bertfam.reports.parts import checkpoints_html, commands_html, plan_html, samples_html
from bertfam.reports.run_folder import RunFolder
from bertfam.reports.study_parts import study_html
from bertfam.reports.tables import MOST_ROWS, NONE, memory_rows, score_rows, summary_rows, swatch, time_html
from bertfam.version import __version__

_STYLE = """
nav { display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: .8rem 0; } a { color: var(--c1); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--card); border: 1px solid var(--line); border-radius: 6px;
  padding: .6rem .8rem; margin: .5rem 0; font: .8rem/1.45 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
h1, .name { overflow-wrap: anywhere; } h3 { margin: 1.2rem 0 .3rem; overflow-wrap: anywhere; } h4 { margin: .8rem 0 .2rem; }
details { margin: .4rem 0; } summary { cursor: pointer; }
.wide td { overflow-wrap: anywhere; min-width: 6rem; } .wide td:first-child { min-width: 9rem; }
.legend { border: 0; padding: .5rem 0; margin: 0; display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; }
.legend label { display: inline-flex; gap: .4rem; align-items: center; min-width: 0; }
.swatch { display: inline-block; flex: none; width: 1.1rem; height: .8rem; border-radius: 2px; background: var(--own);
  print-color-adjust: exact; }
.phases { display: flex; height: 1.3rem; border-radius: 4px; overflow: hidden; margin: .3rem 0; print-color-adjust: exact; }
.phases span { background: var(--own); min-width: 1px; }
.bars { display: grid; gap: .3rem .8rem; } .key { display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: .85rem; }
.key span { display: inline-flex; gap: .35rem; align-items: center; }
@media (max-width: 40rem) { body { padding: .8rem; } table { font-size: .8rem; } th, td { padding: .15rem .35rem; } }
@media print { nav, .legend input, .chart summary { display: none; } details::details-content { display: block;
  content-visibility: visible; } a { color: inherit; } }
"""


def page(title: str, runs: Sequence[RunFolder], axis: str) -> str:
    """Return the page of runs.

    Args:
      title: its heading.
      runs: the runs.
      axis: horizontal axis of the curves, "updates" or "tokens".

    Raises:
      UserError: a metrics.jsonl cannot be read, or has no count of tokens for the axis.
    """
    metrics = [read_metrics(run) for run in runs]
    drawn = charts(runs, metrics, axis)
    sections = {name: content for name, content in _sections(runs, metrics, drawn).items() if content}
    links = "".join(f"<a href='#{_anchor(name)}'>{name}</a>" for name in sections)
    parts = [f"<section id='{_anchor(name)}'><h2>{name}</h2>{content}</section>" for name, content in sections.items()]
    # Hiding a run needs no script.
    hidden = "".join(f"body:has(#show-{place}:not(:checked)) .r{place} {{ display: none; }}" for place in range(len(runs)))
    body = (
        f"<header><h1>{html_text(title)}</h1><p class='note'>by bertfam {__version__}</p>"
        f"<nav aria-label='Sections'>{links}</nav></header><main>{''.join(parts)}</main>"
    )
    data = {"runs": [run.label for run in runs], "charts": [chart_data(chart) for chart in drawn[:MOST_CHARTS]]}
    script = files("bertfam.reports").joinpath("curves.js").read_text(encoding="utf-8")
    return document(title, body, style=STYLE + _STYLE + hidden, data=data, script=script)


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


def _sections(runs: Sequence[RunFolder], metrics: Sequence[Metrics], drawn: Sequence[Chart]) -> dict[str, str]:
    """Return the sections by name, as HTML."""
    paired = list(zip(runs, metrics, strict=True))
    return {
        "Summary": _summary(summary_rows(paired)) + "".join(_damage(run, own) for run, own in paired),
        "Study": "".join(map(study_html, dict.fromkeys(run.study for run in runs if run.study))),
        "Curves": _curves(runs, drawn),
        "Inspections": _inspections(drawn),
        "Time": time_html(paired),
        "Memory": _table_or_note(memory_rows(paired), "No run here has recorded the memory that it uses."),
        "Held-out scores": _table_or_note(score_rows(paired), "No run here has held-out scores."),
        "Configuration": _configurations(runs),
        "Plan": _of_each(runs, plan_html),
        "Checkpoints": _of_each(runs, checkpoints_html),
        "Noise": _of_each(runs, noise_html, folded=True),
        "Predictions": _of_each([run for run in runs if any(own.samples for own in run.events)], samples_html, folded=True),
        "Command": _of_each(runs, commands_html),
    }


def _table_or_note(rows: Sequence[Sequence[object]], note: str) -> str:
    return html_table(rows) if len(rows) > 1 else f"<p class='note'>{note}</p>"


def _of_each(runs: Sequence[RunFolder], content: Callable[[RunFolder], str], *, folded: bool = False) -> str:
    """Return the content of each run under its name; a mistake in its files is a line in the place of the content."""
    parts = []
    for run in runs:
        try:
            own = content(run)
        except UserError as error:
            own = f"<p class='note'>Not shown: {html_text(error)}</p>"
        if len(runs) > 1 or folded:
            name = f"{swatch(run.color)} {html_text(run.label)}"
            own = f"<details{'' if len(runs) > 1 else ' open'}><summary class='name'>{name}</summary>{own}</details>"
        parts.append(own)
    return "".join(parts)


def _summary(rows: Sequence[Sequence[str]]) -> str:
    """Return the summary of several runs as a table, and of one as cards."""
    if len(rows) > 2:
        return html_table(rows)
    cards = (
        f"<div class='card'><b>{html_text(value)}</b>{name}</div>"
        for name, value in zip(rows[0][1:], rows[1][1:], strict=True)
        if value != NONE
    )
    return f"<div class='cards'>{''.join(cards)}</div>"


def _damage(run: RunFolder, metrics: Metrics) -> str:
    if not metrics.damaged.count:
        return ""
    first, lines = metrics.damaged.first, plural(metrics.damaged.count, "damaged line")
    return f"<p class='note'>{html_text(run.label)}: {lines} of metrics.jsonl left out, the first is line {first}.</p>"


def _curves(runs: Sequence[RunFolder], drawn: Sequence[Chart]) -> str:
    if not drawn:
        return "<p class='note'>No run here has a metrics.jsonl with numbers.</p>"
    several = len(runs) > 1
    legend = "".join(
        f"<label><input type='checkbox' id='show-{place}' checked>{swatch(run.color)} <span class='name'>"
        f"{html_text(run.label)}</span></label>"
        for place, run in enumerate(runs)
    )
    note = (
        "Thin lines are training, each point the mean since the one before; lines with dots are held out, and dashed ones held "
        "out with the moving average of the parameters. A dashed vertical line is a start of a run that was stopped. Point at a "
        "curve, or choose it and press an arrow key, to read its values."
    )
    left_out = f" {plural(len(drawn) - MOST_CHARTS, 'more metric')} not drawn." if len(drawn) > MOST_CHARTS else ""
    figures = [figure(chart, number) for number, chart in enumerate(drawn[:MOST_CHARTS]) if not chart.is_inspection]
    return (
        f"<p class='note'>{note}{left_out}</p>"
        + (f"<fieldset class='legend' aria-label='Runs'>{legend}</fieldset>" if several else "")
        + f"<div class='charts'>{''.join(figures)}</div>"
    )


def _inspections(drawn: Sequence[Chart]) -> str:
    figures = [figure(chart, number) for number, chart in enumerate(drawn[:MOST_CHARTS]) if chart.is_inspection]
    if not figures:
        return ""
    charts = plural(len(figures), "chart")
    drawings = f"<div class='charts'>{''.join(figures)}</div>"
    return f"<details><summary>{charts} of norms and activations, by layer</summary>{drawings}</details>"


def _configurations(runs: Sequence[RunFolder]) -> str:
    parts, readable = [], []
    for run in runs:
        try:
            readable.append((run, read_configuration(run)))
        except UserError as error:
            parts.append(f"<p class='note'>{html_text(run.label)} is not shown: {html_text(error)}</p>")
    if len(readable) > 1:
        rows = differences([run.label for run, _ in readable], [own for _, own in readable])
        shown = f"<div class='wide'>{html_table(rows[: MOST_ROWS + 1])}</div>" if len(rows) > 1 else "<p>None.</p>"
        parts.append(f"<h3>Differences</h3>{shown}")
    for run, own in readable:
        bound, defaults = tables(own)
        name = f"{swatch(run.color)} {html_text(run.label)}: " if len(runs) > 1 else ""
        is_open = "" if len(runs) > 1 else " open"
        parts.append(
            f"<details{is_open}><summary class='name'>{name}{plural(len(bound) - 1, 'value')}, and who bound them</summary>"
            f"<div class='wide'>{html_table(bound)}</div></details>"
        )
        if len(defaults) > 1:
            parts.append(
                f"<details><summary class='name'>{name}{plural(len(defaults) - 1, 'default')}</summary>"
                f"<div class='wide'>{html_table(defaults)}</div></details>"
            )
    return "".join(parts)
