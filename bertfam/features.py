"""Every feature that flows from rows to objectives: the names of seqio and t5x, with their shapes.

    encoder_input_tokens      int32[batch, length]       the (corrupted) input
    encoder_segment_ids       int32[batch, length]       which packed example; 0 = padding
    encoder_positions         int32[batch, length]       from 0 in each example; only of packed rows
    encoder_token_type_ids    int32[batch, length]       sentence A or B
    masked_positions          int32[batch, predictions]  masked ones ascending, then shuffled ones; unused slots are 0, weight 0
    masked_target_tokens      int32[batch, predictions]  the original tokens at these positions
    masked_loss_weights       float32[batch, predictions]
    sequence_start_positions  int32[batch, examples]     the [CLS] of every example in the row
    next_sentence_labels      int32[batch, examples]     0 = B continues A, 1 = B is random
    next_sentence_weights     float32[batch, examples]
    sentence_order_labels     int32[batch, examples]     0 = B continues A, 1 = A continues B (see `SentencePairs`)
    sentence_order_weights    float32[batch, examples]
    sentence_structure_labels   int32[batch, examples]   0 = B is random, 1 = B continues A, 2 = A continues B
    sentence_structure_weights  float32[batch, examples]
    span_left_positions       int32[batch, predictions]  the token before the span of each slot
    span_right_positions      int32[batch, predictions]  the token behind it
    span_offsets              int32[batch, predictions]  how many tokens of the span come before the slot's
    span_loss_weights         float32[batch, predictions]  1 where both lie in the text
    shuffled_loss_weights     float32[batch, predictions]  1 in the slots of shuffled tokens, which have loss weights too
    decoder_input_tokens      int32[batch, targets]      the targets, one place later
    decoder_target_tokens     int32[batch, targets]
    decoder_loss_weights      float32[batch, targets]    1 at targets, whatever their ids
    decoder_segment_ids       int32[batch, targets]      which packed example, as in the encoder; 0 = padding
    decoder_positions         int32[batch, targets]      from 0 in each example; only of packed rows

A causal language model's rows have the decoder's features and none of the encoder's. A padding row (the last batch of an
evaluation) is all zeros: no segment, no weight.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

# Which token a decoder reads first.
Start = Literal["bos", "eos", "pad"]


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
    """The static sizes of a row.

    Attributes:
      length: tokens, of the encoder where there is one.
      predictions: slots of masked tokens.
      examples: packed rows have several, with a [CLS] each where there are such.
      targets: tokens of the decoder; 0: there is none.
    """

    length: int
    predictions: int
    examples: int = 1
    targets: int = 0


def decoder_features(shape: RowShape) -> dict[str, FeatureSpec]:
    """What every decoder and its loss read of a row."""
    tokens = FeatureSpec((shape.targets,), "int32", ("length",))
    names = ["input_tokens", "target_tokens", "segment_ids"] + ["positions"] * (shape.examples > 1)
    found = {f"decoder_{name}": tokens for name in names}
    return found | {"decoder_loss_weights": FeatureSpec((shape.targets,), "float32", ("length",))}


def encoder_features(shape: RowShape, *, token_types: bool = True) -> dict[str, FeatureSpec]:
    """What every encoder reads of a row; those that decoders answer to have no types of tokens."""
    tokens = FeatureSpec((shape.length,), "int32", ("length",))
    names = ["input_tokens", "segment_ids"] + ["token_type_ids"] * token_types + ["positions"] * (shape.examples > 1)
    return {f"encoder_{name}": tokens for name in names}


def masked_features(shape: RowShape) -> dict[str, FeatureSpec]:
    """What a masked language model's loss reads of a row."""
    slots = (shape.predictions,)
    return {
        "masked_positions": FeatureSpec(slots, "int32", (None,)),
        "masked_target_tokens": FeatureSpec(slots, "int32", (None,)),
        "masked_loss_weights": FeatureSpec(slots, "float32", (None,)),
    }


def span_features(shape: RowShape) -> dict[str, FeatureSpec]:
    """What the span boundary objective reads of a row, besides its masks."""
    slots = (shape.predictions,)
    whole = {name: FeatureSpec(slots, "int32", (None,)) for name in ("left_positions", "right_positions", "offsets")}
    return {f"span_{name}": spec for name, spec in (whole | {"loss_weights": FeatureSpec(slots, "float32", (None,))}).items()}


def shuffled_features(shape: RowShape) -> dict[str, FeatureSpec]:
    """What tells the slots of shuffled tokens from those of masked ones."""
    return {"shuffled_loss_weights": FeatureSpec((shape.predictions,), "float32", (None,))}


def start_features(shape: RowShape) -> dict[str, FeatureSpec]:
    """Where the examples of a row begin."""
    return {"sequence_start_positions": FeatureSpec((shape.examples,), "int32", (None,))}


class Sentences(NamedTuple):
    """What can be asked of the two sentences of an example.

    Attributes:
      term: name of its loss term, and of its head and metrics: TERM_head, TERM_loss, TERM_accuracy.
      feature: name of its features: FEATURE_labels, FEATURE_weights.
      classes: what each label says of B, in words.
    """

    term: str
    feature: str
    classes: tuple[str, ...]

    @property
    def labels(self) -> str:
        """The feature of the labels."""
        return f"{self.feature}_labels"

    @property
    def weights(self) -> str:
        """The feature of their weights."""
        return f"{self.feature}_weights"

    @property
    def head(self) -> str:
        """The head's part of the parameters."""
        return f"{self.term}_head"

    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        """What its loss reads of a row."""
        examples = (shape.examples,)
        return start_features(shape) | {
            self.labels: FeatureSpec(examples, "int32", (None,)),
            self.weights: FeatureSpec(examples, "float32", (None,)),
        }


Relation = Literal["next", "order", "structure"]
# By the relation that `SentencePairs` is asked for: BERT's, ALBERT's and StructBERT's.
SENTENCES: Mapping[Relation, Sentences] = {
    "next": Sentences("nsp", "next_sentence", ("next", "random")),
    "order": Sentences("sop", "sentence_order", ("next", "previous")),
    "structure": Sentences("structure", "sentence_structure", ("random", "next", "previous")),
}
