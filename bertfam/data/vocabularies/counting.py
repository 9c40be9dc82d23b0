"""Word counts for vocabulary training: equal texts in any order give equal counts."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

NO_TEXT = "there is no text to learn a vocabulary from"
_FOLD_AT = 1 << 20  # distinct raw words held before they are folded into finished ones
_CHUNK = 1 << 16  # characters in a text passed to a trainer
# Trainers take time in the square of a word's length, and SentencePiece ends the process beyond 65,535 characters, of which
# normalisation makes up to 18 of one.
_LONGEST_WORD = 3000


def tally(texts: Iterable[str], split: Callable[[str], Iterable[str]], words_of: Callable[[str], Iterable[str]]) -> Counter[str]:
    """Count the words of the texts.

    Args:
      texts: read once.
      split: splits a text into raw words; it must be fast.
      words_of: splits a raw word into words; called once for each distinct raw word (or a few times in a very large text).
    """
    words: Counter[str] = Counter()
    raw: Counter[str] = Counter()

    def fold() -> None:
        for text, number in raw.items():
            for word in words_of(text):
                words[word] += number
        raw.clear()

    for text in texts:
        raw.update(split(text))
        if len(raw) > _FOLD_AT:
            fold()
    fold()
    return words


def cut(word: str) -> Iterator[str]:
    """Cut a word that no trainer takes, such as encoded data or a document without spaces, into parts."""
    return (word[start : start + _LONGEST_WORD] for start in range(0, len(word), _LONGEST_WORD))


def weighted(counts: Sequence[Counter[str]], factors: Sequence[float]) -> Counter[str]:
    """Sum the counts of several corpora, each times its factor of at least 1 and rounded to the nearest integer."""
    words: Counter[str] = Counter()
    for part, factor in zip(counts, factors, strict=True):
        words.update(part if factor == 1 else {word: round(number * factor) for word, number in part.items()})
    return words


def repeated(words: Counter[str]) -> Iterator[str]:
    """Yield texts in a fixed order that contain each word as often as counted, separated by spaces."""
    for word in sorted(words):
        number, batch_size = words[word], max(1, _CHUNK // (len(word) + 1))
        for start in range(0, number, batch_size):
            yield " ".join([word] * min(batch_size, number - start))


def warn_if_smaller(size: int, requested: int, condition: str = "") -> None:
    """Warn if the text allows fewer pieces than requested."""
    if size < requested:
        warnings.warn(
            f"the text allows only {size:,} pieces{condition}, not the {requested:,} requested: the vocabulary has {size:,}",
            stacklevel=4,
        )
