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

from bertfam.data.vocabularies.counting import NO_TEXT, counted, repeated, warn_of_size
from bertfam.errors import UserError

MAX_WORD_CHARACTERS = 100  # a longer word is one [UNK]


def learn_pieces(
    words: Counter[str], first: Sequence[str], last: Sequence[str], *, unknown: str, size: int, min_frequency: int
) -> list[str]:
    """Pieces in the order of their ids: `first`, single characters, joined ones (the most frequent first), `last`.

    Args:
      words: how often each stands in the text, normalised; those longer than 100 characters are passed over.
      first, last: pieces that no text is made of.
      unknown: that of them which stands for unknown text.
      size: pieces wanted, `first` and `last` included.
      min_frequency: how often two pieces must stand side by side to be joined.

    When `size` has no room for every character, the most frequent ones are kept and words with others are left out.

    Raises:
      UserError: no text, or no room for any character.
    """
    controls = len(first) + len(last)
    if size <= controls:
        raise UserError(f"vocabulary size {size} is too small: {controls} special pieces and the characters go in")
    if min_frequency < 1:
        raise UserError(f"min_frequency is {min_frequency}: it must be at least 1")
    words = Counter({word: count for word, count in words.items() if len(word) <= MAX_WORD_CHARACTERS})
    if not words:
        raise UserError(NO_TEXT)
    alphabet, words = _choose_alphabet(words, size - controls)
    # The trainer adds each character as a first letter too, whether a word begins with it or not; those without room go again.
    added = sorted({character for word in words for character in word} - set(alphabet))
    crowded = set(added[max(0, size - controls - len(alphabet)) :])
    trainer = WordPieceTrainer(
        vocab_size=size - len(last) + len(crowded),
        min_frequency=min_frequency,
        special_tokens=[*first, *alphabet],
        show_progress=False,
    )
    tokenizer = Tokenizer(WordPieceModel(unk_token=unknown))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.train_from_iterator(repeated(words), trainer)
    ids = tokenizer.get_vocab()
    pieces = [*(piece for piece in sorted(ids, key=ids.__getitem__) if piece not in crowded), *last]
    warn_of_size(len(pieces), size, f" with min_frequency {min_frequency}")
    return pieces


def count_words(texts: Iterable[str], normalizer: Normalizer) -> Counter[str]:
    """How often each word stands in the texts, after normalising and splitting at white space and punctuation.

    Raw words between spaces are counted first and each distinct one normalised once: a space is never inside a word, and
    neither normalising nor splitting looks across it.
    """
    splitter = BertPreTokenizer()

    def words_of(raw: str) -> Iterator[str]:
        return (word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(raw)))

    return counted(texts, lambda text: text.split(" "), words_of)


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
