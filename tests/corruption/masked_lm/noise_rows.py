"""Rows with everything that noise must mind, for vocabularies of three kinds, and one row of a batch read slowly."""

import numpy as np

from bertfam.corruption import keys
from bertfam.corruption.token_ids import TokenIds

_NUMBERS = np.arange(60)
VOCABULARIES = {
    # Control tokens first, continuations marked (##), an unknown word begins one.
    "wordpiece": TokenIds(
        size=60, pad=0, unk=1, cls=2, sep=3, mask=4, special=(0, 1, 2, 3, 4), starts_word=(_NUMBERS < 5) | (_NUMBERS % 3 > 0)
    ),
    # Beginnings marked, an unknown piece may lie within a word.
    "sentencepiece": TokenIds(
        size=60,
        pad=0,
        unk=2,
        cls=4,
        sep=5,
        eos=1,
        mask=6,
        special=(0, 1, 2, 4, 5, 6),
        sentinels=tuple(range(59, 49, -1)),
        starts_word=(_NUMBERS > 6) & (_NUMBERS < 50) & (_NUMBERS % 2 > 0),
    ),
    # Beginnings marked, but for the first word of a text; control tokens at both ends.
    "byte_level": TokenIds(size=60, pad=1, unk=3, cls=0, sep=2, mask=59, special=(0, 1, 2, 3, 59), starts_word=_NUMBERS > 30),
}


def noise_rows(tokens, n, length, seed=0):
    """Padded rows of one to four `[CLS] text [SEP]`, of one token and more, a tenth unknown; some have nothing but unknown."""
    generator = np.random.default_rng(seed)
    ids = np.full((n, length), tokens.pad, np.int32)
    segments = np.zeros((n, length), np.int32)
    for row in range(n):
        place = 0
        for example in range(generator.integers(1, 5)):
            size = min(int(generator.choice([1, 2, 3, 5, 8, 20, 60])), length - place - 2)
            if size < 1:
                break
            text = generator.choice(tokens.pieces, size)
            text[generator.random(size) < (1.0 if generator.random() < 0.05 else 0.1)] = tokens.unk
            ids[row, place : place + size + 2] = [tokens.cls, *text, tokens.sep]
            segments[row, place : place + size + 2] = example + 1
            place += size + 2
    return {
        "encoder_input_tokens": ids,
        "encoder_segment_ids": segments,
        "maskable": (segments > 0) & ~np.isin(ids, tokens.special),
    }


def row_of(rows, index):
    return {name: value[index : index + 1] for name, value in rows.items()}


def words_in(rows, row, tokens):
    """Lists of the positions of each word of a row, control tokens left out, one list of words for each stretch of text."""
    stretches, fresh = [], True
    for position, token in enumerate(rows["encoder_input_tokens"][row].tolist()):
        control = token in set(tokens.special) - {tokens.unk} or rows["encoder_segment_ids"][row, position] == 0
        if control:
            fresh = True
        elif fresh:
            stretches.append([[position]])
            fresh = False
        elif tokens.starts_word[token]:
            stretches[-1].append([position])
        else:
            stretches[-1][-1].append(position)
    return stretches


def maskable_words(rows, row, tokens):
    """`words_in` without what cannot be predicted; a word that has nothing else ends a stretch."""
    stretches = []
    for stretch in words_in(rows, row, tokens):
        stretches.append([])
        for word in stretch:
            word = [position for position in word if rows["maskable"][row, position]]
            if word:
                stretches[-1].append(word)
            else:
                stretches.append([])
    return [stretch for stretch in stretches if stretch]


def draws(key, stream, count):
    """Random words of one row as Python integers."""
    return keys.bits(np.atleast_1d(key), stream, count)[0].tolist()


def drawn_order(columns, words, width):
    """Columns in the order of their random words, the low bits that hold a column left out."""
    return sorted(columns, key=lambda column: (words[column] >> max(width - 1, 0).bit_length(), column))


def fraction(word):
    return (word >> 11) / 2**53
