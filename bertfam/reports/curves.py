"""Curves of runs from their metrics.jsonl."""

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bertfam.errors import UserError
from bertfam.pages.line_chart import COLORS, Chart, Line, Seam, thinned
from bertfam.reports.run_folder import RunFolder
from bertfam.training.integrity.digest import DIGEST
from bertfam.training.logs import metrics_file

MOST_POINTS = 900  # of a line
MOST_CHARTS = 120
_LARGEST = 1e30  # of a value that is drawn
_LARGEST_STEP = 2**53
_NOT_CURVES = (DIGEST, "hosts", "memory", "time")
_INSPECTED = "inspect"
_AXES = {"updates": "update", "tokens": "tokens"}
_SEEN, _EPOCH = "tokens_seen", "epoch"
_HELD_OUT = {"train": "training", "eval": "held out", "eval_average": "held out, moving average"}
_TITLES = {
    "loss": "Loss",
    "learning_rate": "Learning rate",
    "gradient_norm": "Gradient norm",
    "tokens_per_second": "Throughput, tokens a second",
    "mfu": "MFU, share of the devices' peak FLOP/s",
    "waiting_for_data": "Waiting for data, share of the time",
}
_LAST = ("learning_rate", "gradient_norm", "tokens_per_second", "mfu", "waiting_for_data")  # after the scores, in this order


@dataclass
class Metrics:
    """Numbers of a metrics.jsonl.

    Attributes:
      series: the values by split and name, each with its step; None in the place of values that are not finite.
      sums: lines of the splits "time" and "memory", in the order of the file.
      damaged: lines that are not sound.
    """

    series: dict[tuple[str, str], list[tuple[int, float | None]]] = field(default_factory=dict)
    sums: dict[str, list[tuple[int, dict[str, float]]]] = field(default_factory=lambda: {"time": [], "memory": []})
    damaged: metrics_file.DamagedLines = field(default_factory=metrics_file.DamagedLines)

    def last_step(self) -> int:
        """Return the last step of the training lines; 0 if there are none."""
        return max((points[-1][0] for (split, _), points in self.series.items() if split == "train"), default=0)


def read_metrics(run: RunFolder) -> Metrics:
    """Read the metrics of a run; none if it has no metrics.jsonl.

    Raises:
      UserError: it cannot be read.
    """
    metrics = Metrics()
    for line in metrics_file.read(run.path / metrics_file.NAME, metrics.damaged):
        if line.step >= _LARGEST_STEP:
            continue
        numbers = {name: _number(value) for name, value in line.values.items() if not isinstance(value, list)}
        if line.split in metrics.sums:
            metrics.sums[line.split].append((line.step, {name: own for name, own in numbers.items() if own is not None}))
        elif line.split not in _NOT_CURVES:
            for name, value in numbers.items():
                metrics.series.setdefault((line.split, name), []).append((line.step, value))
    for key, points in metrics.series.items():
        # A run that was continued may have written a step again, and a file that was edited may have any order.
        metrics.series[key] = sorted(dict(points).items())
    return metrics


def _number(value: float | None) -> float | None:
    if value is None or abs(value) > _LARGEST or not math.isfinite(value):
        return None
    return float(value)


