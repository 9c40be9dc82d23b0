"""Added tokens of Hugging Face's tokenizers: pieces that are cut out of a text before it is split."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertfam.errors import UserError
from bertfam.storage.untrusted import read_json, shown, typed

if TYPE_CHECKING:
    from tokenizers import AddedToken

_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


@dataclass(frozen=True)
class AddedPiece:
    """Added token; the flags are those of `tokenizers.AddedToken`.

    Attributes:
      content: the piece.
      special: True for a control token, which only prompts contain; other added tokens are words of running text too.
      single_word: True if it is not cut out of a longer word.
      lstrip: True if it absorbs the white space before it.
      rstrip: True if it absorbs the white space after it.
      normalized: True if it is searched for in normalised text.
      apart: True if the model of the tokenizer has no such piece, so that no other text gives its id.
    """

    content: str
    special: bool = False
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    apart: bool = False

    @property
    def token(self) -> "AddedToken":
        """Token of the `tokenizers` library."""
        from tokenizers import AddedToken

        flags = asdict(self)
        del flags["apart"]
        return AddedToken(**flags)


_FLAGS = tuple(field.name for field in fields(AddedPiece) if field.name not in ("content", "apart"))


def read_added(path: Path, content: Mapping[str, Any], model_ids: Mapping[str, int]) -> dict[int, AddedPiece]:
    """Read the added tokens of a tokenizer.json by id.

    Args:
      path: the file, for messages.
      content: its content.
      model_ids: ids of the pieces of its model.

    Raises:
      UserError: an entry is damaged, or its id is not that which the `tokenizers` library gives it.
    """
    added: dict[int, AddedPiece] = {}
    following = len(model_ids)
    for entry in typed(content, "added_tokens", list, path) or []:
        id, token = read_entry(path, entry)
        apart = token.content not in model_ids
        own = following if apart else model_ids[token.content]
        if id != own:
            raise UserError(
                f"{path}: the added token {shown(token.content)} has the id {id}, and {own} is its own: ids of added tokens "
                "follow those of the model; save the tokenizer again with transformers"
            )
        following += apart
        added[id] = replace(token, apart=apart)
    return added


def read_entry(path: Path, entry: Any) -> tuple[int, AddedPiece]:
    """Return the id and the token of an entry of a tokenizer.json's `added_tokens`.

    Raises:
      UserError: the entry is damaged.
    """
    where = f"{path}: added_tokens"
    if not isinstance(entry, dict):
        raise UserError(f"{where} holds {shown(entry)}, and each must be an object")
    piece, id = typed(entry, "content", str, where), typed(entry, "id", int, where)
    if not piece or id is None or id < 0:
        raise UserError(f"{where} holds {shown(entry)}, without a content or an id")
    return id, AddedPiece(piece, **{name: bool(typed(entry, name, bool, where)) for name in _FLAGS})


def with_stated(
    folder: Path, config: Mapping[str, Any], added: Mapping[int, AddedPiece], pieces: Sequence[str]
) -> list[AddedPiece]:
    """Return all added tokens of a folder, in the order of their ids.

    Args:
      folder: folder of the files.
      config: content of tokenizer_config.json.
      added: those of tokenizer.json, by id.
      pieces: all pieces of the vocabulary.

    Raises:
      UserError: tokenizer_config.json or added_tokens.json states another token, which `AutoTokenizer` would add.
    """
    path = folder / "added_tokens.json"
    ids = {piece: id for id, piece in enumerate(pieces)}
    entries = _decoder_entries(config, folder)
    specials = [*_stated_specials(config), *(entry["content"] for entry in entries if entry.get("special"))]
    plain = [entry["content"] for entry in entries if not entry.get("special")]
    listed = list(read_json(path)) if path.exists() else []
    known = {entry.content for entry in added.values()}
    other = next((name for name in (*specials, *listed) if name not in ids), None)
    other = next((name for name in plain if name not in known), other)
    if other is not None:
        raise UserError(
            f"{folder}: the added token {shown(other)} is not in tokenizer.json: save the tokenizer again with transformers "
            "(AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)), which writes all of them there"
        )
    stated = {ids[name]: AddedPiece(name, special=True) for name in specials if name not in known}
    return [piece for _, piece in sorted({**stated, **added}.items())]


def model_pieces(pieces: Sequence[str], added: Mapping[int, AddedPiece]) -> list[str]:
    """Return the pieces of a tokenizer.json that its model has, without added tokens apart from it."""
    return [piece for id, piece in enumerate(pieces) if id not in added or not added[id].apart]


def stated_role(config: Mapping[str, Any], role: str) -> str | None:
    """Return the token that tokenizer_config.json states for a role such as "pad"."""
    return _content(config.get(f"{role}_token"))


def _stated_specials(config: Mapping[str, Any]) -> list[str]:
    """Return the special tokens that tokenizer_config.json states, with and without a role."""
    names = [config.get(f"{role}_token") for role in _ROLES]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        more = config.get(key)
        names += more.values() if isinstance(more, dict) else more if isinstance(more, list) else []
    return [name for name in map(_content, names) if name is not None]


def _decoder_entries(config: Mapping[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Return the entries of `added_tokens_decoder`."""
    path = folder / "tokenizer_config.json"
    entries = (typed(config, "added_tokens_decoder", dict, path) or {}).values()
    if not all(isinstance(entry, dict) and isinstance(entry.get("content"), str) for entry in entries):
        raise UserError(f"{path}: added_tokens_decoder must hold an object with a content for each id")
    return list(entries)


def _content(token: Any) -> str | None:
    """Return the text of a token, which files state as itself or as an object."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
