"""mT5 (Xue et al. 2021): T5 of version 1.1 for 101 languages and a vocabulary of 250,000 pieces."""

from dataclasses import dataclass
from typing import ClassVar

from bertfam.layers.activations import Activation
from bertfam.models.t5 import T5Config


@dataclass(frozen=True)
class MT5Config(T5Config):
    """Sizes and rates of an mT5; the defaults are mT5-base. See `T5Config`; the decoder's output is never scaled."""

    published_vocab_size: ClassVar[int | None] = 250_100

    feed_forward_size: int = 2048
    activation: Activation = "gelu_tanh"
    gated: bool = True
    tie_embeddings: bool = False
    scale_logits: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale_logits:
            raise self._error("scale_logits", "is not of an mT5, which never scales: use T5Config")
