"""ERNIE 1.0 of Baidu (Sun et al. 2019): a BERT, whose text is masked by whole phrases and entities."""

from dataclasses import dataclass

from bertfam.layers.activations import Activation
from bertfam.models.bert import BertConfig


@dataclass(frozen=True)
class ErnieConfig(BertConfig):
    """Sizes and rates of an ERNIE; the defaults are the published model's. See `BertConfig`."""

    activation: Activation = "relu"
