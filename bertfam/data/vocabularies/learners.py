"""Vocabulary learners of each kind: count words, then learn pieces from the counts."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from bertfam.data.vocabularies.layouts import Layout
from bertfam.data.vocabularies.vocabulary import Vocabulary


@dataclass(frozen=True)
class Learner:
    """Learner of one vocabulary; equal texts in any order give equal vocabularies.

    Attributes:
      joint: inserted before each sentence of a document but the first, see `Vocabulary.joint`.
      count: maps texts, read once, to word counts.
      learn: maps these counts to the vocabulary; warns if they allow only a smaller one, and raises UserError if none.
    """

    joint: str
    count: Callable[[Iterable[str]], Counter[str]]
    learn: Callable[[Counter[str]], Vocabulary]


def make_learner(kind: str, *, size: int, layout: Layout, **options: Any) -> Learner:
    """Create a learner of the kind "wordpiece", "words", "unigram", "bpe" or "byte_bpe".

    Args:
      kind: the kind of vocabulary.
      size: number of pieces to learn, including the layout's.
      layout: the control pieces.
      options: wordpiece, words: cased, strip_accents, split_ideographs, min_frequency; byte_bpe: min_frequency; unigram, bpe: see
        `sentence_piece.training.learn_model`.
    """
    if kind in ("wordpiece", "words"):
        from bertfam.data.vocabularies.wordpiece import WordPiece, make_normalizer
        from bertfam.data.vocabularies.wordpiece_training import count_words

        switches = {
            "lowercase": not options.pop("cased", False),
            "strip_accents": options.pop("strip_accents", None),
            "handle_chinese_chars": options.pop("split_ideographs", True),
        }
        count = partial(count_words, normalizer=make_normalizer(**switches))
        switches["whole_words"] = kind == "words"
        return Learner(WordPiece.joint, count, partial(WordPiece.from_words, size=size, layout=layout, **switches, **options))
    if kind == "byte_bpe":
        from bertfam.data.vocabularies.byte_bpe import ByteBpe
        from bertfam.data.vocabularies.byte_bpe_training import count_chunks

        return Learner(ByteBpe.joint, count_chunks, partial(ByteBpe.from_chunks, size=size, layout=layout, **options))
    from bertfam.data.vocabularies.sentence_piece import training
    from bertfam.data.vocabularies.sentence_piece.vocabulary import SentencePiece

    learn = partial(SentencePiece.from_words, kind=kind, size=size, layout=layout, **options)
    return Learner(SentencePiece.joint, training.count_words, learn)
