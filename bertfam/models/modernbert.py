"""ModernBERT (Warner, Chaffin, Clavié et al. 2024): pre-LN, no biases, rotary positions, GeGLU, alternating local attention."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, ClassVar, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
from typing_extensions import override

from bertfam.errors import UserError
from bertfam.kernels.attention.patterns import CAUSAL, FULL, Pattern, Window
from bertfam.layers.activations import ACTIVATIONS, Activation
from bertfam.layers.attention.dot_product import Row, SelfAttention
from bertfam.layers.blocks import PreNormBlock
from bertfam.layers.dropout import Dropout
from bertfam.layers.embeddings import Table, check_length, embed_words
from bertfam.layers.execution import Execution
from bertfam.layers.feed_forward import FeedForward
from bertfam.layers.heads import pretraining
from bertfam.layers.heads.classification import Classifier, DenseOutputLayer, Pooling
from bertfam.layers.initializers import truncated_normal
from bertfam.layers.norm import LayerNorm
from bertfam.layers.stack import AXIS, FIRST, Stack, joined, shortest_period
from bertfam.models.encoder import check_collectable
from bertfam.models.mapping import (
    CLASSIFIERS,
    WRITTEN_ACTIVATIONS,
    Entry,
    Family,
    Layout,
    check_is,
    check_types,
    dense,
    read_activation,
)
from bertfam.models.network import Kind
from bertfam.models.sizes import Sizes

LayerType = Literal["global", "local"]
_EXECUTION = Execution()


@dataclass(frozen=True)
class ModernBertConfig(Sizes):
    """Configuration of a ModernBERT; the defaults are ModernBERT-base.

    Attributes:
      vocab_size: real tokens; None takes the size of the run's vocabulary.
      table_rows: rows of the word table in files, where a checkpoint has more of them than tokens; None: `vocab_size`.
      feed_forward_size: width of the gated hidden layer; the projection to it is twice as wide.
      max_length: the longest row in tokens. Positions are turned into angles, so no parameter depends on it.
      global_every: layers 0, n, 2n, ... attend to all tokens, the others to those of the window.
      layer_types: "global" or "local" for each layer, where it is another pattern; None: as `global_every` has it.
      window: of local attention, both sides together: `|i - j| <= window / 2`.
      global_theta, local_theta: base of the rotary positions in layers of each type.
      activation: of the gated half of the hidden layer: "gelu" (erf), "gelu_tanh" or "relu".
      head_activation: that of the masked-token head; None: `activation`.
      embedding_dropout_rate: on the embeddings.
      attention_dropout_rate: on the attention's probabilities by backends that can, and on its output where that has no rate of
        its own.
      attention_output_dropout_rate: on the attention's output; None: `attention_dropout_rate`. It is 0.1 in pretraining as
        published (table 3), where all other rates are 0.
      feed_forward_dropout_rate: on the hidden layer of the feed-forward network.
      layer_norm_epsilon: added to the variance.
      initializer_range: deviation of the truncated normal that kernels and tables start from; kernels whose products are added
        to the residual sum have 1 / sqrt(2 num_layers) of it ("Megatron" initial values), and so has the head's, as in
        transformers.
      tie_embeddings: whether the masked-token head uses the word table.
      decoder_bias: whether the masked-token head has a bias for each word.
      classifier_pooling: hidden state that a classifier of texts reads: "cls", that of [CLS], or "mean", the mean of all tokens'.
      classifier_dropout_rate: before the outputs of a classifier of texts.
      causal: whether a token attends to itself and those before it alone, as in a causal LM.

    Raises:
      UserError: when values clash.
    """

    objective_file: ClassVar[str] = "objectives/modernbert.gin"
    kind: ClassVar[Kind] = "encoder"
    published_vocab_size: ClassVar[int | None] = 50_368
    without_parameters: ClassVar[frozenset[str]] = frozenset({"global_theta", "local_theta", "causal"})

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
    attention_output_dropout_rate: float | None = None
    feed_forward_dropout_rate: float = 0.0
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    tie_embeddings: bool = True
    decoder_bias: bool = True
    classifier_pooling: Pooling = "cls"
    classifier_dropout_rate: float = 0.0
    causal: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least(global_every=1, window=1)
        self._check_rates(
            "embedding_dropout_rate", "attention_dropout_rate", "feed_forward_dropout_rate", "classifier_dropout_rate"
        )
        self._check_among(classifier_pooling=get_args(Pooling))
        if self.attention_output_dropout_rate is not None:
            self._check_rates("attention_output_dropout_rate")
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
        """Type of each layer."""
        if self.layer_types is not None:
            return self.layer_types
        return tuple("local" if layer % self.global_every else "global" for layer in range(self.num_layers))

    @property
    @override
    def layer_fields(self) -> Mapping[str, tuple[Any, ...]]:
        return {"layer_types": self.types}

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """Attention patterns of the layers, each once."""
        return tuple(dict.fromkeys(self.pattern_of(name) for name in self.types))

    def pattern_of(self, layer_type: LayerType) -> Pattern:
        """Return the attention pattern of a type of layer."""
        half = self.window // 2
        if layer_type == "local":
            return Window(half, 0 if self.causal else half)
        return CAUSAL if self.causal else FULL

    @property
    def output_initializer_range(self) -> float:
        """Deviation of the kernels whose products are added to the residual sum, and of the head's."""
        return self.initializer_range / math.sqrt(2 * self.num_layers)

    def encoder(self, execution: Execution = _EXECUTION) -> "Encoder":
        """Return the encoder."""
        return Encoder(self, execution)

    def masked_lm_head(self, execution: Execution = _EXECUTION) -> pretraining.MaskedLmHead:
        """Return the masked-token head."""
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

    def classifier(self, outputs: int, execution: Execution = _EXECUTION) -> Classifier:
        """Return the head that predicts labels of a text: that of masked tokens, dropout and a linear layer."""
        output = DenseOutputLayer(
            outputs,
            self.head_activation or self.activation,
            dropout_rate=self.classifier_dropout_rate,
            layer_norm_epsilon=self.layer_norm_epsilon,
            use_bias=False,
            initializer_range=self.output_initializer_range,
            execution=execution,
        )
        return Classifier(self.classifier_pooling, output)

    def token_classifier(self, outputs: int, execution: Execution = _EXECUTION) -> Classifier:
        """Return the head that predicts a label of each token: the layers of `classifier`."""
        return self.classifier(outputs, execution)._replace(pooling=None)

    def span_classifier(self, execution: Execution = _EXECUTION) -> Classifier:
        """Return the head that scores each token as the first and as the last one of a span: the layers of `classifier`."""
        return self.token_classifier(2, execution)

    def choice_classifier(self, execution: Execution = _EXECUTION) -> Classifier:
        """Return the head that scores a choice, a text of its own: the layers of `classifier`."""
        return self.classifier(1, execution)

    def flops(self, length: int, predictions: int) -> int:
        """Return the matrix-product FLOPs of one row of one training step.

        3 [sum over layers of (s (8hi + 6hf) + 4ip) + P (2h^2 + 2hV)], with heads i wide together, and p
        the pairs of tokens in the layer's pattern. (What a backend computes beyond it, and masks, does not count.)
        """
        h, i, f = self.hidden_size, self.attention_size, self.feed_forward_size
        pairs = [self.pattern_of(name).pairs(length) for name in self.types]
        layers = sum(length * (8 * h * i + 6 * h * f) + 4 * i * p for p in pairs)
        return 3 * (layers + predictions * (2 * h * h + 2 * h * self.require_vocab_size))


