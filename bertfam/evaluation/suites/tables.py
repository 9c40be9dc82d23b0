"""Tables of a report: a header, and rows of cells."""

import itertools
import math
from collections.abc import Mapping
from typing import Any

ABOUT_TESTS = (
    "Differences are those of the mean score of single texts: right or wrong, exact answers, right tags, or the negative squared "
    "error of numbers. Intervals are of a paired bootstrap over the held-out texts; several seeds of a model are averaged first. "
    "The spread of a score over seeds is not a part of them."
)


def rows(report: Mapping[str, Any]) -> list[list[str]]:
    """Return the table of the scores: a header, and a row of each task and score with a cell of each model."""
    labels = list(report["models"])
    table = [["task", "score", *labels]]
    for name, task in report["tasks"].items():
        metrics = list(dict.fromkeys(itertools.chain.from_iterable(task["scores"].values())))
        for metric in metrics:
            cells = [task["scores"].get(label, {}).get(metric) for label in labels]
            table.append([name, metric, *(_cell(cell) for cell in cells)])
    if len(report["tasks"]) > 1:
        table.append(["mean", "", *("" if mean is None else number(mean) for mean in report["mean"].values())])
    return table


def _cell(score: Mapping[str, Any] | None) -> str:
    if score is None:
        return ""
    spread = f" ± {score['deviation']:.4f}" if len(score["values"]) > 1 and math.isfinite(score["mean"]) else ""
    return number(score["mean"]) + spread


def number(score: float) -> str:
    """Format a score, or the mean of several."""
    return f"{score:.4f}" if math.isfinite(score) else "undefined"


def median_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """Return the table of all summaries: a header, and a row of each task, score and model."""
    names = ("mean", "median", "deviation", "least", "greatest")
    table = [["task", "score", "model", *names, "seeds"]]
    for task, of_task in report["tasks"].items():
        for label, scores in of_task["scores"].items():
            for metric, score in scores.items():
                values = ("" if score[name] is None else number(score[name]) for name in names)
                table.append([task, metric, label, *values, ", ".join(score["values"])])
    return table


def comparison_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """Return the table of the tests between models: a header, and a row of each task and pair."""
    table = [["task", "models", "difference", "95 % interval", "p", "test", "texts"]]
    for name, task in report["tasks"].items():
        for test in task["tests"]:
            interval = f"{test['low']:+.4f} to {test['high']:+.4f}"
            p_value = f"{test['p_value']:.3g}" if math.isfinite(test["p_value"]) else "-"
            difference = f"{test['difference']:+.4f}"
            table.append([name, " - ".join(test["models"]), difference, interval, p_value, test["test"], f"{test['texts']:,}"])
    return table


def setting_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """Return the table of the settings of each task: a header, and a row of each task and model."""
    names = list(dict.fromkeys(name for task in report["tasks"].values() for own in task["settings"].values() for name in own))
    table = [["task", "model", "texts", *names]]
    for name, task in report["tasks"].items():
        for label, own in task["settings"].items():
            table.append([name, label, task["description"], *(str(own.get(key, "")) for key in names)])
    return table if names else []
