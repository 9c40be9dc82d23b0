"""RoBERTa (Liu et al. 2019): BERT's encoder with another vocabulary, other positions and one sentence type."""

from dataclasses import dataclass
from typing import ClassVar

from bertfam.layers.activations import Activation
from bertfam.models.bert import BertConfig


@dataclass(frozen=True)
class RobertaConfig(BertConfig):
    """Sizes and rates of a RoBERTa; the defaults are RoBERTa-base. See `BertConfig`.

    The first token has the position `position_offset`, the padding id + 1 as published: rows 0 and 1 of the table are never read.
    """

    published_vocab_size: ClassVar[int | None] = 50_265

    position_offset: int = 2
    type_vocab_size: int = 1
    head_activation: Activation | None = "gelu"
    layer_norm_epsilon: float = 1e-5
