"""Report of a suite: mean, median and spread of the scores of each model, and tests between models."""

import itertools
import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

import jax

from bertfam.evaluation.suites.comparison import compare_outcomes
from bertfam.evaluation.suites.suite import SuiteRuns, SuiteTask
from bertfam.evaluation.suites.tables import ABOUT_TESTS, comparison_rows, median_rows, rows, setting_rows
from bertfam.finetuning.sweep import summary
from bertfam.version import __version__

_LIBRARIES = ("jax", "flax", "optax", "numpy", "scikit-learn", "scipy", "seqeval", "tokenizers")
_MOST_COMPARED = 6  # models between which all pairs are tested


def make_report(runs: SuiteRuns) -> dict[str, Any]:
    """Return the report of all finished runs as JSON values.

    It has "suite", "settings", "versions", "models", "mean" (of the tasks' scores by model, each the mean of a task's published
    scores, as GLUE's), and "tasks": each with its texts, notes, "scores" by model and score, and "tests" between models.
    """
    labels = [model.label for model in runs.models]
    tasks = {task.name: _task(runs, task, labels) for task in runs.suite.tasks}
    return {
        "suite": runs.suite.name,
        "settings": dict(runs.suite.settings),
        "seeds": list(runs.seeds),
        "versions": versions(),
        "models": {model.label: model.description for model in runs.models},
        "mean": {label: _mean_of_tasks(runs, label) for label in labels},
        "tasks": tasks,
    }


def _task(runs: SuiteRuns, task: SuiteTask, labels: Sequence[str]) -> dict[str, Any]:
    found = {label: runs.of(task.name, label) for label in labels}
    outcomes = {label: [result.outcomes for result in own.values()] for label, own in found.items()}
    scores = {
        label: {
            metric: {"values": {str(seed): result.scores[metric] for seed, result in own.items()}}
            | _summary([result.scores[metric] for result in own.values()])
            for metric in next(iter(own.values())).scores
        }
        for label, own in found.items()
        if own
    }
    compared = [label for label in labels if outcomes[label] and outcomes[label][0]][:_MOST_COMPARED]
    return {
        "description": task.description,
        "notes": [*task.notes, *undefined_scores(runs, task)],
        "metrics": list(task.metrics),
        "settings": {label: dict(next(iter(own.values())).settings) for label, own in found.items() if own},
        "scores": scores,
        "tests": [
            {"models": [one, other], **compare_outcomes(outcomes[one], outcomes[other])._asdict()}
            for one, other in itertools.combinations(compared, 2)
        ],
    }


def undefined_scores(runs: SuiteRuns, task: SuiteTask) -> list[str]:
    """Return a line for each run on a task with a score that is not defined."""
    return [
        f"{task.name} by {model.label}, seed {seed}: {', '.join(names)} undefined, as the correlation with predictions that are "
        "all equal; train longer, or at another rate"
        for model in runs.models
        for seed, result in runs.of(task.name, model.label).items()
        if (names := [name for name, score in result.scores.items() if not math.isfinite(score)])
    ]


def _summary(values: Sequence[float]) -> dict[str, float | None]:
    """Return the summary of a score's values, NaN if one of them is."""
    found = summary(values)
    return found if all(map(math.isfinite, values)) else dict.fromkeys(found, math.nan)


def _mean_of_tasks(runs: SuiteRuns, label: str) -> float | None:
    """Return the mean over tasks of the mean of a task's published scores; None if a run is missing."""
    means = list[float]()
    for task in runs.suite.tasks:
        own = list(runs.of(task.name, label).values())
        if not own:
            return None
        values = [result.scores[metric] for result in own for metric in task.metrics if metric in result.scores]
        means.append(sum(values) / len(values))
    return sum(means) / len(means)


def versions() -> dict[str, str]:
    """Return the versions of what computed the scores."""
    found = {"bertfam": __version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    device = jax.devices()[0]
    return found | {"devices": f"{len(jax.devices())} x {device.device_kind}", "machine": platform.machine()}


def markdown(report: Mapping[str, Any]) -> str:
    """Return the report as Markdown."""
    return "\n".join(_markdown(report)) + "\n"


def _markdown(report: Mapping[str, Any]) -> Iterator[str]:
    yield f"# {report['suite']}"
    yield ""
    for label, words in report["models"].items():
        yield f"- {markdown_text(label)}: {markdown_text(words)}"
    yield from (f"- {markdown_text(note)}" for task in report["tasks"].values() for note in task["notes"])
    sections = {
        "Scores": rows(report),
        "Over seeds": median_rows(report),
        "Tests": comparison_rows(report),
        "Settings": setting_rows(report),
        "Versions": [["", "version"], *map(list, report["versions"].items())],
    }
    for title, table in sections.items():
        if len(table) < 2:
            continue
        yield from ("", f"## {title}", "")
        if title == "Tests":
            yield from (ABOUT_TESTS, "")
        yield from markdown_table(table)


def markdown_table(table: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table: its header, and its rows."""
    yield f"| {' | '.join(map(markdown_text, table[0]))} |"
    yield "|" + "---|" * len(table[0])
    yield from (f"| {' | '.join(map(markdown_text, row))} |" for row in table[1:])


def markdown_text(text: str) -> str:
    """Escape what Markdown would read as a table or as HTML."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
