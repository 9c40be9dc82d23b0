"""Words of texts, and their vectors in every layer: the mean over the pieces of a word."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from bertfam.analysis.subject import NO_TEXT, Subject, TokenRow, padded, row_features
from bertfam.analysis.words import words_of_tokens
from bertfam.data.rows.length_batches import WINDOW, computed, length_batches

_WORD = re.compile(r"\w+")
_READ = ("encoder_input_tokens", "encoder_segment_ids", "encoder_token_type_ids", "places")


class Occurrence(NamedTuple):
    """Word in a text.

    Attributes:
      text: number of the text.
      start, end: where it stands, in characters of the text.
    """

    text: int
    start: int
    end: int


def find_words(text: str) -> list[tuple[int, int]]:
    """Return the start and end of each word, a run of letters and digits."""
    return [match.span() for match in _WORD.finditer(text)]


def vectors(
    subject: Subject, texts: Sequence[str], occurrences: Sequence[Occurrence], batch_size: int, progress: str
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the vectors of occurrences, some at a time: their numbers int64[n], and float32[n, layers + 1, embed].

    The first layer is that of the embeddings. Occurrences that are cut off, or that have an unknown token, are left out.

    Args:
      subject: the model.
      texts: the texts; only those that have an occurrence are read.
      occurrences: words of the texts; those of one text do not overlap.
      batch_size: texts at a time.
      progress: description of a progress bar.
    """
    by_text: dict[int, list[int]] = {}
    for number in sorted(range(len(occurrences)), key=occurrences.__getitem__):
        by_text.setdefault(occurrences[number].text, []).append(number)
    numbers = list(by_text)
    compute = _program(subject, max(map(len, by_text.values()), default=0))
    begins = range(0, len(numbers), WINDOW * batch_size)
    with tqdm(total=len(numbers), desc=progress, disable=None, leave=False) as bar:
        for begin in begins:
            window = numbers[begin : begin + WINDOW * batch_size]
            rows = [subject.row(texts[text]) for text in window]
            words = [[occurrences[number] for number in by_text[text]] for text in window]
            places = [_places(subject, row, own) for row, own in zip(rows, words, strict=True)]
            features = row_features(rows, subject.vocabulary.token_ids.pad) | {"places": padded(places, NO_TEXT)}
            longest = features["places"].shape[1]
            for indices, found in computed(length_batches(features, _READ, batch_size, longest), compute):
                for index, own in zip(indices, found, strict=True):
                    known = np.setdiff1d(places[index], [NO_TEXT])
                    yield np.array(by_text[window[index]])[known], own[known]
                bar.update(len(indices))


def _places(subject: Subject, row: TokenRow, words: Sequence[Occurrence]) -> np.ndarray:
    """Return the word that each token belongs to, -1 for none, for a word with an unknown token, and for one that is cut off.

    Returns:
      int32[length].
    """
    found = words_of_tokens(row, [(word.start, word.end) for word in words])
    left_out = [found[row.ids == subject.vocabulary.token_ids.unk]]
    if row.is_cut:
        left_out.append(np.flatnonzero(np.array([word.end for word in words]) > row.offsets[:, 1].max()))
    return np.where(np.isin(found, np.concatenate(left_out)), NO_TEXT, found)


def _program(subject: Subject, count: int) -> Callable[[dict[str, np.ndarray]], jax.Array]:
    """Return a function of a batch with at most `count` words in a row: their vectors float32[batch, count, layers, embed]."""

    @jax.jit
    def run(params: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
        hidden = subject.intermediates(params, batch, ["hidden_states"])["hidden_states"]
        pieces = jax.nn.one_hot(batch["places"], count)  # [batch, length, words]
        means = pieces / jnp.maximum(pieces.sum(axis=1, keepdims=True), 1)
        return jnp.einsum("lbte,btw->bwle", hidden, means, precision=jax.lax.Precision.HIGHEST)

    return lambda batch: run(subject.model.params, batch)


def unit(array: np.ndarray) -> np.ndarray:
    """Scale vectors [..., embed] to length 1; zeros stay zeros."""
    return array / np.maximum(np.linalg.norm(array, axis=-1, keepdims=True), 1e-12)
