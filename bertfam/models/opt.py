"""OPT (Zhang, Roller, Goyal et al. 2022): GPT-2 with ReLU, and positions whose table begins with two rows that are never read."""

from dataclasses import dataclass
from typing import ClassVar

from bertfam.features import Start
from bertfam.layers.activations import Activation
from bertfam.models.decoder import DecoderConfig


@dataclass(frozen=True)
class OptConfig(DecoderConfig):
    """Sizes and rates of an OPT; the defaults are OPT-125M. See `DecoderConfig`.

    OPT-350M has the word table 512 wide and normalises after each residual sum: `embedding_size` 512, `block` "post_norm", and no
    `last_norm`. Initial values are those of section 2.2: a deviation of 0.006, divided by sqrt(2 num_layers) where products are
    added to the residual sum. There is no dropout on embeddings.
    """

    published_vocab_size: ClassVar[int | None] = 50_272

    max_length: int = 2048
    position_offset: int = 2
    activation: Activation = "relu"
    embedding_dropout_rate: float = 0.0
    initializer_range: float | None = 0.006
    scale_residual_init: bool = True

    @property
    def start(self) -> Start:
        """See `bertfam.models.generator.GeneratorConfig`: the published tokenizer puts </s> before each text."""
        return "eos"
