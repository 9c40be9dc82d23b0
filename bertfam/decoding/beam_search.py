"""Beam search: the highest-scoring texts among those that stay in the beam."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bertfam.decoding.constraints import constrain
from bertfam.decoding.stepper import Decoded, Ends, Prompts, Stepper, ended, repeat_rows
from bertfam.decoding.strategies import BeamSearch, Limits

_NONE = -jnp.inf  # score of an empty slot


class _Texts(NamedTuple):
    """Texts of each prompt, the best first.

    Attributes:
      scores: float32[batch, beams]: log-probabilities of open texts, scores of ended ones; -infinity marks an empty slot.
      tokens, log_probabilities: [batch, beams, max_new_tokens].
      lengths: int32[batch, beams].
    """

    scores: jax.Array
    tokens: jax.Array
    log_probabilities: jax.Array
    lengths: jax.Array

    def best(self, count: int) -> tuple["_Texts", jax.Array]:
        """Return the `count` best texts, and their places int32[batch, count]."""
        places = jax.lax.top_k(self.scores, count)[1]
        return self.at(places), places

    def at(self, places: jax.Array) -> "_Texts":
        """Return the texts at places, int32[batch, n]."""
        return jax.tree.map(lambda leaf: jax.vmap(lambda texts, at: texts[at])(leaf, places), self)


class _Search(NamedTuple):
    """State of the search loop.

    Attributes:
      written: int32[], number of new tokens of the open texts.
      open: texts that can still grow.
      over: texts that have ended.
      searching: bool[batch], True where the search of a prompt continues.
    """

    written: jax.Array
    open: _Texts
    over: _Texts
    searching: jax.Array


def search(
    stepper: Stepper,
    logits: jax.Array,
    state: Any,
    prompts: Prompts,
    *,
    strategy: BeamSearch,
    limits: Limits,
    ends: Ends,
    texts: int = 1,
) -> Decoded:
    """Search until no prompt's texts can become better, or until `max_new_tokens`.

    Each step considers the (ends + 1) * beams best continuations of the open texts, so that at least `beams` of them stay open.
    Continuations among the `beams` best that end, or reach `max_new_tokens`, are ranked with the texts that ended before.
    Continuations of probability 0 are ignored; if none is left and no text has ended, the search returns its open texts.

    Args:
      stepper: the model.
      logits: float32[batch, vocabulary] of the first new token.
      state: state of the model after the prompts.
      prompts: tokens that the texts begin with.
      strategy: beams, length penalty, and when to stop.
      limits: bounds on the texts.
      ends: tokens that begin and end texts.
      texts: number of texts to return for each prompt, at most `strategy.beams`.
    """
    batch, length = prompts.tokens.shape
    beams, most = strategy.beams, limits.max_new_tokens
    given, first = repeat_rows(prompts.tokens, beams), repeat_rows(prompts.first, beams)

    def choose(found: _Search, logits: jax.Array) -> tuple[_Search, jax.Array]:
        """Extend the search by one token; return the open text that each new one extends, too: int32[batch, beams]."""
        history = jnp.concatenate([given, found.open.tokens.reshape(batch * beams, most)], axis=1)
        own = jax.nn.log_softmax(logits)
        allowed = constrain(own, history, first, length, found.written, limits, ends)
        candidates, source, token = _continuations(found, own, allowed, max(2, len(ends.ids) + 1) * beams)
        ending = ended(token, ends) | (found.written + 1 == most)
        found, places = _select(found, candidates, ending, strategy, most)
        return found, jnp.take_along_axis(source, places, axis=1)

    def is_searching(carry: tuple[_Search, jax.Array, Any]) -> jax.Array:
        return (carry[0].written < most) & jnp.any(carry[0].searching)

    def advance(carry: tuple[_Search, jax.Array, Any]) -> tuple[_Search, jax.Array, Any]:
        found, source, state = carry
        last = found.open.tokens[:, :, found.written - 1].reshape(batch * beams)
        logits, state = stepper.step(last, stepper.reorder(state, source))
        return *choose(found, logits), state

    shape = (batch, beams, most)
    blank = _Texts(
        jnp.full(shape[:2], _NONE), jnp.full(shape, ends.fill, jnp.int32), jnp.zeros(shape), jnp.zeros(shape[:2], jnp.int32)
    )
    # One open text without tokens: several would stay equal to each other.
    start = _Search(jnp.int32(0), blank._replace(scores=blank.scores.at[:, 0].set(0.0)), blank, prompts.real)
    state = stepper.repeat(state, beams)
    found, _, _ = jax.lax.while_loop(is_searching, advance, (*choose(start, repeat_rows(logits, beams)), state))
    over = jax.tree.map(lambda leaf: leaf[:, :texts], found.over)
    return Decoded(over.tokens, over.log_probabilities, over.lengths, over.scores, over.scores > _NONE)


def _continuations(found: _Search, own: jax.Array, allowed: jax.Array, count: int) -> tuple[_Texts, jax.Array, jax.Array]:
    """Return the `count` best continuations by one token, their open texts and their tokens: int32[batch, count] each.

    Args:
      found: the search so far.
      own: float32[batch * beams, vocabulary], log-probabilities of the next token.
      allowed: float32[batch * beams, vocabulary], the same under constraints.
      count: number of continuations of each prompt, at most all.
    """
    batch, beams = found.open.scores.shape
    vocabulary = own.shape[-1]
    totals = (found.open.scores[:, :, None] + allowed.reshape(batch, beams, -1)).reshape(batch, -1)
    best, index = jax.lax.top_k(totals, min(count, totals.shape[1]))
    source, token = index // vocabulary, index % vocabulary
    log_probability = jnp.take_along_axis(own.reshape(batch, -1), index, axis=1)
    before = found.open.at(source)
    candidates = _Texts(
        best,
        before.tokens.at[:, :, found.written].set(token),
        before.log_probabilities.at[:, :, found.written].set(log_probability),
        before.lengths + 1,
    )
    return candidates, source, token


def _select(found: _Search, candidates: _Texts, ending: jax.Array, strategy: BeamSearch, most: int) -> tuple[_Search, jax.Array]:
    """Return the search whose open and ended texts are the best of before and of the candidates, and the open ones' places.

    Args:
      found: the search so far.
      candidates: continuations by one token, the best first.
      ending: bool[batch, candidates], True where a candidate ends.
      strategy: beams, length penalty, and when to stop.
      most: largest number of new tokens.
    """

    def rank(log_probability: jax.Array, tokens: jax.Array | int) -> jax.Array:
        return log_probability / jnp.asarray(tokens, jnp.float32) ** strategy.length_penalty

    best, written = candidates.scores, found.written + 1
    still_open, places = candidates._replace(scores=jnp.where(ending, _NONE, best)).best(strategy.beams)
    counted = ending & (jnp.arange(best.shape[1]) < strategy.beams) & found.searching[:, None]
    ending_now = candidates._replace(scores=jnp.where(counted, rank(best, written), _NONE))
    over, _ = _concatenate(found.over, ending_now).best(strategy.beams)
    stuck = found.searching & (still_open.scores[:, 0] == _NONE) & (over.scores[:, 0] == _NONE)
    unfinished = found.open._replace(scores=rank(found.open.scores, jnp.maximum(found.written, 1)))
    over = jax.tree.map(lambda kept, open: jnp.where(stuck.reshape(-1, *(1,) * (open.ndim - 1)), open, kept), over, unfinished)

    full = over.scores[:, -1] > _NONE
    if strategy.early_stopping is True:
        better = ~full
    else:
        at = most if strategy.early_stopping == "never" and strategy.length_penalty > 0 else written
        better = ~full | (rank(still_open.scores[:, 0], at) > over.scores[:, -1])
    searching = found.searching & better & (still_open.scores[:, 0] > _NONE)
    return _Search(written, still_open, over, searching), places


def _concatenate(first: _Texts, second: _Texts) -> _Texts:
    """Concatenate the texts of both, in this order."""
    return _Texts(*(jnp.concatenate(pair, axis=1) for pair in zip(first, second, strict=True)))
