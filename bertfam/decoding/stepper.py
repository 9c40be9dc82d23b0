"""Interface between the decoding loops and a model: a step, and states for other rows."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Stepper(NamedTuple):
    """Causal LM or encoder-decoder as pure functions of a state.

    A state has `batch * n` rows: the n texts of each prompt are adjacent.

    Attributes:
      step: (tokens int32[rows], state) -> (logits float32[rows, vocabulary] of the next tokens, state).
      repeat: (state of `batch` rows, n) -> state of `batch * n` rows.
      reorder: (state, places int32[batch, n]) -> the state in which text i of a prompt continues text places[i].
    """

    step: Callable[[jax.Array, Any], tuple[jax.Array, Any]]
    repeat: Callable[[Any, int], Any]
    reorder: Callable[[Any, jax.Array], Any]


class Prompts(NamedTuple):
    """First tokens of a batch of texts.

    Attributes:
      tokens: int32[batch, length], padded on the left; for an encoder-decoder, the decoder's first token.
      first: int32[batch], place of the first token that is not padding.
      real: bool[batch], False for a row that only pads the batch and has no text.
    """

    tokens: jax.Array
    first: jax.Array
    real: jax.Array


class Ends(NamedTuple):
    """Tokens that begin and end texts.

    Attributes:
      ids: tokens that end a text and are its last token. Without any, texts end at `Limits.max_new_tokens`.
      fill: token behind the end of a text.
      start: token before the first new one in an encoder-decoder, and in a causal LM whose prompt is empty; some causal LMs have
        it before every prompt. None: there is none.
      first: forced first new token; None: the model chooses.
      last: forced last token of texts that reach `Limits.max_new_tokens`; None: the model chooses.
    """

    ids: tuple[int, ...]
    fill: int
    start: int | None = None
    first: int | None = None
    last: int | None = None


class Decoded(NamedTuple):
    """Decoded texts, the best of each prompt first.

    Attributes:
      tokens: int32[batch, n, max_new_tokens], `Ends.fill` behind a text's end.
      log_probabilities: float32[batch, n, max_new_tokens], of each token under the unconstrained model; 0 behind the end.
      lengths: int32[batch, n], length of the text with its end.
      scores: float32[batch, n], by which texts are ranked: the score of a beam search, else the sum of `log_probabilities`.
      possible: bool[batch, n], False for an empty slot: fewer than n texts have a probability above 0.
    """

    tokens: jax.Array
    log_probabilities: jax.Array
    lengths: jax.Array
    scores: jax.Array
    possible: jax.Array


def ended(tokens: jax.Array, ends: Ends) -> jax.Array:
    """Return True where a token ends a text: bool, of the shape of `tokens`."""
    return jnp.isin(tokens, jnp.array(ends.ids, tokens.dtype)) if ends.ids else jnp.zeros(tokens.shape, bool)


def repeat_rows(array: jax.Array, count: int, axis: int = 0) -> jax.Array:
    """Repeat each row `count` times: [..., batch, ...] -> [..., batch * count, ...]."""
    return jnp.repeat(array, count, axis=axis)


def reorder_rows(array: jax.Array, places: jax.Array, axis: int = 0) -> jax.Array:
    """Reorder rows [..., batch * n, ...] -> [..., batch * m, ...]: text i of a prompt is its text places[i], int32[batch, m]."""
    batch, count = places.shape
    shape = array.shape
    # Texts stay in the row of their prompt, so that a batch split over devices is never gathered.
    grouped = array.reshape(*shape[:axis], batch, shape[axis] // batch, *shape[axis + 1 :])
    picked = jax.vmap(lambda texts, at: jnp.take(texts, at, axis=axis), in_axes=(axis, 0), out_axes=axis)(grouped, places)
    return picked.reshape(*shape[:axis], batch * count, *shape[axis + 1 :])
