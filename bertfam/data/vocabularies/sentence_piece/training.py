"""Deterministic training of SentencePiece models: equal texts give equal models."""

import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from sentencepiece import SentencePieceTrainer
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from bertfam.data.vocabularies.counting import NO_TEXT, cut, tally, warn_if_smaller
from bertfam.data.vocabularies.layouts import Layout
from bertfam.errors import UserError

KINDS = ("unigram", "bpe")
NORMALIZERS = ("nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf", "identity")
_THREADS = 4  # fixed for every machine, because sums of floats depend on it
_NORMAL, _UNKNOWN, _CONTROL = 1, 2, 3
_GRID = 1024  # scores are multiples of 1 / 1024, so their sums over a text are exact in float32 and float64
_SPLIT = re.compile(r"[ \t\r\n]+")


def count_words(texts: Iterable[str]) -> Counter[str]:
    """Count the words between spaces, unchanged.

    No piece crosses a space, so word counts are sufficient; the library's own reader would drop long lines.
    """
    return tally(texts, _SPLIT.split, cut)


def learn_model(
    words: Counter[str],
    *,
    kind: str,
    layout: Layout,
    size: int,
    normalizer: str = "nmt_nfkc",
    keep_spaces: bool = False,
    byte_fallback: bool = False,
    character_coverage: float = 0.9995,
) -> bytes:
    """Learn a model file with the layout's control pieces and without its sentinels.

    Warns (`UserWarning`) if the texts allow fewer than `size` pieces, which gives a smaller vocabulary.

    Args:
      words: see `count_words`.
      kind: "unigram" (Kudo 2018) or "bpe" (Sennrich et al. 2016).
      layout: the control pieces.
      size: number of pieces to learn, including the layout's and its sentinels.
      normalizer: one of `NORMALIZERS`; those that end in _cf also fold capitals.
      keep_spaces: whether to keep runs of spaces and spaces at the ends of a text.
      byte_fallback: whether to encode a character without a piece by bytes, so that nothing is unknown.
      character_coverage: share of the text's characters that get a piece.

    Raises:
      UserError: there is no text, or `size` is too small.
    """
    if layout.unk == layout.pad:
        raise UserError(f"SentencePiece needs a piece for unknown text, and the layout of {layout.pad} has none: choose another")
    others = len(layout.controls) - 1 + layout.sentinels  # besides the unknown piece
    if size <= others + 1:
        raise UserError(f"vocabulary size {size} is too small: it must hold {others + 1} special pieces and the characters")
    if not words:
        raise UserError(NO_TEXT)
    written = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=_counted_lines(words),
            model_writer=written,
            input_format="tsv",
            model_type=kind,
            vocab_size=size - others,
            hard_vocab_limit=False,
            normalization_rule_name=normalizer,
            remove_extra_whitespaces=not keep_spaces,
            byte_fallback=byte_fallback,
            character_coverage=character_coverage,
            max_sentence_length=2**30,
            num_threads=_THREADS,
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            minloglevel=3,
        )
    except (RuntimeError, StopIteration) as error:
        raise _as_user_error(error, others, size) from error
    model = ModelProto.FromString(written.getvalue())
    warn_if_smaller(len(model.pieces) + others, size)
    return _with_controls(model, layout)


def _counted_lines(words: Counter[str]) -> Iterator[str]:
    return (f"{word}\t{words[word]}" for word in sorted(words))


def _with_controls(model: ModelProto, layout: Layout) -> bytes:
    """Return the model with the layout's pieces before and after its own, in place of its unknown piece.

    Scores are rounded so that every implementation splits a text in the same way where two splits have equal scores.
    """
    learned = [piece for piece in model.pieces if piece.type != _UNKNOWN]
    for piece in learned:
        piece.score = round(piece.score * _GRID) / _GRID
    del model.pieces[:]
    for name in layout.first:
        model.pieces.add(piece=name, score=0.0, type=_UNKNOWN if name == layout.unk else _CONTROL)
    model.pieces.extend(learned)
    for name in layout.last:
        model.pieces.add(piece=name, score=0.0, type=_CONTROL)
    ids = {piece.piece: id for id, piece in enumerate(model.pieces)}
    spec = model.trainer_spec
    spec.vocab_size = len(model.pieces)
    roles = {"unk": layout.unk, "bos": layout.bos, "eos": layout.eos_published or layout.eos, "pad": layout.pad}
    for role, piece in roles.items():
        setattr(spec, f"{role}_id", -1 if piece is None else ids[piece])
        if piece is not None:
            setattr(spec, f"{role}_piece", piece)
    return model.SerializeToString(deterministic=True)


def _as_user_error(error: Exception, others: int, size: int) -> Exception:
    """Convert the library's error to a UserError if the user can fix it."""
    text = str(error)
    if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", text):
        least = int(match[1]) + others
        return UserError(
            f"vocabulary size {size} is too small: the characters and special pieces of this text need {least}; "
            "raise the size to at least that, or lower the character coverage"
        )
    if "sentences_.empty()" in text:
        return UserError(NO_TEXT)
    return error
