"""Causal decoder: the base of GPT, GPT-2, OPT and PaLM."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import flax.linen as nn
import jax

from bertfam.features import Start
from bertfam.kernels.attention.patterns import CAUSAL
from bertfam.layers.activations import ACTIVATIONS, Activation
from bertfam.layers.attention.dot_product import SelfAttention
from bertfam.layers.attention.key_value_cache import Cache
from bertfam.layers.blocks import Maker, PreNormBlock
from bertfam.layers.dense import Dense
from bertfam.layers.dropout import Dropout
from bertfam.layers.embeddings import Table, check_length, embed_positions, embed_words
from bertfam.layers.execution import Execution
from bertfam.layers.feed_forward import FeedForward
from bertfam.layers.heads import pretraining
from bertfam.layers.heads.classification import Classifier, OutputLayer
from bertfam.layers.initializers import Initializer, normal
from bertfam.layers.norm import LayerNorm
from bertfam.layers.stack import AXIS, Stack
from bertfam.models.encoder import check_collectable
from bertfam.models.language_model import check_positions, collected_outputs, decoder_row
from bertfam.models.network import Kind
from bertfam.models.sizes import Sizes

_EXECUTION = Execution()


@dataclass(frozen=True)
class DecoderConfig(Sizes):
    """Configuration of a decoder; each family has its own defaults.

    The fields are the options that several families share. Everything else that distinguishes a family is a property or method,
    which the family overrides: the arrangement of a layer (`block_class`, `last_norm`), its parts (`attentions`, `feed_forward`,
    `norm`) and the tables (`position_rows`, `table_width`, `table_deviation`, `position_deviation`,
    `logit_scale`). A family with options of its own declares them as fields and reads them there.

    Attributes:
      vocab_size: real tokens; None takes the size of the run's vocabulary.
      table_rows: rows of the word table in files, where a checkpoint has more of them than tokens; None: `vocab_size`.
      max_length: the longest row in tokens.
      activation: "gelu" (erf), "gelu_tanh", "relu" or "silu".
      use_bias: True if the projections of attention and feed-forward have biases.
      embedding_dropout_rate: dropout rate of the embeddings.
      dropout_rate: dropout rate of each sublayer's output.
      attention_dropout_rate: dropout rate of attention probabilities, applied by backends that can.
      layer_norm_epsilon: added to the variance.
      initializer_range: standard deviation of the normal that kernels and tables start from; None: of each kernel,
        1 / sqrt(its inputs), in a family whose tables have a deviation of their own.
      scale_residual_init: True to start kernels whose products are added to the residual sum from 1 / sqrt(2 num_layers) of it.
      tie_embeddings: True if the vocabulary head uses the word table.

    Raises:
      UserError: when values clash.
    """

    objective_file: ClassVar[str] = "objectives/causal_lm.gin"
    kind: ClassVar[Kind] = "decoder"

    activation: Activation = "gelu_tanh"
    use_bias: bool = True
    embedding_dropout_rate: float = 0.1
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-5
    initializer_range: float | None = 0.02
    scale_residual_init: bool = False
    tie_embeddings: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_rates("embedding_dropout_rate", "dropout_rate", "attention_dropout_rate")
        self._check_above_zero("layer_norm_epsilon", *(() if self.initializer_range is None else ("initializer_range",)))
        self._check_among(activation=ACTIVATIONS)
        if self.table_deviation is None:
            raise self._error("initializer_range", "must be a number: the tables start from it")

    @property
    def block_class(self) -> type[nn.Module]:
        """Arrangement of a layer, a class of `bertfam.layers.blocks`: norms before each sublayer."""
        return PreNormBlock

    @property
    def last_norm(self) -> bool:
        """True if a norm follows the last layer."""
        return True

    @property
    def num_kv_heads(self) -> int:
        """Number of key and value heads."""
        return self.num_heads

    @property
    def position_rows(self) -> int:
        """Rows of the position table, of which the last `max_length` are read; 0: no position table."""
        return self.max_length

    @property
    def table_width(self) -> int:
        """Width of the word table; one other than `hidden_size` has linear projections to it and back."""
        return self.hidden_size

    @property
    def table_deviation(self) -> float | None:
        """Standard deviation of the normal that the word table starts from."""
        return self.initializer_range

    @property
    def table_initializer(self) -> Initializer:
        """Initializer of the word table."""
        assert self.table_deviation is not None
        return normal(self.table_deviation)

    @property
    def position_deviation(self) -> float | None:
        """Standard deviation of the normal that the position table starts from."""
        return self.table_deviation

    @property
    def logit_scale(self) -> float:
        """Factor of the logits."""
        return 1.0

    @property
    def start(self) -> Start | None:
        """Start token of a prompt: none, prompts are read as they are."""
        return None

    @property
    def fine_tuning_lm(self) -> float:
        """Coefficient of the language model's loss in the published fine-tuning on labels (`FineTuning.lm`)."""
        return 0.0

    def initializer(self, inputs: int, *, residual: bool = False) -> Initializer:
        """Return the initializer of a kernel with `inputs` inputs; `residual`: its product is added to the residual stream."""
        deviation = inputs**-0.5 if self.initializer_range is None else self.initializer_range
        return normal(deviation / math.sqrt(2 * self.num_layers) if residual and self.scale_residual_init else deviation)

    def norm(self, execution: Execution) -> Maker:
        """Return the constructor of the norms."""
        return partial(LayerNorm, self.layer_norm_epsilon, execution.compute_dtype)

    def attentions(self, execution: Execution) -> tuple[Maker, ...]:
        """Return the constructors of the layers' self-attention: one for each layer, or one that all layers have."""
        attention = partial(
            SelfAttention,
            self.num_heads,
            self.head_dim,
            self.attention_dropout_rate,
            execution,
            self.initializer(self.hidden_size),
            self.initializer(self.num_heads * self.head_dim, residual=True),
            use_bias=self.use_bias,
            num_kv_heads=self.num_kv_heads,
            pattern=CAUSAL,
            scale=self.head_dim**-0.5,
        )
        return (attention,)

    def feed_forward(self, execution: Execution) -> Maker:
        """Return the constructor of the feed-forward networks."""
        return partial(
            FeedForward,
            self.feed_forward_size,
            self.activation,
            execution.compute_dtype,
            self.initializer(self.hidden_size),
            self.initializer(self.feed_forward_size, residual=True),
            use_bias=self.use_bias,
        )

    def embeddings(self) -> Table:
        """Return the word table."""
        return Table(self.padded_vocab_size, self.table_width, "vocab", self.table_initializer)

    def decoder(self, execution: Execution = _EXECUTION) -> "Decoder":
        """Return the decoder."""
        return Decoder(self, execution)

    def stacks(self, execution: Execution = _EXECUTION) -> dict[str, nn.Module]:
        """Return the decoder."""
        return {"decoder": self.decoder(execution)}

    def lm_head(self, execution: Execution = _EXECUTION) -> pretraining.LmHead:
        """Return the language-model head."""
        return pretraining.LmHead(
            self.require_vocab_size,
            tied=self.tie_embeddings,
            scale=self.logit_scale,
            kernel_init=self.table_initializer,
            execution=execution,
        )

    def classifier(self, outputs: int, execution: Execution = _EXECUTION) -> Classifier:
        """Return the head that predicts labels of a text from its last token."""
        deviation = self.initializer_range or self.hidden_size**-0.5
        layer = OutputLayer(outputs, dropout_rate=0.0, initializer_range=deviation, execution=execution, use_bias=False)
        return Classifier("last", layer)

    def flops(self, length: int, targets: int) -> int:
        """Return the matrix-product FLOPs of one row of one training step.

        3 n [L f + 2eV] for n targets, with f FLOPs of a token in each of L layers (`layer_flops`), tables e wide and V real
        tokens; and 4he for the projections between e and h if they differ.
        """
        h, e = self.hidden_size, self.table_width
        layers = self.num_layers * self.layer_flops(targets)
        return 3 * targets * (layers + 2 * e * self.require_vocab_size + (4 * h * e if e != h else 0))

    def layer_flops(self, targets: int) -> int:
        """Return the matrix-product FLOPs of one token in one layer, forward.

        4hq + 4hk + 2nq + 4hf for rows of n tokens, with heads of queries q wide in all and those of keys k.
        """
        h, f = self.hidden_size, self.feed_forward_size
        q, k = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return 4 * h * q + 4 * h * k + 2 * targets * q + 4 * h * f


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
        if config.position_rows:
            assert config.position_deviation is not None
            init = normal(config.position_deviation)
            table = Table(config.position_rows, config.hidden_size, "position", init, name="position")()
            unread = config.position_rows - config.max_length
            hidden = hidden + embed_positions(table[unread:], positions, tokens.shape[1], dtype)
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
        kinds = tuple({"attention": attention} for attention in config.attentions(self.execution))
        stack = Stack(self._block, config.num_layers, (), self.execution, kinds, name=AXIS)
        hidden, layers = stack(embedded, {"row": row}, per_layer, packed=packed, train=train, collect=collect)
        if config.last_norm:
            hidden = config.norm(self.execution)(name="norm")(hidden)
        collected = collected_outputs(layers, embedded, hidden, segment_ids, cache)
        if config.table_width != config.hidden_size:
            # [batch, length, embed] -> [batch, length, width]
            init = config.initializer(config.hidden_size)
            hidden = Dense((config.table_width,), ("embed", None), dtype, False, init, name="projection")(hidden)
        return hidden, collected

    @property
    def _block(self) -> Any:
        """Constructor of a layer, which takes its attention."""
        config = self.config
        return partial(
            config.block_class,
            feed_forward=config.feed_forward(self.execution),
            norm=config.norm(self.execution),
            attention_dropout_rate=config.dropout_rate,
            feed_forward_dropout_rate=config.dropout_rate,
        )
