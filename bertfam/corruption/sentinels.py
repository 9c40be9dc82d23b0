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
    sentinels = np.array([*tokens.sentinels, tokens.pad])  # so that there is one to index
    span = np.cumsum(begins, axis=1) - 1
    eos, present = tokens.need("eos", "span corruption"), lengths > 0

    # [n, width + 1]: the last column is the end token
    kept = np.column_stack([real & (~noise | begins), present])
    values = np.column_stack([np.where(begins, sentinels[np.maximum(span, 0)], raw), np.full(n, eos)])
    input_lengths = _fitting("inputs", np.count_nonzero(kept, axis=1), input_length)
    inputs = compact(values, kept, input_length, tokens.pad)

    counts = np.count_nonzero(noise, axis=1)
    ends = counts + spans
    target_lengths = _fitting("targets", ends + closed + present, target_length)
    targets = np.full((n, target_length), tokens.pad, np.int32)
    row, position = np.nonzero(noise)
    # A token of noise has before it the noise that is before it in the row, and the sentinels so far.
    number = span[row, position]
    place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts) + number + 1
    targets[row, place] = raw[row, position]
    first = begins[row, position]
    targets[row[first], place[first] - 1] = sentinels[number[first]]
    targets[closed, ends[closed]] = sentinels[spans[closed]]
    targets[present, (ends + closed)[present]] = eos
    return InputsAndTargets(inputs, input_lengths, targets, target_lengths)


def _fitting(what: str, counts: np.ndarray, most: int) -> np.ndarray:
    """`counts` int64[n], tokens of each row, which must be at most `most`."""
    if counts.max(initial=0) > most:
        raise UserError(f"span corruption makes {what} of {counts.max()} tokens where {most} are allowed: use shorter rows")
    return counts