class Embeddings(nn.Module):
    """dropout(LN(word))."""

    config: ModernBertConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, tokens: jax.Array, *, train: bool) -> jax.Array:
        """Embed tokens: int32[batch, length] -> dtype[batch, length, embed]."""
        config, dtype = self.config, self.execution.compute_dtype
        normal = truncated_normal(config.initializer_range)
        words = Table(config.padded_vocab_size, config.hidden_size, "vocab", normal, name="word")()
        hidden = LayerNorm(config.layer_norm_epsilon, dtype, use_bias=False, name="norm")(embed_words(words, tokens, dtype))
        hidden = Dropout(config.embedding_dropout_rate, name="dropout")(hidden, train=train)
        return nn.with_logical_constraint(hidden, ("batch", "length", None))


class Encoder(nn.Module):
    """Embeddings, the first layer, the stack of the others, and a last LayerNorm.

    The first layer has no LayerNorm before its attention, the embeddings' own being there; the others differ in their attention
    alone, whose pattern continues from layer 1 in periods (local, local, global).
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
        """Run the encoder.

        Args:
          tokens: int32[batch, length].
          segment_ids: int32[batch, length], which packed example; 0 = padding. A query sees keys of its own segment.
          positions: int32[batch, length], restarting at 0 in each example, for packed rows. None promises one example
            a row, segment ids 1 and then 0.
          token_type_ids: int32[batch, length], unused.
          train: whether dropout is on; needs a "dropout" key where a rate is above 0.
          collect: names among "hidden_states", "attention_probs" (before dropout), "attention_queries" and "attention_keys".

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
        normal, output_rate = truncated_normal(config.initializer_range), config.attention_output_dropout_rate
        feed_forward = partial(FeedForward, config.feed_forward_size, config.activation, dtype, normal, output_init)
        block = partial(
            PreNormBlock,
            feed_forward=partial(feed_forward, gated=True, use_bias=False, dropout_rate=config.feed_forward_dropout_rate),
            norm=partial(LayerNorm, config.layer_norm_epsilon, dtype, use_bias=False),
            attention_dropout_rate=config.attention_dropout_rate if output_rate is None else output_rate,
        )
        arrays = {"row": Row(segment_ids, positions)}
        static: dict[str, Any] = {"packed": positions is not None, "train": train, "collect": collect}
        first, *others = self._kinds()
        without_norm = partial(block, attention_norm=False)
        hidden, collected = Stack(without_norm, 1, (), self.execution, (first,), name=FIRST)(embedded, arrays, **static)
        if others:
            stack = Stack(block, len(others), (), self.execution, shortest_period(others), name=AXIS)
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
            name: partial(attention, pattern=config.pattern_of(name), rotary_theta=theta[name]) for name in get_args(LayerType)
        }
        return [{"attention": makers[name]} for name in config.types]


