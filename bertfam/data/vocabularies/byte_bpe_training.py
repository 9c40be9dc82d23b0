"""Deterministic training of byte-level BPE: equal texts give equal merges."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, WhitespaceSplit
from tokenizers.trainers import BpeTrainer

from bertfam.data.vocabularies.counting import NO_TEXT, cut, repeated, tally, warn_if_smaller
from bertfam.errors import UserError

# White space except the last space before a word, and a word with the space before it. GPT-2's own pattern splits only inside
# these chunks.
_CHUNK = re.compile(r"\s+(?!\S)| ?\S+|\s")


def count_chunks(texts: Iterable[str]) -> Counter[str]:
    """Count each run of white space, and each word together with the space before it."""
    return tally(texts, _CHUNK.findall, cut)


def learn_merges(
    chunks: Counter[str], first: Sequence[str], last: Sequence[str], *, size: int, min_frequency: int
) -> tuple[list[str], list[tuple[str, str]]]:
    """Learn the pieces in the order of their ids (`first`, the 256 bytes, merged ones, `last`) and the merges.

    Args:
      chunks: see `count_chunks`.
      first: pieces with the lowest ids, which never occur in text.
      last: pieces with the highest ids, which never occur in text.
      size: number of pieces to learn, including `first`, the bytes and `last`.
      min_frequency: the number of times two pieces must be adjacent to be merged.

    Raises:
      UserError: there is no text, or `size` has no room for the bytes.
    """
    alphabet = sorted(ByteLevel.alphabet())
    least = len(first) + len(alphabet) + len(last)
    if size < least:
        raise UserError(
            f"vocabulary size {size} is too small: the 256 bytes and {least - 256} special pieces need {least}; raise the size"
        )
    if min_frequency < 1:
        raise UserError(f"min_frequency is {min_frequency}: it must be at least 1")
    if not chunks:
        raise UserError(NO_TEXT)
    splitter = ByteLevel(add_prefix_space=False)
    words: Counter[str] = Counter()
    for chunk, number in chunks.items():
        for word, _ in splitter.pre_tokenize_str(chunk):
            words[word] += number
    trainer = BpeTrainer(
        vocab_size=size - len(last),
        min_frequency=min_frequency,
        special_tokens=[*first, *alphabet],
        show_progress=False,
    )
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.train_from_iterator(repeated(words), trainer)
    ids = tokenizer.get_vocab()
    pieces = [*sorted(ids, key=ids.__getitem__), *last]
    warn_if_smaller(len(pieces), size, f" with min_frequency {min_frequency}")
    merges = [(left, right) for left, right in json.loads(tokenizer.to_str())["model"]["merges"]]
    return pieces, merges
