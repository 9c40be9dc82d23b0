"""BART (Lewis et al. 2020): post-norm encoder and decoder with learned positions and biases everywhere."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import flax.linen as nn
import jax
from typing_extensions import override

from bertfam.errors import UserError
from bertfam.features import Start
from bertfam.kernels.attention.patterns import CAUSAL, FULL
from bertfam.layers.activations import ACTIVATIONS, Activation
from bertfam.layers.attention.dot_product import CrossAttention, Encoded, Row, SelfAttention
from bertfam.layers.attention.key_value_cache import Cache
from bertfam.layers.blocks import PostNormBlock
from bertfam.layers.dropout import Dropout
from bertfam.layers.embeddings import Table, check_length, embed_positions, embed_words
from bertfam.layers.execution import Execution
from bertfam.layers.feed_forward import FeedForward
from bertfam.layers.heads.classification import Classifier, DenseOutputLayer
from bertfam.layers.heads.pretraining import LmHead
from bertfam.layers.initializers import Initializer, normal
from bertfam.layers.norm import LayerNorm
from bertfam.layers.stack import AXIS, Stack
from bertfam.models.encoder import CROSS_ATTENTION, check_collectable
from bertfam.models.encoder_decoder import EncoderDecoderSizes, StackSizes
from bertfam.models.language_model import check_positions, collected_outputs, decoder_row
from bertfam.models.mapping import (
    WRITTEN_ACTIVATIONS,
    Entry,
    LanguageModelFamily,
    check_types,
    dense,
    language_model_architectures,
    norm,
    read_activation,
    stated,
)
from bertfam.models.sizes import Sizes

# Rows of the position tables that lie before that of position 0 and are never read, whatever the padding's id is.
POSITION_OFFSET = 2
_EPSILON = 1e-5
_EXECUTION = Execution()


@dataclass(frozen=True)
class BartConfig(EncoderDecoderSizes, Sizes):
    """Configuration of a BART; the defaults are BART-base.

    Attributes:
      vocab_size: real tokens; None takes the size of the run's vocabulary.
      table_rows: rows of the word table in files, where a checkpoint has more of them than tokens; None: `vocab_size`.
      num_layers, num_heads, feed_forward_size: sizes of the decoder.
      num_encoder_layers, num_encoder_heads, encoder_feed_forward_size: sizes of the encoder; None: those of the decoder.
      max_length: rows of each of the two position tables that are read, the longest row in tokens.
      activation: "gelu" (erf), "gelu_tanh" or "relu".
      dropout_rate: on embeddings and on each sublayer's output.
      attention_dropout_rate: on attention probabilities, by backends that can.
      feed_forward_dropout_rate: on the hidden layer of the feed-forward network.
      initializer_range: deviation of the normal distribution that all kernels and tables start from.
      scale_embeddings: whether word embeddings are multiplied by sqrt(hidden_size).
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
        if self.head_size is None and self.hidden_size % self.encoder_heads:
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
    @override
    def encoder_sizes(self) -> StackSizes:
        return StackSizes(self.encoder_layers, self.encoder_heads * self.head_dim_of(self.encoder_heads), self.encoder_size)

    @property
    @override
    def decoder_sizes(self) -> StackSizes:
        return StackSizes(self.num_layers, self.attention_size, self.feed_forward_size)

    def head_dim_of(self, num_heads: int) -> int:
        """Return the width of each of the heads of an attention."""
        return self.head_size or self.hidden_size // num_heads

    @property
    def initializer(self) -> Initializer:
        """Initializer of all kernels and tables."""
        return normal(self.initializer_range)

    @property
    def start(self) -> Start:
        """Start token of the decoder."""
        return "eos"

    def embeddings(self) -> Table:
        """Return the word table."""
        return Table(self.padded_vocab_size, self.hidden_size, "vocab", self.initializer)

    @override
    def encoder(self, execution: Execution = _EXECUTION) -> "Encoder":
        return Encoder(self, execution)

    @override
    def decoder(self, execution: Execution = _EXECUTION) -> "Decoder":
        return Decoder(self, execution)

    def lm_head(self, execution: Execution = _EXECUTION) -> LmHead:
        """Return the language-model head; the bias of each word comes from the checkpoint and is not trained."""
        return LmHead(
            self.require_vocab_size,
            tied=self.tie_embeddings,
            use_bias=True,
            kernel_init=self.initializer,
            execution=execution,
        )

    def classifier(self, outputs: int, execution: Execution = _EXECUTION) -> Classifier:
        """Return the head that predicts labels of a text from the decoder's output at its last token, </s>."""
        layer = DenseOutputLayer(outputs, dropout_rate=0.0, initializer_range=self.initializer_range, execution=execution)
        return Classifier("last", layer)