# their name -> ours; these have no default that fits every model
_SIZES = {
    "vocab_size": "vocab_size",
    "num_hidden_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_heads",
    "intermediate_size": "feed_forward_size",
    "max_position_embeddings": "max_length",
}
_WHOLE = {"local_attention": "window"}
_NUMBERS = {
    "embedding_dropout": "embedding_dropout_rate",
    "attention_dropout": "attention_dropout_rate",
    "mlp_dropout": "feed_forward_dropout_rate",
    "classifier_dropout": "classifier_dropout_rate",
    "norm_eps": "layer_norm_epsilon",
    "initializer_range": "initializer_range",
}
_FLAGS = {"tie_word_embeddings": "tie_embeddings", "decoder_bias": "decoder_bias"}
_WORDS = {"classifier_pooling": "classifier_pooling"}
_VALUES = _SIZES | _WHOLE | _NUMBERS | _FLAGS | _WORDS
# the masked-token head goes by the classifier's name
_ACTIVATIONS = {"hidden_activation": "activation", "classifier_activation": "head_activation"}
_TOKENS = ("bos_token_id", "cls_token_id", "eos_token_id", "pad_token_id", "sep_token_id")
_NO_BIAS = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias")
_TYPES: dict[str, LayerType] = {"full_attention": "global", "sliding_attention": "local"}
_THETAS = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}


