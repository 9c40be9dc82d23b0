"""Scores on held-out rows: exact weighted means, the same on every mesh."""

from collections.abc import Callable
from typing import Any

from bertfam.training.metrics import add, means
from bertfam.training.step import Metrics


def evaluate(step: Callable[[dict[str, Any]], Metrics], batches: Callable[[int], dict[str, Any]], steps: int) -> dict[str, float]:
    """Sums the metrics of `steps` batches on the device and reads them once.

    Args:
      step: metrics of one batch.
      batches: the batch of any index.
      steps: how many; equal on every host.

    Returns:
      means by metric name.
    """
    total: Metrics | None = None
    for index in range(steps):
        total = add(total, step(batches(index)))
    return means([total]) if total else {}
