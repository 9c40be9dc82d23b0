"""Report of the importance of heads: JSON values, tables, and an HTML page with plots."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertfam.analysis.head_page import plot
from bertfam.analysis.importance import Importance
from bertfam.analysis.report_page import beside, report_page
from bertfam.layers.stack import FIRST
from bertfam.models.pruning import Site
from bertfam.pages.line_chart import Chart, Line, with_legends


def head_values(importance: Importance) -> list[dict[str, Any]]:
    """Return each head with its module, its layer and number from 1, and its importance, as JSON values."""
    normalised, found = importance.normalised, []
    for site, values in importance.values.items():
        before = _before(site, importance.values)
        for layer, head in np.ndindex(values.shape):
            own = {"importance": float(values[layer, head]), "normalised": float(normalised[site][layer, head])}
            found.append({"module": module_name(site), "layer": before + layer + 1, "head": head + 1, **own})
    return found


def module_name(site: Site) -> str:
    """Return the name of the module of a site, such as "decoder cross_attention"."""
    return " ".join([*site[:-2], site[-1]])


def _before(site: Site, values: Mapping[Site, np.ndarray]) -> int:
    """Return the number of layers of the network before those of a site."""
    first = (*site[:-2], FIRST, site[-1])
    return len(values[first]) if first in values and site != first else 0


def tables(report: Mapping[str, Any]) -> dict[str, list[list[str]]]:
    """Return the tables of a report by their titles; the first row of each is its header."""
    found = {f"Importance of heads, {name}": _matrix(heads) for name, heads in _by_module(report).items()}
    if curve := report.get("curve"):
        scores = list(curve[0]["scores"])
        rows = [[one["order"], str(one["removed"]), f"{one['share']:.0%}", *_cells(one["scores"], scores)] for one in curve]
        found["Scores by heads removed"] = [["order", "removed", "share", *scores], *rows]
    return found


def _cells(values: Mapping[str, float], names: Sequence[str]) -> list[str]:
    return [f"{values[name]:.4f}" for name in names]


def _by_module(report: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    modules: dict[str, list[Mapping[str, Any]]] = {}
    for own in report["heads"]:
        modules.setdefault(own["module"], []).append(own)
    return modules


def _matrix(heads: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    by_layer: dict[int, list[str]] = {}
    for own in heads:
        by_layer.setdefault(own["layer"], []).append(f"{own['normalised']:.2f}")
    numbers = dict.fromkeys(str(own["head"]) for own in heads)
    return [["layer", *numbers], *([str(layer), *row] for layer, row in by_layer.items())]


def notes(report: Mapping[str, Any]) -> dict[str, str]:
    """Return a sentence about each kind of table, by the beginning of their titles."""
    return {
        "Importance": f"Mean of |dL/d gate| over {report['rows']:,} rows of the {report['split']} split, divided by the l2 norm "
        "of those of the layer.",
        "Scores": "Scores on the validation split, with heads masked. By importance, which is measured anew after each step; and "
        "at random.",
    }


def page(report: Mapping[str, Any]) -> str:
    """Return the report as an HTML page, with plots."""
    modules = _by_module(report)

    def plots(title: str) -> list[str]:
        if heads := modules.get(title.rpartition(", ")[2]):
            return [beside([plot(heads, "normalised", "importance, by layer and head")])]
        return [with_legends([_curve(report["curve"], name) for name in report["curve"][0]["scores"]])]

    return report_page(f"Importance of heads of {report['model']}", tables(report), notes(report), plots)


def _curve(points: Sequence[Mapping[str, Any]], name: str) -> Chart:
    """Return the chart of a score against the number of heads removed, a line for each order."""
    lines = []
    for number, order in enumerate(dict.fromkeys(one["order"] for one in points)):
        own = [(one["removed"], one["scores"][name]) for one in points if one["order"] == order]
        lines.append(Line(order, 0, number, 1, own))
    return Chart(f"{name} by heads removed", "heads removed", lines)
