"""GPT (Radford, Narasimhan, Salimans, Sutskever 2018): a decoder that normalises after each residual sum."""

from dataclasses import dataclass
from typing import ClassVar

from bertfam.models.decoder import Block, DecoderConfig


@dataclass(frozen=True)
class GptConfig(DecoderConfig):
    """Sizes and rates of a GPT; the defaults are the published one. See `DecoderConfig`."""

    published_vocab_size: ClassVar[int | None] = 40_478

    block: Block = "post_norm"
    last_norm: bool = False
