"""Random samples of sentences and of the words in them, the same in every run."""

import random
from collections.abc import Collection, Iterable, Sequence

from bertfam.analysis.representations.word_vectors import Occurrence, find_words

_SEED = 0


def sample(sentences: Iterable[str], count: int) -> list[str]:
    """Return `count` of the sentences, all equally likely, in their order (Vitter 1985, algorithm R)."""
    generator, kept = random.Random(_SEED), list[tuple[int, str]]()
    for number, sentence in enumerate(sentences):
        if number < count:
            kept.append((number, sentence))
        elif (place := generator.randrange(number + 1)) < count:
            kept[place] = (number, sentence)
    return [sentence for _, sentence in sorted(kept)]


def contexts(sentences: Iterable[str], words: Collection[str], count: int) -> tuple[list[str], dict[str, list[Occurrence]]]:
    """Return the sentences with up to `count` occurrences of each lower-cased word, all of its occurrences equally likely."""
    generator, seen = random.Random(_SEED), dict.fromkeys(words, 0)
    kept: dict[str, list[tuple[int, int, int]]] = {word: [] for word in words}
    texts: dict[int, str] = {}
    for number, sentence in enumerate(sentences):
        for start, end in find_words(sentence):
            word = sentence[start:end].lower()
            if word not in kept:
                continue
            seen[word] += 1
            place = len(kept[word]) if seen[word] <= count else generator.randrange(seen[word])
            if place < count:
                kept[word][place : place + 1] = [(number, start, end)]
                texts[number] = sentence
    used = sorted({number for own in kept.values() for number, _, _ in own})
    places = {number: place for place, number in enumerate(used)}
    found = {word: [Occurrence(places[number], start, end) for number, start, end in own] for word, own in kept.items()}
    return [texts[number] for number in used], found


def sampled_words(texts: Sequence[str], count: int | None = None) -> list[Occurrence]:
    """Return up to `count` words of the texts, all equally likely, in their order; None: all words."""
    every = [Occurrence(number, *span) for number, text in enumerate(texts) for span in find_words(text)]
    return every if count is None or len(every) <= count else sorted(random.Random(_SEED).sample(every, count))
