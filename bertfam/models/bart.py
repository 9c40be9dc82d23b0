"""BART (Lewis et al. 2020): post-norm encoder and decoder with learned positions and biases everywhere."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import flax.linen as nn
import jax

from bertfam.features import Start
from bertfam.layers.activations import ACTIVATIONS, Activation
from bertfam.layers.attention import CrossAttention, Encoded, Row, SelfAttention
from bertfam.layers.blocks import PostNormBlock
from bertfam.layers.dropout import Dropout
from bertfam.layers.embeddings import Table, check_length, embed_positions, embed_words
from bertfam.layers.execution import Execution
from bertfam.layers.feed_forward import FeedForward
from bertfam.layers.heads.pretraining import LmHead
from bertfam.layers.initializers import Initializer, normal
from bertfam.layers.key_value_cache import Cache
from bertfam.layers.norm import LayerNorm
from bertfam.layers.stack import AXIS, Stack
from bertfam.models.encoder import check_collectable
from bertfam.models.encoder_decoder import training_flops
from bertfam.models.generator import check_followed, collected_of, row_of
from bertfam.models.sizes import Sizes

# Rows of the position tables that lie before that of position 0 and are never read, whatever the padding's id is.
POSITION_OFFSET = 2
_EPSILON = 1e-5
_EXECUTION = Execution()


@dataclass(frozen=True)
class BartConfig(Sizes):
    """Sizes and rates of a BART; the defaults are BART-base.

    Attributes:
      vocab_size: real tokens; None takes the size of the run's vocabulary.
      table_rows: rows of the word table in files, where a checkpoint has more of them than tokens; None: `vocab_size`.
      num_layers, num_heads, feed_forward_size: of the decoder.
      num_encoder_layers, num_encoder_heads, encoder_feed_forward_size: of the encoder; None: those of the decoder.
      max_length: rows of each of the two position tables that are read, the longest row in tokens.
      activation: "gelu" (erf), "gelu_tanh" or "relu".
      dropout_rate: on embeddings and on each sublayer's output.
      attention_dropout_rate: on attention probabilities, by backends that can.
      feed_forward_dropout_rate: on the hidden layer of the feed-forward network.
      initializer_range: deviation of the normal distribution that all kernels and tables start from.
      scale_embeddings: whether words are multiplied by sqrt(hidden_size) where they go in.
      tie_embeddings: whether the head uses the word table.

    Raises:
      UserError: when values clash.
    """

    objective_file: ClassVar[str] = "objectives/bart.gin"
    published_vocab_size: ClassVar[int | None] = 50_265

    num_layers: int = 6
    max_length: int = 1024
    num_encoder_layers: int | None = None
    num_encoder_heads: int | None = None
    encoder_feed_forward_size: int | None = None
    activation: Activation = "gelu"
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.1
    feed_forward_dropout_rate: float = 0.1
    initializer_range: float = 0.02
    scale_embeddings: bool = False
    tie_embeddings: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least(num_encoder_layers=1, num_encoder_heads=1, encoder_feed_forward_size=1)
        if self.hidden_size % self.encoder_heads:
            raise self._error("hidden_size", f"is not a multiple of num_encoder_heads = {self.encoder_heads}: change one of them")
        self._check_rates("dropout_rate", "attention_dropout_rate", "feed_forward_dropout_rate")
        self._check_above_zero("initializer_range")
        self._check_among(activation=ACTIVATIONS)

    @property
    def encoder_layers(self) -> int:
        """Layers of the encoder."""
        return self.num_encoder_layers or self.num_layers

    @property
    def encoder_heads(self) -> int:
        """Heads of the encoder's attention."""
        return self.num_encoder_heads or self.num_heads

    @property
    def encoder_size(self) -> int:
        """Width of the hidden layer of the encoder's feed-forward networks."""
        return self.encoder_feed_forward_size or self.feed_forward_size

    @property
    def initializer(self) -> Initializer:
        """Of all kernels and tables."""
        return normal(self.initializer_range)

    @property
    def num_kv_heads(self) -> int:
        """See `bertfam.models.generator.GeneratorConfig`."""
        return self.num_heads

    @property
    def has_encoder(self) -> bool:
        """See `bertfam.models.generator.GeneratorConfig`."""
        return True

    @property
    def start(self) -> Start:
        """See `bertfam.models.generator.GeneratorConfig`."""
        return "eos"

    def embeddings(self) -> Table:
        """See `bertfam.models.generator.GeneratorConfig`."""
        return Table(self.padded_vocab_size, self.hidden_size, "vocab", self.initializer)

    def encoder(self, execution: Execution = _EXECUTION) -> "Encoder":
        """See `bertfam.models.generator.GeneratorConfig`."""
        return Encoder(self, execution)

    def decoder(self, execution: Execution = _EXECUTION) -> "Decoder":
        """See `bertfam.models.generator.GeneratorConfig`."""
        return Decoder(self, execution)

    def lm_head(self, execution: Execution = _EXECUTION) -> LmHead:
        """See `bertfam.models.generator.GeneratorConfig`; the bias of each word is that of files and is not trained."""
        return LmHead(
            self.require_vocab_size,
            tied=self.tie_embeddings,
            use_bias=True,
            kernel_init=self.initializer,
            execution=execution,
        )

    def flops(self, length: int, targets: int) -> int:
        """See `bertfam.models.generator.GeneratorConfig`."""
        return training_flops(
            length,
            targets,
            layers=(self.encoder_layers, self.num_layers),
            hidden=self.hidden_size,
            inner=(self.hidden_size,) * 2,
            feed_forward=(self.encoder_size, self.feed_forward_size),
            maps=2,
            vocabulary=self.require_vocab_size,
        )


