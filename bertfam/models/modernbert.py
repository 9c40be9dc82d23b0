"""ModernBERT (Warner, Chaffin, Clavié et al. 2024): pre-LN without biases, rotary positions, GeGLU, local attention between."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertfam.layers.activations import ACTIVATIONS, Activation
from bertfam.layers.attention import Row, SelfAttention
from bertfam.layers.blocks import PreNormBlock
from bertfam.layers.dropout import Dropout
from bertfam.layers.embeddings import Table, check_length, embed_words
from bertfam.layers.execution import Execution
from bertfam.layers.feed_forward import FeedForward
from bertfam.layers.heads import pretraining
from bertfam.layers.initializers import truncated_normal
from bertfam.layers.norm import LayerNorm
from bertfam.layers.stack import AXIS, FIRST, Stack, joined
from bertfam.models.encoder import check_collectable
from bertfam.models.sizes import Sizes

LayerType = Literal["global", "local"]
_EXECUTION = Execution()


@dataclass(frozen=True)
class ModernBertConfig(Sizes):
    """Sizes and rates of a ModernBERT; the defaults are ModernBERT-base.

    Attributes:
      vocab_size: real tokens; None takes the size of the run's vocabulary.
      table_rows: rows of the word table in files, where a checkpoint has more of them than tokens; None: `vocab_size`.
      feed_forward_size: width of the gated hidden layer; the map that leads there is twice as wide.
      max_length: the longest row in tokens. Positions are turned into angles, so no parameter depends on it.
      global_every: layers 0, n, 2n, ... attend to all tokens, the others to those of the window.
      layer_types: "global" or "local" for each layer, where it is another pattern; None: as `global_every` has it.
      window: of local attention, both sides together: |i - j| <= window / 2.
      global_theta, local_theta: base of the rotary positions in layers of each type.
      activation: of the gated half of the hidden layer: "gelu" (erf), "gelu_tanh" or "relu".
      head_activation: that of the masked-token head; None: `activation`.
      embedding_dropout_rate: on the embeddings.
      attention_dropout_rate: on what attention adds, and on its probabilities by backends that can.
      feed_forward_dropout_rate: on the hidden layer of the feed-forward network.
      initializer_range: deviation of the truncated normal that kernels and tables start from; kernels whose products are added
        to the residual sum, and the head's, have 1 / sqrt(2 num_layers) of it ("Megatron" initial values).
      tie_embeddings: whether the masked-token head uses the word table.
      decoder_bias: whether the masked-token head has a bias for each word.

    Raises:
      UserError: when values clash.
    """

    objective_file: ClassVar[str] = "objectives/modernbert.gin"
    published_vocab_size: ClassVar[int | None] = 50_368

    num_layers: int = 22
    feed_forward_size: int = 1152
    max_length: int = 8192
    global_every: int = 3
    layer_types: tuple[LayerType, ...] | None = None
    window: int = 128
    global_theta: float = 160_000.0
    local_theta: float = 10_000.0
    activation: Activation = "gelu"
    head_activation: Activation | None = None
    embedding_dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    feed_forward_dropout_rate: float = 0.0
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    tie_embeddings: bool = True
    decoder_bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least(global_every=1, window=1)
        self._check_rates("embedding_dropout_rate", "attention_dropout_rate", "feed_forward_dropout_rate")
        self._check_above_zero("global_theta", "local_theta", "layer_norm_epsilon", "initializer_range")
        self._check_among(activation=ACTIVATIONS, head_activation=(None, *ACTIVATIONS))
        if self.head_dim % 2:
            words = f"is {self.num_heads} (num_heads) heads of the odd width {self.head_dim}, and rotary positions turn pairs"
            raise self._error("hidden_size", f"{words}: change one of them")
        if self.layer_types is not None:
            unknown = [name for name in self.layer_types if name not in get_args(LayerType)]
            if unknown or len(self.layer_types) != self.num_layers:
                raise self._error("layer_types", f"must be {self.num_layers} (num_layers) of {', '.join(get_args(LayerType))}")

    @property
    def types(self) -> tuple[LayerType, ...]:
        """The type of each layer."""
        if self.layer_types is not None:
            return self.layer_types
        return tuple("local" if layer % self.global_every else "global" for layer in range(self.num_layers))

    @property
    def windows(self) -> tuple[int | None, ...]:
        """See `bertfam.models.encoder.EncoderConfig`."""
        return tuple(dict.fromkeys(self.window_of(name) for name in self.types))

    def window_of(self, layer_type: LayerType) -> int | None:
        """The window of a type of layer; None: all tokens."""
        return self.window if layer_type == "local" else None

    @property
    def output_initializer_range(self) -> float:
        """Deviation of the kernels whose products are added to the residual sum, and of the head's."""
        return self.initializer_range / math.sqrt(2 * self.num_layers)

    def encoder(self, execution: Execution = _EXECUTION) -> "Encoder":
        """See `bertfam.models.encoder.EncoderConfig`."""
        return Encoder(self, execution)

    def masked_lm_head(self, execution: Execution = _EXECUTION) -> pretraining.MaskedLmHead:
        """See `bertfam.models.encoder.EncoderConfig`."""
        return pretraining.MaskedLmHead(
            vocab_size=self.require_vocab_size,
            activation=self.head_activation or self.activation,
            layer_norm_epsilon=self.layer_norm_epsilon,
            initializer_range=self.output_initializer_range,
            tied=self.tie_embeddings,
            execution=execution,
            use_bias=False,
            decoder_bias=self.decoder_bias,
        )

    def flops(self, length: int, predictions: int) -> int:
        """See `bertfam.models.encoder.EncoderConfig`.

        3 [sum over layers of s (8h^2 + 6hf + 4hk) + P (2h^2 + 2hV)], with k the tokens that one attends to: s, or in local layers
        the window's where these are fewer. (A backend that masks what is outside the window computes more.)
        """
        h, f = self.hidden_size, self.feed_forward_size
        seen = [length if window is None else min(length, window // 2 * 2 + 1) for window in map(self.window_of, self.types)]
        layers = sum(length * (8 * h * h + 6 * h * f + 4 * h * k) for k in seen)
        return 3 * (layers + predictions * (2 * h * h + 2 * h * self.require_vocab_size))


class Embeddings(nn.Module):
    """dropout(LN(word))."""

    config: ModernBertConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, tokens: jax.Array, *, train: bool) -> jax.Array:
        """int32[batch, length] -> dtype[batch, length, embed]."""
        config, dtype = self.config, self.execution.compute_dtype
        normal = truncated_normal(config.initializer_range)
        words = Table(config.padded_vocab_size, config.hidden_size, "vocab", normal, name="word")()
        hidden = LayerNorm(config.layer_norm_epsilon, dtype, use_bias=False, name="norm")(embed_words(words, tokens, dtype))
        hidden = Dropout(config.embedding_dropout_rate, name="dropout")(hidden, train=train)
        return nn.with_logical_constraint(hidden, ("batch", "length", None))


class Encoder(nn.Module):
    """Embeddings, the first layer, the stack of the others, and a last LayerNorm.

    The first layer has no LayerNorm before its attention, the embeddings' own being there; the others differ in their attention
    alone, whose pattern goes on from layer 1 in periods (local, local, global).
    """

    config: ModernBertConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(
        self,
        tokens: jax.Array,
        *,
        segment_ids: jax.Array,
        positions: jax.Array | None = None,
        token_type_ids: jax.Array,
        train: bool,
        collect: frozenset[str] = frozenset(),
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Runs the encoder.

        Args:
          tokens: int32[batch, length].
          segment_ids: int32[batch, length], which packed example; 0 = padding. A query sees keys of its own segment.
          positions: int32[batch, length], restarting at 0 in each example, for packed rows. None promises one example
            a row, segment ids 1 and then 0.
          token_type_ids: int32[batch, length], which it does not read.
          train: whether dropout is on; needs a "dropout" key where a rate is above 0.
          collect: names among "hidden_states" and "attention_probs" (before dropout).

        Returns:
          dtype[batch, length, embed], and a dict with what `collect` names: hidden_states [layers + 1, batch, length,
          embed], the embeddings first, the last after the last LayerNorm; attention_probs float32[layers, batch, heads, length,
          length].

        Raises:
          UserError: when rows are longer than `max_length`, or the attention backend cannot do what is asked.
        """
        check_collectable(collect)
        config = self.config
        check_length(tokens.shape[1], config.max_length)
        embedded = Embeddings(config, self.execution, name="embeddings")(tokens, train=train)
        dtype, output_init = self.execution.compute_dtype, truncated_normal(config.output_initializer_range)
        normal = truncated_normal(config.initializer_range)
        feed_forward = partial(FeedForward, config.feed_forward_size, config.activation, dtype, normal, output_init)
        block = partial(
            PreNormBlock,
            feed_forward=partial(feed_forward, gated=True, use_bias=False, dropout_rate=config.feed_forward_dropout_rate),
            norm=partial(LayerNorm, config.layer_norm_epsilon, dtype, use_bias=False),
            attention_dropout_rate=config.attention_dropout_rate,
        )
        arrays = {"row": Row(segment_ids, positions)}
        static: dict[str, Any] = {"packed": positions is not None, "train": train, "collect": collect}
        first, *others = self._kinds()
        without_norm = partial(block, attention_norm=False)
        hidden, collected = Stack(without_norm, 1, (), self.execution, (first,), name=FIRST)(embedded, arrays, **static)
        if others:
            stack = Stack(block, len(others), (), self.execution, _period(others), name=AXIS)
            hidden, further = stack(hidden, arrays, **static)
            collected = joined(collected, further)
        hidden = LayerNorm(config.layer_norm_epsilon, self.execution.compute_dtype, use_bias=False, name="norm")(hidden)
        if "hidden_states" in collected:
            # [batch, length, embed], [layers - 1, batch, length, embed], [batch, length, embed] -> [layers + 1, ...]
            collected["hidden_states"] = jnp.concatenate([embedded[None], collected["hidden_states"][:-1], hidden[None]])
        return hidden, collected

    def _kinds(self) -> list[dict[str, Any]]:
        config = self.config
        normal, output_init = (truncated_normal(d) for d in (config.initializer_range, config.output_initializer_range))
        attention = partial(
            SelfAttention,
            config.num_heads,
            config.head_dim,
            config.attention_dropout_rate,
            self.execution,
            normal,
            output_init,
            use_bias=False,
        )
        theta = {"global": config.global_theta, "local": config.local_theta}
        # One maker for each type, so that equal kinds are the same.
        makers = {
            name: partial(attention, window=config.window_of(name), rotary_theta=theta[name]) for name in get_args(LayerType)
        }
        return [{"attention": makers[name]} for name in config.types]


def _period(kinds: list[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """The shortest run of kinds that gives them all when it is repeated: its last turn may break off."""
    length = next(n for n in range(1, len(kinds) + 1) if all(kinds[i] == kinds[i % n] for i in range(len(kinds))))
    return tuple(kinds[:length])
