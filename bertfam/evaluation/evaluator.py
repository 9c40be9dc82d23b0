"""Scores on held-out rows: exact weighted means, the same on every mesh."""

from collections.abc import Callable
from typing import Any

import jax

from bertfam.training.metrics import means
from bertfam.training.step import Metrics

_AHEAD = 2


def evaluate(step: Callable[[dict[str, Any]], Metrics], batches: Callable[[int], dict[str, Any]], steps: int) -> dict[str, float]:
    """Merges the metrics of `steps` batches.

    Args:
      step: metrics of one batch.
      batches: the batch of any index.
      steps: how many; equal on every host.

    Returns:
      means by metric name.
    """
    found: list[Metrics] = []
    for index in range(steps):
        found.append(step(batches(index)))
        # No more batches wait for the device than it needs to stay busy.
        if index >= _AHEAD:
            jax.block_until_ready(found[index - _AHEAD])
    return means(found)
