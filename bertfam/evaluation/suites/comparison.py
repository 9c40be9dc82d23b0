"""Paired tests of two models on the same texts, by scipy."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_RESAMPLES, _LEVEL = 2000, 0.95


class Comparison(NamedTuple):
    """Difference of two models.

    Attributes:
      difference: Mean of the first one's scores of single texts, minus that of the second one.
      low, high: Interval that holds the difference with a confidence of 95 %, by a paired bootstrap over texts.
      p_value: Probability of such a difference between models that are equally good: by McNemar's exact test where texts are
        right or wrong, otherwise by a permutation test of the pairs.
      test: Name of the test.
      texts: Number of texts.
    """

    difference: float
    low: float
    high: float
    p_value: float
    test: str
    texts: int


def compare_outcomes(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> Comparison:
    """Compare the scores of single texts of two models.

    Args:
      one: Scores of each text, in the same order, of each seed of the first model; seeds are averaged.
      other: Those of the second model.
    """
    from scipy import stats

    first, second = (np.mean(np.asarray(values, np.float64), axis=0) for values in (one, other))
    differences = first - second
    low = high = float(differences.mean())
    if np.ptp(differences) > 0:
        interval = stats.bootstrap(
            (differences,), np.mean, n_resamples=_RESAMPLES, batch=100, confidence_level=_LEVEL, method="percentile", rng=0
        ).confidence_interval
        low, high = float(interval.low), float(interval.high)
    signs = np.unique(np.abs(differences[differences != 0]))
    if len(signs) <= 1:  # right or wrong: all differences have one size
        better, worse = int(np.sum(differences > 0)), int(np.sum(differences < 0))
        p_value = stats.binomtest(better, better + worse).pvalue if better + worse else 1.0
        test = "McNemar"
    else:
        test = "permutation"
        options = {"permutation_type": "samples", "n_resamples": _RESAMPLES, "batch": 100, "vectorized": True, "rng": 0}
        p_value = stats.permutation_test((first, second), _mean_difference, **options).pvalue
    return Comparison(float(differences.mean()), low, high, float(p_value), test, len(differences))


def _mean_difference(one: np.ndarray, other: np.ndarray, axis: int = -1) -> np.ndarray:
    means: np.ndarray = np.mean(one - other, axis=axis)
    return means
