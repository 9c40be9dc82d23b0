"""SentencePiece models from a tokenizer.json without a model file, as transformers saves them."""

import base64
import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tokenizers import normalizers

from bertfam.data.vocabularies.added_pieces import AddedPiece, read_entry
from bertfam.data.vocabularies.huggingface_files import read_pieces
from bertfam.data.vocabularies.layouts import trailing_sentinels
from bertfam.data.vocabularies.sentence_piece.normalization import Cleaning
from bertfam.errors import UserError
from bertfam.storage.untrusted import read_json, shown, typed

_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_UNIGRAM = 1


def model_of(path: Path, cleaning: Cleaning | None) -> tuple[bytes, int]:
    """Return the bytes of the model file and the number of sentinels after its pieces.

    Args:
      path: a tokenizer.json of the kind Unigram.
      cleaning: cleaning of text before the model, as the folder states it.

    Raises:
      UserError: the tokenizer has steps that a model file cannot express.
    """
    content = read_json(path)
    charsmap = _charsmap(path, content, cleaning)
    model = typed(content, "model", dict, path) or {}
    rows = _rows(path, model)
    added = _added(path, content)
    special = {token.content for _, token in added if token.special}
    late = [token.content for id, token in added if id >= len(rows)]
    if late:
        raise UserError(f"{path}: {late[0]} is not a piece of its model; put the SentencePiece model (spiece.model) beside it")
    unknown = typed(model, "unk_id", int, path)
    if unknown is None or not 0 <= unknown < len(rows):
        raise UserError(f"{path}: unk_id is {shown(unknown)}, and must be the id of a piece")
    sentinels = trailing_sentinels([piece for piece, _ in rows])
    proto = ModelProto()
    for id, (piece, score) in enumerate(rows[: len(rows) - sentinels]):
        kind = _UNKNOWN if id == unknown else _CONTROL if piece in special else _NORMAL
        if model.get("byte_fallback") and re.fullmatch("<0x[0-9A-F]{2}>", piece):
            kind = _BYTE
        proto.pieces.add(piece=piece, score=score, type=kind)
    names = {piece for piece, _ in rows}
    spec = proto.trainer_spec
    spec.model_type, spec.byte_fallback, spec.vocab_size = _UNIGRAM, bool(model.get("byte_fallback")), len(proto.pieces)
    spec.unk_id, spec.unk_piece = unknown, rows[unknown][0]
    for role, piece in (("bos", "<s>"), ("eos", "</s>"), ("pad", "<pad>")):
        setattr(spec, f"{role}_id", next((id for id, row in enumerate(rows) if row[0] == piece), -1))
        if piece in names:
            setattr(spec, f"{role}_piece", piece)
    proto.normalizer_spec.precompiled_charsmap = charsmap
    proto.normalizer_spec.add_dummy_prefix = True
    proto.normalizer_spec.remove_extra_whitespaces = True
    proto.normalizer_spec.escape_whitespaces = True
    return proto.SerializeToString(deterministic=True), sentinels


def check_added(path: Path, pieces: Sequence[str]) -> None:
    """Check the added tokens of a tokenizer.json beside a model file.

    Args:
      path: the tokenizer.json.
      pieces: the pieces of the model and the sentinels.

    Raises:
      UserError: an added token is not among the pieces, or is cut out of running text, which the model does not do.
    """
    for id, token in _added(path, read_json(path)):
        if id >= len(pieces) or pieces[id] != token.content:
            raise UserError(
                f"{path}: the added token {shown(token.content)} ({id}) is not a piece of the SentencePiece model beside it: "
                "add it to the model, or leave it out of tokenizer.json"
            )
        if not token.special:
            raise UserError(
                f"{path}: the added token {shown(token.content)} is not special: tokens that are cut out of running text are not "
                "supported with SentencePiece"
            )


def listed_pieces(path: Path) -> list[str]:
    """Return the pieces of a tokenizer.json's model in the order of their ids, without sentinels.

    Raises:
      UserError: it is damaged, or its model has no pieces.
    """
    model = typed(read_json(path), "model", dict, path) or {}
    table = model.get("vocab")
    names = read_pieces(path, table) if isinstance(table, dict) else [piece for piece, _ in _rows(path, model)]
    return without_sentinels(names)


def without_sentinels(pieces: Iterable[str]) -> list[str]:
    """Return all pieces but <extra_id_N>, which may be added tokens or pieces of the model."""
    return [piece for piece in pieces if "<extra_id_" not in piece]


def _added(path: Path, content: dict[str, Any]) -> list[tuple[int, AddedPiece]]:
    """Return the ids and added tokens of a tokenizer.json."""
    entries = typed(content, "added_tokens", list, path) or []
    return [read_entry(path, entry) for entry in entries]


def _rows(path: Path, model: dict[str, Any]) -> list[tuple[str, float]]:
    """Return the pieces and scores of a model of the kind Unigram."""
    rows = typed(model, "vocab", list, path) or []
    for row in rows:
        match row:
            case [str(), int() | float() as score] if math.isfinite(score):
                continue
        raise UserError(f"{path}: vocab holds {shown(row)}, and each must be a piece and its score")
    return [(piece, float(score)) for piece, score in rows]


def _charsmap(path: Path, content: dict[str, Any], cleaning: Cleaning | None) -> bytes:
    """Return the model's normaliser; raise UserError for steps that a model file and `cleaning` cannot express."""
    normalizer, splitter = (typed(content, name, dict, path) or {} for name in ("normalizer", "pre_tokenizer"))
    steps = _objects(normalizer.get("normalizers", [normalizer]))
    expected = json.loads(normalizers.Sequence(cleaning.normalizers() if cleaning else []).__getstate__())["normalizers"]
    parts = _objects(splitter.get("pretokenizers", []))
    kinds = [part.get("type") for part in parts]
    prefixed = kinds == ["WhitespaceSplit", "Metaspace"] and parts[1].get("prepend_scheme") == "always"
    if not prefixed or not steps or steps[:-1] != expected or steps[-1].get("type") != "Precompiled":
        raise UserError(
            f"{path} has normalisation steps that are not supported: put the SentencePiece model that it was made from "
            "(spiece.model) beside it"
        )
    try:
        return base64.b64decode(typed(steps[-1], "precompiled_charsmap", str, path) or "", validate=True)
    except ValueError as error:
        raise UserError(f"{path}: precompiled_charsmap is not base64 ({error})") from error


def _objects(steps: Any) -> list[dict[str, Any]]:
    """Return the steps of a sequence; [] if they are damaged."""
    return steps if isinstance(steps, list) and all(isinstance(step, dict) for step in steps) else []
