"""Calibration of predictions: how well their probabilities agree with how often they are right (Guo et al. 2017)."""

from typing import NamedTuple

import numpy as np

BINS = 10


class Bin(NamedTuple):
    """Predictions with a confidence above `low` and up to `high`.

    Attributes:
      low, high: bounds of the confidence.
      predictions: number of predictions.
      confidence: their mean confidence; 0 without any.
      accuracy: share of them that are right; 0 without any.
    """

    low: float
    high: float
    predictions: int
    confidence: float
    accuracy: float


class Calibration(NamedTuple):
    """Expected calibration error, and its bins of equal width."""

    error: float
    bins: list[Bin]


def calibrate(confidences: np.ndarray, is_right: np.ndarray) -> Calibration:
    """Compute the expected calibration error: sum over bins of count / n |accuracy - confidence| (equation 3).

    Args:
      confidences: float64[n], probability of each prediction.
      is_right: bool[n].
    """
    edges = np.linspace(0, 1, BINS + 1)
    number = np.clip(np.searchsorted(edges, confidences, side="left") - 1, 0, BINS - 1)
    counts = np.bincount(number, minlength=BINS)
    confidence, accuracy = (
        np.bincount(number, values, BINS) / np.maximum(counts, 1) for values in (confidences, is_right.astype(np.float64))
    )
    error = float(np.sum(counts * np.abs(accuracy - confidence)) / max(len(confidences), 1))
    bins = zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), confidence.tolist(), accuracy.tolist(), strict=True)
    return Calibration(error, [Bin(*values) for values in bins])
