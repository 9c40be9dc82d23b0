"""Scores of several runs that differ in their seed or their learning rate: mean, median and spread."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bertfam.config.state import preserve_gin
from bertfam.training.checkpoints import retention, selection
from bertfam.training.model_dir import read_run

_SUMMARY: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "deviation": statistics.stdev,
    "least": min,
    "greatest": max,
}


def kept_scores(model_dir: Path) -> dict[str, float]:
    """Read the held-out scores of a run's best checkpoint from metrics.jsonl, by name; {} if there are none.

    Without `Run.keep_best` they are those of the last evaluation.
    """
    lines = retention.lines(model_dir, "eval")
    step = selection.best(model_dir, _keep(model_dir))
    values = lines[max(lines) if step is None else step] if lines else {}
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float) and name != "loss"}


def title(model_dir: Path) -> str:
    """Return the heading of a table of `kept_scores`."""
    metric = _keep(model_dir).best
    return f"held-out scores of each run's checkpoint with the best {metric} (--step=best)" if metric else "last held-out scores"


def summary(values: Sequence[float]) -> dict[str, float | None]:
    """Return mean, median, standard deviation ("deviation"; None of a single value), least and greatest value."""
    return {
        name: float(compute(values)) if len(values) > 1 or name != "deviation" else None for name, compute in _SUMMARY.items()
    }


def table(scores: Mapping[int, Mapping[str, float]]) -> Sequence[str]:
    """Return a line for each seed and, of several, for mean, median, standard deviation, least and greatest value of each score.

    Args:
      scores: The scores by name of each seed.
    """
    names = list(next(iter(scores.values())))
    columns = {name: [own[name] for own in scores.values()] for name in names}
    width = max(14, *(len(name) + 2 for name in names)) if names else 14
    lines = [f"{'seed':10}" + "".join(f"{name:>{width}}" for name in names)]
    lines += [f"{seed:<10}" + "".join(f"{own[name]:>{width}.4f}" for name in names) for seed, own in scores.items()]
    for title, compute in _SUMMARY.items() if len(scores) > 1 else ():
        lines.append(f"{title:10}" + "".join(f"{compute(columns[name]):>{width}.4f}" for name in names))
    return lines


def metric_of(model_dir: Path) -> str:
    """Return the name of the held-out metric by which a run keeps its best checkpoint; "loss" if it keeps none."""
    return _keep(model_dir).best or "loss"


def _keep(model_dir: Path) -> retention.Keep:
    with preserve_gin():
        return read_run(model_dir).keep


def rates_table(scores: Mapping[float, Mapping[int, Mapping[str, float]]], metric: str) -> Sequence[str]:
    """Return a line for each learning rate, the best first, with the mean, median and standard deviation of each score.

    Args:
      scores: The scores by name of each seed of each rate.
      metric: The score whose best mean is first; another name: the first score.
    """
    names = list(next(iter(next(iter(scores.values())).values())))
    by_name = {rate: {name: [own[name] for own in seeds.values()] for name in names} for rate, seeds in scores.items()}
    first = metric if metric in names else names[0]
    sign = 1 if retention.is_loss(first) else -1
    rates = sorted(by_name, key=lambda rate: sign * statistics.fmean(by_name[rate][first]))
    several = len(next(iter(scores.values()))) > 1
    shown = ("mean", "median", "deviation") if several else ("mean",)
    titles = [f"{name} {title}" if several else name for name in names for title in shown]
    lines = [f"{'learning_rate':15}" + "".join(f"{title:>{len(title) + 2}}" for title in titles)]
    for rate in rates:
        values = [_SUMMARY[title](by_name[rate][name]) for name in names for title in shown]
        cells = (f"{value:>{len(title) + 2}.4f}" for title, value in zip(titles, values, strict=True))
        lines.append(f"{rate:<15g}{''.join(cells)}")
    return lines