def config_from_huggingface(content: Mapping[str, Any]) -> ModernBertConfig:
    """Read config.json's content into ModernBertConfig, of transformers 4.48 and of 5 alike.

    Raises:
      UserError: for an unsupported option, or a size that is missing.
    """
    for name in _NO_BIAS:
        if content.get(name):
            raise UserError(f"config.json: {name} = {content[name]!r} is not supported, only False")
    check_types(content, _SIZES, (int,), required=True)
    check_types(content, _WHOLE, (int,))
    check_types(content, _NUMBERS, (int, float))
    check_types(content, _FLAGS, (bool,))
    check_types(content, _WORDS, (str,))
    values = {ours: content[theirs] for theirs, ours in _VALUES.items() if content.get(theirs) is not None}
    for theirs, ours in _ACTIVATIONS.items():
        activation = read_activation(content, theirs, "gelu")
        values[ours] = activation
    return ModernBertConfig(**values, **_thetas(content), **_pattern(content, values["num_layers"]))


def _thetas(content: Mapping[str, Any]) -> dict[str, Any]:
    """Read the rotary bases: `rope_parameters` (transformers 5), or `global_rope_theta` and `local_rope_theta` (before)."""
    if content.get("rope_scaling"):
        raise UserError(f"config.json: rope_scaling = {content['rope_scaling']!r} is not supported, only None")
    stated = content.get("rope_parameters") or {}
    if not isinstance(stated, dict) or not set(stated) <= set(_THETAS) or not all(isinstance(v, dict) for v in stated.values()):
        raise UserError(f"config.json: rope_parameters must be stated for {' and '.join(_THETAS)}")
    thetas = {}
    for layer_type, old in _THETAS.items():
        parameters = stated.get(layer_type) or {}
        if parameters.get("rope_type", "default") != "default":
            kind = parameters["rope_type"]
            raise UserError(f"config.json: rope_parameters of {layer_type} have rope_type {kind!r}, only 'default' is supported")
        theta = parameters.get("rope_theta", content.get(old))
        if theta is not None:
            if type(theta) not in (int, float):
                raise UserError(f"config.json: rope_theta of {layer_type} = {theta!r} must be a number")
            thetas[f"{_TYPES[layer_type]}_theta"] = float(theta)
    return thetas


