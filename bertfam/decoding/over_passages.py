"""Decoding with several passages: texts of an encoder-decoder under the marginals of RAG (Lewis et al. 2020, section 2.5)."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from bertfam.decoding import beam_search, sampling
from bertfam.decoding.decode import Source, decode, stepper_of
from bertfam.decoding.stepper import Decoded, Ends, Prompts, Stepper
from bertfam.decoding.strategies import BeamSearch, Greedy, Limits
from bertfam.kernels.chunked_cross_entropy import VocabularyLoss, target_log_probabilities
from bertfam.layers.execution import Execution
from bertfam.models.language_model import EncoderDecoderConfig, encode, head_weights, word_embeddings
from bertfam.objectives.retrieval.marginals import Marginal, sequence_log_likelihood

_STATIC = ("config", "marginal", "strategy", "limits", "ends", "execution")


@functools.partial(jax.jit, static_argnames=_STATIC)
def decode_over_passages(
    params: Any,
    source: Source,
    passages: jax.Array,
    real: jax.Array,
    *,
    config: EncoderDecoderConfig,
    marginal: Marginal,
    strategy: Greedy | BeamSearch,
    limits: Limits,
    ends: Ends,
    execution: Execution,
) -> Decoded:
    """Decode the best text of each question from its passages; compiles once for each shape and set of options.

    "token" searches the marginal distribution of each next token. "sequence" searches the texts of each passage by itself, and
    returns the one of all these with the highest marginal likelihood over all passages ("thorough decoding").

    Args:
      params: parameters of the generator, see `bertfam.models.language_model`.
      source: input of the encoder, [batch * k, length]: the passages of a question are adjacent.
      passages: float32[batch, k], log p(z | x).
      real: bool[batch], False for a row that only pads the batch.
      config: config of the generator.
      marginal: "sequence" or "token".
      strategy: method of choosing tokens.
      limits: bounds on the texts.
      ends: tokens that begin and end texts.
      execution: dtype, loop over layers and attention backend.

    Returns:
      One text of each question; its log-probabilities are marginal for "token", and those under its own passage for "sequence",
      whose scores are the marginal log-likelihoods.
    """
    batch, count = passages.shape
    options: dict[str, Any] = {"strategy": strategy, "limits": limits, "ends": ends}
    if marginal == "token":
        prompts = _prompts(real, ends)
        inner, start = stepper_of(config, params, limits.max_new_tokens, execution)
        after, state = start(_prompts(jnp.repeat(real, count), ends), source)
        stepper = marginal_stepper(inner, passages)
        after = _marginal(after, passages, 1)
        if isinstance(strategy, BeamSearch):
            return beam_search.search(stepper, after, state, prompts, **options)
        return sampling.sample(stepper, after, state, prompts, None, **options)
    texts = strategy.beams if isinstance(strategy, BeamSearch) else 1
    prompts = _prompts(jnp.repeat(real, count), ends)
    found = decode(params, prompts, source, None, config=config, texts=texts, execution=execution, **options)
    # [batch * k, texts, ...] -> [batch, k * texts, ...]
    found = jax.tree.map(lambda leaf: leaf.reshape(batch, count * texts, *leaf.shape[2:]), found)
    scores = jnp.where(found.possible, _rescored(params, source, passages, found, config, ends, execution), -jnp.inf)
    best = jnp.argmax(scores, axis=1)[:, None]
    chosen = jax.tree.map(lambda leaf: jax.vmap(lambda texts, at: texts[at])(leaf, best), found)
    return chosen._replace(scores=jnp.take_along_axis(scores, best, axis=1))


def marginal_stepper(inner: Stepper, passages: jax.Array) -> Stepper:
    """Return the stepper of the marginal over passages, log-probabilities in the place of logits.

    Args:
      inner: stepper of the generator, whose prompts are the k passages of each question, one after another.
      passages: float32[batch, k], log p(z | x).
    """
    batch, count = passages.shape

    def step(tokens: jax.Array, state: Any) -> tuple[jax.Array, Any]:
        texts = len(tokens) // batch
        # [batch * texts] -> [batch * k * texts]
        repeated = jnp.repeat(tokens.reshape(batch, 1, texts), count, axis=1).reshape(-1)
        logits, state = inner.step(repeated, state)
        return _marginal(logits, passages, texts), state

    def reorder(state: Any, places: jax.Array) -> Any:
        return inner.reorder(state, jnp.repeat(places, count, axis=0))

    return Stepper(step, inner.repeat, reorder)


def _marginal(logits: jax.Array, passages: jax.Array, texts: int) -> jax.Array:
    """Compute log sum over z of p(z | x) p(y_t | x, z): [batch * k * texts, vocabulary] -> [batch * texts, vocabulary]."""
    batch, count = passages.shape
    own = jax.nn.log_softmax(logits).reshape(batch, count, texts, -1)
    return jax.nn.logsumexp(passages[:, :, None, None] + own, axis=1).reshape(batch * texts, -1)


def _rescored(
    params: Any,
    source: Source,
    passages: jax.Array,
    found: Decoded,
    config: EncoderDecoderConfig,
    ends: Ends,
    execution: Execution,
) -> jax.Array:
    """Compute the marginal log-likelihood of every candidate [batch, n, tokens] over all passages: float32[batch, n]."""
    assert ends.start is not None
    batch, count, first = *passages.shape, ends.start
    encoded, _ = encode(config, params, source.tokens, source.segment_ids, execution)
    words, head, decoder = word_embeddings(params), head_weights(config, params), config.decoder(execution)
    settings = VocabularyLoss(config.require_vocab_size)

    def score(candidate: tuple[jax.Array, jax.Array]) -> jax.Array:
        tokens, lengths = candidate  # [batch, tokens], [batch]
        weights = (jnp.arange(tokens.shape[1]) < lengths[:, None]).astype(jnp.float32)
        before = jnp.concatenate([jnp.full((batch, 1), first, tokens.dtype), tokens[:, :-1]], axis=1)
        targets, before, real = (jnp.repeat(values, count, axis=0) for values in (tokens, before, weights))
        hidden, _ = decoder.apply(
            {"params": params["decoder"]},
            words,
            before,
            segment_ids=real.astype(jnp.int32),
            positions=None,
            train=False,
            collect=frozenset(),
            encoded=encoded,
            encoded_segment_ids=source.segment_ids,
        )
        hidden = (hidden * head.scale).astype(execution.compute_dtype)
        own = target_log_probabilities(hidden, head.kernel, head.bias, targets, real, settings)
        return sequence_log_likelihood(passages, own.reshape(batch, count, -1), weights)

    candidates = jnp.moveaxis(found.tokens, 1, 0), jnp.moveaxis(found.lengths, 1, 0)
    return jnp.moveaxis(jax.lax.map(score, candidates), 0, 1)


def _prompts(real: jax.Array, ends: Ends) -> Prompts:
    """Return the decoder's first tokens of rows, bool[rows]: False pads."""
    assert ends.start is not None
    return Prompts(jnp.full((len(real), 1), ends.start, jnp.int32), jnp.zeros(len(real), jnp.int32), real)
