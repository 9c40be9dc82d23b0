"""What stands in the input at predicted positions: [MASK], a random token, or the token itself."""

from collections.abc import Callable
from typing import Literal

import numpy as np

from bertfam.corruption import keys, streams
from bertfam.corruption.masked_lm.selection import Selection

DrawnBy = Literal["token", "unit"]
# Maps random words uint64[...] to token ids int64[...].
RandomIds = Callable[[np.ndarray], np.ndarray]


def uniform_over(pool: np.ndarray) -> RandomIds:
    """Random tokens uniform over the ids of `pool` int64[k]."""
    return lambda words: pool[keys.integers(words, len(pool))]


def as_frequent_as(counts: np.ndarray) -> RandomIds:
    """Random tokens as often as in a text (SpanBERT's released code): `counts` int[size] says how often each id occurs there."""
    limits = np.cumsum(counts / counts.sum())
    # Rounding must not let a draw pass the last id that occurs.
    limits[np.flatnonzero(counts)[-1] :] = 1.0
    return lambda words: np.searchsorted(limits, keys.uniform(words), side="right")


def replace(
    original: np.ndarray,
    chosen: Selection,
    row_keys: np.ndarray,
    *,
    mask: int,
    mask_share: float,
    random_share: float,
    random_ids: RandomIds,
    drawn_by: DrawnBy = "token",
) -> np.ndarray:
    """BERT's 80/10/10 at the chosen positions (Devlin et al. 2019, appendix A.1).

    Args:
      original: int32[n, length], not changed.
      chosen: the predicted positions.
      row_keys: uint64[n], one a row.
      mask: the id of [MASK].
      mask_share: how many positions become `mask`.
      random_share: how many become random tokens; the rest stays.
      random_ids: draws these, each position its own.
      drawn_by: "token", each position draws which of the three it is; "unit", all tokens of a word, n-gram or span are the same
        (Joshi et al. 2020, section 3.1).

    Returns:
      int32[n, length], the corrupted tokens.
    """
    slots = chosen.used.shape[1]
    action = keys.uniform(keys.bits(row_keys, streams.ACTION, slots))
    if drawn_by == "unit":
        action = np.take_along_axis(action, chosen.leads, axis=1)
    drawn = random_ids(keys.bits(row_keys, streams.REPLACEMENT, slots))
    corrupted = original.copy()
    for what, value in (
        (action < mask_share, np.broadcast_to(mask, drawn.shape)),
        ((action >= mask_share) & (action < mask_share + random_share), drawn),
    ):
        row, slot = np.nonzero(what & chosen.used)
        corrupted[row, chosen.positions[row, slot]] = value[row, slot]
    return corrupted


def mask_tokens(
    original: np.ndarray, chosen: np.ndarray, row_keys: np.ndarray, *, mask: int, random_share: float, random_ids: np.ndarray
) -> np.ndarray:
    """`mask` in place of any number of tokens, or of a share of them random ids.

    Args:
      original: int32[n, length], not changed.
      chosen: bool[n, length], the tokens that are replaced.
      row_keys: uint64[n], one a row.
      mask: what stands for them.
      random_share: how many become random ids instead, each by itself.
      random_ids: int64[k], from which these are drawn uniformly.

    Returns:
      int32[n, length].
    """
    result = np.where(chosen, mask, original).astype(np.int32)
    if random_share:
        action, word = (keys.bits(row_keys, stream, chosen.shape[1]) for stream in (streams.ACTION, streams.REPLACEMENT))
        drawn = chosen & (keys.uniform(action) < random_share)
        result[drawn] = uniform_over(random_ids)(word[drawn])
    return result


def masked_targets(original: np.ndarray, chosen: Selection, pad: int) -> dict[str, np.ndarray]:
    """What is to be predicted, as features: `masked_positions`, `masked_target_tokens`, `masked_loss_weights` [n, slots].

    Args:
      original: int32[n, length], the tokens before the noise.
      chosen: the predicted positions.
      pad: the target of unused slots.
    """
    targets = np.take_along_axis(original, chosen.positions, axis=1)
    return {
        "masked_positions": chosen.positions.astype(np.int32),
        "masked_target_tokens": np.where(chosen.used, targets, pad).astype(np.int32),
        "masked_loss_weights": chosen.used.astype(np.float32),
    }
