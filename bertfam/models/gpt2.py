"""GPT-2 (Radford, Wu, Child, Luan, Amodei, Sutskever 2019): normalised before each sublayer, and after the last layer."""

from dataclasses import dataclass
from typing import ClassVar

from bertfam.models.decoder import DecoderConfig


@dataclass(frozen=True)
class Gpt2Config(DecoderConfig):
    """Sizes and rates of a GPT-2; the defaults are GPT-2 small. See `DecoderConfig`.

    Kernels whose products are added to the residual sum start smaller by sqrt of their number (section 2.3).
    """

    published_vocab_size: ClassVar[int | None] = 50_257

    max_length: int = 1024
    scale_residual_init: bool = True
