"""Vocabularies: text <-> ids, one module for each kind."""

import os

from bertfam.data.vocabularies.vocabulary import Encoding, Vocabulary

__all__ = ["Encoding", "Vocabulary", "load"]


def load(folder: str | os.PathLike[str]) -> Vocabulary:
    """Reads a folder with a vocabulary of any kind, as `bertfam vocab` and as published models have it.

    Raises:
      UserError: no such folder, nothing in it, or not a vocabulary that can be read.
    """
    from bertfam.data.vocabularies.wordpiece import WordPiece

    return WordPiece.load(folder)
