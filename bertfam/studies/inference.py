"""Inference over seeds, by scipy: intervals, paired tests, Holm's correction, and the seeds that would decide."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

LEVEL = 0.05
_POWER = 0.8
_MOST_SEEDS = 1000


class Interval(NamedTuple):
    """Mean of a score over seeds.

    Attributes:
      mean: mean.
      deviation: standard deviation; None for one seed.
      low, high: interval of 95 % of Student's t for the mean; None for one seed.
      seeds: number of seeds.
    """

    mean: float
    deviation: float | None
    low: float | None
    high: float | None
    seeds: int


class Difference(NamedTuple):
    """Difference of two arms over the seeds that both have, paired by seed.

    Attributes:
      mean: mean difference.
      low, high: interval of 95 % of Student's t for it.
      p_value: two-sided p-value of the paired t-test.
      effect: mean difference over the pooled standard deviation of single seeds, Cohen's d; None if that is 0.
      deviation: standard deviation of the differences.
      seeds: number of seeds.
    """

    mean: float
    low: float
    high: float
    p_value: float
    effect: float | None
    deviation: float
    seeds: int


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of values and its interval."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return Interval(mean, None, None, None, len(values))
    deviation = float(np.std(values, ddof=1))
    half = _half_width(deviation, len(values))
    return Interval(mean, deviation, mean - half, mean + half, len(values))


def difference(one: Sequence[float], other: Sequence[float]) -> Difference:
    """Compare two arms by their scores with the same seeds, at least two: one minus the other.

    Seeds give both arms the same order of the data, so that a part of their noise is common, which pairing removes.
    """
    from scipy import stats

    differences = np.asarray(one, np.float64) - np.asarray(other, np.float64)
    mean, deviation = float(differences.mean()), float(np.std(differences, ddof=1))
    half = _half_width(deviation, len(differences))
    pooled = math.sqrt((np.var(one, ddof=1) + np.var(other, ddof=1)) / 2)
    # As scipy.stats.ttest_rel, which warns about differences that are all but equal.
    t = abs(mean) * math.sqrt(len(differences)) / deviation if deviation > 0 else math.inf
    p_value = float(2 * stats.t.sf(t, len(differences) - 1)) if mean else 1.0
    effect = mean / pooled if pooled > 0 else None
    return Difference(mean, mean - half, mean + half, p_value, effect, deviation, len(differences))


def _half_width(deviation: float, count: int) -> float:
    from scipy import stats

    return float(stats.t.ppf(1 - LEVEL / 2, count - 1)) * deviation / math.sqrt(count)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm 1979).

    scipy 1.17 has no correction of the family-wise error rate by Holm's method; statsmodels, which has one, is no dependency.
    """
    order = np.argsort(p_values)
    corrected, largest = np.zeros(len(p_values)), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return [float(value) for value in corrected]


def seeds_to_decide(mean: float, deviation: float, comparisons: int) -> int | None:
    """Return the number of seeds with which a paired t-test would find a difference of this size with a probability of 80 %.

    Args:
      mean: mean difference.
      deviation: standard deviation of the differences.
      comparisons: number of comparisons, by which the level of 5 % is divided.

    Returns:
      the number; None if it is more than 1,000, or the difference is 0.
    """
    from scipy import stats

    if mean == 0:
        return None
    level, counts = LEVEL / comparisons, np.arange(2, _MOST_SEEDS + 1)
    shift = abs(mean) / max(deviation, 1e-12 * abs(mean)) * np.sqrt(counts)
    critical = stats.t.ppf(1 - level / 2, counts - 1)
    # scipy's noncentral t has no value far out, where the power is 1.
    power = np.nan_to_num(stats.nct.sf(critical, counts - 1, np.minimum(shift, 30.0)), nan=1.0)
    enough = counts[power >= _POWER]
    return int(enough[0]) if len(enough) else None
