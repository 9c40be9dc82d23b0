"""BERT (Devlin, Chang, Lee, Toutanova 2019): post-LN encoder with learned positions and sentence types."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertfam.errors import UserError
from bertfam.layers import heads
from bertfam.layers.activations import ACTIVATIONS, Activation
from bertfam.layers.dropout import Dropout
from bertfam.layers.embeddings import Table, embed_positions, embed_words, padded_rows
from bertfam.layers.encoder_block import PostNormBlock
from bertfam.layers.execution import Execution
from bertfam.layers.gather import lookup_few
from bertfam.layers.initializers import truncated_normal
from bertfam.layers.norm import LayerNorm
from bertfam.layers.stack import Stack

COLLECTABLE = frozenset({"hidden_states", "attention_probs"})


@dataclass(frozen=True)
class BertConfig:
    """Sizes and rates of a BERT; the defaults are BERT-base.

    Attributes:
      vocab_size: real tokens; None takes the size of the run's vocabulary.
      table_rows: rows of the word table in files, where a checkpoint has more of them than tokens; None: `vocab_size`. The
        further rows are no tokens: nothing is predicted there, and they keep what they hold.
      max_length: rows of the position table, the longest row in tokens.
      type_vocab_size: sentence types (A and B).
      activation: "gelu" (erf), "gelu_tanh" (the original TensorFlow code's) or "relu".
      dropout_rate: on embeddings and on each sublayer's output.
      attention_dropout_rate: on attention probabilities, by backends that can.
      initializer_range: deviation of the truncated normal that all kernels and tables start from.
      tie_embeddings: whether the masked-token head uses the word table.

    Raises:
      UserError: when values clash.
    """

    vocab_size: int | None = None
    table_rows: int | None = None
    num_layers: int = 12
    hidden_size: int = 768
    num_heads: int = 12
    feed_forward_size: int = 3072
    max_length: int = 512
    type_vocab_size: int = 2
    activation: Activation = "gelu"
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-12
    initializer_range: float = 0.02
    tie_embeddings: bool = True

    def __post_init__(self) -> None:
        sizes = ("num_layers", "hidden_size", "num_heads", "feed_forward_size", "max_length", "type_vocab_size")
        for name in sizes if self.vocab_size is None else ("vocab_size", *sizes):
            if not 1 <= getattr(self, name) < 2**31:
                raise UserError(f"BertConfig.{name} = {getattr(self, name)} must be at least 1 and below 2^31")
        least = self.vocab_size or 1
        if self.table_rows is not None and not least <= self.table_rows < 2**31:
            known = " (vocab_size)" if self.vocab_size else ""
            raise UserError(f"BertConfig.table_rows = {self.table_rows} must be at least {least}{known} and below 2^31")
        if self.hidden_size % self.num_heads:
            raise UserError(
                f"BertConfig.hidden_size = {self.hidden_size} is not a multiple of num_heads = {self.num_heads}: "
                "change one of them"
            )
        for name in ("dropout_rate", "attention_dropout_rate"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"BertConfig.{name} = {getattr(self, name)} must be at least 0 and below 1")
        for name in ("layer_norm_epsilon", "initializer_range"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"BertConfig.{name} = {getattr(self, name)} must be above 0")
        if self.activation not in ACTIVATIONS:
            raise UserError(f"BertConfig.activation = {self.activation!r} is not one of {', '.join(ACTIVATIONS)}")

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def known_vocab_size(self) -> int:
        """`vocab_size`, which must have been set by now."""
        if self.vocab_size is None:
            raise ValueError("BertConfig.vocab_size is None: set it to the size of the vocabulary first")
        return self.vocab_size

    @property
    def known_table_rows(self) -> int:
        """`table_rows`, or where it is None, `vocab_size`, which must have been set by now."""
        return self.table_rows or self.known_vocab_size

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the word table in memory: those in files up to a multiple of 128."""
        return padded_rows(self.known_table_rows)


class Embeddings(nn.Module):
    """dropout(LN(word + position + type))."""

    config: BertConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, tokens: jax.Array, *, positions: jax.Array | None, token_type_ids: jax.Array, train: bool) -> jax.Array:
        """int32[batch, length] each -> dtype[batch, length, embed]."""
        config, dtype = self.config, self.execution.compute_dtype
        table = partial(Table, features=config.hidden_size, table_init=truncated_normal(config.initializer_range))
        words = table(config.padded_vocab_size, axis="vocab", name="word")()
        position_table = table(config.max_length, axis="position", name="position")()
        types = table(config.type_vocab_size, axis="token_type", name="token_type")()
        # [batch, length, embed] + [batch or nothing, length, embed] + [batch, length, embed]
        hidden = (
            embed_words(words, tokens, dtype)
            + embed_positions(position_table, positions, tokens.shape[1], dtype)
            + lookup_few(types, token_type_ids, dtype)
        )
        hidden = LayerNorm(config.layer_norm_epsilon, dtype, name="norm")(hidden)
        hidden = Dropout(config.dropout_rate, name="dropout")(hidden, train=train)
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
        unknown = collect - COLLECTABLE
        if unknown:
            raise ValueError(f"cannot collect {sorted(unknown)}: known are {sorted(COLLECTABLE)}")
        config = self.config
        embedded = Embeddings(config, self.execution, name="embeddings")(
            tokens, positions=positions, token_type_ids=token_type_ids, train=train
        )
        block = partial(
            PostNormBlock,
            num_heads=config.num_heads,
            head_dim=config.head_dim,
            feed_forward_size=config.feed_forward_size,
            activation=config.activation,
            dropout_rate=config.dropout_rate,
            attention_dropout_rate=config.attention_dropout_rate,
            layer_norm_epsilon=config.layer_norm_epsilon,
            initializer_range=config.initializer_range,
            execution=self.execution,
        )
        hidden, collected = Stack(block, config.num_layers, self.execution, name="layers")(
            embedded, {"segment_ids": segment_ids}, packed=positions is not None, train=train, collect=collect
        )
        if "hidden_states" in collected:
            # [batch, length, embed], [layers, batch, length, embed] -> [layers + 1, batch, length, embed]
            collected["hidden_states"] = jnp.concatenate([embedded[None], collected["hidden_states"]])
        return hidden, collected


