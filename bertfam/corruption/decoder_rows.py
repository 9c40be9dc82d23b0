"""Finished rows for encoder-decoders: encoder inputs, decoder inputs and targets."""

import numpy as np

from bertfam.corruption.sampling import compact
from bertfam.corruption.t5.span_formats import Formatted
from bertfam.corruption.token_ids import TokenIds
from bertfam.features import FeatureSpec, RowShape, Start, decoder_features, encoder_features


def sequence_features(shape: RowShape) -> dict[str, FeatureSpec]:
    """Return the features of `sequence_rows`: those of the encoder without token types, and those of the decoder."""
    return encoder_features(shape, token_types=False) | decoder_features(shape)


def sequence_rows(
    inputs: np.ndarray, input_lengths: np.ndarray, targets: np.ndarray, target_lengths: np.ndarray, start: int, pad: int
) -> dict[str, np.ndarray]:
    """Return finished rows of one example each.

    The decoder reads `start` and then its targets, shifted right by one. Every target has weight 1, whatever its id.

    Args:
      inputs: int32[n, length].
      input_lengths: int64[n], number of inputs that are not padding.
      targets: int32[n, targets].
      target_lengths: int64[n], number of targets that are not padding.
      start: Id of the token that the decoder reads first.
      pad: Id of padding.
    """
    real = np.arange(targets.shape[1]) < target_lengths[:, None]
    read = np.full_like(targets, pad)
    read[:, :1] = start
    read[:, 1:] = targets[:, :-1]
    return {
        "encoder_input_tokens": inputs,
        "encoder_segment_ids": (np.arange(inputs.shape[1]) < input_lengths[:, None]).astype(np.int32),
        "decoder_input_tokens": np.where(real, read, pad).astype(np.int32),
        "decoder_target_tokens": targets,
        "decoder_segment_ids": real.astype(np.int32),
        "decoder_loss_weights": real.astype(np.float32),
    }


def append_end(written: Formatted, present: np.ndarray, end: int, width: int, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Compact each row and append `end` to the rows that are `present` bool[n].

    Returns:
      The rows int32[n, width] and their lengths int64[n].
    """
    keep = np.column_stack([written.keep, present])
    values = np.column_stack([written.values, np.full(len(present), end, written.values.dtype)])
    return compact(values, keep, width, pad), np.count_nonzero(keep, axis=1)


def start_id(start: Start, tokens: TokenIds, what: str) -> int:
    """Return the id of the token that a decoder reads first."""
    if start == "pad":
        return tokens.pad
    return tokens.require("cls", what) if start == "bos" else tokens.end_of_text(what)
