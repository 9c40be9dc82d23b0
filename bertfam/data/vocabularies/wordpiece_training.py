"""Deterministic training of WordPiece: equal texts give equal pieces.

The trainer of `tokenizers` numbers characters in the order of a randomly seeded hash table and breaks ties between equally
frequent pairs by these numbers, so two runs on one text differ. Here the words are counted first, and every character is passed
to the trainer in sorted order with a fixed number. Counting takes one pass over the text and no more memory than the trainer's
own table.
"""

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tokenizers import Tokenizer
from tokenizers.models import WordPiece as WordPieceModel
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, WhitespaceSplit
from tokenizers.trainers import WordPieceTrainer

from bertfam.data.vocabularies.counting import NO_TEXT, repeated, tally, warn_if_smaller
from bertfam.errors import UserError
from bertfam.plurals import plural

MAX_WORD_CHARACTERS = 100  # a longer word becomes one [UNK]


def learn_pieces(
    words: Counter[str], first: Sequence[str], last: Sequence[str], *, unknown: str, size: int, min_frequency: int
) -> list[str]:
    """Learn the pieces in the order of their ids: `first`, characters, merged ones (most frequent first), `last`.

    If `size` has no room for every character, the most frequent ones are kept and words with other characters are left out.

    Args:
      words: the number of occurrences of each normalised word in the text; words longer than 100 characters are ignored.
      first: pieces with the lowest ids, which never occur in text.
      last: pieces with the highest ids, which never occur in text.
      unknown: the piece among them that represents unknown text.
      size: number of pieces to learn, including `first` and `last`.
      min_frequency: the number of times two pieces must be adjacent to be merged.

    Raises:
      UserError: there is no text, or `size` has no room for any character.
    """
    controls = len(first) + len(last)
    if size <= controls:
        raise UserError(f"vocabulary size {size} is too small: it must hold {controls} special pieces and the characters")
    if min_frequency < 1:
        raise UserError(f"min_frequency is {min_frequency}: it must be at least 1")
    words = Counter({word: count for word, count in words.items() if len(word) <= MAX_WORD_CHARACTERS})
    if not words:
        raise UserError(NO_TEXT)
    alphabet, words = _choose_alphabet(words, size - controls)
    # The trainer also adds each character as a first letter, even if no word begins with it; the excess ones are removed again.
    added = sorted({character for word in words for character in word} - set(alphabet))
    excess = set(added[max(0, size - controls - len(alphabet)) :])
    trainer = WordPieceTrainer(
        vocab_size=size - len(last) + len(excess),
        min_frequency=min_frequency,
        special_tokens=[*first, *alphabet],
        show_progress=False,
    )
    tokenizer = Tokenizer(WordPieceModel(unk_token=unknown))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.train_from_iterator(repeated(words), trainer)
    ids = tokenizer.get_vocab()
    pieces = [*(piece for piece in sorted(ids, key=ids.__getitem__) if piece not in excess), *last]
    warn_if_smaller(len(pieces), size, f" with min_frequency {min_frequency}")
    return pieces


def frequent_words(words: Counter[str], first: Sequence[str], last: Sequence[str], *, size: int, min_frequency: int) -> list[str]:
    """Return the most frequent words between `first` and `last`, the commonest first and equally frequent ones by their letters.

    Args:
      words: the number of occurrences of each normalised word in the text; words longer than 100 characters are ignored.
      first: pieces with the lowest ids, which never occur in text.
      last: pieces with the highest ids, which never occur in text.
      size: number of pieces, including `first` and `last`.
      min_frequency: the number of times that a word must occur.

    Raises:
      UserError: no word occurs so often.
    """
    frequent = [word for word, count in words.items() if count >= min_frequency and len(word) <= MAX_WORD_CHARACTERS]
    if not frequent:
        raise UserError(f"{NO_TEXT}: no word occurs {plural(min_frequency, 'time')}" if words else NO_TEXT)
    frequent.sort(key=lambda word: (-words[word], word))
    pieces = [*first, *frequent[: size - len(first) - len(last)], *last]
    warn_if_smaller(len(pieces), size, f" with min_frequency {min_frequency}")
    return pieces


def count_words(texts: Iterable[str], normalizer: Normalizer) -> Counter[str]:
    """Count the words of the texts after normalising and splitting at white space and punctuation.

    Raw words between spaces are counted first and each distinct one is normalised once: a word never contains a space, and
    neither normalising nor splitting depends on what is beyond it.
    """
    splitter = BertPreTokenizer()

    def words_of(raw: str) -> Iterator[str]:
        return (word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(raw)))

    return tally(texts, lambda text: text.split(" "), words_of)


def _choose_alphabet(words: Counter[str], room: int) -> tuple[list[str], Counter[str]]:
    """Return the sorted one-character pieces, first letters before continuations, and the words made only of them."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        counts[word[0]] += count
        for character in word[1:]:
            counts["##" + character] += count
    if len(counts) > room:
        kept = set(sorted(counts, key=lambda piece: (-counts[piece], piece))[:room])
        words = Counter({w: n for w, n in words.items() if w[0] in kept and all("##" + character in kept for character in w[1:])})
        lost = sum(n for piece, n in counts.items() if piece not in kept) / counts.total()
        warnings.warn(
            f"the text has {len(counts):,} distinct characters (first letters and continuations) but there is room for "
            f"{room:,}: {lost:.2%} of all characters turn their word into [UNK]; use a larger vocabulary size",
            stacklevel=4,
        )
        counts = Counter({piece: counts[piece] for piece in kept})
    return sorted(counts, key=lambda piece: (len(piece) > 1, piece)), words