def pooler(config: BertConfig, execution: Execution = Execution()) -> heads.Pooler:  # noqa: B008
    """tanh(W h) of hidden states at [CLS]: [..., embed] -> [..., embed]."""
    return heads.Pooler(config.initializer_range, execution)


def next_sentence_head(config: BertConfig, execution: Execution = Execution()) -> heads.ClassificationHead:  # noqa: B008
    """Pooled [..., embed] -> float32[..., 2] logits; class 0 = B continues A, 1 = B is random."""
    return heads.ClassificationHead(2, config.initializer_range, execution)


def masked_lm_head(config: BertConfig, execution: Execution = Execution()) -> heads.MaskedLmHead:  # noqa: B008
    """(hidden [batch, predictions, embed], word table) -> float32[batch, predictions, padded vocabulary] logits."""
    return heads.MaskedLmHead(
        vocab_size=config.known_vocab_size,
        activation=config.activation,
        layer_norm_epsilon=config.layer_norm_epsilon,
        initializer_range=config.initializer_range,
        tied=config.tie_embeddings,
        execution=execution,
    )


def word_table(params: Mapping[str, Any]) -> jax.Array:
    """The table float32[padded vocabulary, embed] out of {"encoder": ..., ...}, for `masked_lm_head`."""
    return params["encoder"]["embeddings"]["word"]["table"]


def flops_per_row(config: BertConfig, length: int, predictions: int) -> int:
    """Matrix-product FLOPs of one row of one training step: 3 x forward, the vocabulary head on `predictions` tokens.

    3 [L s (8h^2 + 4hf + 4hs) + P (2h^2 + 2hV)], with real tokens V; embeddings, pooler and the like do not count.
    """
    h, f = config.hidden_size, config.feed_forward_size
    layer = length * (8 * h * h + 4 * h * f + 4 * h * length)
    head = 2 * h * h + 2 * h * config.known_vocab_size
    return 3 * (config.num_layers * layer + predictions * head)
