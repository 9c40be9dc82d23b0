"""Interface of encoder families, for objectives, the API and Hugging Face's files."""

from collections.abc import Mapping
from typing import Any, Protocol

import flax.linen as nn
import jax
import jax.numpy as jnp

from bertfam.errors import UserError
from bertfam.kernels.attention.patterns import Pattern
from bertfam.layers.execution import Execution
from bertfam.layers.heads import pretraining
from bertfam.layers.initializers import named_key
from bertfam.layers.lookup import gather_positions
from bertfam.models.network import NetworkConfig

_EXECUTION = Execution()
_COLLECTABLE = frozenset({"hidden_states", "attention_probs", "attention_queries", "attention_keys"})
CROSS_ATTENTION = ("cross_attention_probs", "cross_attention_queries", "cross_attention_keys")  # intermediates of a decoder


class EncoderConfig(NetworkConfig, Protocol):
    """A family's frozen config, which constructs an encoder."""

    @property
    def initializer_range(self) -> float:
        """Standard deviation that the kernels of heads start from."""
        ...

    def encoder(self, execution: Execution = _EXECUTION) -> nn.Module:
        """Return the embeddings and layers, called as `bertfam.models.bert.Encoder` is."""
        ...


class MaskedLmConfig(EncoderConfig, Protocol):
    """A family's frozen config, which constructs an encoder and a masked-token head."""

    @property
    def max_length(self) -> int:
        """Longest row in tokens."""
        ...

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """Attention patterns of the layers, each once."""
        ...

    def masked_lm_head(self, execution: Execution = _EXECUTION) -> pretraining.MaskedLmHead:
        """Return the head: (hidden [batch, predictions, embed], word table) -> float32[batch, predictions, padded vocabulary]."""
        ...


def check_collectable(collect: frozenset[str], *more: str) -> None:
    """Raise ValueError where `collect` names intermediates that the network does not have.

    `more` names those that it has beyond an encoder's.
    """
    known = _COLLECTABLE | set(more)
    if unknown := collect - known:
        raise ValueError(f"cannot collect {sorted(unknown)}: known are {sorted(known)}")


def check_only_hidden_states(config: Any, collect: frozenset[str]) -> None:
    """Raise UserError where `collect` names intermediates of attention, which the network does not have."""
    check_collectable(collect)
    if collect - {"hidden_states"}:
        raise UserError(f"{type(config).__name__} has no attention: name a model that has")


def pooler(config: EncoderConfig, execution: Execution = _EXECUTION) -> pretraining.Pooler:
    """Return the pooler, tanh(W h) of hidden states at [CLS]: [..., embed] -> [..., embed]."""
    return pretraining.Pooler(config.initializer_range, execution)


def sentence_head(config: EncoderConfig, classes: int = 2, execution: Execution = _EXECUTION) -> pretraining.ClassificationHead:
    """Return the sentence-pair classifier: pooled [..., embed] -> float32[..., classes] logits."""
    return pretraining.ClassificationHead(classes, config.initializer_range, execution)


def hidden_to_predict(
    config: EncoderConfig, params: Mapping[str, Any], inputs: Mapping[str, Any], hidden: jax.Array, positions: jax.Array
) -> jax.Array:
    """Return the hidden states from which tokens at some positions are predicted: [batch, predictions, embed].

    They are the encoder's at these positions, or those of a query stream, if the family has one (`query_stream` of its config),
    which does not see the tokens there.

    Args:
      config: config of the family.
      params: {"encoder": ...}.
      inputs: arguments of the encoder.
      hidden: [batch, length, embed], its output for them.
      positions: int32[batch, predictions].
    """
    if not getattr(config, "query_stream", False):
        return gather_positions(hidden, positions)
    encoder: Any = config.encoder()
    queries: jax.Array = encoder.apply({"params": params["encoder"]}, **inputs, predicted=positions, train=False)[0]
    return queries


def word_table(params: Mapping[str, Any]) -> jax.Array:
    """Return the word table float32[padded vocabulary, embed] of {"encoder": ..., ...}, for the masked-token head."""
    return params["encoder"]["embeddings"]["word"]["table"]


def init_encoder(config: EncoderConfig, key: jax.Array, length: int = 1) -> Any:
    """Initialize the parameters of the encoder, boxed with logical axis names."""
    tokens = jnp.zeros((1, length), jnp.int32)
    encoder: Any = config.encoder()
    return encoder.init(key, tokens, segment_ids=tokens, token_type_ids=tokens, train=False)["params"]


def init_masked_lm_head(config: MaskedLmConfig, key: jax.Array, encoder: Any) -> Any:
    """Initialize the parameters of the masked-token head, boxed, for an encoder's word table."""
    hidden = jnp.zeros((1, 1, config.hidden_size), jnp.float32)
    return config.masked_lm_head().init(key, hidden, word_table({"encoder": nn.meta.unbox(encoder)}))["params"]


def init_on_hidden(config: EncoderConfig, head: nn.Module, key: jax.Array) -> Any:
    """Initialize the parameters of a head that takes hidden states, boxed."""
    return head.init(key, jnp.zeros((1, 1, config.hidden_size), jnp.float32))["params"]


def init_encoder_parts(config: MaskedLmConfig, key: jax.Array, parts: frozenset[str], heads: Mapping[str, nn.Module]) -> Any:
    """Initialize the parameters of the encoder, and of the heads that are among `parts`, boxed."""
    params = {"encoder": init_encoder(config, named_key(key, "encoder"))}
    params |= {name: init_on_hidden(config, head, named_key(key, name)) for name, head in heads.items() if name in parts}
    if "mlm_head" in parts:
        params["mlm_head"] = init_masked_lm_head(config, named_key(key, "mlm_head"), params["encoder"])
    return params
