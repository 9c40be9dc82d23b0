"""HTML page of the scores of probes, with plots over layers, and over the checkpoints of a run."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bertfam.analysis.head_report import RANDOM
from bertfam.analysis.probes.report import means, notes, tables
from bertfam.analysis.report_page import report_page
from bertfam.pages.line_chart import COLORS, Chart, Line, with_legends

_MOST = 3  # parameters with lines of their own over the layers
_DOTTED, _DASHED = 1, 2  # kinds of lines
_KINDS = (_DOTTED, 0, _DASHED, 3)  # of each further set of layers with all colours


def page(report: Mapping[str, Any]) -> str:
    """Return the report as an HTML page."""

    def plots(title: str) -> list[str]:
        task, _, kind = title.rpartition(": ")
        if kind != "accuracy":
            return []
        scores = report["tasks"][task]["scores"]
        found = [_over_checkpoints(task, scores)] if len(scores) > _MOST else []
        return [with_legends([*found, _over_layers(task, scores), _weights(task, scores)])]

    return report_page(f"Probes of {report['model']}", tables(report), notes(report), plots)


def _over_layers(task: str, scores: Mapping[str, Any]) -> Chart:
    """Return the accuracy of each layer, for the last parameters, beside the control task."""
    chosen = list(scores)[-_MOST:]
    lines = [_line(name, color, _DOTTED, means(scores[name]["accuracy"])) for color, name in enumerate(chosen)]
    lines += [_line(f"{name}, control task", color, _DASHED, means(scores[name]["control"])) for color, name in enumerate(chosen)]
    return Chart(f"{task}, accuracy by layer", "layer", lines)


def _over_checkpoints(task: str, scores: Mapping[str, Any]) -> Chart:
    """Return the accuracy of each layer over the checkpoints of a run, beside the mean over layers of random initialisation."""
    values = {int(name.removeprefix("step ")): means(own["accuracy"]) for name, own in scores.items() if name != RANDOM}
    lines = []
    for layer, own in enumerate(zip(*values.values(), strict=True)):
        kind = _KINDS[layer // COLORS % len(_KINDS)]
        lines.append(Line(f"layer {layer}", 0, layer % COLORS, kind, list(zip(values, map(float, own), strict=True))))
    if RANDOM in scores:
        mean = float(means(scores[RANDOM]["accuracy"]).mean())
        lines.append(Line(f"{RANDOM}, mean of layers", 0, len(lines) % COLORS, _DASHED, [(step, mean) for step in values]))
    return Chart(f"{task}, accuracy by step", "step", lines)


def _weights(task: str, scores: Mapping[str, Any]) -> Chart:
    """Return the weights of the mix."""
    chosen = list(scores)[-_MOST:]
    lines = [_line(name, color, _DOTTED, means(scores[name]["weights"])) for color, name in enumerate(chosen)]
    return Chart(f"{task}, weights of the mix by layer", "layer", lines)


def _line(name: str, color: int, kind: int, values: np.ndarray) -> Line:
    """Return the line of values by layer."""
    return Line(name, 0, color, kind, list(enumerate(values.tolist())))
