"""BERT (Devlin, Chang, Lee, Toutanova 2019): post-LN encoder with learned positions and sentence types."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bertfam.errors import UserError
from bertfam.kernels.attention.patterns import CAUSAL, FULL, Pattern
from bertfam.layers.activations import ACTIVATIONS, Activation
from bertfam.layers.attention.dot_product import Row, SelfAttention
from bertfam.layers.blocks import PostNormBlock
from bertfam.layers.dense import Dense
from bertfam.layers.dropout import Dropout
from bertfam.layers.embeddings import Table, embed_positions, embed_words
from bertfam.layers.execution import Execution
from bertfam.layers.feed_forward import FeedForward
from bertfam.layers.heads import pretraining
from bertfam.layers.heads.classification import Classifier, DenseActivation, DenseOutputLayer, OutputLayer
from bertfam.layers.initializers import truncated_normal
from bertfam.layers.lookup import lookup_few
from bertfam.layers.norm import LayerNorm
from bertfam.layers.stack import Stack
from bertfam.models.encoder import EncoderConfig, check_collectable, pooler, sentence_head
from bertfam.models.mapping import WRITTEN_ACTIVATIONS, Entry, Family, Wrapper, dense, norm, read_activation
from bertfam.models.network import Kind
from bertfam.models.sizes import Sizes

_EXECUTION = Execution()


@dataclass(frozen=True)
class BertConfig(Sizes):
    """Configuration of a BERT; the defaults are BERT-base.

    Attributes:
      vocab_size: real tokens; None takes the size of the run's vocabulary.
      table_rows: rows of the word table in files, where a checkpoint has more of them than tokens; None: `vocab_size`. The
        further rows are no tokens: nothing is predicted there, and they keep what they hold.
      max_length: rows of the position table, the longest row in tokens.
      embedding_size: embedding dimension of the tables, projected linearly to `hidden_size`; None: `hidden_size`, unprojected.
      type_vocab_size: sentence types (A and B); 0: there is no such table.
      activation: "gelu" (erf), "gelu_tanh" (the original TensorFlow code's) or "relu".
      head_activation: that of the masked-token head; None: `activation`.
      dropout_rate: on embeddings and on each sublayer's output.
      attention_dropout_rate: on attention probabilities, by backends that can.
      layer_norm_epsilon: added to the variance.
      initializer_range: deviation of the truncated normal that all kernels and tables start from.
      tie_embeddings: whether the masked-token head uses the word table.
      causal: whether a token attends to itself and those before it alone, as in a causal LM.

    Raises:
      UserError: when values clash.
    """

    objective_file: ClassVar[str] = "objectives/mlm.gin"
    kind: ClassVar[Kind] = "encoder"
    published_vocab_size: ClassVar[int | None] = 30_522
    without_parameters: ClassVar[frozenset[str]] = frozenset({"causal"})
    norm_after_dropout: ClassVar[bool] = False  # of the embeddings, where BigBird has the other order

    embedding_size: int | None = None
    type_vocab_size: int = 2
    activation: Activation = "gelu"
    head_activation: Activation | None = None
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-12
    initializer_range: float = 0.02
    tie_embeddings: bool = True
    causal: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least(type_vocab_size=0, embedding_size=1)
        self._check_rates("dropout_rate", "attention_dropout_rate")
        self._check_above_zero("layer_norm_epsilon", "initializer_range")
        self._check_among(activation=ACTIVATIONS, head_activation=(None, *ACTIVATIONS))

    @property
    def table_width(self) -> int:
        """Width of the tables of words, positions and types."""
        return self.embedding_size or self.hidden_size

    @property
    def position_rows(self) -> int:
        """Rows of the position table, of which the last `max_length` are read."""
        return self.max_length

    @property
    def shared_modules(self) -> tuple[str, ...]:
        """Modules of a layer whose parameters all layers share: none."""
        return ()

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """Attention patterns of the layers, each once."""
        return (CAUSAL if self.causal else FULL,)

    def attentions(self, execution: Execution = _EXECUTION) -> tuple[Callable[..., nn.Module], ...]:
        """Return the constructors of the layers' self-attention: of layers 0, 1, ..., which repeat periodically."""
        normal = truncated_normal(self.initializer_range)
        options = (self.num_heads, self.head_dim, self.attention_dropout_rate, execution, normal)
        return tuple(partial(SelfAttention, *options, pattern=pattern) for pattern in self.patterns)

    def attention_pairs(self, tokens: int) -> int:
        """Return the pairs of tokens in the attention patterns of all layers, in a row of this many tokens."""
        return self.num_layers * self.patterns[0].pairs(tokens)

    def layer_arrays(self, length: int) -> Mapping[str, np.ndarray] | None:
        """Return the arrays [layers, ...] that the patterns depend on in rows of this length, by name; None: none."""
        return None

    @property
    def first_rows(self) -> Mapping[str, int]:
        """Rows of further tables by name; every token is given the first row. BERT has no such table."""
        return {}

    @property
    def num_extra_tokens(self) -> int:
        """Tokens with embeddings of their own that the encoder puts before those of each row. BERT has none."""
        return 0

    def encoder(self, execution: Execution = _EXECUTION) -> "Encoder":
        """Return the encoder."""
        return Encoder(self, execution)

    def masked_lm_head(self, execution: Execution = _EXECUTION) -> pretraining.MaskedLmHead:
        """Return the masked-token head."""
        return pretraining.MaskedLmHead(
            vocab_size=self.require_vocab_size,
            activation=self.head_activation or self.activation,
            layer_norm_epsilon=self.layer_norm_epsilon,
            initializer_range=self.initializer_range,
            tied=self.tie_embeddings,
            execution=execution,
        )

    def classifier(self, outputs: int, execution: Execution = _EXECUTION) -> Classifier:
        """Return the head that predicts labels of a text: the pooler, dropout and a linear layer."""
        output = OutputLayer(outputs, self.classifier_dropout_rate, self.initializer_range, execution)
        return Classifier("cls", output, pooler(self, execution))

    def token_classifier(self, outputs: int, execution: Execution = _EXECUTION) -> Classifier:
        """Return the head that predicts a label of each token: dropout and a linear layer."""
        return Classifier(None, OutputLayer(outputs, self.token_classifier_dropout_rate, self.initializer_range, execution))

    def span_classifier(self, execution: Execution = _EXECUTION) -> Classifier:
        """Return the head that scores each token as the first and as the last one of a span: a linear layer."""
        return Classifier(None, OutputLayer(2, self.span_classifier_dropout_rate, self.initializer_range, execution))

    def choice_classifier(self, execution: Execution = _EXECUTION) -> Classifier:
        """Return the head that scores a choice, a text of its own: the pooler, dropout and a linear layer."""
        output = OutputLayer(1, self.classifier_dropout_rate, self.initializer_range, execution)
        return Classifier("cls", output, pooler(self, execution))

    @property
    def span_classifier_dropout_rate(self) -> float:
        """Dropout rate of the classifier of spans."""
        return 0.0

    @property
    def token_classifier_dropout_rate(self) -> float:
        """Dropout rate of the classifier of tokens."""
        return self.classifier_dropout_rate

    @property
    def classifier_dropout_rate(self) -> float:
        """Dropout rate of the classifier of texts."""
        return self.dropout_rate

    def dense_classifier(
        self, outputs: int, execution: Execution, activation: DenseActivation, *, drops_input: bool = True
    ) -> Classifier:
        """Return the head of families without a pooler: [dropout,] dense, activation, dropout and a linear layer."""
        rate = self.classifier_dropout_rate
        output = DenseOutputLayer(
            outputs,
            activation,
            input_dropout_rate=rate if drops_input else 0.0,
            dropout_rate=rate,
            initializer_range=self.initializer_range,
            execution=execution,
        )
        return Classifier("cls", output)

    def flops(self, length: int, predictions: int) -> int:
        """Return the matrix-product FLOPs of one row of one training step.

        3 [L s (8hi + 4hf) + 4ip + P (2he + 2eV)], with s tokens, the extra ones included, heads i wide together, p pairs of
        tokens in the patterns of all layers, tables e wide and V real tokens, and 2seh for the projection from e to h where they
        differ; embeddings, pooler and the like do not count.
        """
        h, i, f, e = self.hidden_size, self.attention_size, self.feed_forward_size, self.table_width
        tokens = length + self.num_extra_tokens
        layers = self.num_layers * tokens * (8 * h * i + 4 * h * f) + 4 * i * self.attention_pairs(tokens)
        head = 2 * h * e + 2 * e * self.require_vocab_size
        return 3 * (layers + predictions * head + (2 * tokens * e * h if e != h else 0))


class Embeddings(nn.Module):
    """dropout(LN(word + position + type)), or LN(dropout(...)), then a linear projection where tables have another width."""

    config: BertConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, tokens: jax.Array, *, positions: jax.Array | None, token_type_ids: jax.Array, train: bool) -> jax.Array:
        """Embed tokens: int32[batch, length] each -> dtype[batch, extra + length, embed], those of extra tokens first."""
        config, dtype = self.config, self.execution.compute_dtype
        normal = truncated_normal(config.initializer_range)
        table = partial(Table, features=config.table_width, table_init=normal)
        words = table(config.padded_vocab_size, axis="vocab", name="word")()
        position_table = table(config.position_rows, axis="position", name="position")()
        position_table = position_table[config.position_rows - config.max_length :]
        # [batch, length, width] + [batch or nothing, length, width] + [batch, length, width]
        hidden = embed_words(words, tokens, dtype) + embed_positions(position_table, positions, tokens.shape[1], dtype)
        if config.type_vocab_size:
            types = table(config.type_vocab_size, axis="token_type", name="token_type")()
            # Where there is one type, every token has it, those of a second sentence too.
            one = config.type_vocab_size == 1
            hidden = hidden + (types.astype(dtype) if one else lookup_few(types, token_type_ids, dtype))
        for name, rows in config.first_rows.items():
            hidden = hidden + table(rows, axis=name, name=name)()[0].astype(dtype)
        if config.num_extra_tokens:
            extra = table(config.num_extra_tokens, axis="extra_token", name="extra_tokens")().astype(dtype)
            hidden = jnp.concatenate([jnp.broadcast_to(extra, (len(tokens), *extra.shape)), hidden], axis=1)
        layers: list[Any] = [LayerNorm(config.layer_norm_epsilon, dtype, name="norm")]
        layers.insert(0 if config.norm_after_dropout else 1, partial(Dropout(config.dropout_rate, name="dropout"), train=train))
        for layer in layers:
            hidden = layer(hidden)
        if config.table_width != config.hidden_size:
            # [batch, length, width] -> [batch, length, embed]
            hidden = Dense((config.hidden_size,), ("embed", None), dtype, kernel_init=normal, name="projection")(hidden)
        return nn.with_logical_constraint(hidden, ("batch", "length", None))


