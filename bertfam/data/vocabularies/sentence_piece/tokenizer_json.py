"""SentencePiece models from a tokenizer.json without a model file, as transformers saves them."""

import base64
import json
import re
from pathlib import Path
from typing import Any

from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tokenizers import normalizers

from bertfam.data.vocabularies.layouts import trailing_sentinels
from bertfam.data.vocabularies.sentence_piece.normalization import Cleaning
from bertfam.errors import UserError
from bertfam.storage.files import read_json

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
    model = content["model"]
    rows = [(str(piece), float(score)) for piece, score in model["vocab"]]
    special = {token["content"] for token in content.get("added_tokens") or [] if token.get("special")}
    late = [token["content"] for token in content.get("added_tokens") or [] if token["id"] >= len(rows)]
    if late:
        raise UserError(f"{path}: {late[0]} is not a piece of its model; put the SentencePiece model (spiece.model) beside it")
    sentinels = trailing_sentinels([piece for piece, _ in rows])
    proto = ModelProto()
    for id, (piece, score) in enumerate(rows[: len(rows) - sentinels]):
        kind = _UNKNOWN if id == model["unk_id"] else _CONTROL if piece in special else _NORMAL
        if model.get("byte_fallback") and re.fullmatch("<0x[0-9A-F]{2}>", piece):
            kind = _BYTE
        proto.pieces.add(piece=piece, score=score, type=kind)
    names = {piece for piece, _ in rows}
    spec = proto.trainer_spec
    spec.model_type, spec.byte_fallback, spec.vocab_size = _UNIGRAM, bool(model.get("byte_fallback")), len(proto.pieces)
    spec.unk_id, spec.unk_piece = model["unk_id"], rows[model["unk_id"]][0]
    for role, piece in (("bos", "<s>"), ("eos", "</s>"), ("pad", "<pad>")):
        setattr(spec, f"{role}_id", next((id for id, row in enumerate(rows) if row[0] == piece), -1))
        if piece in names:
            setattr(spec, f"{role}_piece", piece)
    proto.normalizer_spec.precompiled_charsmap = charsmap
    proto.normalizer_spec.add_dummy_prefix = True
    proto.normalizer_spec.remove_extra_whitespaces = True
    proto.normalizer_spec.escape_whitespaces = True
    return proto.SerializeToString(deterministic=True), sentinels


def _charsmap(path: Path, content: dict[str, Any], cleaning: Cleaning | None) -> bytes:
    """Return the model's normaliser; raise UserError for steps that a model file and `cleaning` cannot express."""
    normalizer = content.get("normalizer") or {}
    steps = normalizer.get("normalizers", [normalizer])
    expected = json.loads(normalizers.Sequence(cleaning.normalizers() if cleaning else []).__getstate__())["normalizers"]
    splitter = content.get("pre_tokenizer") or {}
    kinds = [step.get("type") for step in splitter.get("pretokenizers", [])]
    prefixed = kinds == ["WhitespaceSplit", "Metaspace"] and splitter["pretokenizers"][1].get("prepend_scheme") == "always"
    if not prefixed or steps[:-1] != expected or steps[-1].get("type") != "Precompiled":
        raise UserError(
            f"{path} has normalisation steps that are not supported: put the SentencePiece model that it was made from "
            "(spiece.model) beside it"
        )
    return base64.b64decode(steps[-1]["precompiled_charsmap"])
