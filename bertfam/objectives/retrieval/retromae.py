"""RetroMAE's objective: a text is reconstructed from its embedding and few of its words (Xiao, Liu, Shao, Cao 2022)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from typing_extensions import override

from bertfam.errors import UserError
from bertfam.features import FeatureSpec, RowShape, word_features
from bertfam.kernels.attention.patterns import Pattern
from bertfam.kernels.chunked_cross_entropy import Sums, VocabularyLoss, chunked_cross_entropy
from bertfam.kernels.random_bits import bits_at
from bertfam.layers.attention.dot_product import Attention, Row
from bertfam.layers.dropout import Dropout
from bertfam.layers.execution import Execution
from bertfam.layers.feed_forward import FeedForward
from bertfam.layers.initializers import named_key, truncated_normal
from bertfam.layers.lookup import put_positions
from bertfam.layers.norm import LayerNorm
from bertfam.layers.pooling import PoolingMode
from bertfam.layers.sampling import keys_of_rows
from bertfam.models.bert import BertConfig, Embeddings
from bertfam.objectives.mlm import Mlm
from bertfam.objectives.objective import Batch, LossOut, Sum, Tree, check_coefficients

_DECODER = "enhanced_decoder"


@dataclass(frozen=True)
class SampledWords(Pattern):
    """Words that are sampled for each query on its own (section 3.3, equation 7).

    A query attends to each word with probability 1 - `masked`, to all of its tokens or to none, and never to its own place. It
    attends to all control tokens but at its own place. The random bits are a hash of the key of the row, the query's place and
    the word, so they are the same on every mesh. The arrays are "words" int32[batch, length], the number of each token's word
    or -1 at control tokens, and "keys" uint32[batch, 2].

    Attributes:
      masked: Share of the words that a query does not attend to.
    """

    masked: float

    @override
    def mask(self, query_places: Any, key_places: Any, arrays: Mapping[str, Any] | None = None) -> Any:
        assert arrays is not None
        # [batch, 1, 1, keys] and [batch, 1, 1, 1, 2], for [batch, heads, queries, keys]
        words, keys = arrays["words"][:, None, key_places], arrays["keys"][:, None, None, None]
        places = jnp.uint32(arrays["words"].shape[1]) * query_places.astype(jnp.uint32) + words.astype(jnp.uint32)
        is_sampled = bits_at(keys, places) >= jnp.uint32(min(self.masked * 2**32, 2**32 - 1))
        return (is_sampled | (words < 0)) & (query_places != key_places)

    @override
    def pairs(self, length: int) -> int:
        return int((1 - self.masked) * length * (length - 1))

    @override
    def describe(self) -> str:
        return f"{1 - self.masked:.0%} of the words at random"


class EnhancedDecoder(nn.Module):
    """One post-norm layer with queries from one stream, keys and values from another (section 3.3, equations 4 and 5)."""

    config: BertConfig
    masked: float
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, queries: jax.Array, context: jax.Array, row: Row, *, train: bool) -> jax.Array:
        """Decode queries and context, dtype[batch, length, embed] each, of rows; return dtype[batch, length, embed]."""
        config, dtype = self.config, self.execution.compute_dtype
        normal = truncated_normal(config.initializer_range)
        attention = _StreamAttention(
            config.num_heads, config.head_dim, config.attention_dropout_rate, self.execution, normal, name="attention"
        )
        feed_forward = FeedForward(config.feed_forward_size, config.activation, dtype, normal, name="feed_forward")
        hidden = queries
        for name, sublayer in (
            ("attention", lambda inputs: attention(inputs, context, row, SampledWords(self.masked), train=train)),
            ("feed_forward", lambda inputs: feed_forward(inputs, train=train)),
        ):
            added = Dropout(config.dropout_rate, name=f"{name}_dropout")(sublayer(hidden), train=train)
            hidden = LayerNorm(config.layer_norm_epsilon, dtype, name=f"{name}_norm")(hidden, added)
        return nn.with_logical_constraint(hidden, ("batch", "length", None))


class _StreamAttention(Attention):
    """Attention from one stream of a row to another stream of the same row."""

    @nn.compact
    def __call__(self, queries: jax.Array, context: jax.Array, row: Row, pattern: Pattern, *, train: bool) -> jax.Array:
        (query,) = self._heads(queries, self.num_heads, "query")
        key, value = self._heads(context, self.num_heads, "key", "value")
        mixed, _ = self._mixed(query, key, value, row, True, train, False, pattern)
        return self._output(mixed, queries.shape[-1])


@dataclass(frozen=True)
class RetroMae(Mlm):
    """L = mlm * mean over masked positions of CE(vocabulary) + decoder * mean over all words' tokens of CE(vocabulary).

    The first term is the encoder's, on its masked input. The second one is that of a decoder of one layer, which reconstructs
    the text without noise (section 3.3, equation 6). With h the encoder's output at [CLS], its queries are h + p_i, p_i a
    position's embedding, and its keys and values come from h and the embeddings of the text's tokens. Each query sees words of
    its own sample and never itself (see `SampledWords`). Both predict by the same head. Samples are a function of the row with
    its noise, so they differ between epochs and are the same on every mesh.

    As in the published code, whole words are sampled, control tokens are seen and never predicted. That code draws up to 256 sets
    of words with exactly their share for each text, and gives each query one of them; here each query's sample is its own and
    the share holds on average.

    `init` makes params {"encoder", "mlm_head", "enhanced_decoder"}; an export has no decoder.

    Attributes:
      model: the encoder, with learned positions and tables as wide as its layers.
      execution: how it is computed; never part of a checkpoint.
      mlm: the coefficient of the encoder's masked language model.
      decoder: the coefficient of the reconstruction.
      decoder_masked: share of the words that a query of the decoder does not see (0.5 to 0.7).
      chunk: maximum number of positions of a row whose logits exist at once; it does not change results.

    Raises:
      UserError: the model has no such tables.
    """

    terms: ClassVar[tuple[str, ...]] = ("mlm", "decoder")
    pooling: ClassVar[PoolingMode] = "cls"

    model: BertConfig
    mlm: float = 1.0
    decoder: float = 1.0
    decoder_masked: float = 0.5
    chunk: int = 128

    def __post_init__(self) -> None:
        check_coefficients(**self.coefficients)
        if not 0 <= self.decoder_masked <= 1:
            raise ValueError(f"decoder_masked {self.decoder_masked} is not in [0, 1]")
        if self.chunk < 1:
            raise ValueError(f"chunk {self.chunk} is less than 1")
        model = self.model
        if not isinstance(model, BertConfig) or model.table_width != model.hidden_size or model.num_extra_tokens:
            raise UserError(
                f"RetroMae requires an encoder with learned positions and tables as wide as its layers, not this "
                f"{type(model).__name__}: choose a BertConfig or RobertaConfig without embedding_size"
            )

    @override
    def features(self, shape: RowShape) -> dict[str, FeatureSpec]:
        if shape.examples > 1:
            raise UserError(
                "rows are packed, and RetroMae reconstructs a row from its one [CLS]: set TextData.rows = @DocSentences()"
            )
        return super().features(shape) | word_features(shape)

    @override
    def init(self, key: jax.Array, shape: RowShape) -> tuple[Tree, Tree, Tree]:
        params, carry, aux = super().init(key, shape)
        ids = jnp.zeros((1, 2), jnp.int32)
        stream = jnp.zeros((1, 2, self.model.hidden_size), jnp.float32)
        row = Row(ids, arrays={"words": ids, "keys": jnp.zeros((1, 2), jnp.uint32)})
        params[_DECODER] = self._decoder.init(named_key(key, _DECODER), stream, stream, row, train=False)["params"]
        return params, carry, aux

    @override
    def denominators(self, batch: Batch) -> dict[str, jax.Array]:
        return super().denominators(batch) | {"decoder": jnp.sum(_weights(batch))}

    @override
    def loss(self, params: Tree, carry: Tree, aux: Tree, batch: Batch, *, key: jax.Array | None, train: bool) -> LossOut:
        keys = (None, None) if key is None else tuple(jax.random.split(key))
        hidden = self.encoded(params, batch, key=keys[0], train=train)
        mlm, metrics = self.masked_loss(params, hidden, batch)
        sums = self.reconstruction(params, hidden[:, :1], batch, key=keys[1], train=train)
        count = jnp.sum(_weights(batch))
        own = {"decoder_loss": Sum(sums.cross_entropy, count), "decoder_accuracy": Sum(sums.correct, count)}
        return LossOut({"mlm": mlm, "decoder": sums.loss}, carry, metrics | jax.lax.stop_gradient(own))

    def reconstruction(self, params: Tree, text: jax.Array, batch: Batch, *, key: jax.Array | None, train: bool) -> Sums:
        """Reconstruct texts from their embeddings [batch, 1, embed], and return the sums of the cross-entropy."""
        inputs, targets, places = (batch[name] for name in ("encoder_input_tokens", "masked_target_tokens", "masked_positions"))
        tokens = put_positions(inputs, places, targets, batch["masked_loss_weights"] > 0)
        tables, length, model = params["encoder"]["embeddings"], inputs.shape[1], self.model
        rngs = self.execution.dropout_rngs(key)
        embedded: Any = Embeddings(model, self.execution).apply(
            {"params": tables},
            tokens,
            positions=None,
            token_type_ids=batch["encoder_token_type_ids"],
            train=train,
            rngs=rngs and {name: jax.random.fold_in(one, 1) for name, one in rngs.items()},
        )
        # [length, embed] of the rows that are read
        positions = tables["position"]["table"][model.position_rows - model.max_length :][:length]
        context = jnp.where(jnp.arange(length)[:, None] == 0, text, embedded)
        keys = jax.random.key_data(keys_of_rows(inputs, targets, places))
        row = Row(batch["encoder_segment_ids"], arrays={"words": batch["encoder_word_numbers"], "keys": keys})
        queries = text + positions.astype(text.dtype)
        hidden: Any = self._decoder.apply({"params": params[_DECODER]}, queries, context, row, train=train, rngs=rngs)
        settings = VocabularyLoss(model.require_vocab_size, chunk=self.chunk)
        return chunked_cross_entropy(*self.factors(params, hidden), tokens, _weights(batch), settings)

    @override
    def flops(self, shape: RowShape) -> int:
        h, f, s = self.model.hidden_size, self.model.feed_forward_size, shape.length
        decoder = s * (8 * h * h + 4 * h * f) + 4 * h * s * s
        head = s * (2 * h * h + 2 * h * self.model.require_vocab_size)
        return super().flops(shape) + 3 * (decoder + head)

    @property
    def _decoder(self) -> EnhancedDecoder:
        return EnhancedDecoder(self.model, self.decoder_masked, self.execution)


def _weights(batch: Batch) -> jax.Array:
    """Return 1 at the tokens of words: float32[batch, length]."""
    is_word = (batch["encoder_word_numbers"] >= 0) & (batch["encoder_segment_ids"] > 0)
    return is_word.astype(jnp.float32)
