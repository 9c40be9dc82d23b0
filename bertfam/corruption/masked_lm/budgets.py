"""Number of tokens to predict in each row."""

from typing import Literal

import numpy as np

from bertfam.corruption import keys, streams

Rounding = Literal["nearest", "up", "random"]


def budget(rate: float, counted: np.ndarray, rounding: Rounding, row_keys: np.ndarray) -> np.ndarray:
    """Return `rate` times `counted` as an integer of at least 1.

    Args:
      rate: Share of the tokens.
      counted: int[n], tokens of each row.
      rounding: "nearest", half to even (BERT, Devlin et al. 2019, as Python's round in the published code); "up" (SpanBERT,
        Joshi et al. 2020); "random" is floor(rate counted + U), U uniform in [0, 1), so that the mean is exact (RoBERTa, Liu et
        al. 2019, as published with fairseq).
      row_keys: uint64[n], one per row.

    Returns:
      int64[n].
    """
    exact = rate * counted
    if rounding == "random":
        rounded = np.floor(exact + keys.uniform(keys.bits(row_keys, streams.ROUNDING, 1)[:, 0]))
    else:
        rounded = np.rint(exact) if rounding == "nearest" else np.ceil(exact)
    return np.maximum(1, rounded.astype(np.int64))
