"""Prefetching of batches to the devices, ahead of the step that uses them."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from bertfam.data.rows.batches import BatchSource
from bertfam.features import FeatureSpec

Batch = dict[str, jax.Array]
_POLL_SECONDS = 0.002  # between checks of whether the devices are busy while waiting for a batch


def global_batch(
    source: BatchSource, step: int, batch_size: int, features: Mapping[str, FeatureSpec], shardings: Mapping[str, NamedSharding]
) -> Batch:
    """Build the step's batch as global arrays; this process builds only the rows that its own devices hold.

    Args:
      source: source of the rows of any step.
      step: step of the batch.
      batch_size: rows of the global batch.
      features: features of the batch; others that the source returns are dropped, and shorter rows are padded with 0.
      shardings: sharding of each feature.

    Returns:
      Arrays [batch_size, ...] by feature name.
    """
    spans = [
        index[0].indices(batch_size)[:2]
        for name, sharding in shardings.items()
        for index in sharding.addressable_devices_indices_map((batch_size, *features[name].shape)).values()
        if index is not None
    ]
    start, stop = min(span[0] for span in spans), max(span[1] for span in spans)
    rows = source.rows(step, start, stop)

    def place(name: str, spec: FeatureSpec) -> jax.Array:
        local = rows[name].astype(spec.dtype, copy=False)
        if local.shape[1:] != spec.shape:
            local = np.pad(local, [(0, 0), *((0, size - given) for size, given in zip(spec.shape, local.shape[1:], strict=True))])

        def shard(index: Any) -> np.ndarray:  # a slice for each axis
            first, last, _ = index[0].indices(batch_size)
            return local[(slice(first - start, last - start), *index[1:])]

        return jax.make_array_from_callback((batch_size, *spec.shape), shardings[name], shard)

    return {name: place(name, spec) for name, spec in features.items()}


class Prefetcher:
    """Prefetcher of the batches of steps start .. stop-1 in order on `threads` threads, at most `depth` ahead."""

    def __init__(self, make: Callable[[int], Batch], start: int, stop: int, depth: int = 3, threads: int = 1) -> None:
        self._make, self._next, self._stop = make, start, stop
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="prefetch")
        self._waiting: deque[Future[Batch]] = deque()
        for _ in range(depth):
            self.refill()

    def refill(self) -> None:
        """Start building one more batch, to replace one that was used."""
        if self._next < self._stop:
            self._waiting.append(self._pool.submit(self._make, self._next))
            self._next += 1

    def get(self, busy: Callable[[], bool] = lambda: False) -> tuple[Batch, float]:
        """Return the next batch and the seconds waited for it while the devices were not `busy`; call `refill` afterwards.

        Exceptions raised while building the batch are raised here.
        """
        future, idle = self._waiting.popleft(), 0.0
        while not future.done():
            began, was_busy = time.monotonic(), busy()
            wait([future], _POLL_SECONDS)
            if not was_busy:
                idle += time.monotonic() - began
        return future.result(), idle

    def close(self) -> None:
        """Stop and drop unfinished batches."""
        self._pool.shutdown(wait=True, cancel_futures=True)
