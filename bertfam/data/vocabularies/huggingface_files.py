"""The files of a vocabulary folder that Hugging Face's transformers reads beside the vocabulary's own."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertfam.data.vocabularies.layouts import Layout, sentinel_pieces
from bertfam.errors import UserError
from bertfam.storage.files import read_json, write_bytes, write_text
from bertfam.storage.paths import make_folder

# A class that takes tokenizer.json as it is, whatever the model's family.
GENERIC_CLASS = "PreTrainedTokenizerFast"
# Every file that a vocabulary folder, ours or published, may hold.
NAMES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.txt", "spiece.model", "vocab.json", "merges.txt",
)  # fmt: skip


def write_files(
    folder: Path,
    layout: Layout,
    *,
    own: Mapping[str, bytes],
    tokenizer_json: str,
    tokenizer_class: str,
    settings: Mapping[str, Any],
    sentinels: int,
    model_max_length: int | None,
) -> None:
    """Writes all files of a vocabulary; each is complete or absent, tokenizer.json last.

    Args:
      folder: made if need be.
      layout: names the control tokens.
      own: the files of the vocabulary's kind.
      tokenizer_json: the same vocabulary for the `tokenizers` library.
      tokenizer_class: Hugging Face's class for it.
      settings: what else tokenizer_config.json says.
      sentinels: how many <extra_id_N> there are.
      model_max_length: longest input of the model, in tokens; None: not stated.
    """
    special: dict[str, Any] = {**layout.published_names}
    others = [piece for piece in layout.controls if piece not in special.values()]
    others += reversed(sentinel_pieces(sentinels))
    if others:
        special["additional_special_tokens"] = others
    config = {"tokenizer_class": tokenizer_class, **settings, **special}
    if sentinels or layout.sentinels:
        config["extra_ids"] = sentinels
    if layout.padding_side != "right":
        config["padding_side"] = layout.padding_side
    if layout.pad_type:
        config["pad_token_type_id"] = layout.pad_type
    if model_max_length is not None:
        config["model_max_length"] = model_max_length
    make_folder(folder)
    for name, content in own.items():
        write_bytes(folder / name, content)
    write_text(folder / "special_tokens_map.json", json.dumps(special, indent=2) + "\n")
    write_text(folder / "tokenizer_config.json", json.dumps(config, indent=2) + "\n")
    write_text(folder / "tokenizer.json", tokenizer_json)


def read_config(folder: Path) -> dict[str, Any]:
    """What tokenizer_config.json states; {} where there is none."""
    path = folder / "tokenizer_config.json"
    return read_json(path) if path.exists() else {}


def read_ids(path: Path, content: Mapping[str, Any]) -> list[str]:
    """The pieces of a tokenizer.json in the order of their ids, added tokens among them.

    Raises:
      UserError: an id is missing or stands twice.
    """
    ids = dict(content["model"].get("vocab") or {})
    ids |= {token["content"]: token["id"] for token in content.get("added_tokens") or []}
    if sorted(ids.values()) != list(range(len(ids))):
        raise UserError(f"{path}: the ids are not 0 to {len(ids) - 1}, each once")
    return sorted(ids, key=ids.__getitem__)