class Embeddings(nn.Module):
    """dropout(LN(word + position))."""

    config: BartConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, words: jax.Array, tokens: jax.Array, *, positions: jax.Array | None, train: bool) -> jax.Array:
        """Embed tokens: int32[batch, length] each -> dtype[batch, length, embed]."""
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
    """Base of encoder and decoder."""

    config: BartConfig
    execution: Execution = Execution()

    def _block(self, num_heads: int, feed_forward_size: int, *, causal: bool) -> partial[PostNormBlock]:
        """Return the constructor of a layer, with cross-attention in the decoder."""
        config, dtype = self.config, self.execution.compute_dtype
        init = config.initializer
        heads = (num_heads, config.head_dim_of(num_heads), config.attention_dropout_rate, self.execution, init)
        return partial(
            PostNormBlock,
            attention=partial(SelfAttention, *heads, pattern=CAUSAL if causal else FULL),
            cross_attention=partial(CrossAttention, *heads) if causal else None,
            feed_forward=partial(
                FeedForward, feed_forward_size, config.activation, dtype, init, dropout_rate=config.feed_forward_dropout_rate
            ),
            norm=partial(LayerNorm, _EPSILON, dtype),
            attention_dropout_rate=config.dropout_rate,
            feed_forward_dropout_rate=config.dropout_rate,
        )


class Encoder(_Network):
    """Bidirectional BART encoder."""

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
        """Run the encoder; see `bertfam.models.language_model.LanguageModelConfig` for arguments and results.

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
        return hidden, collected_outputs(layers, embedded, hidden, segment_ids)


class Decoder(_Network):
    """Causal BART decoder with cross-attention."""

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
        """Run the decoder; see `bertfam.models.language_model.LanguageModelConfig` for arguments and results.

        Raises:
          UserError: when rows, or the slots of the cache, are more than `max_length`.
        """
        check_collectable(collect, *CROSS_ATTENTION)
        config = self.config
        check_positions(cache, positions)
        check_length(tokens.shape[1] if cache is None else cache.keys.shape[2], config.max_length)
        embedded = Embeddings(config, self.execution, name="embeddings")(words, tokens, positions=positions, train=train)
        block = self._block(config.num_heads, config.feed_forward_size, causal=True)
        hidden, layers = Stack(block, config.num_layers, (), self.execution, name=AXIS)(
            embedded,
            {"row": decoder_row(segment_ids, cache), "encoded": Encoded(encoded, encoded_segment_ids)},
            {} if cache is None else {"cache": cache.layers},
            packed=positions is not None or cache is not None,
            train=train,
            collect=collect,
        )
        return hidden, collected_outputs(layers, embedded, hidden, segment_ids, cache)


# their name -> ours; these have no default that fits every model
_SIZES = {
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_length",
    "d_model": "hidden_size",
    "encoder_layers": "num_encoder_layers",
    "encoder_attention_heads": "num_encoder_heads",
    "encoder_ffn_dim": "encoder_feed_forward_size",
    "decoder_layers": "num_layers",
    "decoder_attention_heads": "num_heads",
    "decoder_ffn_dim": "feed_forward_size",
}
_NUMBERS = {
    "dropout": "dropout_rate",
    "attention_dropout": "attention_dropout_rate",
    "activation_dropout": "feed_forward_dropout_rate",
    "init_std": "initializer_range",
}
_FLAGS = {"scale_embedding": "scale_embeddings", "tie_word_embeddings": "tie_embeddings"}
_VALUES = _SIZES | _NUMBERS | _FLAGS
# ours, where None is the decoder's -> the decoder's
_ENCODER = {
    "num_encoder_layers": "num_layers",
    "num_encoder_heads": "num_heads",
    "encoder_feed_forward_size": "feed_forward_size",
}
# Where no vocabulary says them; their class would put those of its own, and end every text that is cut off by the last.
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_eos_token_id")
# What changes what is computed, as mBART's files of old have it under the same model_type, and the values that are BART.
_ONLY = {
    "is_encoder_decoder": (True, None),
    "normalize_before": (False, None),
    "add_final_layer_norm": (False, None),
    "normalize_embedding": (True, None),
    "static_position_embeddings": (False, None),
    "add_bias_logits": (False, None),
    "extra_pos_embeddings": (2, None),
    "encoder_layerdrop": (0, None),
    "decoder_layerdrop": (0, None),
}


def config_from_huggingface(content: Mapping[str, Any]) -> BartConfig:
    """Read config.json's content into BartConfig; raises UserError for any other variant of BART."""
    for name, allowed in _ONLY.items():
        if content.get(name) not in allowed:
            raise UserError(f"config.json: {name} = {content[name]!r} is not supported, only {allowed[0]!r}")
    check_types(content, _SIZES, (int,), required=True)
    check_types(content, _NUMBERS, (int, float))
    check_types(content, _FLAGS, (bool,))
    activation = read_activation(content, "activation_function", "gelu")
    values = {ours: content[theirs] for theirs, ours in _VALUES.items() if content.get(theirs) is not None}
    for name, decoders in _ENCODER.items():
        if values[name] == values[decoders]:
            del values[name]
    # Rates that are not stated are 0 in their class.
    rates = {"attention_dropout_rate": 0.0, "feed_forward_dropout_rate": 0.0}
    return BartConfig(**(rates | values), activation=activation)


