"""PaLM (Chowdhery et al. 2022): parallel attention and SwiGLU, multi-query attention, rotary positions."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import flax.linen as nn
from typing_extensions import override

from bertfam.layers.activations import Activation
from bertfam.layers.blocks import Maker, ParallelBlock
from bertfam.layers.execution import Execution
from bertfam.models.decoder import DecoderConfig


@dataclass(frozen=True)
class PalmConfig(DecoderConfig):
    """Configuration of a PaLM; the defaults are PaLM 8B. See `DecoderConfig`.

    y = x + MLP(LN(x)) + attention(LN(x)) with one LN for both and no bias anywhere (section 2). Kernels start from a deviation of
    1 / sqrt(inputs), the word table from 1, and as it is the head's too, logits are divided by sqrt(hidden_size) (section 5).

    Attributes:
      num_key_value_heads: heads of keys and values, each shared by equally many heads of queries (Shazeer 2019: one
        for all of them); None: `num_heads`.
      rotary_theta: base of rotary positions; None: positions have a table.
      gated: True if the feed-forward network multiplies its hidden layer by a second projection.
      norm_bias: True if LayerNorms have biases.
      scale_logits: True to divide logits by sqrt(hidden_size).
      table_initializer_range: standard deviation of the tables; None: `initializer_range`.
    """

    published_vocab_size: ClassVar[int | None] = 256_000

    num_layers: int = 32
    hidden_size: int = 4096
    num_heads: int = 16
    feed_forward_size: int = 16384
    max_length: int = 2048
    activation: Activation = "silu"
    use_bias: bool = False
    embedding_dropout_rate: float = 0.0
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    initializer_range: float | None = None
    head_size: int | None = 256
    num_key_value_heads: int | None = 1
    rotary_theta: float | None = 10_000.0
    gated: bool = True
    norm_bias: bool = False
    scale_logits: bool = True
    table_initializer_range: float | None = 1.0

    def __post_init__(self) -> None:
        if self.table_deviation is None:
            raise self._error("table_initializer_range", "must be set where initializer_range is None: a table has no inputs")
        super().__post_init__()
        self._check_at_least(num_key_value_heads=1)
        self._check_above_zero(*(name for name in ("rotary_theta", "table_initializer_range") if getattr(self, name) is not None))
        if self.num_heads % self.num_kv_heads:
            raise self._error("num_key_value_heads", f"does not divide num_heads = {self.num_heads}: change one of them")
        if self.rotary_theta is not None and self.head_dim % 2:
            raise self._error("rotary_theta", f"turns pairs, and heads are {self.head_dim} wide: set head_size to an even number")

    @property
    @override
    def block_class(self) -> type[nn.Module]:
        return ParallelBlock

    @property
    @override
    def num_kv_heads(self) -> int:
        return self.num_key_value_heads or self.num_heads

    @property
    @override
    def position_rows(self) -> int:
        return 0 if self.rotary_theta is not None else self.max_length

    @property
    @override
    def table_deviation(self) -> float | None:
        return self.initializer_range if self.table_initializer_range is None else self.table_initializer_range

    @property
    @override
    def logit_scale(self) -> float:
        return self.hidden_size**-0.5 if self.scale_logits else 1.0

    @override
    def norm(self, execution: Execution) -> Maker:
        return partial(super().norm(execution), use_bias=self.norm_bias)

    @override
    def attentions(self, execution: Execution) -> tuple[Maker, ...]:
        return tuple(partial(attention, rotary_theta=self.rotary_theta) for attention in super().attentions(execution))

    @override
    def feed_forward(self, execution: Execution) -> Maker:
        return partial(super().feed_forward(execution), gated=self.gated)

    @override
    def layer_flops(self, targets: int) -> int:
        gate = 2 * self.hidden_size * self.feed_forward_size
        return super().layer_flops(targets) + (gate if self.gated else 0)
