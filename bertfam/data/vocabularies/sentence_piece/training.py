"""Learning SentencePiece models, the same for the same texts every time."""

import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from sentencepiece import SentencePieceTrainer
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from bertfam.data.vocabularies.counting import NO_TEXT, counted, warn_of_size
from bertfam.data.vocabularies.layouts import Layout
from bertfam.errors import UserError

KINDS = ("unigram", "bpe")
NORMALIZERS = ("nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf", "identity")
_THREADS = 4  # whatever the machine has: sums of floats depend on it
_NORMAL, _UNKNOWN, _CONTROL = 1, 2, 3
_GRID = 1024  # scores are multiples of 1 / 1024, whose sums over a text are exact in float32 and float64
_SPLIT = re.compile(r"[ \t\r\n]+")


def count_words(texts: Iterable[str]) -> Counter[str]:
    """How often each word between spaces stands in the texts, as it is.

    No piece reaches across a space, so that counted words are enough; the library's own reading would drop long lines.
    """
    return counted(texts, _SPLIT.split, lambda word: (word,) if word else ())


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
    """A model file with the layout's control pieces and without its sentinels.

    Warns (`UserWarning`) when the texts allow fewer than `size` pieces, which gives a smaller vocabulary.

    Args:
      words: see `count_words`.
      kind: "unigram" (Kudo 2018) or "bpe" (Sennrich et al. 2016).
      layout: the control pieces.
      size: pieces wanted, the layout's (with sentinels) included.
      normalizer: of `NORMALIZERS`; those in _cf also fold capitals.
      keep_spaces: whether runs of spaces, and those at the ends of a text, are kept.
      byte_fallback: whether a character without a piece is spelt by bytes, so that nothing is unknown.
      character_coverage: share of the text's characters that get a piece.

    Raises:
      UserError: there is no text, or `size` is too small.
    """
    if layout.unk == layout.pad:
        raise UserError(f"SentencePiece needs a piece for unknown text, and the layout of {layout.pad} has none: choose another")
    others = len(layout.controls) - 1 + layout.sentinels  # beside the unknown
    if size <= others + 1:
        raise UserError(f"vocabulary size {size} is too small: {others + 1} special pieces and the characters go in")
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
        raise _explained(error, others, size) from error
    model = ModelProto.FromString(written.getvalue())
    warn_of_size(len(model.pieces) + others, size)
    return _with_controls(model, layout)


def _counted_lines(words: Counter[str]) -> Iterator[str]:
    return (f"{word}\t{words[word]}" for word in sorted(words))


def _with_controls(model: ModelProto, layout: Layout) -> bytes:
    """The model with the layout's pieces before and after its own, instead of its unknown.

    A text that splits in two ways with one score is then split alike by every implementation.
    """
    learnt = [piece for piece in model.pieces if piece.type != _UNKNOWN]
    for piece in learnt:
        piece.score = round(piece.score * _GRID) / _GRID
    del model.pieces[:]
    for name in layout.first:
        model.pieces.add(piece=name, score=0.0, type=_UNKNOWN if name == layout.unk else _CONTROL)
    model.pieces.extend(learnt)
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


def _explained(error: Exception, others: int, size: int) -> Exception:
    """The library's complaint as a UserError, where it is one."""
    text = str(error)
    if found := re.search(r"smaller than required_chars\. \d+ vs (\d+)", text):
        least = int(found[1]) + others
        return UserError(
            f"vocabulary size {size} is too small: the characters and special pieces of this text need {least}; "
            "ask for so many, or give fewer characters a piece by a lower character coverage"
        )
    if "sentences_.empty()" in text:
        return UserError(NO_TEXT)
    return error
