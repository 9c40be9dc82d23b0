"""Report of probes: measured values, and tables of them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertfam.analysis.probes.data import ProbeData
from bertfam.analysis.probes.measures import centre_of_gravity, expected_layer
from bertfam.analysis.probes.training import ProbeScores
from bertfam.plurals import plural
from bertfam.storage.json_values import json_value

_MIX = "mix"
# Title of a table -> the values by layer, the last column's name, its value, and a note.
_TABLES = {
    "accuracy": ("accuracy", _MIX, "mix", "Accuracy of a probe of each layer, and of one of the mix of all layers."),
    "selectivity": (
        "selectivity",
        _MIX,
        "mix_selectivity",
        "Accuracy less that of the control task, in which every word type has a random label.",
    ),
    "cumulative score": (
        "cumulative",
        "expected layer",
        "expected_layer",
        "Accuracy of a probe of the mix of layers 0 to the column's.",
    ),
    "weights of the mix": ("weights", "centre of gravity", "centre_of_gravity", "Share of each layer in the mix of all."),
}


def describe_data(data: ProbeData) -> dict[str, Any]:
    """Return the facts about a task's targets, as JSON values."""
    return {
        "classes": list(data.classes),
        "train": len(data.train.labels),
        "held_out": len(data.held_out.labels),
        "skipped": data.train.skipped + data.held_out.skipped,
        "seen": data.seen,
        "baselines": data.baselines(),
    }


def describe_scores(scores: Sequence[ProbeScores]) -> dict[str, Any]:
    """Return the values of all seeds, the seeds first, as JSON values."""
    every = [
        {
            "accuracy": one.layers,
            "mix": one.cumulative[-1],
            "control": one.control,
            "mix_control": one.control_mix,
            "selectivity": one.layers - one.control,
            "mix_selectivity": one.cumulative[-1] - one.control_mix,
            "cumulative": one.cumulative,
            "weights": one.weights,
            "centre_of_gravity": centre_of_gravity(one.weights),
            "expected_layer": expected_layer(one.cumulative),
        }
        for one in scores
    ]
    return {name: json_value(np.stack([own[name] for own in every]).tolist()) for name in every[0]}


def tables(report: Mapping[str, Any]) -> dict[str, list[list[str]]]:
    """Return the tables of a report by their titles; the first row of each is its header."""
    found = {}
    for task, own in report["tasks"].items():
        for title, (values, last, summary, _) in _TABLES.items():
            found[f"{task}: {title}"] = _rows(own["scores"], values, last, summary)
    return found


def notes(report: Mapping[str, Any]) -> dict[str, str]:
    """Return sentences about each table, by its title."""
    found = {}
    for task, own in report["tasks"].items():
        for title, (*_, note) in _TABLES.items():
            found[f"{task}: {title}"] = note
        shares = ", ".join(f"{name} {share:.1%}" for name, share in own["baselines"].items())
        found[f"{task}: accuracy"] += (
            f" {plural(own['train'], 'target')} to train on and {own['held_out']:,} held out, of {len(own['classes'])} labels; "
            f"{own['skipped']:,} left out. Without hidden states: {shares}. The words of {own['seen']:.1%} are seen in training."
        )
    return found


def means(values: Sequence[Any]) -> np.ndarray:
    """Return the mean over seeds of values [seeds, ...]; NaN for those that no seed has."""
    table = np.array(values, np.float64)  # None becomes NaN
    known = ~np.isnan(table)
    total = np.where(known, table, 0).sum(axis=0)
    return np.where(known.any(axis=0), total / np.maximum(known.sum(axis=0), 1), np.nan)


def _rows(scores: Mapping[str, Mapping[str, Any]], values: str, last: str, summary: str) -> list[list[str]]:
    layers = range(len(next(iter(scores.values()))[values][0]))
    rows = [["parameters", *map(str, layers), last, "sd"]]
    for name, own in scores.items():
        spread = _spread(own[values])
        rows.append([name, *map(_share, means(own[values])), _summary(own[summary], last), _share(spread)])
    return rows


def _spread(values: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation over seeds, its root mean square over layers; NaN for one seed."""
    return math.sqrt(np.var(values, axis=0, ddof=1).mean()) if len(values) > 1 else math.nan


def _summary(values: Sequence[float | None], last: str) -> str:
    mean = float(means(values))
    return _share(mean) if last == _MIX else "-" if math.isnan(mean) else f"{mean:.2f}"


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}"
