"""Rows with every case that noise must handle, for three kinds of vocabularies, and slow helpers that read one row."""

import numpy as np

from bertfam.corruption import keys
from bertfam.corruption.token_ids import TokenIds

_NUMBERS = np.arange(60)
VOCABULARIES = {
    # Control tokens come first, continuations are marked (##), and an unknown piece starts a word.
    "wordpiece": TokenIds(
        size=60, pad=0, unk=1, cls=2, sep=3, mask=4, special=(0, 1, 2, 3, 4), starts_word=(_NUMBERS < 5) | (_NUMBERS % 3 > 0)
    ),
    # Starts of words are marked, and an unknown piece may be inside a word.
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
    # Starts of words are marked except for the first word of a text; control tokens are at both ends.
    "byte_level": TokenIds(size=60, pad=1, unk=3, cls=0, sep=2, mask=59, special=(0, 1, 2, 3, 59), starts_word=_NUMBERS > 30),
}


def noise_rows(tokens, n, length, seed=0):
    """Return padded rows of one to four `[CLS] text [SEP]`; a tenth of the tokens, and all of some texts, are unknown."""
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


def select_row(rows, index):
    return {name: value[index : index + 1] for name, value in rows.items()}


def words_in(rows, row, tokens):
    """Return the positions of each word of a row as lists of words, one for each stretch of text between control tokens."""
    stretches, is_new_stretch = [], True
    for position, token in enumerate(rows["encoder_input_tokens"][row].tolist()):
        is_control = token in set(tokens.special) - {tokens.unk} or rows["encoder_segment_ids"][row, position] == 0
        if is_control:
            is_new_stretch = True
        elif is_new_stretch:
            stretches.append([[position]])
            is_new_stretch = False
        elif tokens.starts_word[token]:
            stretches[-1].append([position])
        else:
            stretches[-1][-1].append(position)
    return stretches


def maskable_words(rows, row, tokens):
    """Return `words_in` without the positions that cannot be predicted; a word without any other ends a stretch."""
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


def random_words(key, stream, count):
    """Return random 64-bit words of one row as Python integers."""
    return keys.bits(np.atleast_1d(key), stream, count)[0].tolist()


def sort_by_draw(columns, words, width):
    """Return columns sorted by their random words without the low bits, which contain the column."""
    return sorted(columns, key=lambda column: (words[column] >> max(width - 1, 0).bit_length(), column))


def fraction(word):
    return (word >> 11) / 2**53
