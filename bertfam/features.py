"""Features of a batch: the names of seqio and t5x, with the shape, dtype and logical axis of each.

A causal language model's rows have the decoder's features and none of the encoder's. A padding row (in the last batch of an
evaluation) is all zeros: it has no segment and no weight.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

# The token that a decoder reads first.
Start = Literal["bos", "eos", "pad"]


class FeatureSpec(NamedTuple):
    """Shape, dtype and logical axes of a feature.

    Attributes:
      shape: Shape of one row, without the batch axis.
      dtype: Name of a NumPy dtype.
      axes: Logical names of the row's axes, for sharding.
    """

    shape: tuple[int, ...]
    dtype: str
    axes: tuple[str | None, ...]


class RowShape(NamedTuple):
    """Static sizes of a row.

    Attributes:
      length: Tokens of the encoder, or of a decoder that has none.
      predictions: Slots for masked tokens.
      examples: Examples in a row, each with a [CLS] where the vocabulary has one; more than one if rows are packed.
      targets: Tokens of the decoder; 0 without a decoder.
      rows: Rows of a batch; 1 where it does not matter. Only what a model keeps of each row from step to step depends on it.
    """

    length: int
    predictions: int
    examples: int = 1
    targets: int = 0
    rows: int = 1


class _Feature(NamedTuple):
    """Declaration of a feature.

    Attributes:
      size: Field of `RowShape` that is the length of the row's only axis.
      dtype: Name of a NumPy dtype.
    """

    size: Literal["length", "predictions", "examples", "targets"]
    dtype: str = "int32"


# All features have shape [batch, size]. The labels of sentence pairs are declared by `Sentences`, negatives by `noise_features`.
_FEATURES: Mapping[str, _Feature] = {
    "encoder_input_tokens": _Feature("length"),  # after the noise
    "encoder_segment_ids": _Feature("length"),  # number of the packed example, from 1; 0 = padding
    "encoder_positions": _Feature("length"),  # from 0 in each example; of packed rows only
    "encoder_token_type_ids": _Feature("length"),  # 0 in sentence A, 1 in sentence B, 2 at XLNet's [CLS]
    "encoder_word_numbers": _Feature("length"),  # number of each token's word in the row; -1 at control tokens and padding
    "encoder_ranks": _Feature("length"),  # order of a permutation: a token sees those of its own rank and of lower ones
    "encoder_reversed": _Feature("examples"),  # 1 if the text of an example runs backwards
    "masked_positions": _Feature("predictions"),  # masked tokens ascending, then shuffled ones; 0 in unused slots
    "masked_target_tokens": _Feature("predictions"),  # original tokens at these positions
    "masked_loss_weights": _Feature("predictions", "float32"),  # 0 in unused slots
    "shuffled_loss_weights": _Feature("predictions", "float32"),  # 1 in slots of shuffled tokens, which have loss weights too
    "span_left_positions": _Feature("predictions"),  # token before the span of a slot
    "span_right_positions": _Feature("predictions"),  # token after it
    "span_offsets": _Feature("predictions"),  # tokens of the span before the slot's token
    "span_loss_weights": _Feature("predictions", "float32"),  # 1 where the tokens before and after the span are text
    "sequence_start_positions": _Feature("examples"),  # [CLS] of each example
    "decoder_input_tokens": _Feature("targets"),  # targets, shifted right by one
    "decoder_target_tokens": _Feature("targets"),
    "decoder_segment_ids": _Feature("targets"),  # as in the encoder; 0 = padding
    "decoder_positions": _Feature("targets"),  # from 0 in each example; of packed rows only
    "decoder_loss_weights": _Feature("targets", "float32"),  # 1 at targets, whatever their ids
}


def _specs(names: Iterable[str], shape: RowShape) -> dict[str, FeatureSpec]:
    """Return the specs of the named features for rows of `shape`."""
    specs = {}
    for name in names:
        size, dtype = _FEATURES[name]
        axis = "length" if size in ("length", "targets") else None
        specs[name] = FeatureSpec((getattr(shape, size),), dtype, (axis,))
    return specs


def decoder_features(shape: RowShape) -> dict[str, FeatureSpec]:
    """Return the features that every decoder and its loss read."""
    names = ["input_tokens", "target_tokens", "segment_ids"] + ["positions"] * (shape.examples > 1) + ["loss_weights"]
    return _specs([f"decoder_{name}" for name in names], shape)


def encoder_features(shape: RowShape, *, token_types: bool = True) -> dict[str, FeatureSpec]:
    """Return the features that every encoder reads; the encoder of an encoder-decoder has no token types."""
    names = ["input_tokens", "segment_ids"] + ["token_type_ids"] * token_types + ["positions"] * (shape.examples > 1)
    return _specs([f"encoder_{name}" for name in names], shape)


def masked_features(shape: RowShape) -> dict[str, FeatureSpec]:
    """Return the features that the loss of a masked language model reads."""
    return _specs(("masked_positions", "masked_target_tokens", "masked_loss_weights"), shape)


def noise_features(shape: RowShape, negatives: int) -> dict[str, FeatureSpec]:
    """Return the feature with the words that are drawn at random for each slot: int32[predictions, negatives]."""
    return {"noise_tokens": FeatureSpec((shape.predictions, negatives), "int32", (None, None))}


def permutation_features(shape: RowShape) -> dict[str, FeatureSpec]:
    """Return the features that a permutation language model reads in addition to `masked_features`."""
    return _specs(("encoder_ranks", "encoder_reversed"), shape)


def span_features(shape: RowShape) -> dict[str, FeatureSpec]:
    """Return the features that the span boundary objective reads in addition to `masked_features`."""
    return _specs(("span_left_positions", "span_right_positions", "span_offsets", "span_loss_weights"), shape)


def shuffled_features(shape: RowShape) -> dict[str, FeatureSpec]:
    """Return the feature that distinguishes the slots of shuffled tokens from those of masked ones."""
    return _specs(("shuffled_loss_weights",), shape)


def word_features(shape: RowShape) -> dict[str, FeatureSpec]:
    """Return the feature that says which tokens make a word."""
    return _specs(("encoder_word_numbers",), shape)


def entity_slots(length: int) -> int:
    """Return the number of slots for entities in a row of `length` tokens."""
    return max(1, length // 8)


def entity_features(shape: RowShape) -> dict[str, FeatureSpec]:
    """Return the features that an encoder with entities and its loss read in addition to `masked_features`.

    `encoder_entity_ids` int32[length] has the entity that is aligned with each token, from 1; 0 = none. The others, [slots], are
    the positions of the entities to predict, their ids, and weights, 0 in unused slots.
    """
    slots = (entity_slots(shape.length),)
    return {
        "encoder_entity_ids": FeatureSpec((shape.length,), "int32", ("length",)),
        "entity_positions": FeatureSpec(slots, "int32", (None,)),
        "entity_targets": FeatureSpec(slots, "int32", (None,)),
        "entity_loss_weights": FeatureSpec(slots, "float32", (None,)),
    }


def start_features(shape: RowShape) -> dict[str, FeatureSpec]:
    """Return the feature with the positions at which the examples of a row begin."""
    return _specs(("sequence_start_positions",), shape)


def label_features(shape: RowShape, count: int | None) -> dict[str, FeatureSpec]:
    """Return the features that a fine-tuned head reads: the position of [CLS] and the labels of each row.

    Args:
      shape: Sizes of the rows.
      count: Number of labels; None: one for each token, whose weight is 1 at the first token of each word.
    """
    size, axis = (shape.length, "length") if count is None else (count, None)
    specs = {name: FeatureSpec((size,), "float32", (axis,)) for name in ("labels", "label_weights")}
    return start_features(shape) | specs


def shifted_features(shape: RowShape) -> dict[str, FeatureSpec]:
    """Return the feature of a decoder that reads the same text as the encoder, shifted right by one."""
    return {"decoder_input_tokens": FeatureSpec((shape.length,), _FEATURES["decoder_input_tokens"].dtype, ("length",))}


def choice_features(choices: int) -> dict[str, FeatureSpec]:
    """Return the features that a head of choices reads: the position of [CLS] in each choice's part of a row, and one label."""
    label = FeatureSpec((1,), "float32", (None,))
    starts = FeatureSpec((choices,), _FEATURES["sequence_start_positions"].dtype, (None,))
    return {"sequence_start_positions": starts, "labels": label, "label_weights": label}


