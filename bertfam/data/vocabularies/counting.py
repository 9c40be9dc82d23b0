"""Words with counts, which trainers learn from: equal texts in any order give equal counts."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

NO_TEXT = "there is no text to learn a vocabulary from"
_FOLD_AT = 1 << 20  # distinct raw words held before they are folded into finished ones
_CHUNK = 1 << 16  # characters a text handed to a trainer


def counted(
    texts: Iterable[str], split: Callable[[str], Iterable[str]], words_of: Callable[[str], Iterable[str]]
) -> Counter[str]:
    """How often each word stands in the texts.

    Args:
      texts: read once.
      split: a text into raw words, fast.
      words_of: a raw word into words; called once for each distinct raw word (or a few times in a very large text).
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


def weighted(counts: Sequence[Counter[str]], factors: Sequence[float]) -> Counter[str]:
    """The sum of the counts of several corpora, each times its factor of at least 1, to the nearest whole number."""
    words: Counter[str] = Counter()
    for part, factor in zip(counts, factors, strict=True):
        words.update(part if factor == 1 else {word: round(number * factor) for word, number in part.items()})
    return words


def repeated(words: Counter[str]) -> Iterator[str]:
    """Texts, in a fixed order, in which each word stands as often as counted, between spaces."""
    for word in sorted(words):
        number, at_once = words[word], max(1, _CHUNK // (len(word) + 1))
        for done in range(0, number, at_once):
            yield " ".join([word] * min(at_once, number - done))


def warn_of_size(found: int, wanted: int, how: str = "") -> None:
    """Warns where the text allows fewer pieces than asked for."""
    if found < wanted:
        warnings.warn(
            f"the text allows only {found:,} pieces{how}, not the {wanted:,} asked for: the vocabulary has {found:,}",
            stacklevel=4,
        )
