"""PaLM (Chowdhery et al. 2022): parallel attention and SwiGLU, multi-query attention, rotary positions."""

from dataclasses import dataclass
from typing import ClassVar

from bertfam.layers.activations import Activation
from bertfam.models.decoder import Block, DecoderConfig


@dataclass(frozen=True)
class PalmConfig(DecoderConfig):
    """Configuration of a PaLM; the defaults are PaLM 8B. See `DecoderConfig`.

    y = x + MLP(LN(x)) + attention(LN(x)) with one LN for both and no bias anywhere (section 2). Kernels start from a deviation of
    1 / sqrt(inputs), the word table from 1, and as it is the head's too, logits are divided by sqrt(hidden_size) (section 5).
    """

    published_vocab_size: ClassVar[int | None] = 256_000

    num_layers: int = 32
    hidden_size: int = 4096
    num_heads: int = 16
    feed_forward_size: int = 16384
    max_length: int = 2048
    block: Block = "parallel"
    head_size: int | None = 256
    num_key_value_heads: int | None = 1
    rotary_theta: float | None = 10_000.0
    gated: bool = True
    activation: Activation = "silu"
    use_bias: bool = False
    norm_bias: bool = False
    scale_logits: bool = True
    embedding_dropout_rate: float = 0.0
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    initializer_range: float | None = None
    table_initializer_range: float | None = 1.0
