"""Interface of language models, causal LMs and encoder-decoders, for objectives, decoding and Hugging Face's files.

Parameters are {"embeddings": {"table": float32[padded vocabulary, embed]}, "decoder": ...}, with "encoder" where there is one and
"lm_head" where the head has parameters of its own. Networks are given the word table, which they share.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertfam.features import Start
from bertfam.layers.attention import Row
from bertfam.layers.embeddings import Table
from bertfam.layers.execution import Execution
from bertfam.layers.heads.pretraining import Head, LmHead
from bertfam.layers.initializers import named_key
from bertfam.layers.key_value_cache import Cache

_EXECUTION = Execution()


class LanguageModelConfig(Protocol):
    """A family's frozen config, which constructs its networks.

    An encoder's call is (words, tokens, *, segment_ids, positions, train, collect) -> (hidden, collected). A decoder also takes
    `encoded` [batch, encoded length, embed] and `encoded_segment_ids` where there is an encoder, and `cache`:

      words: float32[padded vocabulary, embed], the word table.
      tokens: int32[batch, length].
      segment_ids: int32[batch, length], which packed example; 0 = padding. A token sees those of its own segment.
      positions: int32[batch, length], from 0 in each example, of rows that are packed or padded on the left. None promises one
        example a row, segment ids 1 and then 0.
      train: whether dropout is on; needs a "dropout" key.
      collect: names among "hidden_states", "attention_probs" and "cross_attention_probs" (before dropout).
      cache: a `bertfam.layers.key_value_cache.Cache`, in which these tokens take the next slots; positions are then given. Where
        there is an encoder, the first call has `encoded` and later ones None: its keys and values are in the cache.

    They return dtype[batch, length, embed], and a dict of what `collect` names, hidden_states [layers + 1, batch, length, embed]
    and attention weights float32[layers, batch, heads, length, keys], and with a cache the next one as "cache".
    """

    @property
    def vocab_size(self) -> int | None:
        """Number of real tokens; None takes the size of the run's vocabulary."""
        ...

    @property
    def max_length(self) -> int | None:
        """Longest row in tokens, of encoder and decoder each; None: no limit."""
        ...

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream, and of an encoder's output."""
        ...

    @property
    def num_layers(self) -> int:
        """Layers of the decoder."""
        ...

    @property
    def num_kv_heads(self) -> int:
        """Number of key and value heads of the decoder's self-attention."""
        ...

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        ...

    @property
    def attention_dropout_rate(self) -> float:
        """Dropout rate of the attention probabilities, applied by backends that can."""
        ...

    @property
    def require_vocab_size(self) -> int:
        """`vocab_size`, which must have been set."""
        ...

    @property
    def require_table_rows(self) -> int:
        """Rows of the word table in files."""
        ...

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the word table in memory."""
        ...

    @property
    def has_encoder(self) -> bool:
        """True for an encoder-decoder, False for a causal LM."""
        ...

    @property
    def start(self) -> Start | None:
        """Start token of the decoder.

        In an encoder-decoder, the decoder's first prediction follows it. In a causal LM, every prompt begins with it; None:
        prompts are read as they are.
        """
        ...

    def embeddings(self) -> Table:
        """Return the word table."""
        ...

    def encoder(self, execution: Execution = _EXECUTION) -> nn.Module:
        """Return the encoder; only where `has_encoder`."""
        ...

    def decoder(self, execution: Execution = _EXECUTION) -> nn.Module:
        """Return the decoder."""
        ...

    def lm_head(self, execution: Execution = _EXECUTION) -> LmHead:
        """Return the head: (hidden [batch, length, embed], word table) -> float32[batch, length, padded vocabulary] logits."""
        ...

    def flops(self, length: int, targets: int) -> int:
        """Return the matrix-product FLOPs of one row of one training step: 3 x forward.

        `length` tokens of the encoder and `targets` of the decoder, whose self-attention counts half, as it is causal; the
        vocabulary head on all targets.
        """
        ...


def check_positions(cache: Cache | None, positions: jax.Array | None) -> None:
    """Raise ValueError where tokens that follow those of a cache have no positions, in a network that uses positions."""
    if cache is not None and positions is None:
        raise ValueError("tokens that follow those of a cache are not at the positions 0, 1, 2, ...: positions must be given")


def decoder_row(
    segment_ids: jax.Array, cache: Cache | None, positions: jax.Array | None = None, bias: jax.Array | None = None
) -> Row:
    """Return the row that a decoder's self-attention sees: the tokens alone, or with the slots of a cache.

    Args:
      segment_ids: int32[batch, length], of these tokens.
      cache: of the tokens before them.
      positions: int32[batch, length], for rotary positions.
      bias: float32[1, heads, length, length or slots].
    """
    row = Row(segment_ids, positions, bias)
    return row if cache is None else row._replace(key_segment_ids=cache.updated_segment_ids(segment_ids), offset=cache.filled)


def collected_outputs(
    layers: dict[str, Any], first: jax.Array, last: jax.Array, segment_ids: jax.Array, cache: Cache | None = None
) -> dict[str, Any]:
    """Return the collected intermediates of a network, and its next cache.

    Args:
      layers: the outputs of the stack, [layers, ...] each.
      first: [batch, length, embed], the input of the stack.
      last: [batch, length, embed], the network's output, which replaces that of the last layer.
      segment_ids: int32[batch, length], of these tokens.
      cache: of the tokens before them.

    Returns:
      `layers` with hidden_states [layers + 1, batch, length, embed], and the next `Cache` as "cache".
    """
    outputs = dict(layers)
    if "hidden_states" in outputs:
        # [batch, length, embed], [layers - 1, batch, length, embed], [batch, length, embed] -> [layers + 1, ...]
        outputs["hidden_states"] = jnp.concatenate([first[None], outputs["hidden_states"][:-1], last[None]])
    if cache is not None:
        outputs["cache"] = cache.after(segment_ids, outputs["cache"])
    return outputs


def word_embeddings(params: Mapping[str, Any]) -> jax.Array:
    """Return the word table float32[padded vocabulary, embed] of a language model's parameters."""
    return params["embeddings"]["table"]


