"""Replacement of the input at predicted positions: by [MASK], by a random token, or by the token itself."""

from collections.abc import Callable
from typing import Literal

import numpy as np

from bertfam.corruption import keys, streams
from bertfam.corruption.masked_lm.selection import Selection

DrawnBy = Literal["token", "unit"]
# Maps random words uint64[...] to token ids int64[...].
RandomIds = Callable[[np.ndarray], np.ndarray]


def uniform_over(pool: np.ndarray) -> RandomIds:
    """Return a sampler that is uniform over the ids in `pool` int64[k]."""
    return lambda words: pool[keys.integers(words, len(pool))]


def as_frequent_as(counts: np.ndarray) -> RandomIds:
    """Return a sampler that draws each id in proportion to its count in `counts` int[size] (SpanBERT's released code)."""
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
    """Apply BERT's 80/10/10 rule at the selected positions (Devlin et al. 2019, appendix A.1).

    Args:
      original: int32[n, length], left unchanged.
      chosen: Positions to predict.
      row_keys: uint64[n], one per row.
      mask: Id of [MASK].
      mask_share: Share of the positions that become `mask`.
      random_share: Share of the positions that become random tokens; the others keep their tokens.
      random_ids: Sampler of the random tokens, one for each position.
      drawn_by: "token" draws one of the three cases for each position; "unit" draws one for all tokens of a word, n-gram or span
        (Joshi et al. 2020, section 3.1).

    Returns:
      The corrupted tokens int32[n, length].
    """
    slots = chosen.used.shape[1]
    action = keys.uniform(keys.bits(row_keys, streams.ACTION, slots))
    if drawn_by == "unit":
        action = np.take_along_axis(action, chosen.leads, axis=1)
    drawn = random_ids(keys.bits(row_keys, streams.REPLACEMENT, slots))
    # [n, slots], of which only the used ones are written.
    places = flat_positions(chosen.positions, original.shape[1])
    value = np.where(action < mask_share + random_share, drawn, original.take(places))
    np.copyto(value, mask, where=action < mask_share)
    corrupted = original.copy()
    corrupted.reshape(-1)[places[chosen.used]] = value[chosen.used]
    return corrupted


def flat_positions(positions: np.ndarray, length: int) -> np.ndarray:
    """Return positions int64[n, slots] in rows of `length` as positions in all rows one after another: int64[n, slots]."""
    return positions + np.arange(0, len(positions) * length, length)[:, None]


def mask_tokens(
    original: np.ndarray, chosen: np.ndarray, row_keys: np.ndarray, *, mask: int, random_share: float, random_ids: np.ndarray
) -> np.ndarray:
    """Replace tokens by `mask`, and a share of them by random ids.

    Args:
      original: int32[n, length], left unchanged.
      chosen: bool[n, length], True at the tokens to replace; any number per row.
      row_keys: uint64[n], one per row.
      mask: Id that replaces them.
      random_share: Probability with which each becomes a random id instead.
      random_ids: int64[k], ids to draw from uniformly.

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
    """Return the prediction slots: `masked_positions`, `masked_target_tokens`, `masked_loss_weights` [n, slots].

    Args:
      original: int32[n, length], tokens before the noise.
      chosen: Positions to predict.
      pad: Target of unused slots.
    """
    targets = original.take(flat_positions(chosen.positions, original.shape[1]))
    return {
        "masked_positions": chosen.positions.astype(np.int32),
        "masked_target_tokens": np.where(chosen.used, targets, pad).astype(np.int32),
        "masked_loss_weights": chosen.used.astype(np.float32),
    }
