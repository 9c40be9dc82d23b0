"""HTML page of the roles of heads: self-contained, without scripts, with all text escaped."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertfam.analysis.head_report import notes, tables
from bertfam.analysis.report_page import beside, report_page
from bertfam.pages.document import html_text

_CELL, _LEFT, _TOP = 30, 40, 24  # of the plots, in units of the drawing
# Statistic -> its caption. All are shares from 0 to 1.
_PLOTS = {
    "confidence": "confidence, the mean of the greatest weight",
    "previous": "attention to the token before",
    "next": "attention to the token after",
    "sep": "attention to [SEP]",
    "cls": "attention to [CLS]",
    "punctuation": "attention to punctuation",
    "offset_share": "most attended token at the commonest offset",
    "rare": "most attended token is the least frequent one",
}
_CROSS_PLOTS = {name: _PLOTS[name] for name in ("confidence", "sep", "cls", "punctuation", "rare")} | {
    "same_place": "most attended token at the same relative place"
}
# Titles of the tables with plots, before the name of the parameters -> the name of their values in a report, and the plots.
_PLOTTED = {"Heads, ": ("statistics", _PLOTS), "Cross-attention, ": ("cross_attention", _CROSS_PLOTS)}


def page(report: Mapping[str, Any]) -> str:
    """Return the report as an HTML page, with plots of layers and heads."""

    def plots(title: str) -> list[str]:
        for begin, (measure, captions) in _PLOTTED.items():
            if title.startswith(begin):
                heads = report[measure]["heads"][title.removeprefix(begin)]
                return [beside([plot(heads, name, caption) for name, caption in captions.items()])]
        return []

    return report_page(f"Heads of {report['model']}", tables(report), notes(report), plots)


def plot(heads: Sequence[Mapping[str, Any]], name: str, caption: str) -> str:
    """Return the drawing of a statistic from 0 to 1: a row for each layer, a square for each head."""
    layers, columns = max(own["layer"] for own in heads), max(own["head"] for own in heads)
    width, height = _LEFT + _CELL * columns, _TOP + _CELL * layers
    marks = [_text(_LEFT - 14, _TOP + _CELL * (layer + 0.62), layer + 1) for layer in range(layers)]
    marks += [_text(_LEFT + _CELL * (head + 0.5), _TOP - 8, head + 1) for head in range(columns)]
    for own in heads:
        x, y = _LEFT + _CELL * (own["head"] - 1), _TOP + _CELL * (own["layer"] - 1)
        words = html_text(f"head {own['layer']}-{own['head']}: {own[name]:.3f}")
        size = f"width='{_CELL - 2}' height='{_CELL - 2}'"
        # Every square has a title, and so a place to touch, however little it is filled.
        marks.append(
            f"<g><title>{words}</title><rect x='{x}' y='{y}' {size} opacity='.08'/>"
            f"<rect x='{x}' y='{y}' {size} opacity='{min(max(own[name], 0), 1):.3f}'/></g>"
        )
    title = html_text(caption)
    return (
        f"<figure style='width:{width}px;max-width:100%'><svg viewBox='0 0 {width} {height}' role='img'><title>{title}</title>"
        f"{''.join(marks)}</svg><figcaption>{title}</figcaption></figure>"
    )


def _text(x: float, y: float, number: int) -> str:
    return f"<text class='axis' x='{x:.1f}' y='{y:.1f}'>{number}</text>"