class Embeddings(nn.Module):
    """dropout(LN(word + position))."""

    config: BartConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, words: jax.Array, tokens: jax.Array, *, positions: jax.Array | None, train: bool) -> jax.Array:
        """int32[batch, length] each -> dtype[batch, length, embed]."""
        config, dtype, length = self.config, self.execution.compute_dtype, tokens.shape[1]
        rows = POSITION_OFFSET + config.max_length
        position_table = Table(rows, config.hidden_size, "position", config.initializer, name="position")()[POSITION_OFFSET:]
        hidden = embed_words(words, tokens, dtype)
        if config.scale_embeddings:
            hidden = hidden * math.sqrt(config.hidden_size)
        # [batch, length, embed] + [batch or nothing, length, embed]
        hidden = hidden + embed_positions(position_table, positions, length, dtype)
        hidden = LayerNorm(_EPSILON, dtype, name="norm")(hidden)
        hidden = Dropout(config.dropout_rate, name="dropout")(hidden, train=train)
        return nn.with_logical_constraint(hidden, ("batch", "length", None))


class _Network(nn.Module):
    """What encoder and decoder have in common."""

    config: BartConfig
    execution: Execution = Execution()

    def _block(self, num_heads: int, feed_forward_size: int, *, causal: bool) -> partial[PostNormBlock]:
        """Makes a layer, in the decoder with another attention to what the encoder has read."""
        config, dtype = self.config, self.execution.compute_dtype
        init = config.initializer
        heads = (num_heads, config.hidden_size // num_heads, config.attention_dropout_rate, self.execution, init)
        return partial(
            PostNormBlock,
            attention=partial(SelfAttention, *heads, causal=causal),
            cross_attention=partial(CrossAttention, *heads) if causal else None,
            feed_forward=partial(
                FeedForward, feed_forward_size, config.activation, dtype, init, dropout_rate=config.feed_forward_dropout_rate
            ),
            norm=partial(LayerNorm, _EPSILON, dtype),
            attention_dropout_rate=config.dropout_rate,
            feed_forward_dropout_rate=config.dropout_rate,
        )


class Encoder(_Network):
    """What reads."""

    @nn.compact
    def __call__(
        self,
        words: jax.Array,
        tokens: jax.Array,
        *,
        segment_ids: jax.Array,
        positions: jax.Array | None = None,
        train: bool,
        collect: frozenset[str] = frozenset(),
    ) -> tuple[jax.Array, dict[str, Any]]:
        """See `bertfam.models.generator.GeneratorConfig`.

        Raises:
          UserError: when rows are longer than `max_length`.
        """
        check_collectable(collect)
        config = self.config
        check_length(tokens.shape[1], config.max_length)
        embedded = Embeddings(config, self.execution, name="embeddings")(words, tokens, positions=positions, train=train)
        block = self._block(config.encoder_heads, config.encoder_size, causal=False)
        hidden, layers = Stack(block, config.encoder_layers, (), self.execution, name=AXIS)(
            embedded, {"row": Row(segment_ids)}, packed=positions is not None, train=train, collect=collect
        )
        return hidden, collected_of(layers, embedded, hidden, segment_ids)


class Decoder(_Network):
    """What writes."""

    @nn.compact
    def __call__(
        self,
        words: jax.Array,
        tokens: jax.Array,
        *,
        segment_ids: jax.Array,
        positions: jax.Array | None = None,
        train: bool,
        collect: frozenset[str] = frozenset(),
        encoded: jax.Array | None = None,
        encoded_segment_ids: jax.Array,
        cache: Cache | None = None,
    ) -> tuple[jax.Array, dict[str, Any]]:
        """See `bertfam.models.generator.GeneratorConfig`.

        Raises:
          UserError: when rows, or the slots of the cache, are more than `max_length`.
        """
        check_collectable(collect, "cross_attention_probs")
        config = self.config
        check_followed(cache, positions)
        check_length(tokens.shape[1] if cache is None else cache.keys.shape[2], config.max_length)
        embedded = Embeddings(config, self.execution, name="embeddings")(words, tokens, positions=positions, train=train)
        block = self._block(config.num_heads, config.feed_forward_size, causal=True)
        hidden, layers = Stack(block, config.num_layers, (), self.execution, name=AXIS)(
            embedded,
            {"row": row_of(segment_ids, cache), "encoded": Encoded(encoded, encoded_segment_ids)},
            {} if cache is None else {"cache": cache.layers},
            packed=positions is not None or cache is not None,
            train=train,
            collect=collect,
        )
        return hidden, collected_of(layers, embedded, hidden, segment_ids, cache)
