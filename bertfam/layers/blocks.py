"""Transformer layers: sublayers with residual connections and norms, in three arrangements."""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax

from bertfam.layers.attention.dot_product import Attended, Encoded, Row
from bertfam.layers.attention.key_value_cache import LayerCache
from bertfam.layers.dropout import Dropout

# Constructor of a sublayer or a norm: `maker(name=...)` is a module.
Maker = Callable[..., Any]


class _Block(nn.Module):
    """Base of the arrangements of sublayers.

    Attributes:
      attention: constructor of the self-attention (see `bertfam.layers.attention.dot_product`).
      feed_forward: constructor of the feed-forward network.
      norm: constructor of the norms.
      cross_attention: constructor of the cross-attention, which follows the self-attention; None: no cross-attention.
      attention_dropout_rate: dropout rate of each attention's output.
      feed_forward_dropout_rate: dropout rate of the feed-forward network's output.
      attention_norm: True if the self-attention has a norm.
    """

    attention: Maker
    feed_forward: Maker
    norm: Maker
    cross_attention: Maker | None = None
    attention_dropout_rate: float = 0.0
    feed_forward_dropout_rate: float = 0.0
    attention_norm: bool = True

    @nn.compact
    def __call__(
        self,
        hidden: jax.Array,
        *,
        row: Row,
        encoded: Encoded | None = None,
        cache: LayerCache | None = None,
        layer_arrays: Mapping[str, jax.Array] | None = None,
        packed: bool,
        train: bool,
        collect: frozenset[str] = frozenset(),
    ) -> tuple[jax.Array, dict[str, Any]]:
        """Apply one layer.

        Args:
          hidden: [batch, length, embed].
          row: the rows that self-attention sees.
          encoded: the encoder's output, for cross-attention.
          cache: keys and values of earlier tokens; None: no earlier tokens.
          layer_arrays: arrays of this layer that the attention pattern depends on, by name, besides those of the rows.
          packed: False promises that a row holds one example (ids 0 and 1) with its padding at the end, and no cache.
          train: True to apply dropout.
          collect: names among "hidden_states", "attention_probs", "attention_queries", "attention_keys", and the same three of
            cross-attention, "cross_attention_probs" and so on.

        Returns:
          The output dtype[batch, length, embed], and a dict with the intermediates that `collect` names: the output as
          "hidden_states", attention weights float32[batch, heads, length, keys], queries and keys
          dtype[batch, length, heads, head_dim], and with a cache the next one as "cache".
        """
        results: dict[str, Attended] = {}
        if layer_arrays is not None:
            row = row._replace(arrays={**(row.arrays or {}), **layer_arrays})

        def attend(inputs: jax.Array) -> jax.Array:
            cached = None if cache is None else (cache.keys, cache.values)
            results[""] = self.attention(name="attention")(
                inputs, row, packed=packed, train=train, return_weights="attention_probs" in collect, cached=cached
            )
            return results[""].output

        def cross_attend(inputs: jax.Array) -> jax.Array:
            assert self.cross_attention is not None and encoded is not None
            cached = None
            if cache is not None and cache.cross_keys is not None and cache.cross_values is not None:
                cached = (cache.cross_keys, cache.cross_values)
            results["cross_"] = self.cross_attention(name="cross_attention")(
                inputs, row, encoded, packed=packed, train=train, return_weights="cross_attention_probs" in collect, cached=cached
            )
            return results["cross_"].output

        def feed(inputs: jax.Array) -> jax.Array:
            return self.feed_forward(name="feed_forward")(inputs, train=train)

        hidden = self._sublayers(hidden, attend, cross_attend if self.cross_attention else None, feed, train)
        hidden = nn.with_logical_constraint(hidden, ("batch", "length", None))
        outputs = intermediates(hidden, results, collect)
        if cache is not None:
            own, cross = results[""], results.get("cross_")
            outputs["cache"] = LayerCache(own.keys, own.values, cross and cross.keys, cross and cross.values)
        return hidden, outputs

    def _sublayers(
        self,
        hidden: jax.Array,
        attend: Callable[[jax.Array], jax.Array],
        cross_attend: Callable[[jax.Array], jax.Array] | None,
        feed: Callable[[jax.Array], jax.Array],
        train: bool,
    ) -> jax.Array:
        raise NotImplementedError

    def _dropped(self, added: jax.Array, name: str, train: bool) -> jax.Array:
        rate = self.feed_forward_dropout_rate if name == "feed_forward" else self.attention_dropout_rate
        return Dropout(rate, name=f"{name}_dropout")(added, train=train)

    def _branch(self, hidden: jax.Array, added: jax.Array | None, name: str) -> tuple[jax.Array, jax.Array]:
        """Return hidden + added for the residual connection, and normalised for a sublayer."""
        if name == "attention" and not self.attention_norm:
            assert added is None, "a sum that is not computed"
            return hidden, hidden
        found: tuple[jax.Array, jax.Array] = self.norm(name=f"{name}_norm").branch(hidden, added)
        return found


def intermediates(hidden: jax.Array, attended: Mapping[str, Attended], collect: frozenset[str]) -> dict[str, Any]:
    """Return the intermediates of a layer that `collect` names, given its output and its attentions by their prefixes."""
    outputs: dict[str, Any] = {"hidden_states": hidden} if "hidden_states" in collect else {}
    for prefix, found in attended.items():
        if found.probabilities is not None:
            outputs[f"{prefix}attention_probs"] = found.probabilities
        for name, heads in (("queries", found.queries), ("keys", found.keys)):
            if f"{prefix}attention_{name}" in collect:
                outputs[f"{prefix}attention_{name}"] = heads
    return outputs


class PostNormBlock(_Block):
    """Post-norm layer: x = norm(x + dropout(sublayer(x))) for each sublayer, as in BERT, GPT and BART."""

    def _sublayers(self, hidden: jax.Array, attend: Any, cross_attend: Any, feed: Any, train: bool) -> jax.Array:
        for name, sublayer in (("attention", attend), ("cross_attention", cross_attend), ("feed_forward", feed)):
            if sublayer is not None:
                hidden = self.norm(name=f"{name}_norm")(hidden, self._dropped(sublayer(hidden), name, train))
        return hidden


class PreNormBlock(_Block):
    """Pre-norm layer: x = x + dropout(sublayer(norm(x))) for each sublayer, as in GPT-2, T5 and ModernBERT."""

    def _sublayers(self, hidden: jax.Array, attend: Any, cross_attend: Any, feed: Any, train: bool) -> jax.Array:
        added: Any = None
        for name, sublayer in (("attention", attend), ("cross_attention", cross_attend), ("feed_forward", feed)):
            if sublayer is not None:
                hidden, inputs = self._branch(hidden, added, name)
                added = self._dropped(sublayer(inputs), name, train)
        return hidden + added


class ParallelBlock(_Block):
    """Parallel layer of PaLM (Chowdhery et al. 2022, section 2).

    With y = norm(x), x = x + dropout(attention(y)) + dropout(feed_forward(y)).
    """

    def _sublayers(self, hidden: jax.Array, attend: Any, cross_attend: Any, feed: Any, train: bool) -> jax.Array:
        assert cross_attend is None, "a parallel layer has no cross-attention"
        hidden, inputs = self._branch(hidden, None, "attention")
        return hidden + self._dropped(attend(inputs), "attention", train) + self._dropped(feed(inputs), "feed_forward", train)
