"""Sums of statistics of attention weights over batches of rows."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from bertfam.analysis.subject import Subject

# Function of the attention weights float32[layers, batch, heads, queries, keys] of a batch and of its features, to sums.
Statistic = Callable[[jax.Array, Mapping[str, jax.Array]], dict[str, jax.Array]]


# Function of a network, of its parameters and of the features of a batch, to attention weights.
Weights = Callable[[Subject, Any, Mapping[str, jax.Array]], jax.Array]


def self_attention(subject: Subject, params: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
    """Return the weights of self-attention: float32[layers, batch, heads, length, length]."""
    return subject.intermediates(params, batch, ("attention_probs",))["attention_probs"]


class AttentionSums:
    """Statistic of a network's attention weights, summed over batches; each shape of rows is compiled once."""

    def __init__(self, subject: Subject, statistic: Statistic, weights: Weights = self_attention) -> None:
        """Create the sums of a statistic of an attention, for any parameters of the network."""

        def sums(params: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
            return statistic(weights(subject, params, batch), batch)

        self._sums = jax.jit(sums)

    def total(self, params: Any, batches: Iterable[Mapping[str, np.ndarray]], progress: str) -> dict[str, np.ndarray]:
        """Add up the sums of all batches in float64.

        Args:
          params: parameters of the network.
          batches: see `bertfam.analysis.subject.batches`.
          progress: description of a progress bar.
        """
        totals: dict[str, Any] = {}
        params = jax.device_put(params)
        for batch in tqdm(batches, progress, unit=" batches", disable=None, leave=False):
            found = jax.device_get(self._sums(params, batch))
            totals = {name: totals.get(name, 0.0) + np.asarray(value, np.float64) for name, value in found.items()}
        return totals
