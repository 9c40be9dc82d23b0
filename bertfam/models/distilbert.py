"""DistilBERT (Sanh, Debut, Chaumond, Wolf 2019): half of BERT's layers, without sentence types and without a pooler."""

from dataclasses import dataclass

from bertfam.models.bert import BertConfig


@dataclass(frozen=True)
class DistilBertConfig(BertConfig):
    """Sizes and rates of a DistilBERT; the defaults are DistilBERT-base. See `BertConfig`."""

    num_layers: int = 6
    type_vocab_size: int = 0
