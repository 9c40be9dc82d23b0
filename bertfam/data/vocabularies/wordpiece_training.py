"""Learning WordPiece pieces, the same for the same texts every time.

The trainer of `tokenizers` numbers characters in the order of a randomly seeded hash table and breaks ties between
equally frequent pairs by these numbers, so that two runs on one text differ. Here the words are counted first, and
every character is handed to the trainer in sorted order with its number fixed. The words cost one pass over the text
and no more memory than the trainer's own table.
"""

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tokenizers import Tokenizer
from tokenizers.models import WordPiece as WordPieceModel
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, WhitespaceSplit
from tokenizers.trainers import WordPieceTrainer

from bertfam.errors import UserError

MAX_WORD_CHARACTERS = 100  # a longer word is one [UNK]
_FOLD_AT = 1 << 20  # distinct raw words held before they are folded into normalised ones
_CHUNK = 1 << 16  # characters a text handed to the trainer


def learn_pieces(words: Counter[str], special: Sequence[str], *, size: int, min_frequency: int) -> list[str]:
    """Pieces in the order of their ids: `special`, single characters, then joined ones, the most frequent first.

    Args:
      words: how often each stands in the text, normalised; those longer than 100 characters are passed over.
      special: pieces that no text is made of; the second is the unknown one.
      size: pieces wanted, `special` included.
      min_frequency: how often two pieces must stand side by side to be joined.

    When `size` has no room for every character, the most frequent ones are kept and words with others are left out.

    Raises:
      UserError: no text, or no room for any character.
    """
    if size <= len(special):
        raise UserError(f"vocabulary size {size} is too small: {len(special)} special pieces and the characters go in")
    if min_frequency < 1:
        raise UserError(f"min_frequency is {min_frequency}: it must be at least 1")
    words = Counter({word: count for word, count in words.items() if len(word) <= MAX_WORD_CHARACTERS})
    if not words:
        raise UserError("there is no text to learn a vocabulary from")
    alphabet, words = _choose_alphabet(words, size - len(special))
    fixed = [*special, *alphabet]
    trainer = WordPieceTrainer(vocab_size=size, min_frequency=min_frequency, special_tokens=fixed, show_progress=False)
    tokenizer = Tokenizer(WordPieceModel(unk_token=special[1]))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.train_from_iterator(_repeated(words), trainer)
    ids = tokenizer.get_vocab()
    if len(ids) < size:
        warnings.warn(
            f"the text allows only {len(ids):,} pieces with min_frequency {min_frequency}, "
            f"not the {size:,} asked for: the vocabulary has {len(ids):,}",
            stacklevel=3,
        )
    return sorted(ids, key=ids.__getitem__)


def count_words(texts: Iterable[str], normalizer: Normalizer) -> Counter[str]:
    """How often each word stands in the texts, after normalising and splitting at white space and punctuation.

    Raw words between spaces are counted first and each distinct one normalised once: a space is never inside a word, and
    neither normalising nor splitting looks across it.
    """
    words: Counter[str] = Counter()
    raw: Counter[str] = Counter()
    splitter = BertPreTokenizer()

    def fold() -> None:
        for text, count in raw.items():
            for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)):
                words[word] += count
        raw.clear()

    for text in texts:
        raw.update(text.split(" "))
        if len(raw) > _FOLD_AT:
            fold()
    fold()
    return words


def _choose_alphabet(words: Counter[str], room: int) -> tuple[list[str], Counter[str]]:
    """Single-character pieces in sorted order, first letters before continuations, and the words made of them only."""
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
            f"the text has {len(counts):,} different characters (first letters and continuations) but there is room for "
            f"{room:,}: {lost:.2%} of all characters make their word [UNK]; ask for a larger vocabulary",
            stacklevel=4,
        )
        counts = Counter({piece: counts[piece] for piece in kept})
    return sorted(counts, key=lambda piece: (len(piece) > 1, piece)), words


def _repeated(words: Counter[str]) -> Iterator[str]:
    """Texts in which each word stands as often as counted."""
    for word in sorted(words):
        count, at_once = words[word], max(1, _CHUNK // (len(word) + 1))
        for done in range(0, count, at_once):
            yield " ".join([word] * min(at_once, count - done))