def head_weights(config: LanguageModelConfig, params: Mapping[str, Any]) -> Head:
    """Return the weights of the map from the decoder's output to words."""
    head: Any = config.lm_head().apply({"params": params.get("lm_head", {})}, word_embeddings(params), method="weights")
    return head


def logits(
    config: LanguageModelConfig, params: Mapping[str, Any], hidden: jax.Array, execution: Execution = _EXECUTION
) -> jax.Array:
    """Map the decoder's output [batch, length, embed] to logits float32[batch, length, padded vocabulary]."""
    outputs: Any = config.lm_head(execution).apply({"params": params.get("lm_head", {})}, hidden, word_embeddings(params))
    return outputs


def init_language_model(config: LanguageModelConfig, key: jax.Array) -> dict[str, Any]:
    """Initialize the parameters of all parts, boxed with logical axis names."""
    params = {"embeddings": config.embeddings().init(named_key(key, "embeddings"))["params"]}
    words = nn.meta.unbox(params["embeddings"])["table"]
    tokens = jnp.zeros((1, 1), jnp.int32)
    row: dict[str, Any] = {"segment_ids": tokens, "positions": None, "train": False}
    if config.has_encoder:
        params["encoder"] = config.encoder().init(named_key(key, "encoder"), words, tokens, **row)["params"]
        row |= {"encoded": jnp.zeros((1, 1, config.hidden_size), jnp.float32), "encoded_segment_ids": tokens}
    params["decoder"] = config.decoder().init(named_key(key, "decoder"), words, tokens, **row)["params"]
    own = config.lm_head().init(named_key(key, "lm_head"), words, method="weights").get("params", {})
    return params | ({"lm_head": own} if own else {})


def init_language_model_parts(config: LanguageModelConfig, key: jax.Array, parts: frozenset[str]) -> dict[str, Any]:
    """Initialize the parameters of the parts that are named, boxed with logical axis names."""
    return {name: part for name, part in init_language_model(config, key).items() if name in parts}
