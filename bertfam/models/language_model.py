"""Interface of language models, causal LMs and encoder-decoders, for objectives, decoding and Hugging Face's files.

Parameters are {"embeddings": {"table": float32[padded vocabulary, embed]}, "decoder": ...}, with "encoder" where there is one and
"lm_head" where the head has parameters of its own. Networks are given the word table, which they share.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertfam.features import Start
from bertfam.layers.attention.dot_product import Row
from bertfam.layers.attention.key_value_cache import Cache
from bertfam.layers.embeddings import Table
from bertfam.layers.execution import Execution
from bertfam.layers.heads.pretraining import Head, LmHead
from bertfam.layers.initializers import named_key
from bertfam.models.network import NetworkConfig

_EXECUTION = Execution()


class LanguageModelConfig(NetworkConfig, Protocol):
    """A family's frozen config, which constructs the networks of a causal LM or of an encoder-decoder.

    An encoder's call is `(words, tokens, *, segment_ids, positions, train, collect) -> (hidden, collected)`. A decoder also takes
    `encoded` [batch, encoded length, embed] and `encoded_segment_ids` where there is an encoder, and `cache`:

    - words: float32[padded vocabulary, embed], the word table.
    - tokens: int32[batch, length].
    - segment_ids: int32[batch, length], which packed example; 0 = padding. A token sees those of its own segment.
    - positions: int32[batch, length], from 0 in each example, of rows that are packed or padded on the left. None promises one
      example a row, segment ids 1 and then 0.
    - train: whether dropout is on; needs a "dropout" key.
    - collect: names among "hidden_states", "attention_probs" (before dropout), "attention_queries", "attention_keys" and those
      of `bertfam.models.encoder.CROSS_ATTENTION`.
    - cache: a `bertfam.layers.attention.key_value_cache.Cache`, in which these tokens take the next slots; positions are then
      given. Where there is an encoder, the first call has `encoded` and later ones None: its keys and values are in the cache.

    They return dtype[batch, length, embed], and a dict of what `collect` names, hidden_states [layers + 1, batch, length, embed]
    and attention weights float32[layers, batch, heads, length, keys], and with a cache the next one as "cache".

    Attributes:
      objective_file: gin file of an objective that trains such a model.
    """

    objective_file: ClassVar[str]

    @property
    def num_kv_heads(self) -> int:
        """Number of key and value heads of the decoder's self-attention."""
        ...

    @property
    def table_width(self) -> int:
        """Width of the word table, and so of the head's input."""
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

    def decoder(self, execution: Execution = _EXECUTION) -> nn.Module:
        """Return the decoder."""
        ...

    def stacks(self, execution: Execution = _EXECUTION) -> dict[str, nn.Module]:
        """Return the networks by name, in the order in which they run; each reads the output of the one before it."""
        ...

    def lm_head(self, execution: Execution = _EXECUTION) -> LmHead:
        """Return the head: (hidden [batch, length, embed], word table) -> float32[batch, length, padded vocabulary] logits."""
        ...


class EncoderDecoderConfig(LanguageModelConfig, Protocol):
    """A family's frozen config, which constructs an encoder-decoder.

    Its encoder alone is the network of a `bertfam.models.encoder_decoder.EncoderOnlyConfig`.
    """

    @property
    def encoder_layers(self) -> int:
        """Number of layers of the encoder."""
        ...

    @property
    def initializer_range(self) -> float:
        """Standard deviation that the kernels of heads start from."""
        ...

    def encoder(self, execution: Execution = _EXECUTION) -> nn.Module:
        """Return the encoder."""
        ...

    def encoder_flops(self, length: int) -> int:
        """Return the FLOPs of the encoder alone: 3 x forward."""
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


def encode(
    config: LanguageModelConfig,
    params: Mapping[str, Any],
    tokens: jax.Array,
    segment_ids: jax.Array,
    execution: Execution = _EXECUTION,
    collect: frozenset[str] = frozenset(),
) -> tuple[jax.Array, dict[str, Any]]:
    """Run the encoder of an encoder-decoder, without dropout, on rows of one example each; see `LanguageModelConfig`."""
    row: dict[str, Any] = {"segment_ids": segment_ids, "positions": None, "train": False, "collect": collect}
    network: Any = config.stacks(execution)["encoder"]
    found: tuple[jax.Array, dict[str, Any]] = network.apply({"params": params["encoder"]}, word_embeddings(params), tokens, **row)
    return found


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
    for name, network in config.stacks().items():
        params[name] = network.init(named_key(key, name), words, tokens, **row)["params"]
        row |= {"encoded": jnp.zeros((1, 1, config.hidden_size), jnp.float32), "encoded_segment_ids": tokens}
    own = config.lm_head().init(named_key(key, "lm_head"), words, method="weights").get("params", {})
    return params | ({"lm_head": own} if own else {})


def init_language_model_parts(config: LanguageModelConfig, key: jax.Array, parts: frozenset[str]) -> dict[str, Any]:
    """Initialize the parameters of the parts that are named, boxed with logical axis names."""
    return {name: part for name, part in init_language_model(config, key).items() if name in parts}