def config_to_huggingface(config: BartConfig) -> dict[str, Any]:
    """Write BartConfig as config.json's content, without "architectures"."""
    return {
        "model_type": "bart",
        **dict.fromkeys(_TOKENS),
        **stated(config, _VALUES),
        "vocab_size": config.require_table_rows,
        "encoder_layers": config.encoder_layers,
        "encoder_attention_heads": config.encoder_heads,
        "encoder_ffn_dim": config.encoder_size,
        "activation_function": WRITTEN_ACTIVATIONS[config.activation],
        "is_encoder_decoder": True,
        # Without it transformers 5 gives each network a word table of its own; a head of its own is seen in the tensors.
        "tie_word_embeddings": True,
    }


def entries(config: BartConfig) -> tuple[Entry, ...]:
    """Return the entries of every parameter."""
    untied = Entry("lm_head/kernel", "lm_head.weight", "matrix", vocabulary=True)
    return (
        Entry("embeddings/table", "model.shared.weight", "matrix", vocabulary=True),
        *_stack("encoder", config.encoder_layers, {"attention": "self_attn"}),
        *_stack("decoder", config.num_layers, {"attention": "self_attn", "cross_attention": "encoder_attn"}),
        *dense("classifier/dense", "classification_head.dense"),
        *dense("classifier/output", "classification_head.out_proj"),
        Entry("lm_head/bias", "final_logits_bias", "row", vocabulary=True, optional=True),
        *([] if config.tie_embeddings else [untied]),
    )


def _stack(stack: str, layers: int, attentions: Mapping[str, str]) -> tuple[Entry, ...]:
    """Return the entries of every parameter of the encoder or the decoder."""
    ours, theirs = f"{stack}/layers/", f"model.{stack}.layers.{{layer}}."
    found: list[Entry] = []
    for name, their_name in attentions.items():
        for which in ("query", "key", "value"):
            found += dense(f"{ours}{name}/{which}", f"{theirs}{their_name}.{which[0]}_proj")
        found += dense(f"{ours}{name}/output", f"{theirs}{their_name}.out_proj", "linear_from_heads")
        found += norm(f"{ours}{name}_norm", f"{theirs}{their_name}_layer_norm")
    found += dense(f"{ours}feed_forward/intermediate", f"{theirs}fc1")
    found += dense(f"{ours}feed_forward/output", f"{theirs}fc2")
    found += norm(f"{ours}feed_forward_norm", f"{theirs}final_layer_norm")
    return (
        Entry(f"{stack}/embeddings/position/table", f"model.{stack}.embed_positions.weight", "matrix"),
        *norm(f"{stack}/embeddings/norm", f"model.{stack}.layernorm_embedding"),
        *(Entry(entry.ours, entry.theirs, entry.layout, layers=layers) for entry in found),
    )


BART = LanguageModelFamily(
    model_type="bart",
    config=BartConfig,
    objective="objectives/bart.gin",
    prefix="model.",
    architectures=language_model_architectures(
        "BartForConditionalGeneration", ("encoder", "decoder"), classifier="BartForSequenceClassification"
    ),
    config_from_huggingface=config_from_huggingface,
    config_to_huggingface=config_to_huggingface,
    entries=entries,
    tied=("lm_head.weight", "model.shared.weight"),
    buffers=(),
    old_names=dict.fromkeys(("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"), "shared.weight"),
)
