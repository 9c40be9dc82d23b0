"""Model files of the sentencepiece library."""

import math
from collections.abc import Sequence

from sentencepiece import SentencePieceProcessor
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from bertfam.data.vocabularies.layouts import Layout
from bertfam.data.vocabularies.sentence_piece.charsmap import check_charsmap
from bertfam.errors import UserError
from bertfam.storage.untrusted import shown

_LONGEST_PIECE = 4096  # characters; published models have up to 512
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # types of a piece


def running_model(proto: ModelProto, special: Sequence[int]) -> ModelProto:
    """Return a copy of the model in which no text encodes to a control piece."""
    running = ModelProto()
    running.CopyFrom(proto)
    for id in special:
        if running.pieces[id].type == USER_DEFINED:
            running.pieces[id].type = CONTROL
    return running


def layout_of(proto: ModelProto) -> Layout:
    """Derive the control pieces of a model that matches no known layout."""
    spec, names = proto.trainer_spec, [piece.piece for piece in proto.pieces]
    unk = next((piece.piece for piece in proto.pieces if piece.type == UNKNOWN), None)
    if unk is None:
        raise UserError("the model has no piece for unknown text")
    bos, eos, pad = (name if name in names else None for name in (spec.bos_piece, spec.eos_piece, spec.pad_piece))
    first = [piece for piece in (unk, bos, eos, pad) if piece is not None]
    single = f"$A:0 {eos}:0" if eos else "$A:0"
    pair = f"{single} {single.replace('$A', '$B')}"
    return Layout(tuple(first), pad=pad or eos or unk, unk=unk, bos=bos, eos=eos, single=single, pair=pair)


def parse(model: bytes) -> ModelProto:
    """Parse a model file; raise UserError if it is not one."""
    try:
        proto = ModelProto.FromString(model)
    except Exception as error:  # the exception class differs between protobuf's implementations
        raise UserError("the file is not a SentencePiece model, or it is damaged") from error
    if not (proto.pieces and proto.HasField("trainer_spec") and proto.HasField("normalizer_spec")):
        raise UserError("the file is not a SentencePiece model, or it is truncated")
    for id, piece in enumerate(proto.pieces):
        # A text that is not UTF-8 comes as bytes. The library builds a trie by recursion, which ends the process for long pieces.
        # It aborts the process for a NUL, which ends the pieces of its trie.
        is_text = isinstance(piece.piece, str) and "\0" not in piece.piece
        if not is_text or len(piece.piece) > _LONGEST_PIECE or not math.isfinite(piece.score):
            raise UserError(
                f"piece {id}, {shown(piece.piece)} with the score {piece.score}, is not UTF-8, has a NUL, more than "
                f"{_LONGEST_PIECE:,} characters or a score that is no number: the file is damaged"
            )
    if proto.trainer_spec.model_type not in (1, 2):
        raise UserError("the SentencePiece model is neither unigram nor BPE; only these are supported")
    if proto.trainer_spec.treat_whitespace_as_suffix:
        raise UserError(
            "the SentencePiece model was trained with treat_whitespace_as_suffix, which is not supported: train it without"
        )
    return proto


def processor_of(proto: ModelProto) -> SentencePieceProcessor:
    """Create the library's encoder of a model; raise UserError if the library rejects it, or would crash on it."""
    for spec in (proto.normalizer_spec, proto.denormalizer_spec):
        check_charsmap(spec.precompiled_charsmap)
    processor = SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(proto.SerializeToString(deterministic=True))
    except RuntimeError as error:
        raise UserError(f"sentencepiece cannot read this model ({error})") from error
    return processor