class Encoder(nn.Module):
    """Embeddings and the stack of layers."""

    config: BertConfig
    execution: Execution = Execution()

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
            a row, segment ids 1 and then 0: positions are 0, 1, 2, ..., and the fastest attention may be used.
          token_type_ids: int32[batch, length], sentence 0 or 1.
          train: whether dropout is on; needs a "dropout" key.
          collect: names among "hidden_states", "attention_probs" (before dropout), "attention_queries" and "attention_keys".

        Returns:
          dtype[batch, length, embed], and a dict with what `collect` names: hidden_states [layers + 1, batch, length,
          embed], the embeddings first; attention_probs float32[layers, batch, heads, length, length]. Extra tokens are left out.

        Raises:
          UserError: when rows are longer than `max_length`, or packed and there are extra tokens, or the attention backend
            cannot do what is asked.
        """
        return self._encoded(tokens, Row(segment_ids), positions, token_type_ids, train, collect)

    @nn.compact
    def _encoded(
        self,
        tokens: jax.Array,
        row: Row,
        positions: jax.Array | None,
        token_type_ids: jax.Array,
        train: bool,
        collect: frozenset[str],
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Run the encoder on rows with the arrays that the attention patterns depend on."""
        check_collectable(collect)
        config, extra = self.config, self.config.num_extra_tokens
        if extra and positions is not None:
            raise UserError(
                f"a model with {extra} extra global tokens takes rows of one document each, but these rows are packed"
            )
        embedded = Embeddings(config, self.execution, name="embeddings")(
            tokens, positions=positions, token_type_ids=token_type_ids, train=train
        )
        dtype, normal = self.execution.compute_dtype, truncated_normal(config.initializer_range)
        block = partial(
            PostNormBlock,
            feed_forward=partial(FeedForward, config.feed_forward_size, config.activation, dtype, normal),
            norm=partial(LayerNorm, config.layer_norm_epsilon, dtype),
            attention_dropout_rate=config.dropout_rate,
            feed_forward_dropout_rate=config.dropout_rate,
        )
        kinds = tuple({"attention": attention} for attention in config.attentions(self.execution))
        layers = Stack(block, config.num_layers, config.shared_modules, self.execution, kinds, name="layers")
        if extra:
            row = row._replace(segment_ids=jnp.pad(row.segment_ids, [(0, 0), (extra, 0)], constant_values=1))
        own = config.layer_arrays(tokens.shape[1])
        per_layer = None if own is None else {"layer_arrays": own}
        static: dict[str, Any] = {"packed": positions is not None, "train": train, "collect": collect}
        hidden, collected = layers(embedded, {"row": row}, per_layer, **static)
        if "hidden_states" in collected:
            # [batch, length, embed], [layers, batch, length, embed] -> [layers + 1, batch, length, embed]
            collected["hidden_states"] = jnp.concatenate([embedded[None], collected["hidden_states"]])[:, :, extra:]
        if "attention_probs" in collected:
            collected["attention_probs"] = collected["attention_probs"][..., extra:, extra:]
        return hidden[:, extra:], collected


