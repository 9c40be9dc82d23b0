"""Summaries of the scores of probes over layers (Tenney et al. 2019b)."""

import numpy as np


def centre_of_gravity(weights: np.ndarray) -> float:
    """Return the mean layer of a mix, sum_l l s_l over layers 0 to L with the shares s (section 3.1)."""
    return float(np.arange(len(weights)) @ weights)


def expected_layer(cumulative: np.ndarray) -> float:
    """Return the layer at which a task is solved, sum_l l D_l / sum_l D_l over layers 1 to L (section 3.2, equation 4).

    D_l is the score of the probe of layers 0 to l, less that of the probe of layers 0 to l - 1.

    Args:
      cumulative: float64[layers + 1], the scores of the probes of layers 0 to l.

    Returns:
      the layer; NaN unless the last score is above the first.
    """
    differences = np.diff(cumulative)
    total = float(differences.sum())
    return float(np.arange(1, len(cumulative)) @ differences) / total if total > 0 else float("nan")
