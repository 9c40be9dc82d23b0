"""Documents in which every token of the corpus is distinct."""

import types

import numpy as np

from bertfam.corruption.token_ids import TokenIds
from bertfam.data.token_cache.documents import Documents

FIRST = 10
IDS = TokenIds(size=1_000_000, pad=0, unk=1, cls=2, sep=3, mask=4, special=(0, 1, 2, 3, 4))
BARE = TokenIds(size=1_000_000, pad=0, unk=1, eos=5, special=(0, 1, 5))


def make_documents(*documents, name="toy"):
    """Return documents, each given as a list of sentence lengths; the tokens are FIRST, FIRST + 1, ..."""
    lengths = [length for sentences in documents for length in sentences]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    bounds = np.concatenate([[0], np.cumsum([len(sentences) for sentences in documents])]).astype(np.int64)
    return Documents(name, FIRST + np.arange(starts[-1], dtype=np.uint32), starts, bounds)


def random_documents(seed, count, most_sentences=12, most_tokens=40):
    """Return documents of random sentences."""
    generator = np.random.default_rng(seed)
    return make_documents(
        *([*generator.integers(1, most_tokens + 1, generator.integers(1, most_sentences + 1))] for _ in range(count))
    )


def fake_cache(**corpora):
    """Return a token cache of documents, by the name of the corpus."""

    def documents(_, name, limit=None):
        return corpora[name]

    return types.SimpleNamespace(
        corpora=tuple(corpora), directory="cache", documents=documents, stored_documents=documents, has_pairs=lambda _: False
    )
