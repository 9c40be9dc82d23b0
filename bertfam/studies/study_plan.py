"""Plan of a study: its runs in the order in which they depend on each other, and their price."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertfam.errors import UserError
from bertfam.evaluation.suites.results import Result
from bertfam.plurals import plural
from bertfam.studies.arms import OpenArm, ScaledArm, within_budget
from bertfam.studies.runs import DIVERGED, Kind, RunFolder, StudyRun
from bertfam.studies.study import Study
from bertfam.training.run_plan import duration, si

_SPEED_UPDATES = 30  # of a run that measures the time of an update


@dataclass(frozen=True)
class Price:
    """Price of a study.

    Attributes:
      flops: FLOPs of all runs.
      left: FLOPs of the runs that are not finished.
      flops_per_second: measured or assumed speed; None if there is none.
    """

    flops: int
    left: int
    flops_per_second: float | None

    @property
    def seconds_left(self) -> float | None:
        """Time of the runs that are not finished, one after another; None if no speed is known."""
        return None if self.flops_per_second is None else self.left / self.flops_per_second


class StudyPlan:
    """Plan of a study.

    Its runs come in phases: runs that measure the speed (of a budget of seconds), runs that try learning rates, and the runs that
    are compared. Each phase is known once the one before is finished.

    Attributes:
      study: the study.
      arms: its opened arms.
      root: its folder, from which finished runs are read.
      flops_per_second: assumed speed, until it is measured; None if there is none.
    """

    def __init__(self, study: Study, arms: Sequence[OpenArm], root: Path, flops_per_second: float | None = None) -> None:
        self.study, self.arms, self.root, self.flops_per_second = study, arms, root, flops_per_second
        # Configurations take tens of milliseconds to build, and are asked for again after each run.
        self._scaled: dict[tuple[str, float, float | None], ScaledArm] = {}
        self._runs: dict[tuple[Kind, str, int, int, float | None], StudyRun] = {}

    def phase(self) -> list[StudyRun]:
        """Return the runs of the first phase that is not finished, or of the last one.

        Raises:
          UserError: all runs that try learning rates of an arm have diverged.
        """
        for runs in (self._speed_runs(), self._rate_runs() if self._has_speeds() else ()):
            if any(self.folder(run).training is None for run in runs):
                return list(runs)
        return list(self.seed_runs())

    def folder(self, run: StudyRun) -> RunFolder:
        """Return the folder of a run."""
        return RunFolder(self.root, run)

    def seed_runs(self) -> Iterator[StudyRun]:
        """Yield the runs that are compared, all arms with the first seed before the second."""
        arms = [(self.scaled(arm), self.best_rate(arm)) for arm in self.arms]
        for seed in self.study.seeds:
            yield from (self._run("seed", arm, seed, rate) for arm, rate in arms)

    def scaled(self, arm: OpenArm, share: float = 1.0) -> ScaledArm:
        """Return an arm with the updates of a share of the budget."""
        seconds = self._seconds_per_update(arm)
        key = (arm.arm.name, share, seconds)
        if key not in self._scaled:
            self._scaled[key] = within_budget(self.study, arm, share * self.study.budget, seconds)
        return self._scaled[key]

    def rates(self, arm: OpenArm) -> dict[float, Result | None]:
        """Return the result of training with each learning rate that an arm tries, None if it is not finished."""
        return {run.rate: self.folder(run).training for run in self._rate_runs((arm,)) if run.rate is not None}

    def best_rate(self, arm: OpenArm) -> float | None:
        """Return the learning rate with the lowest held-out loss of the arm's own objective; None if the arm tries none.

        Raises:
          UserError: all have diverged, or there is no held-out text.
        """
        if not self.study.rates_of(arm.arm):
            return None
        found = {
            rate: result.scores.get("loss", math.inf) for rate, result in self.rates(arm).items() if result and _is_sound(result)
        }
        finite = {rate: loss for rate, loss in found.items() if math.isfinite(loss)}
        if not finite:
            raise UserError(
                f"arm {arm.arm.name!r}: none of its learning rates has a held-out loss, as all diverge or no text is held out: "
                "give lower Study.learning_rates, or --validation_input"
            )
        return min(finite, key=finite.__getitem__)

    def price(self) -> Price:
        """Return the price of all runs; before the speed is measured, of those whose updates are known."""
        runs = self._known_runs()
        finished = [(run, result) for run in runs if (result := self.folder(run).training) and _is_sound(result)]
        seconds = sum(result.scores["seconds"] for _, result in finished)
        speed = sum(run.flops for run, _ in finished) / seconds if seconds else self.flops_per_second
        left = sum(run.flops for run in runs if self.folder(run).training is None)
        return Price(sum(run.flops for run in runs), left, speed)

    def lines(self) -> list[str]:
        """Return the lines that describe the plan."""
        study, price = self.study, self.price()
        counts = [plural(len(self.arms), "arm"), plural(len(study.seeds), "seed")]
        total = len(self.arms) * len(study.seeds)
        lines = [f"{' x '.join(counts)} = {plural(total, 'run')}, each of {study.amount}"]
        if rates := sum(len(study.rates_of(arm.arm)) for arm in self.arms):
            lines.append(f"{plural(rates, 'run')} before, of {study.rates_share:.0%} of that, to choose learning rates")
        table = [["arm", "parameters", "updates", "tokens", "FLOP a run", "hours a run"], *map(self._row, self.arms)]
        lines += ["", *aligned(table), ""]
        speed = f" at {si(price.flops_per_second)}FLOP/s" if price.flops_per_second else ""
        left = "" if price.seconds_left is None else f", about {duration(price.seconds_left)}{speed} one after another"
        unknown = "" if self._has_speeds() else " without the runs whose updates depend on the speed, which is measured first"
        return [*lines, f"all runs {si(price.flops)}FLOP{unknown}; left {si(price.left)}FLOP{left}"]

    def _row(self, arm: OpenArm) -> list[str]:
        if self.study.equal == "seconds" and self._seconds_per_update(arm) is None:
            return [arm.arm.name, f"{arm.parameters:,}", "?", "?", "?", f"{self.study.budget / 3600:.3g}"]
        scaled, speed = self.scaled(arm), self.price().flops_per_second
        hours = f"{scaled.flops / speed / 3600:.3g}" if speed else "?"
        return [
            arm.arm.name,
            f"{arm.parameters:,}",
            f"{scaled.updates:,}",
            f"{scaled.tokens:,}",
            f"{si(scaled.flops).strip()}",
            hours,
        ]

    def _known_runs(self) -> list[StudyRun]:
        runs = list(self._speed_runs())
        if self._has_speeds():
            runs += self._rate_runs()
            for arm in map(self.scaled, self.arms):
                rate = self.best_rate(arm) if all(self.rates(arm).values()) else None
                runs += [self._run("seed", arm, seed, rate) for seed in self.study.seeds]
        return runs

    def _speed_runs(self) -> list[StudyRun]:
        if self.study.equal != "seconds":
            return []
        runs = []
        for arm in self.arms:
            key = (arm.arm.name, 0.0, None)
            if key not in self._scaled:
                self._scaled[key] = arm.scaled(_SPEED_UPDATES / arm.run.total_steps)
            runs.append(self._run("speed", self._scaled[key], self.study.rates_seed, None))
        return runs

    def _rate_runs(self, arms: Sequence[OpenArm] | None = None) -> list[StudyRun]:
        runs = []
        for arm in self.arms if arms is None else arms:
            if rates := self.study.rates_of(arm.arm):
                short = self.scaled(arm, self.study.rates_share)
                runs += [self._run("rate", short, self.study.rates_seed, rate) for rate in rates]
        return runs

    def _has_speeds(self) -> bool:
        return all(self.folder(run).training is not None for run in self._speed_runs())

    def _seconds_per_update(self, arm: OpenArm) -> float | None:
        run = next((run for run in self._speed_runs() if run.arm == arm.arm.name), None)
        result = self.folder(run).training if run else None
        if result and not _is_sound(result):
            raise UserError(
                f"arm {arm.arm.name!r} diverges within {_SPEED_UPDATES} updates, so its speed is unknown: lower its peak"
            )
        return result.scores["seconds_of_updates"] / result.scores["updates"] if result else None

    def _run(self, kind: Kind, arm: ScaledArm, seed: int, rate: float | None) -> StudyRun:
        key = (kind, arm.arm.name, arm.updates, seed, rate)
        if key not in self._runs:
            config = arm.configured(self.study, seed, rate).text()
            cost = (arm.updates, arm.tokens, arm.flops)
            self._runs[key] = StudyRun(kind, arm.arm.name, seed, rate, *cost, config, arm.arm.teacher)
        return self._runs[key]


def aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows of a table as lines, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if not place else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in table
    ]


def _is_sound(result: Result) -> bool:
    return result.settings["status"] != DIVERGED
