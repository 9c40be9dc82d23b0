"""Beam search: the texts of the highest score, of those that the search keeps open."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bertfam.decoding.constraints import constrained
from bertfam.decoding.stepper import Decoded, Ends, Prompts, Stepper, ended, repeat_rows
from bertfam.decoding.strategies import BeamSearch, Limits

_NONE = -jnp.inf  # the score of no text


class _Texts(NamedTuple):
    """Texts of each prompt, the best first.

    Attributes:
      scores: float32[batch, beams]; -infinity is no text. Of open texts the log-probability, of those that have ended the score.
      tokens, log_probabilities: [batch, beams, max_new_tokens].
      lengths: int32[batch, beams].
    """

    scores: jax.Array
    tokens: jax.Array
    log_probabilities: jax.Array
    lengths: jax.Array

    def best(self, count: int) -> tuple["_Texts", jax.Array]:
        """The `count` best, and their places int32[batch, count]."""
        places = jax.lax.top_k(self.scores, count)[1]
        return self.at(places), places

    def at(self, places: jax.Array) -> "_Texts":
        """The texts at places, int32[batch, n]."""
        return jax.tree.map(lambda each: jax.vmap(lambda texts, at: texts[at])(each, places), self)


class _Search(NamedTuple):
    """The loop's own state.

    Attributes:
      written: int32[], tokens of the open texts.
      open: those that go on.
      over: those that have ended.
      searching: bool[batch], whether the search of a prompt goes on.
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
    """Searches until no prompt's texts can become better, or `max_new_tokens`.

    Each step looks at the (ends + 1) * beams best continuations of the open texts, so that `beams` of them go on. Those among the
    `beams` best that end, or reach `max_new_tokens`, are ranked with what has ended before. A continuation of probability 0 is
    none; a search of which none is left gives its open texts as they are where nothing else has ended.

    Args:
      stepper: the model.
      logits: float32[batch, vocabulary], of what comes after the prompts.
      state: the model's, after the prompts.
      prompts: what the texts begin with.
      strategy: beams, length penalty, and when to stop.
      limits: what texts keep to.
      ends: what ends them.
      texts: how many of each prompt are given, at most `strategy.beams`.
    """
    batch, length = prompts.tokens.shape
    beams, most = strategy.beams, limits.max_new_tokens
    given, first = repeat_rows(prompts.tokens, beams), repeat_rows(prompts.first, beams)

    def ranked(log_probability: jax.Array, tokens: jax.Array | int) -> jax.Array:
        return log_probability / jnp.asarray(tokens, jnp.float32) ** strategy.length_penalty

    def choose(found: _Search, logits: jax.Array) -> tuple[_Search, jax.Array]:
        """The search after one more token, and which open text each new one goes on from: int32[batch, beams]."""
        history = jnp.concatenate([given, found.open.tokens.reshape(batch * beams, most)], axis=1)
        own = jax.nn.log_softmax(logits)
        allowed = constrained(own, history, first, length, found.written, limits, ends)
        totals = (found.open.scores[:, :, None] + allowed.reshape(batch, beams, -1)).reshape(batch, -1)
        vocabulary = logits.shape[-1]
        best, index = jax.lax.top_k(totals, min(max(2, len(ends.ids) + 1) * beams, totals.shape[1]))
        source, token = index // vocabulary, index % vocabulary
        log_probability = jnp.take_along_axis(own.reshape(batch, -1), index, axis=1)
        before = found.open.at(source)
        candidates = _Texts(
            best,
            before.tokens.at[:, :, found.written].set(token),
            before.log_probabilities.at[:, :, found.written].set(log_probability),
            before.lengths + 1,
        )
        written = found.written + 1
        ending = ended(token, ends) | (written == most)

        going, places = candidates._replace(scores=jnp.where(ending, _NONE, best)).best(beams)
        counted = ending & (jnp.arange(best.shape[1]) < beams) & found.searching[:, None]
        ending_now = candidates._replace(scores=jnp.where(counted, ranked(best, written), _NONE))
        over, _ = _joined(found.over, ending_now).best(beams)
        stuck = found.searching & (going.scores[:, 0] == _NONE) & (over.scores[:, 0] == _NONE)
        as_they_are = found.open._replace(scores=ranked(found.open.scores, jnp.maximum(found.written, 1)))
        over = jax.tree.map(
            lambda kept, open: jnp.where(stuck.reshape(-1, *(1,) * (open.ndim - 1)), open, kept), over, as_they_are
        )

        full = over.scores[:, -1] > _NONE
        if strategy.early_stopping is True:
            better = ~full
        else:
            at = most if strategy.early_stopping == "never" and strategy.length_penalty > 0 else written
            better = ~full | (ranked(going.scores[:, 0], at) > over.scores[:, -1])
        searching = found.searching & better & (going.scores[:, 0] > _NONE)
        return _Search(written, going, over, searching), jnp.take_along_axis(source, places, axis=1)

    def go_on(carry: tuple[_Search, jax.Array, Any]) -> jax.Array:
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
    # One open text, of no token: were there more, they would stay equal.
    start = _Search(jnp.int32(0), blank._replace(scores=blank.scores.at[:, 0].set(0.0)), blank, prompts.real)
    state = stepper.repeat(state, beams)
    found, _, _ = jax.lax.while_loop(go_on, advance, (*choose(start, repeat_rows(logits, beams)), state))
    over = jax.tree.map(lambda each: each[:, :texts], found.over)
    return Decoded(over.tokens, over.log_probabilities, over.lengths, over.scores, over.scores > _NONE)


def _joined(first: _Texts, second: _Texts) -> _Texts:
    """The texts of both, in this order."""
    return _Texts(*(jnp.concatenate(pair, axis=1) for pair in zip(first, second, strict=True)))
