"""The files of a WordPiece vocabulary, as BERT published them and as `transformers` reads and writes them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertfam.errors import UserError
from bertfam.files import read_json, write_text

# tokenizer_config.json's name of each switch -> ours
_CONFIG_NAMES = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


def read_settings(folder: Path) -> tuple[list[str] | None, dict[str, Any]]:
    """Pieces (None: read vocab.txt) and the switches that a folder states, from tokenizer.json or tokenizer_config.json.

    Raises:
      UserError: no such folder, nothing in it, or a tokenizer of another kind.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder: a vocabulary is a folder with vocab.txt or tokenizer.json in it")
    if (folder / "tokenizer.json").exists():
        return _read_tokenizer_json(folder / "tokenizer.json")
    if not (folder / "vocab.txt").exists():
        raise UserError(f"{folder} holds neither vocab.txt nor tokenizer.json: make one by bertfam vocab")
    config = folder / "tokenizer_config.json"
    stated = read_json(config) if config.exists() else {}
    return None, {ours: stated[theirs] for theirs, ours in _CONFIG_NAMES.items() if stated.get(theirs) is not None}


def read_vocab_txt(path: Path) -> list[str]:
    """One piece a line, in the order of their ids."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 at byte {error.start}: is it a vocabulary?") from error
    return [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]


def write_vocabulary(
    folder: Path,
    pieces: Sequence[str],
    tokenizer_json: str,
    *,
    lowercase: bool,
    strip_accents: bool | None,
    handle_chinese_chars: bool,
    model_max_length: int | None,
) -> None:
    """Writes the four files; each is complete or absent, tokenizer.json (the one that is read first) last."""
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    special["mask_token"] = "[MASK]"
    config: dict[str, Any] = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": lowercase,
        "strip_accents": strip_accents,
        "tokenize_chinese_chars": handle_chinese_chars,
        **special,
    }
    if model_max_length is not None:
        config["model_max_length"] = model_max_length
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "vocab.txt", "".join(piece + "\n" for piece in pieces))
    write_text(folder / "special_tokens_map.json", json.dumps(special, indent=2) + "\n")
    write_text(folder / "tokenizer_config.json", json.dumps(config, indent=2) + "\n")
    write_text(folder / "tokenizer.json", tokenizer_json)


def _read_tokenizer_json(path: Path) -> tuple[list[str], dict[str, Any]]:
    content = read_json(path)
    model = content.get("model") or {}
    kind = model.get("type")
    if kind != "WordPiece":
        raise UserError(f"{path} is a {kind or 'nameless'} tokenizer: only WordPiece is read")
    normalizer = content.get("normalizer") or {}
    splitter = content.get("pre_tokenizer") or {}
    if normalizer.get("type") != "BertNormalizer" or splitter.get("type") != "BertPreTokenizer":
        raise UserError(f"{path} does not normalise and split text as BERT does: only BertNormalizer and BertPreTokenizer")
    if model.get("continuing_subword_prefix") != "##" or model.get("max_input_chars_per_word") != 100:
        raise UserError(f'{path}: only the continuation prefix "##" and words of up to 100 characters are read')
    ids = dict(model["vocab"])
    ids |= {token["content"]: token["id"] for token in content.get("added_tokens") or []}
    if sorted(ids.values()) != list(range(len(ids))):
        raise UserError(f"{path}: the ids are not 0 to {len(ids) - 1}, each once")
    settings = {name: normalizer.get(name) for name in _CONFIG_NAMES.values()}
    return sorted(ids, key=ids.__getitem__), settings
