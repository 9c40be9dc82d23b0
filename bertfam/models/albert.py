"""ALBERT (Lan et al. 2020): a BERT whose layers are one, with narrow tables."""

from dataclasses import dataclass
from typing import ClassVar

from bertfam.layers.activations import Activation
from bertfam.models.bert import BertConfig, Sharing


@dataclass(frozen=True)
class AlbertConfig(BertConfig):
    """Sizes and rates of an ALBERT; the defaults are ALBERT-base, version 2, which has no dropout. See `BertConfig`.

    The paper's table 4 is `sharing` "all", "attention", "feed_forward" and "none"; its table 3, `embedding_size`.
    """

    published_vocab_size: ClassVar[int | None] = 30_000

    embedding_size: int | None = 128
    sharing: Sharing = "all"
    activation: Activation = "gelu_tanh"
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
