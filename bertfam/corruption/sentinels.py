"""Noise to sentinels: inputs with one for each span, targets that say what each stands for (Raffel et al. 2020, figure 2)."""

from typing import NamedTuple

import numpy as np

from bertfam.corruption.drawing import compact
from bertfam.corruption.token_ids import TokenIds
from bertfam.errors import UserError


class InputsAndTargets(NamedTuple):
    """Ragged rows, padded: tokens int32[n, width] and how many there are int64[n], of each."""

    inputs: np.ndarray
    input_lengths: np.ndarray
    targets: np.ndarray
    target_lengths: np.ndarray


def spans_to_sentinels(
    raw: np.ndarray, lengths: np.ndarray, noise: np.ndarray, tokens: TokenIds, input_length: int, target_length: int
) -> InputsAndTargets:
    """Takes spans of noise out of rows.

    The inputs have the first sentinel for the first span, the second for the second, and so on; the targets have each span
    behind its sentinel and, where clear text follows the last span, one more sentinel that closes it. Both end with `tokens.eos`.
    "Thank you for inviting me to your party last week ." -> "Thank you <X> me to your party <Y> week ." and
    "<X> for inviting <Y> last <Z>".

    Args:
      raw: int32[n, width].
      lengths: int[n], tokens of each row; a row of none becomes padding only.
      noise: bool[n, width], whether each token is noise.
      tokens: the vocabulary's ids.
      input_length: places of an input.
      target_length: places of a target.

    Returns:
      the rows, padded with `tokens.pad`.

    Raises:
      UserError: a row needs more sentinels than there are, or has more tokens than the places hold.
    """
    n, width = raw.shape
    real = np.arange(width) < lengths[:, None]
    noise = noise & real
    begins = noise.copy()
    begins[:, 1:] &= ~noise[:, :-1]
    spans = np.count_nonzero(begins, axis=1)
    last = np.take_along_axis(noise, np.maximum(lengths - 1, 0)[:, None], axis=1)[:, 0]
    closed = (spans > 0) & ~last
    needed = spans + closed
    if needed.max(initial=0) > len(tokens.sentinels):
        raise UserError(
            f"a row of noise needs {needed.max()} sentinel tokens and the vocabulary has {len(tokens.sentinels)}: use shorter "
            "rows, longer spans or less noise"
        )
    sentinels = np.array([*tokens.sentinels, tokens.pad], np.int64)  # so that there is one to index
    sentinel = sentinels[np.maximum(np.cumsum(begins, axis=1) - 1, 0)]
    eos, present = tokens.need("eos", "span corruption"), lengths > 0

    # [n, width + 1]: the last column is the end token
    kept = np.column_stack([real & (~noise | begins), present])
    values = np.column_stack([np.where(begins, sentinel, raw), np.full(n, eos)])
    input_lengths = _fitting("inputs", kept, input_length)
    inputs = compact(values, kept, input_length, tokens.pad)

    # [n, 2 width + 2]: before each token there is room for its sentinel, then the closing sentinel and the end token
    kept = np.column_stack([np.stack([begins, noise], axis=2).reshape(n, 2 * width), closed, present])
    closing = sentinels[np.minimum(spans, len(sentinels) - 1)]
    values = np.column_stack([np.stack([sentinel, raw], axis=2).reshape(n, 2 * width), closing, np.full(n, eos)])
    target_lengths = _fitting("targets", kept, target_length)
    return InputsAndTargets(inputs, input_lengths, compact(values, kept, target_length, tokens.pad), target_lengths)


def _fitting(what: str, kept: np.ndarray, most: int) -> np.ndarray:
    """How many tokens are kept of each row: int64[n], at most `most`."""
    counts = np.count_nonzero(kept, axis=1)
    if counts.max(initial=0) > most:
        raise UserError(f"span corruption makes {what} of {counts.max()} tokens where {most} are allowed: use shorter rows")
    return counts
