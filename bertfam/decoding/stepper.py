"""What the loops ask of a model: one step, and the same state for other rows."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Stepper(NamedTuple):
    """A model that writes, as pure functions of a state.

    A state is of `batch * n` rows: the n texts of each prompt stand together.

    Attributes:
      step: (tokens int32[rows], state) -> (logits float32[rows, vocabulary] of what comes after them, state).
      repeat: (state of `batch` rows, n) -> state of `batch * n` rows.
      reorder: (state, places int32[batch, n]) -> the state in which text i of a prompt goes on from its text places[i].
    """

    step: Callable[[jax.Array, Any], tuple[jax.Array, Any]]
    repeat: Callable[[Any, int], Any]
    reorder: Callable[[Any, jax.Array], Any]


class Prompts(NamedTuple):
    """What a batch of texts begins with.

    Attributes:
      tokens: int32[batch, length], padded on the left; of an encoder-decoder the decoder's first token.
      first: int32[batch], the place of the first that is no padding.
      real: bool[batch]; False is a row that only fills the batch up, and has no text.
    """

    tokens: jax.Array
    first: jax.Array
    real: jax.Array


class Ends(NamedTuple):
    """The tokens with a meaning of their own.

    Attributes:
      ids: what ends a text; a text has it as its last token. Without any, texts end at `Limits.max_new_tokens`.
      fill: what stands behind an end.
      start: what the first new token of an encoder-decoder follows, and of a decoder whose prompt is empty; some have it before
        every prompt. None: there is none.
      first: the first new token, whatever the model says; None: the model's.
      last: what texts that reach `Limits.max_new_tokens` end with, whatever the model says; None: the model's.
    """

    ids: tuple[int, ...]
    fill: int
    start: int | None = None
    first: int | None = None
    last: int | None = None


class Decoded(NamedTuple):
    """Texts, the best of each prompt first.

    Attributes:
      tokens: int32[batch, n, max_new_tokens], `Ends.fill` behind a text's end.
      log_probabilities: float32[batch, n, max_new_tokens], of each token under the model alone; 0 behind the end.
      lengths: int32[batch, n], of the text with its end.
      scores: float32[batch, n], what texts were ranked by: the score of a beam search, else the sum of `log_probabilities`.
      possible: bool[batch, n]; False is no text: there are not so many of a probability above 0.
    """

    tokens: jax.Array
    log_probabilities: jax.Array
    lengths: jax.Array
    scores: jax.Array
    possible: jax.Array


def ended(tokens: jax.Array, ends: Ends) -> jax.Array:
    """Which tokens end a text: bool, of the shape of `tokens`."""
    return jnp.isin(tokens, jnp.array(ends.ids, tokens.dtype)) if ends.ids else jnp.zeros(tokens.shape, bool)


def repeat_rows(array: jax.Array, count: int, axis: int = 0) -> jax.Array:
    """Each row `count` times in a row: [..., batch, ...] -> [..., batch * count, ...]."""
    return jnp.repeat(array, count, axis=axis)


def reorder_rows(array: jax.Array, places: jax.Array, axis: int = 0) -> jax.Array:
    """Rows [..., batch * n, ...] -> [..., batch * m, ...], text i of a prompt being its text places[i], int32[batch, m]."""
    batch, count = places.shape
    shape = array.shape
    # A row's texts stay where the row is, so that a batch that is split over devices is never gathered.
    grouped = array.reshape(*shape[:axis], batch, shape[axis] // batch, *shape[axis + 1 :])
    picked = jax.vmap(lambda texts, at: jnp.take(texts, at, axis=axis), in_axes=(axis, 0), out_axes=axis)(grouped, places)
    return picked.reshape(*shape[:axis], batch * count, *shape[axis + 1 :])