def _pattern(content: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """Read the layer pattern: `layer_types` if present, as a period where possible; else `global_attn_every_n_layers`."""
    every, names = content.get("global_attn_every_n_layers", 3), content.get("layer_types")
    if type(every) is not int:
        raise UserError(f"config.json: global_attn_every_n_layers = {every!r} must be a whole number")
    if names is None:
        return {"global_every": every}
    if not isinstance(names, list) or not set(map(str, names)) <= set(_TYPES):
        raise UserError(f"config.json: layer_types = {names!r} must be a list of {' and '.join(_TYPES)}")
    types = tuple(_TYPES[name] for name in names)
    for period in (every, *range(1, layers + 1)) if len(types) == layers else ():
        if period > 0 and types == tuple("local" if layer % period else "global" for layer in range(layers)):
            return {"global_every": period}
    return {"layer_types": types}


def config_to_huggingface(config: ModernBertConfig) -> dict[str, Any]:
    """Write ModernBertConfig as config.json's content for transformers 4.48 and later, without "architectures".

    Raises:
      UserError: for what the class cannot be.
    """
    check_is(config, ModernBertConfig, "causal")
    thetas = {"full_attention": config.global_theta, "sliding_attention": config.local_theta}
    written = {ours: theirs for theirs, ours in _TYPES.items()}
    return {
        "model_type": "modernbert",
        # where no vocabulary says them; their class would put its own, of 50,368 pieces
        **dict.fromkeys(_TOKENS),
        **{theirs: getattr(config, ours) for theirs, ours in _VALUES.items()},
        **{name: False for name in _NO_BIAS},
        "vocab_size": config.require_table_rows,
        "hidden_activation": WRITTEN_ACTIVATIONS[config.activation],
        "classifier_activation": WRITTEN_ACTIVATIONS[config.head_activation or config.activation],
        "initializer_cutoff_factor": 2.0,
        "global_attn_every_n_layers": config.global_every,
        "layer_types": [written[name] for name in config.types],
        "rope_parameters": {name: {"rope_type": "default", "rope_theta": theta} for name, theta in thetas.items()},
        **{_THETAS[name]: theta for name, theta in thetas.items()},
    }


def entries(config: ModernBertConfig) -> tuple[Entry, ...]:
    """Return the entries of every parameter of the encoder and of the masked-token head."""
    others = config.num_layers - 1
    untied = [Entry("mlm_head/decoder", "decoder.weight", "matrix", vocabulary=True)]
    return (
        Entry("encoder/embeddings/word/table", "model.embeddings.tok_embeddings.weight", "matrix", vocabulary=True),
        Entry("encoder/embeddings/norm/scale", "model.embeddings.norm.weight", "vector"),
        *_layer_entries("first_layers", 0, 1),
        *(_layer_entries("layers", 1, others) if others else ()),
        Entry("encoder/norm/scale", "model.final_norm.weight", "vector"),
        *_transform_entries("mlm_head"),
        *([Entry("mlm_head/bias", "decoder.bias", "vector", vocabulary=True)] if config.decoder_bias else []),
        *chain.from_iterable((*_transform_entries(part), *dense(f"{part}/output", "classifier")) for part in sorted(CLASSIFIERS)),
        *([] if config.tie_embeddings else untied),
    )


def _transform_entries(part: str) -> tuple[Entry, Entry]:
    """Return the entries of the dense layer and the LayerNorm with which every head begins."""
    return Entry(f"{part}/dense/kernel", "head.dense.weight", "linear"), Entry(f"{part}/norm/scale", "head.norm.weight", "vector")


def _layer_entries(stack: str, first: int, count: int) -> tuple[Entry, ...]:
    """Return the entries of every parameter of `count` layers from their layer `first` on."""

    def entry(ours: str, theirs: str, layout: Layout, part_of: tuple[int, int] = (0, 1)) -> Entry:
        names = (f"encoder/{stack}/{ours}", f"model.layers.{{layer}}.{theirs}.weight")
        return Entry(*names, layout, part_of=part_of, first_layer=first, layers=count)

    return (
        *([entry("attention_norm/scale", "attn_norm", "vector")] if first else []),
        entry("attention/query/kernel", "attn.Wqkv", "linear", (0, 3)),
        entry("attention/key/kernel", "attn.Wqkv", "linear", (1, 3)),
        entry("attention/value/kernel", "attn.Wqkv", "linear", (2, 3)),
        entry("attention/output/kernel", "attn.Wo", "linear_from_heads"),
        entry("feed_forward_norm/scale", "mlp_norm", "vector"),
        entry("feed_forward/intermediate/kernel", "mlp.Wi", "linear", (0, 2)),
        entry("feed_forward/linear/kernel", "mlp.Wi", "linear", (1, 2)),
        entry("feed_forward/output/kernel", "mlp.Wo", "linear"),
    )


MODERNBERT = Family(
    model_type="modernbert",
    config=ModernBertConfig,
    objective="objectives/modernbert.gin",
    prefix="model.",
    architectures={
        frozenset({"encoder"}): "ModernBertModel",
        frozenset({"encoder", "mlm_head"}): "ModernBertForMaskedLM",
        frozenset({"encoder", "classifier"}): "ModernBertForSequenceClassification",
        frozenset({"encoder", "token_classifier"}): "ModernBertForTokenClassification",
        frozenset({"encoder", "span_classifier"}): "ModernBertForQuestionAnswering",
        frozenset({"encoder", "choice_classifier"}): "ModernBertForMultipleChoice",
    },
    config_from_huggingface=config_from_huggingface,
    config_to_huggingface=config_to_huggingface,
    entries=entries,
    tied=("decoder.weight", "model.embeddings.tok_embeddings.weight"),
    old_names={},
    buffers=("inv_freq",),
)
