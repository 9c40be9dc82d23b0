"""Throughput of batches in a steady state, and cold file caches."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_WARM_UP = 8  # batches, over which the real tokens per row are counted


def measure_throughput(
    batches: Iterator[Any], rows: Callable[[Any], int], tokens: Callable[[Any], int], seconds: float
) -> dict[str, float]:
    """Measure the rate of batches over some seconds.

    Args:
      batches: endless iterator of batches.
      rows: returns the number of rows of a batch.
      tokens: returns the number of tokens of a batch without padding.
      seconds: minimum duration of the measurement.

    Returns:
      `rows_per_second`, `tokens_per_row` of the first batches, and their product `tokens_per_second`.
    """
    first = [next(batches) for _ in range(_WARM_UP)]
    tokens_per_row = sum(map(tokens, first)) / sum(map(rows, first))
    count, begin = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < seconds:
        count += rows(next(batches))
    rate = count / elapsed
    return {"rows_per_second": rate, "tokens_per_row": tokens_per_row, "tokens_per_second": rate * tokens_per_row}


def drop_from_page_cache(folder: str) -> None:
    """Drop a folder's files from the page cache (Linux), so that they are read from disk."""
    for path in Path(folder).rglob("*"):
        if path.is_file() and hasattr(os, "posix_fadvise"):
            with open(path, "rb+") as file:
                os.fsync(file.fileno())  # unwritten pages would not be dropped
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
