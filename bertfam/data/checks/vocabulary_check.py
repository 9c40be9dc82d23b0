"""Check, on one row of artificial text, that a vocabulary has the tokens that rows, noise and models require."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bertfam.corruption import keys
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.text_data import TextData
from bertfam.data.token_cache.documents import Documents
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import RowMistake, UserError

_SENTENCE = 8  # tokens


def check_vocabulary_fits(data: TextData, tokens: TokenIds, folder: str | Path, length: int) -> None:
    """Raise UserError, with the vocabulary's folder, if the vocabulary lacks tokens that rows of `length` tokens require.

    A `RowMistake` of the settings does not name the folder.
    Every kind of rows and noise is checked in the same way: by making one full row.
    """
    if not data.corruption.reads_text or any(corpus.pairs for corpus in data.corpora.values()):
        _check_pairs(data, tokens, folder, length)
    if not data.corruption.reads_text:
        return
    documents, labels = max(2, data.rows.least_documents), data.corruption.labels
    sentences = data.rows.texts if labels else -(-2 * data.corruption.raw_length(length) // _SENTENCE)  # of each document
    count = documents * sentences * _SENTENCE
    text = Documents(
        "artificial text",
        tokens.pieces[np.arange(count) % len(tokens.pieces)],
        np.arange(0, count + 1, _SENTENCE, dtype=np.int64),
        np.arange(0, documents * sentences + 1, sentences, dtype=np.int64),
        labels=np.zeros(documents * sentences * labels, np.float32) if labels else None,
        label_count=labels,
        labels_words=data.corruption.labels_words,
    )
    key = keys.fold(0, 0)
    try:
        data.corruption.check(length, tokens)
        rows = data.examples(text, length, 0, tokens).rows(np.zeros(1, np.int64), key)
        data.corruption.fit(lambda: np.ones(tokens.size, np.int64)).corrupt(rows, key, tokens)
    except RowMistake:
        raise
    except UserError as error:
        raise UserError(f"{folder}: {error}") from error


def _check_pairs(data: TextData, tokens: TokenIds, folder: str | Path, length: int) -> None:
    pair = Documents("an artificial pair", tokens.pieces[[0, 0]], np.array([0, 1, 2]), np.array([0, 2]), pairs=True)
    try:
        data.examples(pair, length, 0, tokens).rows(np.zeros(1, np.int64), keys.fold(0, 0))
    except UserError as error:
        raise UserError(f"{folder}: {error}") from error


def check_padding_id(configs: Iterable[Any], vocabulary: Vocabulary, folder: str | Path) -> None:
    """Raise UserError if a network's `position_offset` does not follow from the vocabulary's padding id.

    bertfam itself does not need this, but transformers derives the positions of an exported model from the padding id.
    """
    tokens = vocabulary.token_ids
    for config in configs:
        pad = config.padding_id
        if pad not in (None, tokens.pad) and vocabulary.occurs(pad):
            name = f"{type(config).__name__}.position_offset"
            raise UserError(
                f"{name} is {pad + 1}, for a vocabulary whose padding id is {pad}, and that of {folder} is {tokens.pad}: "
                f"set {name} = {tokens.pad + 1}, or give another vocabulary"
            )