# their name -> ours; the first six have no default that fits every model
_SIZES = {
    "vocab_size": "vocab_size",
    "num_hidden_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_heads",
    "intermediate_size": "feed_forward_size",
    "max_position_embeddings": "max_length",
}
_OPTIONS = {
    "type_vocab_size": "type_vocab_size",
    "hidden_dropout_prob": "dropout_rate",
    "attention_probs_dropout_prob": "attention_dropout_rate",
    "layer_norm_eps": "layer_norm_epsilon",
    "initializer_range": "initializer_range",
    "tie_word_embeddings": "tie_embeddings",
}
_TYPES: dict[str, tuple[type, ...]] = {"type_vocab_size": (int,), "tie_word_embeddings": (bool,)}
# options that change what is computed, and the values that are BERT
_ONLY = {
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
    "is_encoder_decoder": (False, None),
    "pruned_heads": ({}, None),
}


def read_values(content: Mapping[str, Any]) -> dict[str, Any]:
    """Read config.json's content into the fields of a config like BERT's.

    Raises:
      UserError: for an unsupported option, or a size that is missing.
    """
    for name, allowed in _ONLY.items():
        if content.get(name) not in allowed:
            raise UserError(f"config.json: {name} = {content[name]!r} is not supported, only {allowed[0]!r}")
    missing = [name for name in _SIZES if type(content.get(name)) is not int]
    if missing:
        raise UserError(f"config.json: {', '.join(missing)} must be stated, as whole numbers")
    for name in _OPTIONS:
        if type(content.get(name)) not in (types := _TYPES.get(name, (float, int))) and content.get(name) is not None:
            raise UserError(f"config.json: {name} = {content[name]!r} must be of type {types[0].__name__}")
    activation = read_activation(content, "hidden_act", "gelu")
    values = {ours: content[theirs] for theirs, ours in (_SIZES | _OPTIONS).items() if content.get(theirs) is not None}
    return values | {"activation": activation}


