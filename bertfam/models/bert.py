"""BERT (Devlin, Chang, Lee, Toutanova 2019): post-LN encoder with learned positions and sentence types."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertfam.layers.activations import ACTIVATIONS, Activation
from bertfam.layers.attention import Row, SelfAttention
from bertfam.layers.blocks import PostNormBlock
from bertfam.layers.dense import Dense
from bertfam.layers.dropout import Dropout
from bertfam.layers.embeddings import Table, embed_positions, embed_words
from bertfam.layers.execution import Execution
from bertfam.layers.feed_forward import FeedForward
from bertfam.layers.heads import pretraining
from bertfam.layers.initializers import truncated_normal
from bertfam.layers.lookup import lookup_few
from bertfam.layers.norm import LayerNorm
from bertfam.layers.stack import Stack
from bertfam.models.encoder import check_collectable
from bertfam.models.sizes import Sizes

Sharing = Literal["none", "all", "attention", "feed_forward"]
_ATTENTION, _FEED_FORWARD = ("attention", "attention_norm"), ("feed_forward", "feed_forward_norm")
# What of a block all layers share.
_SHARED: dict[Sharing, tuple[str, ...]] = {
    "none": (),
    "all": (*_ATTENTION, *_FEED_FORWARD),
    "attention": _ATTENTION,
    "feed_forward": _FEED_FORWARD,
}
_EXECUTION = Execution()


@dataclass(frozen=True)
class BertConfig(Sizes):
    """Sizes and rates of a BERT; the defaults are BERT-base.

    Attributes:
      vocab_size: real tokens; None takes the size of the run's vocabulary.
      table_rows: rows of the word table in files, where a checkpoint has more of them than tokens; None: `vocab_size`. The
        further rows are no tokens: nothing is predicted there, and they keep what they hold.
      max_length: rows of the position table, the longest row in tokens.
      position_offset: rows of the position table that lie before that of position 0 and are never read: RoBERTa counts positions
        from its padding id on.
      embedding_size: width of the tables, which a linear map takes to `hidden_size`; None: `hidden_size`, without a map.
      type_vocab_size: sentence types (A and B); 0: there is no such table.
      sharing: what all layers have in common (ALBERT, table 4): "none", "all", "attention" or "feed_forward".
      activation: "gelu" (erf), "gelu_tanh" (the original TensorFlow code's) or "relu".
      head_activation: that of the masked-token head; None: `activation`.
      dropout_rate: on embeddings and on each sublayer's output.
      attention_dropout_rate: on attention probabilities, by backends that can.
      initializer_range: deviation of the truncated normal that all kernels and tables start from.
      tie_embeddings: whether the masked-token head uses the word table.

    Raises:
      UserError: when values clash.
    """

    objective_file: ClassVar[str] = "objectives/mlm.gin"
    published_vocab_size: ClassVar[int | None] = 30_522

    position_offset: int = 0
    embedding_size: int | None = None
    type_vocab_size: int = 2
    sharing: Sharing = "none"
    activation: Activation = "gelu"
    head_activation: Activation | None = None
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-12
    initializer_range: float = 0.02
    tie_embeddings: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least(type_vocab_size=0, position_offset=0, embedding_size=1)
        self._check_rates("dropout_rate", "attention_dropout_rate")
        self._check_above_zero("layer_norm_epsilon", "initializer_range")
        self._check_among(activation=ACTIVATIONS, head_activation=(None, *ACTIVATIONS), sharing=_SHARED)

    @property
    def table_width(self) -> int:
        """Width of the tables of words, positions and types."""
        return self.embedding_size or self.hidden_size

    @property
    def windows(self) -> tuple[int | None, ...]:
        """See `bertfam.models.encoder.EncoderConfig`."""
        return (None,)

    @property
    def first_rows(self) -> Mapping[str, int]:
        """Further tables, by name their rows, of which every token has the first: none."""
        return {}

    def encoder(self, execution: Execution = _EXECUTION) -> "Encoder":
        """See `bertfam.models.encoder.EncoderConfig`."""
        return Encoder(self, execution)

    def masked_lm_head(self, execution: Execution = _EXECUTION) -> pretraining.MaskedLmHead:
        """See `bertfam.models.encoder.EncoderConfig`."""
        return pretraining.MaskedLmHead(
            vocab_size=self.require_vocab_size,
            activation=self.head_activation or self.activation,
            layer_norm_epsilon=self.layer_norm_epsilon,
            initializer_range=self.initializer_range,
            tied=self.tie_embeddings,
            execution=execution,
        )

    def flops(self, length: int, predictions: int) -> int:
        """See `bertfam.models.encoder.EncoderConfig`.

        3 [L s (8h^2 + 4hf + 4hs) + P (2he + 2eV)], with tables e wide and V real tokens, and 2seh for the map from e to h where
        they differ; embeddings, pooler and the like do not count.
        """
        h, f, e = self.hidden_size, self.feed_forward_size, self.table_width
        layer = length * (8 * h * h + 4 * h * f + 4 * h * length)
        head = 2 * h * e + 2 * e * self.require_vocab_size
        return 3 * (self.num_layers * layer + predictions * head + (2 * length * e * h if e != h else 0))


class Embeddings(nn.Module):
    """dropout(LN(word + position + type)), then, where tables are of another width, a linear map."""

    config: BertConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, tokens: jax.Array, *, positions: jax.Array | None, token_type_ids: jax.Array, train: bool) -> jax.Array:
        """int32[batch, length] each -> dtype[batch, length, embed]."""
        config, dtype = self.config, self.execution.compute_dtype
        normal = truncated_normal(config.initializer_range)
        table = partial(Table, features=config.table_width, table_init=normal)
        words = table(config.padded_vocab_size, axis="vocab", name="word")()
        position_table = table(config.position_offset + config.max_length, axis="position", name="position")()
        position_table = position_table[config.position_offset :]
        # [batch, length, width] + [batch or nothing, length, width] + [batch, length, width]
        hidden = embed_words(words, tokens, dtype) + embed_positions(position_table, positions, tokens.shape[1], dtype)
        if config.type_vocab_size:
            types = table(config.type_vocab_size, axis="token_type", name="token_type")()
            # Where there is one type, every token has it, those of a second sentence too.
            one = config.type_vocab_size == 1
            hidden = hidden + (types.astype(dtype) if one else lookup_few(types, token_type_ids, dtype))
        for name, rows in config.first_rows.items():
            hidden = hidden + table(rows, axis=name, name=name)()[0].astype(dtype)
        hidden = LayerNorm(config.layer_norm_epsilon, dtype, name="norm")(hidden)
        hidden = Dropout(config.dropout_rate, name="dropout")(hidden, train=train)
        if config.table_width != config.hidden_size:
            # [batch, length, width] -> [batch, length, embed]
            hidden = Dense((config.hidden_size,), ("embed", None), dtype, kernel_init=normal, name="projection")(hidden)
        return nn.with_logical_constraint(hidden, ("batch", "length", None))


class Encoder(nn.Module):
    """Embeddings and the stack of layers."""

    config: BertConfig
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
            a row, segment ids 1 and then 0: positions are 0, 1, 2, ..., and the fastest attention may be used.
          token_type_ids: int32[batch, length], sentence 0 or 1.
          train: whether dropout is on; needs a "dropout" key.
          collect: names among "hidden_states" and "attention_probs" (before dropout).

        Returns:
          dtype[batch, length, embed], and a dict with what `collect` names: hidden_states [layers + 1, batch, length,
          embed], the embeddings first; attention_probs float32[layers, batch, heads, length, length].

        Raises:
          UserError: when rows are longer than `max_length`, or the attention backend cannot do what is asked.
        """
        check_collectable(collect)
        config = self.config
        embedded = Embeddings(config, self.execution, name="embeddings")(
            tokens, positions=positions, token_type_ids=token_type_ids, train=train
        )
        dtype, normal = self.execution.compute_dtype, truncated_normal(config.initializer_range)
        attention = partial(
            SelfAttention, config.num_heads, config.head_dim, config.attention_dropout_rate, self.execution, normal
        )
        block = partial(
            PostNormBlock,
            attention=attention,
            feed_forward=partial(FeedForward, config.feed_forward_size, config.activation, dtype, normal),
            norm=partial(LayerNorm, config.layer_norm_epsilon, dtype),
            attention_dropout_rate=config.dropout_rate,
            feed_forward_dropout_rate=config.dropout_rate,
        )
        hidden, collected = Stack(block, config.num_layers, _SHARED[config.sharing], self.execution, name="layers")(
            embedded, {"row": Row(segment_ids)}, packed=positions is not None, train=train, collect=collect
        )
        if "hidden_states" in collected:
            # [batch, length, embed], [layers, batch, length, embed] -> [layers + 1, batch, length, embed]
            collected["hidden_states"] = jnp.concatenate([embedded[None], collected["hidden_states"]])
        return hidden, collected
