"""Causal decoder, whose options give GPT, GPT-2, OPT and PaLM."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax

from bertfam.features import Start
from bertfam.layers.activations import ACTIVATIONS, Activation
from bertfam.layers.attention import SelfAttention
from bertfam.layers.blocks import ParallelBlock, PostNormBlock, PreNormBlock
from bertfam.layers.dense import Dense
from bertfam.layers.dropout import Dropout
from bertfam.layers.embeddings import Table, check_length, embed_positions, embed_words
from bertfam.layers.execution import Execution
from bertfam.layers.feed_forward import FeedForward
from bertfam.layers.heads import pretraining
from bertfam.layers.initializers import Initializer, normal
from bertfam.layers.key_value_cache import Cache
from bertfam.layers.norm import LayerNorm
from bertfam.layers.stack import AXIS, Stack
from bertfam.models.encoder import check_collectable
from bertfam.models.language_model import check_positions, collected_outputs, decoder_row
from bertfam.models.sizes import Sizes

Block = Literal["post_norm", "pre_norm", "parallel"]
_BLOCKS = {"post_norm": PostNormBlock, "pre_norm": PreNormBlock, "parallel": ParallelBlock}
_EXECUTION = Execution()


@dataclass(frozen=True)
class DecoderConfig(Sizes):
    """Configuration of a decoder; each family has its own defaults.

    Attributes:
      vocab_size: real tokens; None takes the size of the run's vocabulary.
      table_rows: rows of the word table in files, where a checkpoint has more of them than tokens; None: `vocab_size`.
      max_length: rows of the position table, or where there is none, the longest row in tokens.
      block: where a layer normalises: "post_norm", each residual sum; "pre_norm", the input of each sublayer; "parallel", the
        common input of both sublayers, which are added at once.
      last_norm: whether a LayerNorm follows the last layer.
      head_size: width of one attention head; None: hidden_size / num_heads.
      num_key_value_heads: heads of keys and values, each shared by equally many heads of queries (Shazeer 2019: one
        for all of them); None: `num_heads`.
      rotary_theta: base of rotary positions; None: positions have a table.
      position_offset: rows of the position table that lie before that of position 0 and are never read.
      embedding_size: embedding dimension of the word table, with linear projections to `hidden_size` and back; None:
        `hidden_size`, without projections.
      gated: whether the feed-forward network multiplies its hidden layer by a second projection.
      activation: "gelu" (erf), "gelu_tanh", "relu" or "silu".
      use_bias: whether the projections of attention and feed-forward have biases.
      norm_bias: whether LayerNorms have biases.
      scale_attention: whether scores are divided by sqrt(width of a head).
      scale_attention_by_layer: whether scores are divided by the number of the layer, from 1; each layer is then compiled, as
        "unroll" does.
      scale_logits: whether logits are divided by sqrt(width of the word table).
      embedding_dropout_rate: on the embeddings.
      dropout_rate: on each sublayer's output.
      attention_dropout_rate: on attention probabilities, by backends that can.
      initializer_range: deviation of the normal that kernels and tables start from; None: of each kernel, 1 / sqrt(its inputs).
      table_initializer_range: the deviation of the tables; None: `initializer_range`.
      scale_residual_init: whether kernels whose products are added to the residual sum start from 1 / sqrt(2 num_layers) of it.
      tie_embeddings: whether the vocabulary head uses the word table.

    Raises:
      UserError: when values clash.
    """

    objective_file: ClassVar[str] = "objectives/causal_lm.gin"

    block: Block = "pre_norm"
    last_norm: bool = True
    head_size: int | None = None
    num_key_value_heads: int | None = None
    rotary_theta: float | None = None
    position_offset: int = 0
    embedding_size: int | None = None
    gated: bool = False
    activation: Activation = "gelu_tanh"
    use_bias: bool = True
    norm_bias: bool = True
    scale_attention: bool = True
    scale_attention_by_layer: bool = False
    scale_logits: bool = False
    embedding_dropout_rate: float = 0.1
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-5
    initializer_range: float | None = 0.02
    table_initializer_range: float | None = None
    scale_residual_init: bool = False
    tie_embeddings: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least(head_size=1, num_key_value_heads=1, position_offset=0, embedding_size=1)
        self._check_rates("embedding_dropout_rate", "dropout_rate", "attention_dropout_rate")
        stated = ("rotary_theta", "initializer_range", "table_initializer_range")
        self._check_above_zero("layer_norm_epsilon", *(name for name in stated if getattr(self, name) is not None))
        self._check_among(block=_BLOCKS, activation=ACTIVATIONS)
        if self.num_heads % self.num_kv_heads:
            raise self._error("num_key_value_heads", f"does not divide num_heads = {self.num_heads}: change one of them")
        if self.rotary_theta is not None and self.head_dim % 2:
            raise self._error("rotary_theta", f"turns pairs, and heads are {self.head_dim} wide: set head_size to an even number")
        if self.initializer_range is None and self.table_initializer_range is None:
            raise self._error("table_initializer_range", "must be set where initializer_range is None: a table has no inputs")

    def _check_heads(self) -> None:
        if self.head_size is None:
            super()._check_heads()

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.head_size or super().head_dim

    @property
    def num_kv_heads(self) -> int:
        """Number of key and value heads."""
        return self.num_key_value_heads or self.num_heads

    @property
    def table_width(self) -> int:
        """Width of the word table."""
        return self.embedding_size or self.hidden_size

    @property
    def has_encoder(self) -> bool:
        """False: a decoder is a causal LM."""
        return False

    @property
    def start(self) -> Start | None:
        """Start token of a prompt: none, prompts are read as they are."""
        return None

    def initializer(self, inputs: int, *, residual: bool = False) -> Initializer:
        """Return the initializer of a kernel with `inputs` inputs; `residual`: its product is added to the residual stream."""
        deviation = inputs**-0.5 if self.initializer_range is None else self.initializer_range
        return normal(deviation / math.sqrt(2 * self.num_layers) if residual and self.scale_residual_init else deviation)

    @property
    def table_initializer(self) -> Initializer:
        """Initializer of the tables of words and positions."""
        found = self.initializer_range if self.table_initializer_range is None else self.table_initializer_range
        assert found is not None
        return normal(found)

    def embeddings(self) -> Table:
        """Return the word table."""
        return Table(self.padded_vocab_size, self.table_width, "vocab", self.table_initializer)

    def encoder(self, execution: Execution = _EXECUTION) -> nn.Module:
        """Raise ValueError: a decoder has no encoder."""
        raise ValueError(f"{type(self).__name__} has no encoder")

    def decoder(self, execution: Execution = _EXECUTION) -> "Decoder":
        """Return the decoder."""
        return Decoder(self, execution)

    def lm_head(self, execution: Execution = _EXECUTION) -> pretraining.LmHead:
        """Return the language-model head."""
        return pretraining.LmHead(
            self.require_vocab_size,
            tied=self.tie_embeddings,
            scale=self.table_width**-0.5 if self.scale_logits else 1.0,
            kernel_init=self.table_initializer,
            execution=execution,
        )

    def flops(self, length: int, targets: int) -> int:
        """Return the matrix-product FLOPs of one row of one training step.

        3 n [L (4hq + 4hk + 2nq + 2mhf) + 2eV] for n targets, with heads of queries q wide in all and those of keys k, m matrices
        of the feed-forward network, tables e wide and V real tokens; and 4he for the projections between e and h if they
        differ.
        """
        h, f, e = self.hidden_size, self.feed_forward_size, self.table_width
        q, k = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        layer = 4 * h * q + 4 * h * k + 2 * targets * q + 2 * (3 if self.gated else 2) * h * f
        return 3 * targets * (self.num_layers * layer + 2 * e * self.require_vocab_size + (4 * h * e if e != h else 0))


class Embeddings(nn.Module):
    """dropout(word + position), with a linear projection of words where their table has another width."""

    config: DecoderConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, words: jax.Array, tokens: jax.Array, *, positions: jax.Array | None, train: bool) -> jax.Array:
        """Embed tokens: the word table and int32[batch, length] each -> dtype[batch, length, embed]."""
        config, dtype = self.config, self.execution.compute_dtype
        hidden = embed_words(words, tokens, dtype)
        if config.table_width != config.hidden_size:
            # [batch, length, width] -> [batch, length, embed]
            init = config.initializer(config.table_width)
            hidden = Dense((config.hidden_size,), ("embed", None), dtype, False, init, name="projection")(hidden)
        if config.rotary_theta is None:
            rows = config.position_offset + config.max_length
            table = Table(rows, config.hidden_size, "position", config.table_initializer, name="position")()
            hidden = hidden + embed_positions(table[config.position_offset :], positions, tokens.shape[1], dtype)
        hidden = Dropout(config.embedding_dropout_rate, name="dropout")(hidden, train=train)
        return nn.with_logical_constraint(hidden, ("batch", "length", None))


class Decoder(nn.Module):
    """Embeddings, the stack of layers, the last norm and the output projection; see `DecoderConfig`."""

    config: DecoderConfig
    execution: Execution = Execution()

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
        cache: Cache | None = None,
    ) -> tuple[jax.Array, dict[str, Any]]:
        """Run the decoder; see `bertfam.models.language_model.LanguageModelConfig` for arguments and results.

        The last of the hidden states are those after the last LayerNorm, where there is one.

        Raises:
          UserError: when rows are longer than `max_length`, or the attention backend cannot do what is asked.
        """
        check_collectable(collect)
        config, dtype = self.config, self.execution.compute_dtype
        check_positions(cache, positions)
        check_length(tokens.shape[1], config.max_length)
        embedded = Embeddings(config, self.execution, name="embeddings")(words, tokens, positions=positions, train=train)
        row, per_layer = decoder_row(segment_ids, cache, positions), {} if cache is None else {"cache": cache.layers}
        packed = positions is not None
        stack = Stack(self._block, config.num_layers, (), self.execution, self._kinds(), name=AXIS)
        hidden, layers = stack(embedded, {"row": row}, per_layer, packed=packed, train=train, collect=collect)
        if config.last_norm:
            hidden = self._norm(name="norm")(hidden)
        collected = collected_outputs(layers, embedded, hidden, segment_ids, cache)
        if config.table_width != config.hidden_size:
            # [batch, length, embed] -> [batch, length, width]
            init = config.initializer(config.hidden_size)
            hidden = Dense((config.table_width,), ("embed", None), dtype, False, init, name="projection")(hidden)
        return hidden, collected

    @property
    def _norm(self) -> Any:
        return partial(LayerNorm, self.config.layer_norm_epsilon, self.execution.compute_dtype, self.config.norm_bias)

    @property
    def _block(self) -> Any:
        """Constructor of a layer, which takes its attention."""
        config = self.config
        feed_forward = partial(
            FeedForward,
            config.feed_forward_size,
            config.activation,
            self.execution.compute_dtype,
            config.initializer(config.hidden_size),
            config.initializer(config.feed_forward_size, residual=True),
            gated=config.gated,
            use_bias=config.use_bias,
        )
        return partial(
            _BLOCKS[config.block],
            feed_forward=feed_forward,
            norm=self._norm,
            attention_dropout_rate=config.dropout_rate,
            feed_forward_dropout_rate=config.dropout_rate,
        )

    def _kinds(self) -> tuple[dict[str, Any], ...]:
        """Return the attention of each layer, or the one that all layers have."""
        config = self.config
        scale = config.head_dim**-0.5 if config.scale_attention else 1.0
        attention = partial(
            SelfAttention,
            config.num_heads,
            config.head_dim,
            config.attention_dropout_rate,
            self.execution,
            config.initializer(config.hidden_size),
            config.initializer(config.num_heads * config.head_dim, residual=True),
            use_bias=config.use_bias,
            num_kv_heads=config.num_kv_heads,
            causal=True,
            rotary_theta=config.rotary_theta,
        )
        layers = range(config.num_layers if config.scale_attention_by_layer else 1)
        return tuple({"attention": partial(attention, scale=scale / (1 + layer))} for layer in layers)
