"""Warnings about text that does not suit a vocabulary or rows, from a bounded number of tokens and rows."""

from pathlib import Path

import numpy as np

from bertfam.corruption import keys
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.rows.batches import Examples
from bertfam.data.rows.layout import PackableRows, PairLayout, RowLayout
from bertfam.data.token_cache.cache import TokenCache
from bertfam.data.token_cache.documents import StoredDocuments
from bertfam.data.vocabularies import Vocabulary
from bertfam.plurals import plural

# A greater share of unknown tokens or of padding, or fewer documents, are worth a warning.
MUCH_UNKNOWN, MUCH_PADDING, FEW_DOCUMENTS = 0.01, 1 / 3, 50
_TOKENS, _BLOCKS, _ROWS = 1 << 20, 64, 500  # upper bounds of the text that is inspected


def text_warnings(documents: StoredDocuments, tokens: TokenIds, vocabulary: str | Path, *, is_whole: bool) -> list[str]:
    """Return warnings about text that does not suit a vocabulary, one line each.

    Args:
      documents: the documents of a split, or a sample of them.
      tokens: the vocabulary's ids.
      vocabulary: the vocabulary's folder.
      is_whole: True if these are all documents of the split.
    """
    lines = unknown_warnings(documents, tokens, vocabulary)
    if is_whole and len(documents) < FEW_DOCUMENTS:
        lines.append(
            f"{documents.name} has {plural(len(documents), 'document')} (fewer than {FEW_DOCUMENTS}): little is held out of so "
            "few, and random second sentences repeat; blank lines separate documents, unless --input_format says otherwise"
        )
    return lines


def unknown_warnings(documents: StoredDocuments, tokens: TokenIds, vocabulary: str | Path) -> list[str]:
    """Return a warning about text of which much is unknown to the vocabulary in a folder, such as text of another language."""
    unknown = unknown_share(documents, tokens)
    if unknown <= MUCH_UNKNOWN:
        return []
    return [
        f"{unknown:.1%} of the tokens of {documents.name} are unknown to the vocabulary {vocabulary} (more than "
        f"{MUCH_UNKNOWN:.0%}): train one on this text with `bertfam vocab`, or check --encoding"
    ]


def cache_warnings(cache: TokenCache, vocabulary: Vocabulary, folder: str | Path) -> list[str]:
    """Return `unknown_warnings` of the training text of a token cache; `folder` is that of the vocabulary."""
    texts = [cache.stored_documents("train", name, vocabulary.size) for name in cache.corpora]
    return [line for text in texts for line in unknown_warnings(text, vocabulary.token_ids, folder)]


def unknown_share(documents: StoredDocuments, tokens: TokenIds) -> float:
    """Return the share of unknown tokens in evenly spaced blocks of the text."""
    size = len(documents.tokens)
    if size <= _TOKENS:
        return float(np.mean(documents.tokens[:] == tokens.unk)) if size else 0.0
    block = _TOKENS // _BLOCKS
    starts = np.linspace(0, size - block, _BLOCKS).astype(np.int64)
    return float(np.mean([np.mean(documents.tokens[start : start + block] == tokens.unk) for start in starts]))


def row_warnings(rows: RowLayout | PairLayout, examples: Examples, name: str, length: int, *, packs: bool = True) -> list[str]:
    """Return warnings about rows with much padding.

    Args:
      rows: the layout of the rows, as in `TextData.rows`, or `TextData.pairs`.
      examples: the rows themselves.
      name: the name of the text in messages.
      length: tokens of a row.
      packs: True if the noise accepts packed rows.
    """
    numbers = np.unique(np.linspace(0, len(examples) - 1, _ROWS).astype(np.int64))
    segments = examples.rows(numbers, keys.fold(0, numbers))["encoder_segment_ids"]
    padding = float(np.mean(segments == 0))
    if padding <= MUCH_PADDING:
        return []
    half = int(np.median(np.count_nonzero(segments, axis=1)))
    return [
        f"{padding:.0%} of the positions in rows of {length} tokens of {name} are padding (more than {MUCH_PADDING:.0%}), as "
        f"half of the rows have at most {half} tokens: {_padding_fix(rows, packs)}"
    ]


def _padding_fix(rows: RowLayout | PairLayout, packs: bool) -> str:
    """Return advice for rows with much padding."""
    if isinstance(rows, PairLayout):
        return rows.padding_fix
    if packs and isinstance(rows, PackableRows):
        packed = f"--gin.TextData.rows=@Packed() --gin.Packed.rows=@{type(rows).__name__}()"
        return f"pack them ({packed}), or give shorter rows (Stage.length)"
    return "give shorter rows (Stage.length), or more text"
