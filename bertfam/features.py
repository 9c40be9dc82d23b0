"""Every feature that flows from rows to objectives: the names of seqio and t5x, with their shapes.

    encoder_input_tokens      int32[batch, length]       the (corrupted) input
    encoder_segment_ids       int32[batch, length]       which packed example; 0 = padding
    encoder_positions         int32[batch, length]       positions, restarted in each packed example
    encoder_token_type_ids    int32[batch, length]       sentence A or B
    masked_positions          int32[batch, predictions]  ascending; unused slots are 0 with weight 0
    masked_target_tokens      int32[batch, predictions]  the original tokens at these positions
    masked_loss_weights       float32[batch, predictions]
    sequence_start_positions  int32[batch, examples]     the [CLS] of every example in the row
    next_sentence_labels      int32[batch, examples]     0 = B continues A, 1 = B is random
    next_sentence_weights     float32[batch, examples]
"""

from typing import NamedTuple


class FeatureSpec(NamedTuple):
    """One feature of a row.

    Attributes:
      shape: the shape without the batch axis.
      dtype: a NumPy dtype name.
      padding: the value that fills unused places and whole padding rows.
    """

    shape: tuple[int, ...]
    dtype: str
    padding: int = 0
