"""Configuration of a study: arms that differ in a few settings, a budget that all of them share, seeds, scores and claims."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bertfam.evaluation.suites.suite import file_name
from bertfam.plurals import listed
from bertfam.storage.untrusted import name_fault
from bertfam.studies.scores.score import Score
from bertfam.suggest import did_you_mean
from bertfam.training.run_plan import si

Equal = Literal["flops", "tokens", "seconds", "parameters"]


@dataclass(frozen=True)
class Arm:
    """Recipe that a study compares with others.

    Attributes:
      name: its name in tables.
      files: gin files, laid over those of the study.
      bindings: lines "NAME = value", laid over those of the study.
      teacher: model folder or Hugging Face folder; the arm is then a student, trained as by `bertfam distill`.
      learning_rates: peaks to try, as many as in the other arms; (): those of the study.
    """

    name: str
    files: tuple[str, ...] = ()
    bindings: tuple[str, ...] = ()
    teacher: str | None = None
    learning_rates: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.name.strip() or name_fault(self.name):
            raise ValueError(f"name {self.name!r} must have letters, and no control characters")
        _check_rates(self.learning_rates)


@dataclass(frozen=True)
class Axis:
    """Values of one parameter; a study with axes crosses every arm with every value.

    Attributes:
      parameter: the parameter, such as "BertMasking.rate".
      values: its values, plain ones: numbers, texts, True, False, None.
    """

    parameter: str
    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if len(self.values) < 2 or len(set(map(repr, self.values))) < len(self.values):
            raise ValueError(f"values {self.values!r} must be two or more different ones")


@dataclass(frozen=True)
class Claim:
    """Expectation that one arm scores better than another, such as a paper's.

    Attributes:
      score: name of the score, such as "masked_loss" or "cola/mcc".
      better: name of the arm that is expected to be better.
      worse: name of the other arm.
      least: smallest difference that matters, in units of the score; a claim is also not reproduced if the interval of the
        difference lies below it. 0: only a significant difference in the other direction refutes the claim.
    """

    score: str
    better: str
    worse: str
    least: float = 0.0

    def __post_init__(self) -> None:
        if self.better == self.worse:
            raise ValueError(f"better and worse are both {self.better!r}; a claim compares two arms")
        if not 0 <= self.least < math.inf:
            raise ValueError(f"least {self.least} must be a number of at least 0")


@dataclass(frozen=True)
class Study:
    """Comparison of arms at an equal budget.

    Attributes:
      budget: amount of what each run gets: FLOPs, tokens or seconds; where parameters are equal, tokens.
      scores: scores of every trained model.
      arms: the arms; with `axes` they may be left out.
      axes: parameters whose values every arm is crossed with.
      question: the question that the study answers, for the report.
      files: gin files of all arms.
      bindings: lines "NAME = value" of all arms.
      equal: quantity that is equal: "flops", "tokens", "seconds" of updates as measured on the devices, or "parameters" (and
        tokens).
      tolerance: largest relative difference that counts as equal, of parameters and of budgets that are rounded to whole updates.
      seeds: seeds of the runs; a seed gives all arms the same order of the data.
      warmup: warm-up of each run's schedule as a share of its updates; None: as the arms set it.
      learning_rates: peaks of the schedule, each of which a short run of each arm tries; (): the arms set the peak.
      rates_share: budget of each of these runs, as a share of `budget`.
      rates_seed: seed of these runs, which is none of `seeds`.
      claims: expectations to test.
    """

    budget: float
    scores: tuple[Score, ...]
    arms: tuple[Arm, ...] = ()
    axes: tuple[Axis, ...] = ()
    question: str = ""
    files: tuple[str, ...] = ()
    bindings: tuple[str, ...] = ()
    equal: Equal = "tokens"
    tolerance: float = 0.02
    seeds: tuple[int, ...] = (0, 1, 2)
    warmup: float | None = None
    learning_rates: tuple[float, ...] = ()
    rates_share: float = 0.25
    rates_seed: int = 1_000_003
    claims: tuple[Claim, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.budget < math.inf:
            raise ValueError(f"budget {self.budget} must be above 0")
        for name, value, most in (("tolerance", self.tolerance, 0.5), ("rates_share", self.rates_share, 1.0)):
            if not 0 < value <= most:
                raise ValueError(f"{name} {value} must be above 0 and at most {most:g}")
        if self.warmup is not None and not 0 <= self.warmup < 1:
            raise ValueError(f"warmup {self.warmup} must be at least 0 and below 1; it is a share of the updates")
        if not self.scores:
            raise ValueError("scores is empty; a study needs one, such as (@HeldOut(),)")
        names = [score.name for score in self.scores]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"scores: two are called {twice}; give one")
        _check_rates(self.learning_rates)
        self._check_seeds()
        object.__setattr__(self, "arms", _crossed(self.arms, self.axes))
        self._check_arms()
        self._check_claims()

    def rates_of(self, arm: Arm) -> tuple[float, ...]:
        """Return the learning rates that an arm tries."""
        return arm.learning_rates or self.learning_rates

    @property
    def amount(self) -> str:
        """The budget in words."""
        if self.equal == "flops":
            return f"{si(self.budget)}FLOP"
        return f"{self.budget:,.6g} seconds of updates" if self.equal == "seconds" else f"{self.budget:,.0f} tokens"

    def _check_seeds(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or not all(0 <= seed < 2**63 for seed in self.seeds):
            raise ValueError(f"seeds {self.seeds} must be different numbers of at least 0")
        if self.rates_seed in self.seeds or not 0 <= self.rates_seed < 2**63:
            raise ValueError(
                f"rates_seed {self.rates_seed} must be at least 0 and none of the seeds, so that no run is seen twice"
            )
        if len(self.seeds) == 1 and self.claims:
            raise ValueError(
                f"seeds {self.seeds} is one seed, and claims are tested against the spread over seeds: give two or more"
            )

    def _check_arms(self) -> None:
        if len(self.arms) < 2:
            raise ValueError(f"arms are {len(self.arms)}; a study compares two or more")
        names = dict[str, str]()
        for arm in self.arms:
            folder = file_name(arm.name)
            if other := names.get(folder):
                same = f"two are called {arm.name!r}" if other == arm.name else f"{other!r} and {arm.name!r} are alike"
                raise ValueError(f"arms: {same}; give each a name of its own, by its letters and digits")
            names[folder] = arm.name
        counts = {len(self.rates_of(arm)) for arm in self.arms}
        if len(counts) > 1:
            raise ValueError(
                f"arms try from {min(counts)} to {max(counts)} learning_rates, which are unequal budgets; give each as many"
            )

    def _check_claims(self) -> None:
        arms = [arm.name for arm in self.arms]
        metrics = [metric for score in self.scores for metric in score.metrics]
        is_known = all(score.metrics for score in self.scores)
        for claim in self.claims:
            named = [("arm", claim.better, arms), ("arm", claim.worse, arms)] + [("score", claim.score, metrics)] * is_known
            for kind, name, known in named:
                if name not in known:
                    raise ValueError(
                        f"claims: no {kind} is called {name!r}{did_you_mean(name, known, f'there are {listed(known, 20)}')}"
                    )


def _crossed(arms: Sequence[Arm], axes: Sequence[Axis]) -> tuple[Arm, ...]:
    """Return the arms, each with every combination of the values of the axes."""
    if not axes:
        return tuple(arms)
    crossed = []
    for arm in arms or (None,):
        for values in itertools.product(*(axis.values for axis in axes)):
            chosen = dict(zip((axis.parameter for axis in axes), values, strict=True))
            crossed.append(_with_values(arm, chosen))
    return tuple(crossed)


def _with_values(arm: Arm | None, values: Mapping[str, Any]) -> Arm:
    """Return an arm with more bindings, which its name has too."""
    lines = tuple(f"{parameter} = {value!r}" for parameter, value in values.items())
    words = ", ".join(f"{parameter.rpartition('.')[2]} {value}" for parameter, value in values.items())
    if arm is None:
        return Arm(words, bindings=lines)
    return dataclasses.replace(arm, name=f"{arm.name}, {words}", bindings=(*arm.bindings, *lines))


def _check_rates(rates: Sequence[float]) -> None:
    if len(set(rates)) < len(rates) or not all(0 < rate < math.inf for rate in rates):
        raise ValueError(f"learning_rates {rates} must be different numbers above 0")
    if len(rates) == 1:
        raise ValueError(f"learning_rates {rates} is one rate; give two or more, or set the peak of the schedule")