def write_values(config: BertConfig, *, head: Activation | None = None, has: Collection[str] = ()) -> dict[str, Any]:
    """Write a config like BERT's as config.json's content, without the model's type and "architectures".

    Args:
      config: a family's.
      head: the activation that its class has in the masked-token head; None: that of the layers.
      has: our fields, of those that BERT's class has no place for, that its own has: "embedding_size", "type_vocab_size"
        (of 0).

    Raises:
      UserError: for what the class cannot be.
    """
    known = {
        "head_activation": (config.head_activation or config.activation, head or config.activation),
        "embedding_size": (config.table_width, config.hidden_size),
        "type_vocab_size": (config.type_vocab_size, config.type_vocab_size or 1),
        "causal": (config.causal, False),
    }
    for name, (value, theirs) in known.items():
        if name not in has and value != theirs:
            raise UserError(
                f"{type(config).__name__}.{name} = {value!r} has no place in transformers' class, which has {theirs!r}: a model "
                "like it cannot be written"
            )
    values = {theirs: getattr(config, ours) for theirs, ours in (_SIZES | _OPTIONS).items()}
    values["vocab_size"] = config.require_table_rows
    return {"hidden_act": WRITTEN_ACTIVATIONS[config.activation], "position_embedding_type": "absolute", **values}