def charts(runs: Sequence[RunFolder], metrics: Sequence[Metrics], axis: str) -> list[Chart]:
    """Return the charts of runs, one of each metric.

    Args:
      runs: the runs.
      metrics: their metrics.
      axis: "updates" or "tokens".

    Raises:
      UserError: a run has no count of tokens.
    """
    places = [_places(run, own, axis) for run, own in zip(runs, metrics, strict=True)]
    lines: dict[tuple[str, str], list[Line]] = {}
    for number, (run, own) in enumerate(zip(runs, metrics, strict=True)):
        for (split, name), points in own.series.items():
            if split == "train" and name in (_SEEN, _EPOCH):
                continue
            chart, of_line, kind = _place_of(split, name)
            label = ", ".join(filter(None, (run.label if len(runs) > 1 else "", of_line))) or name
            drawn = thinned([(places[number].at(step), value) for step, value in points], MOST_POINTS)
            color = run.color if split != _INSPECTED or len(runs) > 1 else len(lines.get(chart, ())) % COLORS
            lines.setdefault(chart, []).append(Line(label, number, color, kind, drawn))
    seams = [
        Seam(number, run.color, places[number].at(start.step), f"{run.label}: {start.words}")
        for number, run in enumerate(runs)
        for start in run.starts
    ]
    ordered = sorted((key for key, own in lines.items() if any(line.finite for line in own)), key=_order)
    return [
        Chart(
            _title(*key),
            _AXES[axis],
            lines[key],
            seams if key[0] != _INSPECTED else (),
            may_be_log=key[1] == "gradient_norm" or key[0] == _INSPECTED,
            is_inspection=key[0] == _INSPECTED,
        )
        for key in ordered
    ]


def _place_of(split: str, name: str) -> tuple[tuple[str, str], str, int]:
    """Return the chart of a metric as (group, name), the name of its line there, and how the line is drawn."""
    if split in _HELD_OUT:
        return ("", name), _HELD_OUT[split], ("train", "eval", "eval_average").index(split)
    if split.startswith(("eval/", "eval_average/")):
        kind, _, corpus = split.partition("/")
        return ("corpora", name), f"{corpus}{', moving average' * (kind != 'eval')}", 1 if kind == "eval" else 2
    if split == _INSPECTED:
        place, _, layer = name.rpartition("/")
        is_layer = layer.isdecimal() and bool(place)
        return (_INSPECTED, place if is_layer else name), f"layer {layer}" if is_layer else "", 0
    return (split, name), "", 1


def _title(group: str, name: str) -> str:
    match group:
        case "":
            return _TITLES.get(name, name)
        case "corpora":
            return f"{_TITLES.get(name, name)}, held out by corpus"
        case _ if group == _INSPECTED:
            return name
    return f"{group}: {name}"


def _order(key: tuple[str, str]) -> tuple[int, int, str, str]:
    group, name = key
    if group == _INSPECTED:
        return 3, 0, group, name
    if group:
        return 2, 0, group, name
    return (1, _LAST.index(name), "", "") if name in _LAST else (0, name != "loss", "", name)


@dataclass(frozen=True)
class _Places:
    """Places of steps on the horizontal axis: the steps themselves, or the tokens after them."""

    steps: Sequence[int] = ()
    tokens: Sequence[float] = ()

    def at(self, step: int) -> float:
        """Return the place of a step, on straight lines between those that are known."""
        if not self.steps:
            return step
        upper = min(max(bisect.bisect_left(self.steps, step), 1), len(self.steps) - 1)
        low, high = self.steps[upper - 1], self.steps[upper]
        share = (step - low) / (high - low)
        return self.tokens[upper - 1] + share * (self.tokens[upper] - self.tokens[upper - 1])


def _places(run: RunFolder, metrics: Metrics, axis: str) -> _Places:
    if axis == "updates":
        return _Places()
    seen = [(step, value) for step, value in metrics.series.get(("train", _SEEN), ()) if value is not None and step]
    if not seen:
        raise UserError(f"--x=tokens: {run.path} has no count of tokens in {metrics_file.NAME}: leave --x out")
    return _Places([0, *(step for step, _ in seen)], [0.0, *(value for _, value in seen)])


def median(metrics: Metrics, name: str) -> float | None:
    """Return the median of a training metric; None if there is none."""
    values = sorted(value for _, value in metrics.series.get(("train", name), ()) if value is not None)
    return values[len(values) // 2] if values else None


def seconds(metrics: Iterable[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """Return the seconds of each phase, over all the starts that ended in order."""
    total: dict[str, float] = {}
    for _, line in metrics:
        for name, value in line.items():
            if 0 <= value < _LARGEST:
                total[name.replace("_", " ")] = total.get(name.replace("_", " "), 0.0) + value
    return total
