"""Decoding with a causal LM or an encoder-decoder: reads prompts once, then one token of each text per step."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bertfam.decoding import beam_search, sampling
from bertfam.decoding.stepper import Decoded, Ends, Prompts, Stepper, reorder_rows, repeat_rows
from bertfam.decoding.strategies import BeamSearch, Limits, Strategy
from bertfam.layers.attention.key_value_cache import Cache, empty
from bertfam.layers.execution import Execution
from bertfam.layers.stack import divided
from bertfam.models.language_model import LanguageModelConfig, encode, logits, word_embeddings


class Source(NamedTuple):
    """Input of the encoder: int32[batch, length] each, padded on the right; segment ids are 1, and 0 at padding."""

    tokens: jax.Array
    segment_ids: jax.Array


class _State(NamedTuple):
    """State of the decoder.

    Attributes:
      cache: keys and values of the tokens that have been read.
      positions: int32[rows], position of the next token.
      source_segment_ids: int32[rows, length] of the source; None without an encoder.
    """

    cache: Cache
    positions: jax.Array
    source_segment_ids: jax.Array | None


@functools.partial(jax.jit, static_argnames=("config", "strategy", "limits", "ends", "texts", "execution"))
def decode(
    params: Any,
    prompts: Prompts,
    source: Source | None,
    keys: jax.Array | None,
    *,
    config: LanguageModelConfig,
    strategy: Strategy,
    limits: Limits,
    ends: Ends,
    texts: int,
    execution: Execution,
) -> Decoded:
    """Decode texts from prompts; compiles once for each shape and set of options.

    Args:
      params: parameters of the model, see `bertfam.models.language_model`.
      prompts: prompts of a causal LM; for an encoder-decoder, the decoder's first tokens.
      source: input of the encoder; None without an encoder.
      keys: uint32[batch, texts, 2], for `Sample`; else None.
      config: config of the model.
      strategy: method of choosing tokens.
      limits: bounds on the texts.
      ends: tokens that begin and end texts.
      texts: number of texts for each prompt.
      execution: dtype, loop over layers and attention backend.
    """
    stepper, start = stepper_of(config, params, limits.max_new_tokens, execution)
    after, state = start(prompts, source)
    if isinstance(strategy, BeamSearch):
        return beam_search.search(stepper, after, state, prompts, strategy=strategy, limits=limits, ends=ends, texts=texts)
    return sampling.sample(stepper, after, state, prompts, keys, strategy=strategy, limits=limits, ends=ends, texts=texts)


def divided_on_cpu(params: Any) -> Any:
    """Return parameters on the default device as decoding reads them fastest.

    On CPUs a program copies each layer's arrays out of stacked ones for every token, unless they are divided before.
    """
    return jax.device_put(divided(params) if jax.default_backend() == "cpu" else params)


def stepper_of(config: LanguageModelConfig, params: Any, new_tokens: int, execution: Execution) -> tuple[Stepper, Any]:
    """Return the stepper, and a function (prompts, source) -> (logits float32[batch, vocabulary], first state)."""
    words, decoder = word_embeddings(params), config.decoder(execution)

    def read(state: _State, tokens: jax.Array, segment_ids: jax.Array, positions: jax.Array, encoded: Any = None) -> Any:
        source: dict[str, Any] = {}
        if state.source_segment_ids is not None:
            source = {"encoded": encoded, "encoded_segment_ids": state.source_segment_ids}
        hidden, collected = decoder.apply(
            {"params": params["decoder"]},
            words,
            tokens,
            segment_ids=segment_ids,
            positions=positions,
            train=False,
            collect=frozenset(),
            cache=state.cache,
            **source,
        )
        # Rows of the table behind the last token are padding.
        after = logits(config, params, hidden[:, -1:], execution)[:, 0, : config.require_vocab_size]
        return after, state._replace(cache=collected["cache"], positions=positions[:, -1] + 1)

    def start(prompts: Prompts, source: Source | None) -> tuple[jax.Array, _State]:
        batch, length = prompts.tokens.shape
        dtype = execution.compute_dtype
        # The model never reads the last new token.
        slots = length + new_tokens - 1
        cache = empty(config.num_layers, batch, slots, config.num_kv_heads, config.head_dim, dtype)
        encoded = None
        if source is not None:
            encoded, _ = encode(config, params, source.tokens, source.segment_ids, execution)
        state = _State(cache, jnp.zeros(batch, jnp.int32), None if source is None else source.segment_ids)
        # [batch, length]: from 0 at the first token that is not padding
        positions = jnp.arange(length) - prompts.first[:, None]
        return read(state, prompts.tokens, (positions >= 0).astype(jnp.int32), jnp.maximum(positions, 0), encoded)

    def step(tokens: jax.Array, state: _State) -> tuple[jax.Array, _State]:
        return read(state, tokens[:, None], jnp.ones((len(tokens), 1), jnp.int32), state.positions[:, None])

    return Stepper(step, _repeat, _reorder), start


def _repeat(state: _State, count: int) -> _State:
    def rows(array: jax.Array | None, axis: int = 0) -> Any:
        return None if array is None else repeat_rows(array, count, axis)

    cache = state.cache
    cache = cache._replace(
        keys=rows(cache.keys, 1),
        values=rows(cache.values, 1),
        segment_ids=rows(cache.segment_ids),
        cross_keys=rows(cache.cross_keys, 1),
        cross_values=rows(cache.cross_values, 1),
    )
    return _State(cache, rows(state.positions), rows(state.source_segment_ids))


def _reorder(state: _State, places: jax.Array) -> _State:
    # The texts of a prompt have the same length and source, so that only keys and values differ.
    keys, values = (reorder_rows(array, places, 1) for array in (state.cache.keys, state.cache.values))
    return state._replace(cache=state.cache._replace(keys=keys, values=values))
