"""Tokenizer files of a vocabulary folder that Hugging Face's transformers reads."""

import json
import multiprocessing
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from bertfam.data.vocabularies.added_pieces import AddedPiece, read_added
from bertfam.data.vocabularies.layouts import Layout, find_layout, sentinel_pieces
from bertfam.errors import UserError, warn_once
from bertfam.storage.files import write_bytes, write_text
from bertfam.storage.paths import make_folder
from bertfam.storage.untrusted import read_json, shown, typed

# The class that loads any tokenizer.json, whatever the model's family.
GENERIC_CLASS = "PreTrainedTokenizerFast"
_DELETE = ", or delete tokenizer.json if no model was trained with it"
# Every file that a vocabulary folder may hold, written by bertfam or published.
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
    model_max_length: int | None,
    specials: Iterable[str] = (),
) -> None:
    """Write all files of a vocabulary, each atomically, with tokenizer.json last.

    Args:
      folder: created if missing.
      layout: names the control tokens, and says how many sentinels there are.
      own: the files specific to the vocabulary's kind.
      tokenizer_json: the same vocabulary for the `tokenizers` library.
      tokenizer_class: Hugging Face's class for it.
      settings: further entries of tokenizer_config.json.
      model_max_length: longest input of the model in tokens; None leaves it out.
      specials: special pieces besides those of the layout.
    """
    special: dict[str, Any] = {**layout.published_names}
    others = [piece for piece in layout.controls if piece not in special.values()]
    others += [*reversed(sentinel_pieces(layout.sentinels)), *specials]
    if others:
        special["additional_special_tokens"] = others
    config = {"tokenizer_class": tokenizer_class, **settings, **special}
    # None is a number too: without an entry, a reader takes the family's.
    if layout.sentinels or getattr(find_layout(layout.controls), "sentinels", 0):
        config["extra_ids"] = layout.sentinels
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
    """Read tokenizer_config.json; {} if it is missing."""
    path = folder / "tokenizer_config.json"
    return read_json(path) if path.exists() else {}


class TokenizerFile(NamedTuple):
    """Content of a tokenizer.json whose model has a table of ids.

    Attributes:
      pieces: all pieces in the order of their ids, including added tokens.
      added: the added tokens by id.
      model: the model's settings.
      normalizer: the normaliser's settings; {} if there is none.
      splitter: the pre-tokeniser's settings; {} if there is none.
    """

    pieces: list[str]
    added: dict[int, AddedPiece]
    model: dict[str, Any]
    normalizer: dict[str, Any]
    splitter: dict[str, Any]


def read_tokenizer(path: Path) -> TokenizerFile:
    """Read a tokenizer.json whose model has a table of ids.

    Raises:
      UserError: it is damaged, or an id is missing or occurs twice.
    """
    content = read_json(path)
    model = typed(content, "model", dict, path) or {}
    table = typed(model, "vocab", dict, path) or {}
    added = read_added(path, content, table)
    pieces = read_pieces(path, table | {piece.content: id for id, piece in added.items()})
    normalizer, splitter = (typed(content, name, dict, path) or {} for name in ("normalizer", "pre_tokenizer"))
    return TokenizerFile(pieces, added, model, normalizer, splitter)


def read_pieces(path: Path, ids: Mapping[str, Any]) -> list[str]:
    """Return the pieces of a table of ids in the order of their ids.

    Raises:
      UserError: an id is missing or occurs twice, or is none.
    """
    wrong = next((piece for piece, id in ids.items() if type(id) is not int), None)
    if wrong is not None:
        raise UserError(f"{path}: the id of {shown(wrong)} is {shown(ids[wrong])}, and must be a whole number")
    if sorted(ids.values()) != list(range(len(ids))):
        raise UserError(f"{path}: the ids must be 0 to {len(ids) - 1}, each exactly once")
    return sorted(ids, key=ids.__getitem__)


def warn_of_ignored(
    path: Path, read: Callable[[Path], Sequence[str]], used: Sequence[str], beside: str = "tokenizer.json", fix: str = _DELETE
) -> None:
    """Warn if a file differs from the one beside it that is used, as after a word was added by hand.

    Args:
      path: the file that is not used; it may be missing.
      read: reads its entries.
      used: those of the file beside it.
      beside: the name of the file that is used.
      fix: what else than to restore the file may be done.
    """
    if not path.exists():
        return
    try:
        listed = read(path)
    except UserError:  # nothing depends on the file
        return
    for number, (ignored, piece) in enumerate(zip_longest(listed, used)):
        if ignored != piece:
            here, there = ("missing" if entry is None else shown(entry) for entry in (ignored, piece))
            warn_once_in_parent(
                f"{path} and {path.with_name(beside)} differ: entry {number} is {here} in the one and {there} in the other; "
                f"{beside} is used, so restore {path.name}{fix}"
            )
            return


def warn_of_clash(folder: Path, config: Mapping[str, Any], used: Mapping[str, Any]) -> None:
    """Warn if tokenizer_config.json states another value than tokenizer.json, which is used; transformers follows the former.

    Args:
      folder: the vocabulary.
      config: the content of tokenizer_config.json.
      used: the values of tokenizer.json, by their names in tokenizer_config.json.
    """
    for name, value in used.items():
        if name in config and config[name] != value:
            stated, other = json.dumps(config[name])[:60], json.dumps(value)
            warn_once_in_parent(
                f"{folder / 'tokenizer_config.json'} says {name} = {stated}, and tokenizer.json {other}, which is used here; "
                "transformers may follow the former, and give other ids: make them agree"
            )


def warn_once_in_parent(line: str) -> None:
    """Print a warning once; the workers of a command, which load the vocabulary again, print none."""
    if multiprocessing.parent_process() is None:
        warn_once(line)
