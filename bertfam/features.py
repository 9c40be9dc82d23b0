"""Every feature that flows from rows to objectives: the names of seqio and t5x, with their shapes.

    encoder_input_tokens      int32[batch, length]       the (corrupted) input
    encoder_segment_ids       int32[batch, length]       which packed example; 0 = padding
    encoder_positions         int32[batch, length]       from 0 in each example; only of packed rows
    encoder_token_type_ids    int32[batch, length]       sentence A or B
    masked_positions          int32[batch, predictions]  ascending; unused slots are 0 with weight 0
    masked_target_tokens      int32[batch, predictions]  the original tokens at these positions
    masked_loss_weights       float32[batch, predictions]
    sequence_start_positions  int32[batch, examples]     the [CLS] of every example in the row
    next_sentence_labels      int32[batch, examples]     0 = B continues A, 1 = B is random
    next_sentence_weights     float32[batch, examples]

A padding row (the last batch of an evaluation) is all zeros: no segment, no weight.
"""

from typing import NamedTuple


class FeatureSpec(NamedTuple):
    """One feature of a batch.

    Attributes:
      shape: the shape of one row, without the batch axis.
      dtype: a NumPy dtype name.
      axes: the logical names of the row's axes, for sharding.
    """

    shape: tuple[int, ...]
    dtype: str
    axes: tuple[str | None, ...]


class RowShape(NamedTuple):
    """The static sizes of a row: tokens, prediction slots, and examples ([CLS] tokens) in it; packed rows have several."""

    length: int
    predictions: int
    examples: int = 1


def encoder_features(shape: RowShape) -> dict[str, FeatureSpec]:
    """What every encoder reads of a row."""
    tokens = FeatureSpec((shape.length,), "int32", ("length",))
    names = ["encoder_input_tokens", "encoder_segment_ids", "encoder_token_type_ids"]
    return {name: tokens for name in names + ["encoder_positions"] * (shape.examples > 1)}


def masked_features(shape: RowShape) -> dict[str, FeatureSpec]:
    """What a masked language model's loss reads of a row."""
    slots = (shape.predictions,)
    return {
        "masked_positions": FeatureSpec(slots, "int32", (None,)),
        "masked_target_tokens": FeatureSpec(slots, "int32", (None,)),
        "masked_loss_weights": FeatureSpec(slots, "float32", (None,)),
    }


def start_features(shape: RowShape) -> dict[str, FeatureSpec]:
    """Where the examples of a row begin."""
    return {"sequence_start_positions": FeatureSpec((shape.examples,), "int32", (None,))}


def next_sentence_features(shape: RowShape) -> dict[str, FeatureSpec]:
    """What next-sentence prediction reads of a row."""
    examples = (shape.examples,)
    return start_features(shape) | {
        "next_sentence_labels": FeatureSpec(examples, "int32", (None,)),
        "next_sentence_weights": FeatureSpec(examples, "float32", (None,)),
    }
