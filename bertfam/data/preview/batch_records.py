"""Records of rows of a run's batches, as the preview and reports show them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bertfam.data.preview.decoder_rows import TARGETS, decoder_records
from bertfam.data.preview.records import records
from bertfam.data.rows.batches import Batches
from bertfam.data.token_cache.cache import TokenCache
from bertfam.data.vocabularies import Vocabulary


def batch_records(
    source: Batches, step: int, count: int, vocabulary: Vocabulary, cache: TokenCache, classes: Sequence[str] = ()
) -> tuple[list[dict[str, Any]], bool]:
    """Return the records of rows, and True if a decoder writes them.

    Args:
      source: the batches of a stage.
      step: update of the stage, from 0, with whose batch the rows begin.
      count: number of rows.
      vocabulary: vocabulary of the rows.
      cache: their token cache.
      classes: names of the classes of labelled texts.
    """
    places = np.arange(source.place(step), source.place(step) + count, dtype=np.int64)
    names = [cache.corpora[part] for part in source.sequence.corpus_at(places)]
    rows = source.sequence.at(places)
    is_written = TARGETS in rows
    return decoder_records(rows, vocabulary, names) if is_written else records(rows, vocabulary, names, classes), is_written
