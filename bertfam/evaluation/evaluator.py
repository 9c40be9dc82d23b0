"""Scores on held-out rows: exact weighted means, the same on every mesh."""

from collections.abc import Callable
from typing import Any

import jax

from bertfam.training.logs.metrics import means
from bertfam.training.step import Metrics

_AHEAD = 2


def evaluate(
    step: Callable[[dict[str, Any]], Metrics],
    batches: Callable[[int], dict[str, Any]],
    steps: int,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """Merges the metrics of `steps` batches.

    Args:
      step: metrics of one batch.
      batches: the batch of any index.
      steps: how many; equal on every host.
      stop: asked after each batch whether to give up.

    Returns:
      means by metric name; None where it was given up.
    """
    found: list[Metrics] = []
    for index in range(steps):
        found.append(step(batches(index)))
        # No more batches wait for the device than it needs to stay busy.
        if index >= _AHEAD:
            jax.block_until_ready(found[index - _AHEAD])
        if stop():
            return None
    return means(found)
