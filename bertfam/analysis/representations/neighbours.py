"""Nearest neighbours of words: of an occurrence among occurrences, and of a word among words (Peters et al. 2018, table 4)."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bertfam.analysis.representations.word_vectors import Occurrence, unit, vectors
from bertfam.analysis.subject import Subject
from bertfam.errors import UserError

_MARKED = re.compile(r"\[(\w+)\]")


class Neighbour(NamedTuple):
    """Neighbour of a word.

    Attributes:
      cosine: of the two vectors.
      text: the sentence with the word in brackets; the word alone where contexts do not count.
    """

    cosine: float
    text: str


def marked_word(text: str) -> tuple[str, Occurrence]:
    """Return a text without the brackets of its one [marked] word, and the word; raise UserError if it has none or several."""
    marks = list(_MARKED.finditer(text))
    if len(marks) != 1:
        raise UserError(
            f"--text={text!r} has {len(marks)} words in brackets, and must have one: write 'He sat by the [bank] of the river'"
        )
    (mark,) = marks
    word = mark[1]
    return text[: mark.start()] + word + text[mark.end() :], Occurrence(0, mark.start(), mark.start() + len(word))


def in_brackets(text: str, word: Occurrence, most: int = 40) -> str:
    """Return a sentence with its word in brackets, and at most so many characters of it on either side."""
    before, after = text[: word.start], text[word.end :]
    before = before if len(before) <= most else "..." + before[-most:]
    after = after if len(after) <= most else after[:most] + "..."
    return " ".join(f"{before}[{text[word.start : word.end]}]{after}".split())


class Space:
    """Vectors of the words of some texts, in one layer."""

    def __init__(self, subject: Subject, texts: Sequence[str], words: Sequence[Occurrence], layer: int, batch_size: int) -> None:
        """Compute the vectors of all words; those that the model does not read whole are left out."""
        self.subject, self.layer = subject, layer
        self._texts = texts
        every = vectors(subject, texts, words, batch_size, "reading texts")
        parts = [(numbers, found[:, layer].copy()) for numbers, found in every]  # a view would keep all layers in memory
        if not parts:
            raise UserError("the text has no word that the model knows: give more text, or another --input_format")
        numbers = np.concatenate([part for part, _ in parts])
        order = np.argsort(numbers)
        self._words = [words[number] for number in numbers[order]]
        self._vectors = unit(np.concatenate([part for _, part in parts])[order])
        self._by_word: dict[str, list[int]] = {}
        for number, word in enumerate(self._words):
            self._by_word.setdefault(texts[word.text][word.start : word.end].lower(), []).append(number)

    def __len__(self) -> int:
        return len(self._words)

    def near_occurrence(self, text: str, word: Occurrence, count: int) -> list[Neighbour]:
        """Return the occurrences nearest to a word in its text, at most one of each sentence, the nearest first.

        Raises:
          UserError: the model does not read the word whole.
        """
        found = list(vectors(self.subject, [text], [word], 1, "reading the text"))
        if not found or not len(found[0][0]):
            raise UserError(f"the word [{text[word.start : word.end]}] is unknown to the model, or cut off: choose another")
        cosines = self._vectors @ unit(found[0][1][0, self.layer])
        neighbours: dict[int, Neighbour] = {}
        for number in np.argsort(-cosines, kind="stable"):
            other = self._words[number]
            if self._texts[other.text] != text and other.text not in neighbours:
                neighbours[other.text] = Neighbour(float(cosines[number]), in_brackets(self._texts[other.text], other))
            if len(neighbours) == count:
                break
        return list(neighbours.values())

    def near_word(self, word: str, count: int, least: int) -> tuple[int, list[Neighbour]]:
        """Return the number of a word's occurrences, and the words nearest to it by their mean vectors, the nearest first.

        Args:
          word: the word.
          count: number of neighbours.
          least: least number of occurrences of a neighbour.

        Raises:
          UserError: the texts do not have the word, or the model does not know it.
        """
        own = self._by_word.get(word.lower())
        if own is None:
            raise UserError(f"--word={word} is not in the text, or is unknown to the model: choose another")
        names = [name for name, numbers in self._by_word.items() if len(numbers) >= least and name != word.lower()]
        if not names:
            return len(own), []
        means = unit(np.stack([self._vectors[self._by_word[name]].mean(axis=0) for name in names]))
        cosines = means @ unit(self._vectors[own].mean(axis=0))
        order = np.argsort(-cosines, kind="stable")[:count]
        return len(own), [Neighbour(float(cosines[number]), names[number]) for number in order]
