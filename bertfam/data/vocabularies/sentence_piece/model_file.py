"""Model files of the sentencepiece library."""

from collections.abc import Sequence

from sentencepiece import SentencePieceProcessor
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from bertfam.data.vocabularies.layouts import Layout
from bertfam.errors import UserError

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # types of a piece


def running_model(proto: ModelProto, special: Sequence[int]) -> ModelProto:
    """The model with no control piece that text could spell."""
    running = ModelProto()
    running.CopyFrom(proto)
    for id in special:
        if running.pieces[id].type == USER_DEFINED:
            running.pieces[id].type = CONTROL
    return running


def layout_of(proto: ModelProto) -> Layout:
    """The control pieces of a model of no known family."""
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
    """Reads a model file; raises UserError where it is none."""
    try:
        proto = ModelProto.FromString(model)
    except Exception as error:  # protobuf's class of it differs between its implementations
        raise UserError("this is no SentencePiece model, or a damaged one") from error
    if not (proto.pieces and proto.HasField("trainer_spec") and proto.HasField("normalizer_spec")):
        raise UserError("this is no SentencePiece model, or it is cut off")
    if proto.trainer_spec.model_type not in (1, 2):
        raise UserError("this is no SentencePiece model of the kinds unigram and BPE")
    return proto


def processor_of(proto: ModelProto) -> SentencePieceProcessor:
    """The library's encoder of a model; raises UserError where it refuses it."""
    processor = SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(proto.SerializeToString(deterministic=True))
    except RuntimeError as error:
        raise UserError(f"sentencepiece cannot read this model ({error})") from error
    return processor
