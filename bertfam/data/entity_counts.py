"""Counts of the marked entities of a token cache."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
from tqdm import tqdm

from bertfam.corruption.entities import Mentions, find_mentions
from bertfam.data.token_cache.cache import TokenCache
from bertfam.data.token_cache.documents import StoredDocuments, Values
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError

Pieces = tuple[int, ...]
_AT_ONCE = 1 << 20  # tokens


def count_entities(cache: TokenCache, vocabulary: Vocabulary, least: int) -> dict[Pieces, int]:
    """Count the names in the training text, by their pieces; the most frequent first, and equally frequent ones by their pieces.

    Args:
      cache: token cache of marked text.
      vocabulary: its vocabulary.
      least: occurrences that a name has at least.

    Returns:
      the names that begin with a word, and have a letter and no unknown token, with their counts.

    Raises:
      UserError: the text of a corpus has no marks.
    """
    counts: Counter[Pieces] = Counter()
    for corpus in cache.corpora:
        documents = cache.stored_documents("train", corpus, vocabulary.size)
        if documents.units is None:
            raise UserError(f"{documents.name} has no marks of entities: build the cache with --marks=names or --marks=given")
        with tqdm(total=len(documents.tokens), desc="names", unit=" tokens", unit_scale=True, disable=None, leave=False) as bar:
            for tokens, mentions in _blocks(documents, documents.units):
                spans = zip(mentions.begin.tolist(), mentions.end.tolist(), strict=True)
                counts.update(tuple(tokens[first:stop].tolist()) for first, stop in spans)
                bar.update(len(tokens))
    known = vocabulary.token_ids
    begins = known.starts_word if len(known.starts_word) else np.ones(known.size, bool)
    frequent = [(name, count) for name, count in counts.items() if count >= least and begins[name[0]] and known.unk not in name]
    ordered = sorted(frequent, key=lambda item: (-item[1], item[0]))
    return {name: count for name, count in ordered if any(map(str.isalpha, vocabulary.decode(name)))}


def _blocks(documents: StoredDocuments, units: Values) -> Iterator[tuple[np.ndarray, Mentions]]:
    """Yield the tokens int[n] of blocks of a text, and the mentions in each; no block ends within a mention."""
    begin, size = 0, len(documents.tokens)
    while begin < size:
        end = min(begin + _AT_ONCE, size)
        if end < size and len(outside := np.flatnonzero(np.asarray(units[begin:end]) == 0)):
            # The last mention may go on in the next block.
            end = begin + int(outside[-1]) + 1
        yield np.asarray(documents.tokens[begin:end]), find_mentions(np.asarray(units[begin:end])[None])
        begin = end
