"""T5 (Raffel et al. 2020): pre-norm encoder and decoder without biases, with relative positions; versions 1.0 and 1.1."""

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
from bertfam.layers.blocks import PreNormBlock
from bertfam.layers.dropout import Dropout
from bertfam.layers.embeddings import Table, embed_words
from bertfam.layers.execution import Execution
from bertfam.layers.feed_forward import FeedForward
from bertfam.layers.heads.classification import Classifier, DenseOutputLayer
from bertfam.layers.heads.pretraining import LmHead
from bertfam.layers.initializers import Initializer, normal
from bertfam.layers.norm import RMSNorm
from bertfam.layers.positions.relative_bias import RelativeBias
from bertfam.layers.stack import AXIS, Stack
from bertfam.models.encoder import CROSS_ATTENTION, check_collectable
from bertfam.models.encoder_decoder import EncoderDecoderSizes, StackSizes
from bertfam.models.language_model import collected_outputs, decoder_row
from bertfam.models.mapping import Entry, LanguageModelFamily, Layout, check_types, dense, language_model_architectures, stated

_EXECUTION = Execution()


@dataclass(frozen=True)
class T5BaseConfig(EncoderDecoderSizes):
    """Configuration of a model like T5: the base of T5's and mT5's.

    Initial values are normal with the published deviations, which take the place of scores divided by sqrt(head_dim): of queries
    (hidden_size head_dim)^-1/2, of keys, values, relative positions and a head of its own hidden_size^-1/2, of the attention's
    output (num_heads head_dim)^-1/2, of both ends of the feed-forward network (width of what goes in)^-1/2, of the word table 1.

    Attributes:
      vocab_size: real tokens; None takes the size of the run's vocabulary.
      table_rows: rows of the word table in files, where a checkpoint has more of them than tokens (published ones 32,128 for
        32,100); None: `vocab_size`.
      hidden_size: width of the hidden states.
      feed_forward_size: width of the feed-forward network's hidden layer.
      layer_norm_epsilon: added to the mean square.
      num_layers: of the decoder.
      num_encoder_layers: None: `num_layers`.
      num_heads, head_dim: of every attention; their product need not be `hidden_size`.
      activation: of the feed-forward network's hidden layer, or of its gate.
      gated: True if the hidden layer is multiplied by a second linear projection (Shazeer 2020).
      relative_buckets, relative_max_distance: of relative positions, see `bertfam.layers.positions.relative_bias.assign_buckets`.
      dropout_rate: on embeddings, on each sublayer's output, on the feed-forward network's hidden layer, on the output of both
        networks, and on attention probabilities by backends that can.
      tie_embeddings: whether the head uses the word table.

    Raises:
      UserError: when values clash.
    """

    objective_file: ClassVar[str] = "objectives/t5_random_spans.gin"

    num_layers: int = 12
    num_encoder_layers: int | None = None
    hidden_size: int = 768
    num_heads: int = 12
    head_dim: int = 64
    feed_forward_size: int = 3072
    activation: Activation = "relu"
    gated: bool = False
    relative_buckets: int = 32
    relative_max_distance: int = 128
    dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-6
    tie_embeddings: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = ("num_layers", "num_encoder_layers", "hidden_size", "num_heads", "head_dim", "feed_forward_size")
        self._check_at_least(**dict.fromkeys(counts, 1))
        # Half of the buckets are for one side in the encoder, and half of these for the shortest distances.
        self._check_at_least(relative_buckets=4, relative_max_distance=self.relative_buckets // 2 + 1)
        self._check_rates("dropout_rate")
        self._check_above_zero("layer_norm_epsilon")
        self._check_among(activation=ACTIVATIONS)

    @property
    def max_length(self) -> int | None:
        """No limit: no parameter depends on the length of a row."""
        return None

    @property
    def logit_scale(self) -> float:
        """Factor of the decoder's output before the head."""
        return 1.0

    @property
    def encoder_layers(self) -> int:
        """Layers of the encoder."""
        return self.num_encoder_layers or self.num_layers

    @property
    @override
    def encoder_sizes(self) -> StackSizes:
        return StackSizes(self.encoder_layers, self.num_heads * self.head_dim, self.feed_forward_size)

    @property
    @override
    def decoder_sizes(self) -> StackSizes:
        return StackSizes(self.num_layers, self.num_heads * self.head_dim, self.feed_forward_size)

    @property
    @override
    def feed_forward_matrices(self) -> int:
        return 3 if self.gated else 2

    @property
    def initializer_range(self) -> float:
        """Standard deviation that the kernels of heads on the output start from."""
        return self.hidden_size**-0.5

    @property
    def attention_dropout_rate(self) -> float:
        """Dropout rate of the attention probabilities."""
        return self.dropout_rate

    @property
    def start(self) -> Start:
        """Start token of the decoder."""
        return "pad"

    def embeddings(self) -> Table:
        """Return the word table."""
        return Table(self.padded_vocab_size, self.hidden_size, "vocab", normal(1.0))

    def classifier(self, outputs: int, execution: Execution = _EXECUTION) -> Classifier:
        """Return the head that predicts labels of a text from the decoder's output at its last token, </s>."""
        layer = DenseOutputLayer(outputs, dropout_rate=0.0, initializer_range=self.initializer_range, execution=execution)
        return Classifier("last", layer)

    @override
    def encoder(self, execution: Execution = _EXECUTION) -> "Encoder":
        return Encoder(self, execution)

    @override
    def decoder(self, execution: Execution = _EXECUTION) -> "Decoder":
        return Decoder(self, execution)

    def lm_head(self, execution: Execution = _EXECUTION) -> LmHead:
        """Return the language-model head."""
        return LmHead(
            self.require_vocab_size,
            tied=self.tie_embeddings,
            scale=self.logit_scale,
            kernel_init=_by_inputs(self.hidden_size),
            execution=execution,
        )


@dataclass(frozen=True)
class T5Config(T5BaseConfig):
    """Configuration of a T5; the defaults are T5-base, version 1.0. See `T5BaseConfig`.

    Version 1.1 is `activation` "gelu_tanh", `gated`, and neither `tie_embeddings` nor `scale_logits`.

    Attributes:
      scale_logits: whether the decoder's output is multiplied by hidden_size^-1/2 before the head.
    """

    published_vocab_size: ClassVar[int | None] = 32_100

    scale_logits: bool = True

    @property
    @override
    def logit_scale(self) -> float:
        return self.hidden_size**-0.5 if self.scale_logits else 1.0


def _by_inputs(*sizes: int) -> Initializer:
    """Return normal initial values with the deviation (product of sizes)^-1/2."""
    return normal(math.prod(sizes) ** -0.5)


class Embeddings(nn.Module):
    """dropout(word), and the bias of attention scores by relative positions, which all layers share."""

    config: T5BaseConfig
    execution: Execution = Execution()
    bidirectional: bool = True

    @nn.compact
    def __call__(
        self, words: jax.Array, tokens: jax.Array, *, cache: Cache | None = None, train: bool
    ) -> tuple[jax.Array, jax.Array]:
        """Embed int32[batch, length]: dtype[batch, length, embed], and bias float32[1, heads, length, keys or cache slots]."""
        config, length = self.config, tokens.shape[1]
        keys, offset = (length, None) if cache is None else (cache.keys.shape[2], cache.filled)
        bias = RelativeBias(
            config.num_heads,
            self.bidirectional,
            config.relative_buckets,
            config.relative_max_distance,
            _by_inputs(config.hidden_size),
            name="relative_bias",
        )(length, keys, offset)
        hidden = embed_words(words, tokens, self.execution.compute_dtype)
        hidden = Dropout(config.dropout_rate, name="dropout")(hidden, train=train)
        return nn.with_logical_constraint(hidden, ("batch", "length", None)), bias


class _Network(nn.Module):
    """Base of encoder and decoder."""

    config: T5BaseConfig
    execution: Execution = Execution()

    def _block(self, *, causal: bool) -> partial[PreNormBlock]:
        """Return the constructor of a layer, with cross-attention in the decoder."""
        config, dtype = self.config, self.execution.compute_dtype
        hidden, inner = config.hidden_size, config.num_heads * config.head_dim
        heads: dict[str, Any] = {
            "num_heads": config.num_heads,
            "head_dim": config.head_dim,
            "dropout_rate": config.dropout_rate,
            "execution": self.execution,
            "kernel_init": _by_inputs(hidden),
            "query_init": _by_inputs(hidden, config.head_dim),
            "output_init": _by_inputs(inner),
            "use_bias": False,
            "scale": 1.0,
        }
        feed_forward = partial(
            FeedForward,
            config.feed_forward_size,
            config.activation,
            dtype,
            _by_inputs(hidden),
            _by_inputs(config.feed_forward_size),
            gated=config.gated,
            use_bias=False,
            dropout_rate=config.dropout_rate,
        )
        return partial(
            PreNormBlock,
            attention=partial(SelfAttention, **heads, pattern=CAUSAL if causal else FULL),
            cross_attention=partial(CrossAttention, **heads) if causal else None,
            feed_forward=feed_forward,
            norm=partial(RMSNorm, config.layer_norm_epsilon, dtype),
            attention_dropout_rate=config.dropout_rate,
            feed_forward_dropout_rate=config.dropout_rate,
        )

    def _last(self, hidden: jax.Array, train: bool) -> jax.Array:
        hidden = RMSNorm(self.config.layer_norm_epsilon, self.execution.compute_dtype, name="norm")(hidden)
        return Dropout(self.config.dropout_rate, name="dropout")(hidden, train=train)


class Encoder(_Network):
    """Bidirectional T5 encoder."""

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

        Of `positions`, only their presence matters: it says that rows are packed.
        """
        check_collectable(collect)
        embedded, bias = Embeddings(self.config, self.execution, name="embeddings")(words, tokens, train=train)
        row = Row(segment_ids, bias=bias)
        hidden, layers = Stack(self._block(causal=False), self.config.encoder_layers, (), self.execution, name=AXIS)(
            embedded, {"row": row}, packed=positions is not None, train=train, collect=collect
        )
        hidden = self._last(hidden, train)
        return hidden, collected_outputs(layers, embedded, hidden, segment_ids)


class Decoder(_Network):
    """Causal T5 decoder with cross-attention."""

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

        Of `positions`, only their presence matters: it says that rows are packed.

        Distances of relative positions are those of places in the row, or of slots of the cache.
        """
        check_collectable(collect, *CROSS_ATTENTION)
        embeddings = Embeddings(self.config, self.execution, bidirectional=False, name="embeddings")
        embedded, bias = embeddings(words, tokens, cache=cache, train=train)
        hidden, layers = Stack(self._block(causal=True), self.config.num_layers, (), self.execution, name=AXIS)(
            embedded,
            {"row": decoder_row(segment_ids, cache, bias=bias), "encoded": Encoded(encoded, encoded_segment_ids)},
            {} if cache is None else {"cache": cache.layers},
            packed=positions is not None or cache is not None,
            train=train,
            collect=collect,
        )
        hidden = self._last(hidden, train)
        return hidden, collected_outputs(layers, embedded, hidden, segment_ids, cache)


# their name -> ours; these have no default that fits every model
_SIZES = {
    "vocab_size": "vocab_size",
    "num_layers": "num_encoder_layers",
    "d_model": "hidden_size",
    "num_heads": "num_heads",
    "d_kv": "head_dim",
    "d_ff": "feed_forward_size",
}
_WHOLE = {
    "num_decoder_layers": "num_layers",
    "relative_attention_num_buckets": "relative_buckets",
    "relative_attention_max_distance": "relative_max_distance",
}
_NUMBERS = {"dropout_rate": "dropout_rate", "layer_norm_epsilon": "layer_norm_epsilon"}
_VALUES = _SIZES | _WHOLE | _NUMBERS
# Gated, their "gelu" is the tanh approximation; without a gate it is erf.
_FEED_FORWARDS: dict[str, tuple[Activation, bool]] = {
    "relu": ("relu", False),
    "gelu": ("gelu", False),
    "gelu_new": ("gelu_tanh", False),
    "gated-relu": ("relu", True),
    "gated-gelu_python": ("gelu", True),
    "gated-gelu": ("gelu_tanh", True),
    "gated-silu": ("silu", True),
    "silu": ("silu", False),
}
# Where no vocabulary says them; their class would put its own.
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
_COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


def read_values(content: Mapping[str, Any]) -> dict[str, Any]:
    """Read config.json's content into the fields of a config like T5's, but for the head.

    Raises:
      UserError: for what is not computed here, or a size that is not stated.
    """
    check_types(content, _SIZES, (int,), required=True)
    check_types(content, _WHOLE, (int,))
    check_types(content, _NUMBERS, (int, float))
    check_types(content, ("tie_word_embeddings", "scale_decoder_outputs"), (bool,))
    if content.get("is_encoder_decoder") is False:
        raise UserError("config.json: is_encoder_decoder = False is not supported, only True")
    name = content.get("feed_forward_proj", "relu")
    if name not in list(_FEED_FORWARDS):
        raise UserError(f"config.json: feed_forward_proj = {name!r} is not supported, only {', '.join(_FEED_FORWARDS)}")
    activation, gated = _FEED_FORWARDS[name]
    values = {ours: content[theirs] for theirs, ours in _VALUES.items() if content.get(theirs) is not None}
    layers = {"num_layers": values["num_encoder_layers"]} | values
    if layers["num_layers"] == layers["num_encoder_layers"]:
        del layers["num_encoder_layers"]
    return layers | {"activation": activation, "gated": gated}


def config_from_huggingface(content: Mapping[str, Any]) -> T5Config:
    """Read config.json's content into T5Config.

    Version 1.1 is recognised by tie_word_embeddings = False, which to transformers 4 meant both an untied head and no scaling.
    transformers 5 writes the scaling as scale_decoder_outputs, and tie_word_embeddings = True always. Both load the head that the
    tensors hold: an untied one where it differs from the word table.
    """
    stated_tie = content.get("tie_word_embeddings") is not False
    scaled = content.get("scale_decoder_outputs")
    return T5Config(**read_values(content), tie_embeddings=True, scale_logits=stated_tie if scaled is None else scaled)


def write_values(config: T5BaseConfig) -> dict[str, Any]:
    """Write a config like T5's as config.json's content, without the model's type and "architectures"."""
    written = {how: name for name, how in _FEED_FORWARDS.items()}
    return {
        **dict.fromkeys(_TOKENS),
        **stated(config, _VALUES),
        "vocab_size": config.require_table_rows,
        "num_layers": config.encoder_layers,
        "num_decoder_layers": config.num_layers,
        "feed_forward_proj": written[config.activation, config.gated],
        "is_encoder_decoder": True,
        "tie_word_embeddings": config.tie_embeddings,
    }


def config_to_huggingface(config: T5Config) -> dict[str, Any]:
    """Write T5Config as config.json's content, without "architectures"."""
    return {
        "model_type": "t5",
        **write_values(config),
        # To transformers 4 the first means both; transformers 5 reads the second, and the head from the tensors.
        "tie_word_embeddings": config.tie_embeddings or config.scale_logits,
        "scale_decoder_outputs": config.scale_logits,
    }


def entries(config: T5BaseConfig) -> tuple[Entry, ...]:
    """Return the entries of every parameter of a model like T5."""
    untied = Entry("lm_head/kernel", "lm_head.weight", "matrix", vocabulary=True)
    return (
        Entry("embeddings/table", "shared.weight", "matrix", vocabulary=True),
        *_stack(config, "encoder", config.encoder_layers, ("attention", "feed_forward")),
        *_stack(config, "decoder", config.num_layers, ("attention", "cross_attention", "feed_forward")),
        *dense("classifier/dense", "classification_head.dense"),
        *dense("classifier/output", "classification_head.out_proj"),
        *([] if config.tie_embeddings else [untied]),
    )


_ATTENTIONS = {"attention": "SelfAttention", "cross_attention": "EncDecAttention"}


def _stack(config: T5BaseConfig, stack: str, layers: int, sublayers: tuple[str, ...]) -> tuple[Entry, ...]:
    """Return the entries of every parameter of the encoder or the decoder: sublayers are numbered there."""
    found = [
        Entry(
            f"{stack}/embeddings/relative_bias/table",
            f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            "matrix",
        ),
        Entry(f"{stack}/norm/scale", f"{stack}.final_layer_norm.weight", "vector"),
    ]

    def add(ours: str, theirs: str, layout: Layout) -> None:
        names = (f"{stack}/layers/{ours}", f"{stack}.block.{{layer}}.layer.{theirs}.weight")
        found.append(Entry(*names, layout, layers=layers))

    for number, name in enumerate(sublayers):
        add(f"{name}_norm/scale", f"{number}.layer_norm", "vector")
        if name in _ATTENTIONS:
            for ours in ("query", "key", "value"):
                add(f"{name}/{ours}/kernel", f"{number}.{_ATTENTIONS[name]}.{ours[0]}", "linear")
            add(f"{name}/output/kernel", f"{number}.{_ATTENTIONS[name]}.o", "linear_from_heads")
        else:
            first = "wi_0" if config.gated else "wi"
            add(f"{name}/intermediate/kernel", f"{number}.DenseReluDense.{first}", "linear")
            if config.gated:
                add(f"{name}/linear/kernel", f"{number}.DenseReluDense.wi_1", "linear")
            add(f"{name}/output/kernel", f"{number}.DenseReluDense.wo", "linear")
    return tuple(found)


T5 = LanguageModelFamily(
    model_type="t5",
    config=T5Config,
    objective="objectives/t5_random_spans.gin",
    prefix="",
    architectures=language_model_architectures(
        "T5ForConditionalGeneration", ("encoder", "decoder"), classifier="T5ForSequenceClassification"
    ),
    config_from_huggingface=config_from_huggingface,
    config_to_huggingface=config_to_huggingface,
    entries=entries,
    tied=("lm_head.weight", "shared.weight"),
    # A table that old files have for the attention to the encoder, and that nothing reads.
    buffers=("EncDecAttention.relative_attention_bias.weight",),
    old_names=dict.fromkeys(_COPIES, "shared.weight"),
    classifier_prefix="transformer.",
)
