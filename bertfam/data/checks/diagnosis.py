"""What is amiss with text for a vocabulary and for rows, found in a bounded number of tokens and rows."""

from pathlib import Path
from typing import Any

import numpy as np

from bertfam.corruption import keys
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.rows.batches import Examples
from bertfam.data.rows.packing import Packed
from bertfam.data.rows.running_text import DocSentences, WholeDocuments
from bertfam.data.rows.sentence_pairs import SentencePairs
from bertfam.data.rows.text_pairs import TextPairs
from bertfam.data.token_cache.documents import Documents

# More than so much is worth a warning; fewer documents are.
MUCH_UNKNOWN, MUCH_PADDING, FEW_DOCUMENTS = 0.01, 1 / 3, 50
_TOKENS, _BLOCKS, _ROWS = 1 << 20, 64, 500  # that are looked at, at most
_PACKABLE = (SentencePairs, WholeDocuments, DocSentences)


def text_warnings(documents: Documents, tokens: TokenIds, vocabulary: str | Path, *, is_whole: bool) -> list[str]:
    """What is amiss with text for a vocabulary, a line each.

    Args:
      documents: of a split, or a sample of it.
      tokens: the vocabulary's ids.
      vocabulary: its folder.
      is_whole: whether these are all documents of the split.
    """
    lines = []
    unknown = unknown_share(documents, tokens)
    if unknown > MUCH_UNKNOWN:
        lines.append(
            f"{unknown:.1%} of the tokens of {documents.name} are unknown to the vocabulary {vocabulary} (more than "
            f"{MUCH_UNKNOWN:.0%}): train one on this text with `bertfam vocab`, or look whether --encoding is right"
        )
    if is_whole and len(documents) < FEW_DOCUMENTS:
        lines.append(
            f"{documents.name} has {len(documents)} documents (fewer than {FEW_DOCUMENTS}): little is held out of so few, and "
            "random second sentences repeat; blank lines separate documents, unless --input_format says otherwise"
        )
    return lines


def unknown_share(documents: Documents, tokens: TokenIds) -> float:
    """The share of unknown tokens in evenly spaced blocks of the text."""
    size = len(documents.tokens)
    if size <= _TOKENS:
        return float(np.mean(documents.tokens == tokens.unk)) if size else 0.0
    block = _TOKENS // _BLOCKS
    begins = np.linspace(0, size - block, _BLOCKS).astype(np.int64)
    return float(np.mean([np.mean(documents.tokens[begin : begin + block] == tokens.unk) for begin in begins]))


def row_warnings(rows: Any, examples: Examples, name: str, length: int, *, packs: bool = True) -> list[str]:
    """What is amiss with the length of rows.

    Args:
      rows: how they are made, as in `TextData.rows`.
      examples: the rows themselves.
      name: what messages call the text.
      length: tokens of a row.
      packs: whether the noise could be given packed rows.
    """
    numbers = np.unique(np.linspace(0, len(examples) - 1, _ROWS).astype(np.int64))
    segments = examples.rows(numbers, keys.fold(0, numbers))["encoder_segment_ids"]
    padding = float(np.mean(segments == 0))
    if padding <= MUCH_PADDING:
        return []
    half = int(np.median(np.count_nonzero(segments, axis=1)))
    packed = f"--gin.TextData.rows=@Packed() --gin.Packed.rows=@{type(rows).__name__}()"
    if isinstance(rows, TextPairs):
        fix = (
            "give shorter rows (Stage.length), or raise TextPairs.max_examples"
            if rows.packed
            else "pack them (--gin.TextPairs.packed=True)"
        )
    elif isinstance(rows, Packed):
        fix = "give shorter rows (Stage.length), or more text"
    elif isinstance(rows, _PACKABLE) and packs:
        fix = f"pack them ({packed}), or give shorter rows (Stage.length)"
    else:
        fix = "give shorter rows (Stage.length), or more text"
    return [
        f"{padding:.0%} of the places in rows of {length} tokens of {name} are padding (more than {MUCH_PADDING:.0%}), as half "
        f"of the rows have at most {half} tokens: {fix}"
    ]
