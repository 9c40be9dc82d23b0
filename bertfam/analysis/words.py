"""Words and their pieces, and attention between words."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bertfam.analysis.subject import NO_TEXT, TokenRow


def word_spans(words: Sequence[str]) -> list[tuple[int, int]]:
    """Return the start and end of each word in characters of the text, in which one space is between two words."""
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    return [(int(end) - len(word), int(end)) for word, end in zip(words, ends, strict=True)]


def words_of_tokens(row: TokenRow, spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return the word that each token belongs to: int32[length], -1 for none.

    A token belongs to the word that has its last character, as a piece may begin with the space before a word.

    Args:
      row: a row of one text.
      spans: start and end of each word in characters of the text, ascending.
    """
    starts, ends = np.array(spans).T
    last = row.offsets[:, 1] - 1
    word = np.searchsorted(starts, last, side="right") - 1
    is_in = (row.texts >= 0) & (word >= 0) & (last < ends[np.maximum(word, 0)]) & (row.offsets[:, 1] > row.offsets[:, 0])
    return np.where(is_in, word, NO_TEXT).astype(np.int32)


def word_attention(weights: jax.Array, words: jax.Array, count: int) -> jax.Array:
    """Return the attention between words (Clark et al. 2019, section 4.1).

    The attention to a word that is split is the sum over its pieces, and the attention from it is the mean.

    Args:
      weights: float32[layers, batch, heads, length, length].
      words: int32[batch, length], word of each token; -1: none.
      count: number of words of a row.

    Returns:
      float32[layers, batch, heads, count, count]; 0 for words that a row lacks.
    """
    pieces = jax.nn.one_hot(words, count)  # [batch, length, words]
    means = pieces / jnp.maximum(pieces.sum(axis=1, keepdims=True), 1)
    to_words = jnp.einsum("lbhqk,bkw->lbhqw", weights, pieces)
    return jnp.einsum("lbhqw,bqv->lbhvw", to_words, means)
