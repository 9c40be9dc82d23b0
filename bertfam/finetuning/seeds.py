"""Scores of several runs that differ in their seed: mean, median and spread."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bertfam.training.checkpoints import retention

_SUMMARY: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "deviation": lambda values: statistics.stdev(values) if len(values) > 1 else 0.0,
    "least": min,
    "greatest": max,
}


def last_scores(model_dir: Path) -> dict[str, float]:
    """Read the last held-out scores of a run from metrics.jsonl, by name; {} if there are none."""
    lines = retention.lines(model_dir, "eval")
    values = lines[max(lines)] if lines else {}
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float) and name != "loss"}


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return mean, median, standard deviation ("deviation"), least and greatest value."""
    return {name: float(compute(values)) for name, compute in _SUMMARY.items()}


def table(scores: Mapping[int, Mapping[str, float]]) -> Sequence[str]:
    """Return a line for each seed and for mean, median, standard deviation, least and greatest value of each score.

    Args:
      scores: The scores by name of each seed.
    """
    names = list(next(iter(scores.values())))
    columns = {name: [own[name] for own in scores.values()] for name in names}
    width = max(14, *(len(name) + 2 for name in names)) if names else 14
    lines = [f"{'seed':10}" + "".join(f"{name:>{width}}" for name in names)]
    lines += [f"{seed:<10}" + "".join(f"{own[name]:>{width}.4f}" for name in names) for seed, own in scores.items()]
    for title, compute in _SUMMARY.items():
        lines.append(f"{title:10}" + "".join(f"{compute(columns[name]):>{width}.4f}" for name in names))
    return lines