def config_from_huggingface(content: Mapping[str, Any]) -> BertConfig:
    """Read config.json's content into BertConfig; raises UserError for any other variant of BERT."""
    if content.get("projection_dim"):  # of DPR; the published models have none
        raise UserError(f"config.json: projection_dim = {content['projection_dim']!r} is not supported, only 0")
    return BertConfig(**read_values(content))


def config_to_huggingface(config: BertConfig) -> dict[str, Any]:
    """Write BertConfig as config.json's content, without "architectures".

    Raises:
      UserError: for what no BERT can represent.
    """
    return {"model_type": "bert", **write_values(config)}


def encoder_entries(prefix: str, config: BertConfig) -> tuple[Entry, ...]:
    """Return the entries of every parameter of an encoder like BERT's, and of its pooler."""
    layer, theirs = "encoder/layers/", f"{prefix}encoder.layer.{{layer}}."
    attention = [
        entry
        for name in ("query", "key", "value")
        for entry in dense(f"{layer}attention/{name}", f"{theirs}attention.self.{name}")
    ]
    types = Entry("encoder/embeddings/token_type/table", f"{prefix}embeddings.token_type_embeddings.weight", "matrix")
    return (
        Entry("encoder/embeddings/word/table", f"{prefix}embeddings.word_embeddings.weight", "matrix", vocabulary=True),
        Entry("encoder/embeddings/position/table", f"{prefix}embeddings.position_embeddings.weight", "matrix"),
        *([types] if config.type_vocab_size else []),
        *norm("encoder/embeddings/norm", f"{prefix}embeddings.LayerNorm"),
        *attention,
        *dense(f"{layer}attention/output", f"{theirs}attention.output.dense", "linear_from_heads"),
        *norm(f"{layer}attention_norm", f"{theirs}attention.output.LayerNorm"),
        *dense(f"{layer}feed_forward/intermediate", f"{theirs}intermediate.dense"),
        *dense(f"{layer}feed_forward/output", f"{theirs}output.dense"),
        *norm(f"{layer}feed_forward_norm", f"{theirs}output.LayerNorm"),
        *dense("pooler/dense", f"{prefix}pooler.dense"),
    )


