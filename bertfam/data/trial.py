"""One row of made-up text, to find out whether a vocabulary has all that rows and noise need, before any text is read."""

from pathlib import Path

import numpy as np

from bertfam.corruption import keys as random
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.documents import Documents
from bertfam.data.text_data import TextData
from bertfam.errors import UserError

_SENTENCE = 8  # tokens


def check_vocabulary_serves(data: TextData, tokens: TokenIds, folder: str | Path, length: int) -> None:
    """Raises UserError, which names the folder of the vocabulary, where it has not what rows of `length` tokens need.

    All rows and all noise are tried alike: by making a full row.
    """
    documents = max(2, data.rows.least_documents)
    sentences = -(-2 * length // _SENTENCE)  # of each document
    count = documents * sentences * _SENTENCE
    text = Documents(
        "a trial",
        tokens.pieces[np.arange(count) % len(tokens.pieces)],
        np.arange(0, count + 1, _SENTENCE, dtype=np.int64),
        np.arange(0, documents * sentences + 1, sentences, dtype=np.int64),
    )
    key = random.fold(0, 0)
    try:
        rows = data.rows.examples(text, length, 0, tokens).rows(np.zeros(1, np.int64), key)
        data.corruption.corrupt(rows, key, tokens)
    except UserError as error:
        raise UserError(f"{folder}: {error}") from error
