"""BM25, a ranking of passages by the words that they share with a query (Robertson and Zaragoza 2009), from the library bm25s."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertfam.errors import UserError


def bm25(passages: Sequence[str], queries: Sequence[str], count: int) -> np.ndarray:
    """Find the best passages of queries, by Lucene's BM25 with k1 1.5 and b 0.75, English stop words and Snowball stems.

    Args:
      passages: texts of the passages.
      queries: texts of the queries.
      count: number of passages to find, at most that of the passages.

    Returns:
      int64[queries, count], the numbers of the passages, the best first.

    Raises:
      UserError: if bm25s or PyStemmer is not installed.
    """
    bm25s, stemmer = bm25_libraries()
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # which it sets to DEBUG when it is imported
    tokenizer = bm25s.tokenization.Tokenizer(stopwords="en", stemmer=stemmer.Stemmer("english"))
    model = bm25s.BM25()
    model.index(tokenizer.tokenize(list(passages), show_progress=False), show_progress=False)
    words = tokenizer.tokenize(list(queries), update_vocab=False, show_progress=False)
    found, _ = model.retrieve(words, k=min(count, len(passages)), show_progress=False)
    return np.asarray(found, np.int64)


def bm25_libraries() -> tuple[Any, Any]:
    """Import bm25s and PyStemmer; raise UserError if one is not installed."""
    try:
        import bm25s
        import Stemmer
    except ImportError as error:
        raise UserError(f"BM25 requires {error.name}: pip install 'bertfam[retrieval]'") from error
    return bm25s, Stemmer
