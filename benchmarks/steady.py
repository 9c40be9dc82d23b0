"""Clocks: the rate at which batches come once they come, and files that must come from disk."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_WARM_UP = 8  # batches, in which the share of real tokens is counted


def steady(batches: Iterator[Any], rows: Callable[[Any], int], tokens: Callable[[Any], int], seconds: float) -> dict[str, float]:
    """Takes batches for so many seconds.

    Args:
      batches: without end.
      rows: of a batch.
      tokens: of a batch, padding not counted.
      seconds: for how long, at least.

    Returns:
      `rows_per_second`, `tokens_per_row` as it was in the first batches, and their product `tokens_per_second`.
    """
    first = [next(batches) for _ in range(_WARM_UP)]
    tokens_per_row = sum(map(tokens, first)) / sum(map(rows, first))
    count, begin = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < seconds:
        count += rows(next(batches))
    rate = count / elapsed
    return {"rows_per_second": rate, "tokens_per_row": tokens_per_row, "tokens_per_second": rate * tokens_per_row}


def forget(folder: str) -> None:
    """Asks the system to drop a folder's files from memory (Linux), so that they are read from disk."""
    for path in Path(folder).rglob("*"):
        if path.is_file() and hasattr(os, "posix_fadvise"):
            with open(path, "rb+") as file:
                os.fsync(file.fileno())  # what is not written yet is not dropped
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
