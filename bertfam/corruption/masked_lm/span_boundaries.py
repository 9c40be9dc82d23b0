"""Boundaries of predicted spans, for SpanBERT's span boundary objective (Joshi et al. 2020, section 3.2)."""

import numpy as np

from bertfam.corruption.masked_lm.selection import Selection
from bertfam.corruption.token_ids import TokenIds


def boundary_features(rows: dict[str, np.ndarray], chosen: Selection, tokens: TokenIds) -> dict[str, np.ndarray]:
    """Return the positions on both sides of the span of each prediction slot.

    A span counts only if the tokens on both sides are text, not [CLS], [SEP] or padding. If only a part of a word is predicted,
    its other pieces are the boundary.

    Args:
      rows: `encoder_input_tokens`, `encoder_segment_ids` int32[n, length].
      chosen: Positions to predict.
      tokens: Ids of the vocabulary.

    Returns:
      `span_left_positions` and `span_right_positions`, the positions before and after the span; `span_offsets`, the number of
      tokens of the span before the slot's, all int32[n, slots]; and `span_loss_weights` float32[n, slots]. All are 0 where the
      span does not count.
    """
    ids, length = rows["encoder_input_tokens"], rows["encoder_input_tokens"].shape[1]
    text = ~tokens.control.take(ids) & (rows["encoder_segment_ids"] > 0)
    first, last = chosen.unit_bounds()
    left, right = first - 1, last + 1
    bounded = chosen.used & (left >= 0) & (right < length)
    for side in (left, right):
        bounded &= np.take_along_axis(text, np.clip(side, 0, length - 1), axis=1)
    values = {"left_positions": left, "right_positions": right, "offsets": chosen.positions - first}
    return {f"span_{name}": np.where(bounded, value, 0).astype(np.int32) for name, value in values.items()} | {
        "span_loss_weights": bounded.astype(np.float32)
    }
