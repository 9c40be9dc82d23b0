"""XLNet (Yang, Dai, Yang, Carbonell, Salakhutdinov, Le 2019): two streams of relative attention, and a memory of earlier rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertfam.errors import UserError
from bertfam.kernels.attention.patterns import Pattern
from bertfam.layers.activations import ACTIVATIONS, Activation
from bertfam.layers.blocks import PostNormBlock
from bertfam.layers.dropout import Dropout
from bertfam.layers.embeddings import Table, check_length, embed_words
from bertfam.layers.execution import Execution
from bertfam.layers.feed_forward import FeedForward
from bertfam.layers.heads import pretraining
from bertfam.layers.heads.classification import Classifier, DenseOutputLayer, OutputLayer
from bertfam.layers.initializers import normal
from bertfam.layers.norm import LayerNorm
from bertfam.layers.positions.relative_attention import RelativeAttention, RelativeRow, negated, sinusoids
from bertfam.layers.stack import Stack
from bertfam.models.encoder import check_collectable
from bertfam.models.mapping import WRITTEN_ACTIVATIONS, Entry, Family, check_types, dense, norm, read_activation
from bertfam.models.network import Kind
from bertfam.models.sizes import Sizes

_EXECUTION = Execution()
_MULTIPLE = 16


@dataclass(frozen=True)
class XLNetConfig(Sizes):
    """Configuration of an XLNet; the defaults are XLNet-base.

    Attributes:
      vocab_size: real tokens; None takes the size of the run's vocabulary.
      table_rows: rows of the word table in files, where a checkpoint has more of them than tokens; None: `vocab_size`.
      max_length: the longest row in tokens, without its memory. Distances are turned into angles, so no parameter depends on it.
      activation: "gelu" (erf, as in transformers), "gelu_tanh" (the published TensorFlow code's) or "relu".
      dropout_rate: on embeddings, on R, on each sublayer's output, on the hidden layer of the feed-forward network, and on the
        output.
      attention_dropout_rate: on attention probabilities, by backends that can.
      layer_norm_epsilon: added to the variance.
      initializer_range: deviation of the normal that all parameters but norms and biases start from.
      tie_embeddings: whether the head uses the word table.

    Raises:
      UserError: when values clash.
    """

    objective_file: ClassVar[str] = "objectives/permutation_lm.gin"
    kind: ClassVar[Kind] = "encoder"
    query_stream: ClassVar[bool] = True
    published_vocab_size: ClassVar[int | None] = 32_000

    activation: Activation = "gelu"
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-12
    initializer_range: float = 0.02
    tie_embeddings: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_rates("dropout_rate", "attention_dropout_rate")
        self._check_above_zero("layer_norm_epsilon", "initializer_range")
        self._check_among(activation=ACTIVATIONS)
        if self.hidden_size % 2:
            raise self._error("hidden_size", "is odd, and half of R are sines, half cosines: make it even")

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """Attention patterns of the layers: none, since the mask is part of the bias of the scores."""
        return ()

    def encoder(self, execution: Execution = _EXECUTION) -> "Encoder":
        """Return the encoder."""
        return Encoder(self, execution)

    def masked_lm_head(self, execution: Execution = _EXECUTION) -> pretraining.MaskedLmHead:
        """Return the head: a product with the word table, and a bias for each word."""
        return pretraining.MaskedLmHead(
            vocab_size=self.require_vocab_size,
            initializer_range=self.initializer_range,
            tied=self.tie_embeddings,
            execution=execution,
            transforms=False,
        )

    def classifier(self, outputs: int, execution: Execution = _EXECUTION) -> Classifier:
        """Return the head that predicts labels of a text: dense and tanh of [CLS], which is last, dropout and a linear layer."""
        output = DenseOutputLayer(
            outputs, "tanh", dropout_rate=0.1, initializer_range=self.initializer_range, execution=execution
        )
        return Classifier("cls", output)

    def token_classifier(self, outputs: int, execution: Execution = _EXECUTION) -> Classifier:
        """Return the head that predicts a label of each token: a linear layer."""
        return Classifier(None, OutputLayer(outputs, 0.0, self.initializer_range, execution))

    def flops(self, length: int, predictions: int, memory: int = 0) -> int:
        """Return the matrix-product FLOPs of one row of one training step, with `memory` tokens of earlier rows.

        With s tokens, P predictions, q = s + P queries, k = s + `memory` keys and heads i wide together:
        3 [L (q (4hi + 4hf) + 4hik + 2hi (k + s) + 4iqk + 2iq (k + s)) + 2hVP]
        """
        h, i, f = self.hidden_size, self.attention_size, self.feed_forward_size
        queries, keys = length + predictions, length + memory
        distances = keys + length
        layer = queries * (4 * h * i + 4 * h * f) + 4 * h * i * keys + 2 * h * i * distances
        layer += 4 * i * queries * keys + 2 * i * queries * distances
        return 3 * (self.num_layers * layer + 2 * h * self.require_vocab_size * predictions)


class Memory(NamedTuple):
    """Hidden states of earlier tokens of each row's text, which the row attends to.

    Attributes:
      hidden: [batch, layers, memory, embed], the inputs of each layer, the newest last.
      segment_ids: int32[batch, memory], 1 where there is a token, 0 where there is none yet.
    """

    hidden: jax.Array
    segment_ids: jax.Array


class Embeddings(nn.Module):
    """Word embeddings of the content stream, and the one vector that each place of the query stream starts from."""

    config: XLNetConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, tokens: jax.Array, predictions: int, *, train: bool) -> jax.Array:
        """Embed tokens int32[batch, length]: dtype[batch, length + predictions, embed]."""
        config, dtype = self.config, self.execution.compute_dtype
        table = partial(Table, features=config.hidden_size, table_init=normal(config.initializer_range))
        hidden = embed_words(table(config.padded_vocab_size, axis="vocab", name="word")(), tokens, dtype)
        start = table(1, axis="query", name="query")()
        if predictions:
            queries = jnp.broadcast_to(start.astype(dtype), (len(tokens), predictions, config.hidden_size))
            hidden = jnp.concatenate([hidden, queries], axis=1)
        hidden = Dropout(config.dropout_rate, name="dropout")(hidden, train=train)
        return nn.with_logical_constraint(hidden, ("batch", "length", None))


class Encoder(nn.Module):
    """Embeddings and the stack of layers."""

    config: XLNetConfig
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
        ranks: jax.Array | None = None,
        predicted: jax.Array | None = None,
        is_reversed: jax.Array | None = None,
        memory: Memory | None = None,
        reused: int | None = None,
    ) -> tuple[jax.Array, dict[str, Any]]:
        """Run the encoder.

        Args:
          tokens: int32[batch, length].
          segment_ids: int32[batch, length], which packed example; 0 = padding, on either side. A query sees keys of its own
            segment.
          positions: int32[batch, length], unused: distances within an example do not depend on where in a row it is.
          token_type_ids: int32[batch, length], of which only the equality matters; the memory has type 0.
          train: whether dropout is on; needs a "dropout" key.
          collect: names among "hidden_states", "attention_probs" (before dropout), "attention_queries", "attention_keys" and
            "memory".
          ranks: int32[batch, length], the order of the permutation: a token sees those of its own rank and of lower ones; None:
            tokens see all others, but for those that are predicted, which nothing sees.
          predicted: int32[batch, predictions], places of the query stream, which sees only tokens of lower ranks; None: there is
            no query stream.
          is_reversed: bool[batch], rows whose text runs backwards, and has negated distances; None: no row.
          memory: hidden states of earlier tokens, which all tokens see; None: there are none.
          reused: how many of the first tokens enter the memory; None: all.

        Returns:
          The output dtype[batch, predictions, embed] of the query stream, or dtype[batch, length, embed] without one; and a dict
          with what `collect` names: hidden_states [layers + 1, batch, length + predictions, embed], the embeddings first;
          attention_probs float32[layers, batch, heads, length + predictions, memory + length]; and the memory for the next rows.

        Raises:
          UserError: when rows are longer than `max_length`, or the attention backend cannot do what is asked.
        """
        check_collectable(collect, "memory")
        config, dtype, length = self.config, self.execution.compute_dtype, tokens.shape[1]
        check_length(length, config.max_length)
        slots = predicted.shape[1] if predicted is not None else 0
        if predicted is not None:
            if ranks is None:
                ranks = jnp.any(predicted[:, :, None] == jnp.arange(length), axis=1).astype(jnp.int32)
            predicted = _divisible(predicted, length)
        embedding = Embeddings(config, self.execution, name="embeddings")
        embedded = embedding(tokens, 0 if predicted is None else predicted.shape[1], train=train)
        remembered = 0 if memory is None else memory.segment_ids.shape[1]
        distances = jnp.asarray(sinusoids(length, remembered + length, config.hidden_size))[None]
        if is_reversed is not None:
            distances = jnp.where(is_reversed[:, None, None], negated(distances), distances)
        if train and config.dropout_rate:
            distances = jnp.broadcast_to(distances, (len(tokens), *distances.shape[1:]))
        distances = Dropout(config.dropout_rate, name="distance_dropout")(distances.astype(dtype), train=train)
        row = RelativeRow(distances, predicted, *_masks(segment_ids, token_type_ids, ranks, predicted, memory))
        # The memory of a layer is its input, the output of the layer before it.
        inner = collect - {"memory"} | ({"hidden_states"} if "memory" in collect else set())
        per_layer = None if memory is None else {"layer_arrays": {"memory": jnp.swapaxes(memory.hidden, 0, 1)}}
        hidden, collected = self._stack()(embedded, {"row": row}, per_layer, packed=True, train=train, collect=frozenset(inner))
        if "hidden_states" in inner:
            # [batch, queries, embed], [layers, batch, queries, embed] -> [layers + 1, batch, queries, embed]
            states = jnp.concatenate([embedded[None], collected.pop("hidden_states")])
            if "memory" in collect:
                assert memory is not None, "a memory to continue"
                collected["memory"] = _continued(memory, states[:-1, :, : length if reused is None else reused], segment_ids)
            if "hidden_states" in collect:
                collected["hidden_states"] = states[:, :, : length + slots]
        if "attention_probs" in collected:
            collected["attention_probs"] = collected["attention_probs"][:, :, :, : length + slots]
        if "attention_queries" in collected:
            collected["attention_queries"] = collected["attention_queries"][:, :, : length + slots]
        hidden = hidden[:, length : length + slots] if slots else hidden
        return Dropout(config.dropout_rate, name="output_dropout")(hidden, train=train), collected

    def _stack(self) -> Stack:
        config, dtype = self.config, self.execution.compute_dtype
        init = normal(config.initializer_range)
        rate = config.attention_dropout_rate
        block = partial(
            PostNormBlock,
            attention=partial(RelativeAttention, config.num_heads, config.head_dim, rate, self.execution, init),
            feed_forward=partial(
                FeedForward, config.feed_forward_size, config.activation, dtype, init, dropout_rate=config.dropout_rate
            ),
            norm=partial(LayerNorm, config.layer_norm_epsilon, dtype),
            attention_dropout_rate=config.dropout_rate,
            feed_forward_dropout_rate=config.dropout_rate,
        )
        return Stack(block, config.num_layers, (), self.execution, name="layers")


def _divisible(predicted: jax.Array, length: int) -> jax.Array:
    """Pad the places int32[batch, predictions], so that the queries of both streams divide over up to 16 devices of a row.

    The number does not depend on the mesh, as dropout would then too.
    """
    return jnp.pad(predicted, ((0, 0), (0, -(length + predicted.shape[1]) % _MULTIPLE)))


def _masks(
    segment_ids: jax.Array,
    token_type_ids: jax.Array,
    ranks: jax.Array | None,
    predicted: jax.Array | None,
    memory: Memory | None,
) -> tuple[jax.Array, jax.Array]:
    """Return `RelativeRow.visible` and `RelativeRow.is_same_segment`: bool[batch, queries, keys] each."""
    if ranks is None:
        ranks = jnp.zeros_like(segment_ids)
    # The highest rank that each query sees.
    of_queries = [(segment_ids, token_type_ids, ranks)]
    if predicted is not None:
        at_places = [jnp.take_along_axis(array, predicted, axis=1) for array in (segment_ids, token_type_ids, ranks)]
        of_queries.append((at_places[0], at_places[1], at_places[2] - 1))
    of_keys = [(segment_ids, token_type_ids, ranks)]
    if memory is not None:
        zeros = jnp.zeros_like(memory.segment_ids)
        of_keys.insert(0, (memory.segment_ids, zeros, zeros - 1))
    queries, keys = ([jnp.concatenate(arrays, axis=1) for arrays in zip(*parts, strict=True)] for parts in (of_queries, of_keys))
    segment, token_type, rank = ((query[:, :, None], key[:, None]) for query, key in zip(queries, keys, strict=True))
    return (segment[0] == segment[1]) & (rank[1] <= rank[0]), token_type[0] == token_type[1]


def _continued(memory: Memory, states: jax.Array, segment_ids: jax.Array) -> Memory:
    """Return the memory after the states [layers, batch, reused, embed] of new tokens, as long as the one before."""
    size, reused = memory.segment_ids.shape[1], states.shape[2]
    hidden = jnp.concatenate([memory.hidden, jnp.swapaxes(states, 0, 1).astype(memory.hidden.dtype)], axis=2)
    segments = jnp.concatenate([memory.segment_ids, (segment_ids[:, :reused] > 0).astype(jnp.int32)], axis=1)
    return Memory(jax.lax.stop_gradient(hidden[:, :, -size:]), segments[:, -size:])


# their name -> ours; the first five have no default that fits every model
_SIZES = {
    "vocab_size": "vocab_size",
    "n_layer": "num_layers",
    "d_model": "hidden_size",
    "n_head": "num_heads",
    "d_inner": "feed_forward_size",
}
_NUMBERS = {"dropout": "dropout_rate", "layer_norm_eps": "layer_norm_epsilon", "initializer_range": "initializer_range"}
_FLAGS = {"tie_word_embeddings": "tie_embeddings"}
# The published code has two rates, transformers' class one for both.
_ATTENTION_DROPOUT = "dropatt"
# Options that change what is computed, and the values that are XLNet as it is fine-tuned. `mem_len`, `reuse_len` and `use_mems_*`
# are not among them: they say what a caller gets back.
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "attn_type": ("bi", None),
    "same_length": (False, None),
    "clamp_len": (-1, 0, None),
    "bi_data": (False, None),
    "untie_r": (True, None),
}


def config_from_huggingface(content: Mapping[str, Any]) -> XLNetConfig:
    """Read config.json's content into XLNetConfig.

    Raises:
      UserError: for an unsupported option, or a size that is missing.
    """
    for name, allowed in _ONLY.items():
        if content.get(name) not in allowed:
            raise UserError(f"config.json: {name} = {content[name]!r} is not supported, only {allowed[0]!r}")
    check_types(content, _SIZES, (int,), required=True)
    check_types(content, (*_NUMBERS, _ATTENTION_DROPOUT), (int, float))
    check_types(content, _FLAGS, (bool,))
    values = {ours: content[theirs] for theirs, ours in (_SIZES | _NUMBERS | _FLAGS).items() if content.get(theirs) is not None}
    if (width := content.get("d_head")) not in (None, values["hidden_size"] // max(values["num_heads"], 1)):
        raise UserError(f"config.json: d_head = {width!r} is not supported, only d_model / n_head")
    dropout = content.get("dropout")
    rate = content.get(_ATTENTION_DROPOUT, dropout)
    rates = {} if rate is None else {"attention_dropout_rate": rate}
    return XLNetConfig(**values, **rates, activation=read_activation(content, "ff_activation", "gelu"))


def config_to_huggingface(config: XLNetConfig) -> dict[str, Any]:
    """Write XLNetConfig as config.json's content, without "architectures"."""
    return {
        "model_type": "xlnet",
        # Where no vocabulary states them: their class would put its own, of 32,000 pieces.
        "bos_token_id": None,
        "eos_token_id": None,
        **{theirs: getattr(config, ours) for theirs, ours in (_SIZES | _NUMBERS | _FLAGS).items()},
        **{name: allowed[0] for name, allowed in _ONLY.items()},
        "vocab_size": config.require_table_rows,
        "d_head": config.head_dim,
        "ff_activation": WRITTEN_ACTIVATIONS[config.activation],
        "mem_len": None,
        "reuse_len": None,
        _ATTENTION_DROPOUT: config.attention_dropout_rate,
    }


def entries(config: XLNetConfig) -> tuple[Entry, ...]:
    """Return the entries of every parameter of the encoder and of the head."""
    layer, theirs = "encoder/layers/", "transformer.layer.{layer}."
    attention, their_attention = f"{layer}attention/", f"{theirs}rel_attn."
    kernels = {"query": "q", "key": "k", "value": "v", "distance": "r"}
    vectors = {"content_bias": "r_w_bias", "distance_bias": "r_r_bias", "segment_bias": "r_s_bias", "segments": "seg_embed"}
    return (
        Entry("encoder/embeddings/word/table", "transformer.word_embedding.weight", "matrix", vocabulary=True),
        Entry("encoder/embeddings/query/table", "transformer.mask_emb", "leading_axis"),
        *(Entry(f"{attention}{ours}/kernel", f"{their_attention}{name}", "matrix") for ours, name in kernels.items()),
        *(Entry(f"{attention}{ours}", f"{their_attention}{name}", "matrix") for ours, name in vectors.items()),
        Entry(f"{attention}output/kernel", f"{their_attention}o", "output_first"),
        *norm(f"{layer}attention_norm", f"{their_attention}layer_norm"),
        *dense(f"{layer}feed_forward/intermediate", f"{theirs}ff.layer_1"),
        *dense(f"{layer}feed_forward/output", f"{theirs}ff.layer_2"),
        *norm(f"{layer}feed_forward_norm", f"{theirs}ff.layer_norm"),
        *dense("classifier/dense", "sequence_summary.summary"),
        *dense("classifier/output", "logits_proj"),
        *dense("token_classifier/output", "classifier"),
        Entry("mlm_head/bias", "lm_loss.bias", "vector", vocabulary=True),
        *([] if config.tie_embeddings else [Entry("mlm_head/decoder", "lm_loss.weight", "matrix", vocabulary=True)]),
    )


XLNET = Family(
    model_type="xlnet",
    config=XLNetConfig,
    objective="objectives/permutation_lm.gin",
    prefix="transformer.",
    architectures={
        frozenset({"encoder"}): "XLNetModel",
        frozenset({"encoder", "mlm_head"}): "XLNetLMHeadModel",
        frozenset({"encoder", "classifier"}): "XLNetForSequenceClassification",
        frozenset({"encoder", "token_classifier"}): "XLNetForTokenClassification",
    },
    config_from_huggingface=config_from_huggingface,
    config_to_huggingface=config_to_huggingface,
    entries=entries,
    tied=("lm_loss.weight", "transformer.word_embedding.weight"),
    buffers=(),
)