def text_features(shape: RowShape, texts: int) -> dict[str, FeatureSpec]:
    """Return the features of rows of several texts, one after another, each with padding of its own.

    Args:
      shape: Sizes of the rows. No text is longer than a row of an encoder, so positions are not sharded.
      texts: Number of texts; each has its position of [CLS], counted from its own first position.
    """
    starts = FeatureSpec((texts,), _FEATURES["sequence_start_positions"].dtype, (None,))
    of_tokens = {name: spec._replace(axes=(None,)) for name, spec in encoder_features(shape).items()}
    return of_tokens | {"sequence_start_positions": starts}


def question_features(length: int) -> dict[str, FeatureSpec]:
    """Return the features of a question in the tokens of its own encoder, beside those that a generator reads.

    Args:
      length: Positions of the question. It is no longer than a row of an encoder, so positions are not sharded.
    """
    names = (f"question_{name}" for name in ("input_tokens", "segment_ids", "token_type_ids"))
    of_tokens = {name: FeatureSpec((length,), "int32", (None,)) for name in names}
    return of_tokens | {"question_start_positions": FeatureSpec((1,), "int32", (None,))}


class Sentences(NamedTuple):
    """Classification of the two sentences of an example.

    Attributes:
      term: Name of its loss term, and of its head and metrics: TERM_head, TERM_loss, TERM_accuracy.
      feature: Name of its features: FEATURE_labels int32[batch, examples], FEATURE_weights float32[batch, examples].
      classes: Meaning of each label, as a word about B.
    """

    term: str
    feature: str
    classes: tuple[str, ...]

    @property
    def labels(self) -> str:
        """Name of the feature that holds the labels."""
        return f"{self.feature}_labels"

    @property
    def weights(self) -> str:
        """Name of the feature that holds the weights of the labels."""
        return f"{self.feature}_weights"

    @property
    def head(self) -> str:
        """Name of the head's parameters."""
        return f"{self.term}_head"

    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        """Return the features that its loss reads."""
        return start_features(shape) | {
            self.labels: FeatureSpec((shape.examples,), "int32", (None,)),
            self.weights: FeatureSpec((shape.examples,), "float32", (None,)),
        }


Relation = Literal["next", "order", "structure"]
# By the relation of `SentencePairs`: BERT's, ALBERT's and StructBERT's. Labels are indices of the classes: "next": B continues A,
# "previous": A continues B, "random": B comes from another document. (See `SentencePairs` for B's label in short documents.)
SENTENCES: Mapping[Relation, Sentences] = {
    "next": Sentences("nsp", "next_sentence", ("next", "random")),
    "order": Sentences("sop", "sentence_order", ("next", "previous")),
    "structure": Sentences("structure", "sentence_structure", ("random", "next", "previous")),
}