def masked_lm_entries(config: BertConfig, transform: str, layer_norm: str, decoder: str, bias: str) -> tuple[Entry, ...]:
    """Return the entries of every parameter of the masked-token head, by the names of its four tensors without their endings."""
    # An untied head may have two biases there, of which only the decoder's is used; written twice, read from the last.
    untied = [
        Entry("mlm_head/decoder", f"{decoder}.weight", "matrix", vocabulary=True),
        Entry("mlm_head/bias", f"{decoder}.bias", "vector", vocabulary=True),
    ]
    found = (
        *dense("mlm_head/dense", transform),
        *norm("mlm_head/norm", layer_norm),
        Entry("mlm_head/bias", bias, "vector", vocabulary=True),
        *([] if config.tie_embeddings else untied),
    )
    return tuple(dict.fromkeys(found))


def entries(config: BertConfig, prefix: str = "bert.") -> tuple[Entry, ...]:
    """Return the entries of every parameter of the encoder and of all heads."""
    head, bias = "cls.predictions.", "cls.predictions.bias"
    return (
        *encoder_entries(prefix, config),
        *masked_lm_entries(config, f"{head}transform.dense", f"{head}transform.LayerNorm", f"{head}decoder", bias),
        *dense("nsp_head/dense", "cls.seq_relationship"),
        *dense("classifier/output", "classifier"),
        *dense("choice_classifier/output", "classifier"),
        *token_classifier_entries(),
    )


def token_classifier_entries() -> tuple[Entry, ...]:
    """Return the entries of `BertConfig.token_classifier` and `BertConfig.span_classifier`."""
    return (*dense("token_classifier/output", "classifier"), *dense("span_classifier/output", "qa_outputs"))


def dense_classifier_entries() -> tuple[Entry, ...]:
    """Return the entries of `BertConfig.dense_classifier`, and of the classifiers of tokens and spans."""
    own = (*dense("classifier/dense", "classifier.dense"), *dense("classifier/output", "classifier.out_proj"))
    return (*own, *token_classifier_entries())


def sentence_heads(config: EncoderConfig) -> dict[str, nn.Module]:
    """Return the heads of a BERT for pairs of sentences."""
    return {"pooler": pooler(config), "nsp_head": sentence_head(config)}


BERT = Family(
    model_type="bert",
    config=BertConfig,
    objective="objectives/mlm.gin",
    objectives_by_part={"pooler": "objectives/mlm_nsp.gin"},
    prefix="bert.",
    architectures={
        frozenset({"encoder"}): "BertModel",
        frozenset({"encoder", "mlm_head"}): "BertForMaskedLM",
        frozenset({"encoder", "pooler"}): "BertModel",
        frozenset({"encoder", "pooler", "nsp_head"}): "BertForNextSentencePrediction",
        frozenset({"encoder", "pooler", "mlm_head", "nsp_head"}): "BertForPreTraining",
        frozenset({"encoder", "pooler", "classifier"}): "BertForSequenceClassification",
        frozenset({"encoder", "token_classifier"}): "BertForTokenClassification",
        frozenset({"encoder", "span_classifier"}): "BertForQuestionAnswering",
        frozenset({"encoder", "pooler", "choice_classifier"}): "BertForMultipleChoice",
    },
    config_from_huggingface=config_from_huggingface,
    config_to_huggingface=config_to_huggingface,
    entries=entries,
    heads=sentence_heads,
    # One bias of the vocabulary; adding both would count it twice. The decoder's is the one that is used.
    aliases={"cls.predictions.decoder.bias": "cls.predictions.bias"},
    tied=("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    buffers=("position_ids",),
    wrappers=(
        Wrapper("dpr", "DPRQuestionEncoder", "question_encoder.bert_model."),
        Wrapper("dpr", "DPRContextEncoder", "ctx_encoder.bert_model."),
    ),
)
