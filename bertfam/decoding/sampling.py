"""Greedy decoding and sampling, one token after the other."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bertfam.decoding.constraints import constrain, truncate
from bertfam.decoding.stepper import Decoded, Ends, Prompts, Stepper, ended, repeat_rows
from bertfam.decoding.strategies import Greedy, Limits, Sample


class _Texts(NamedTuple):
    """State of the loop; rows = batch * texts.

    Attributes:
      written: int32[], number of new tokens so far.
      tokens, log_probabilities: [rows, max_new_tokens].
      lengths: int32[rows].
      over: bool[rows], True for texts that have ended.
    """

    written: jax.Array
    tokens: jax.Array
    log_probabilities: jax.Array
    lengths: jax.Array
    over: jax.Array


def sample(
    stepper: Stepper,
    logits: jax.Array,
    state: Any,
    prompts: Prompts,
    keys: jax.Array | None,
    *,
    strategy: Greedy | Sample,
    limits: Limits,
    ends: Ends,
    texts: int = 1,
) -> Decoded:
    """Decode greedily or by sampling until all texts have ended.

    Args:
      stepper: the model.
      logits: float32[batch, vocabulary] of the first new token.
      state: state of the model after the prompts.
      prompts: tokens that the texts begin with.
      keys: uint32[batch, texts, 2], a key for each text; None without sampling.
      strategy: method of choosing tokens.
      limits: bounds on the texts.
      ends: tokens that begin and end texts.
      texts: number of texts for each prompt.
    """
    batch, length = prompts.tokens.shape
    rows = batch * texts
    given, first = repeat_rows(prompts.tokens, texts), repeat_rows(prompts.first, texts)

    def choose(found: _Texts, logits: jax.Array) -> _Texts:
        history = jnp.concatenate([given, found.tokens], axis=1)
        scores = constrain(logits, history, first, length, found.written, limits, ends)
        if isinstance(strategy, Sample) and keys is not None:
            drawn = jax.vmap(_draw, in_axes=(0, None, 0))(keys.reshape(rows, 2), found.written, truncate(scores, strategy))
        else:
            drawn = jnp.argmax(scores, axis=-1)
        # A text ends here if every next token is excluded.
        over = found.over | (jnp.max(scores, axis=-1) == -jnp.inf)
        token = jnp.where(over, ends.fill, drawn).astype(jnp.int32)
        own = jnp.take_along_axis(jax.nn.log_softmax(logits), token[:, None], axis=-1)[:, 0]
        return _Texts(
            found.written + 1,
            found.tokens.at[:, found.written].set(token),
            found.log_probabilities.at[:, found.written].set(jnp.where(over, 0.0, own)),
            found.lengths + ~over,
            over | ended(token, ends),
        )

    def is_writing(carry: tuple[_Texts, Any]) -> jax.Array:
        return (carry[0].written < limits.max_new_tokens) & ~jnp.all(carry[0].over)

    def advance(carry: tuple[_Texts, Any]) -> tuple[_Texts, Any]:
        found, state = carry
        logits, state = stepper.step(found.tokens[:, found.written - 1], state)
        return choose(found, logits), state

    blank = jnp.full((rows, limits.max_new_tokens), ends.fill, jnp.int32)
    none = jnp.zeros(rows, jnp.int32)
    empty = _Texts(jnp.int32(0), blank, jnp.zeros(blank.shape), none, repeat_rows(~prompts.real, texts))
    state = stepper.repeat(state, texts) if texts > 1 else state
    found, _ = jax.lax.while_loop(is_writing, advance, (choose(empty, repeat_rows(logits, texts)), state))
    shape = (batch, texts)
    own = found.log_probabilities.reshape(*shape, -1)
    possible = jnp.broadcast_to(prompts.real[:, None], shape)
    return Decoded(found.tokens.reshape(*shape, -1), own, found.lengths.reshape(shape), own.sum(-1), possible)


def _draw(key: jax.Array, written: jax.Array, logits: jax.Array) -> jax.Array:
    """Draw a token; the key of its text, uint32[2], and its place in the text alone determine the draw."""
    return jax.random.categorical(jax.random.fold_in(jax.random.wrap_key_data(key, impl="threefry2x32"), written), logits)
