"""Vocabularies: text <-> ids, one module for each kind."""

import os
from pathlib import Path

from bertfam.call_arguments import check_path
from bertfam.data.vocabularies.vocabulary import Encoding, Vocabulary
from bertfam.errors import UserError
from bertfam.storage.paths import check_whole, missing_folder, to_path
from bertfam.storage.untrusted import check_subfolder, read_json

__all__ = ["Encoding", "Vocabulary", "is_vocabulary", "load"]

_FILES = "tokenizer.json, vocab.txt, spiece.model, or vocab.json and merges.txt"


def load(folder: str | os.PathLike[str]) -> Vocabulary:
    """Load a vocabulary of any kind from a folder written by `bertfam vocab` or published with a model.

    Raises:
      UserError: the folder is missing or empty, is that of a model or token cache and a link out of it, or its vocabulary is not
        supported.
    """
    check_path(folder, "folder")
    path = to_path(folder)
    check_whole(path)
    try:
        if path.name == "vocab" and any((path.parent / name).is_file() for name in ("config.gin", "cache.json")):
            check_subfolder(path)
        return _load(path)
    except UserError as error:
        model_dir = path.parent
        if path.name != "vocab" or not (model_dir / "config.gin").is_file():
            raise
        why = f"cannot be used ({error})" if path.exists() else "is missing"
        copy = model_dir / "cache" / "vocab"
        fix = f"replace it by {copy}, its copy in the token cache" if copy.is_dir() else "restore it"
        raise UserError(f"{path}, the vocabulary of the model in {model_dir}, {why}; {fix}") from error


def is_vocabulary(folder: Path) -> bool:
    """Return True if a folder has the files of a vocabulary, or of a model with one."""
    return any(folder.glob("*.model")) or any((folder / name).exists() for name in ("tokenizer.json", "vocab.txt", "vocab.json"))


def _load(path: Path) -> Vocabulary:
    if not path.is_dir():
        # A model folder may have a file `vocab` in place of its vocabulary.
        is_part = path.is_file() and path.name != "vocab" and is_vocabulary(path.parent)
        fix = f"; name {path.parent}" if is_part else f"; {missing_folder(path) or 'name another'}"
        raise UserError(f"{path} is not a folder: a vocabulary is a folder with {_FILES} in it{fix}")
    if any(path.glob("*.model")):
        kind = "SentencePiece"
    elif (path / "tokenizer.json").exists():
        kind = _tokenizer_kind(path / "tokenizer.json")
    elif (path / "vocab.txt").exists():
        kind = "WordPiece"
    elif (path / "vocab.json").exists():
        kind = "BPE"
    else:
        fix = "make one with bertfam vocab"
        if (path / "vocab").is_dir():
            fix = f"name {path / 'vocab'}"
        elif (path / "config.json").is_file():
            fix = "copy the files of the model's tokenizer into it (tokenizer.save_pretrained of transformers)"
        raise UserError(f"{path} holds no vocabulary ({_FILES}): {fix}")
    if kind == "WordPiece":
        from bertfam.data.vocabularies.wordpiece import WordPiece

        return WordPiece.load(path)
    if kind == "BPE":
        from bertfam.data.vocabularies.byte_bpe import ByteBpe

        return ByteBpe.load(path)
    from bertfam.data.vocabularies.sentence_piece.vocabulary import SentencePiece

    return SentencePiece.load(path)


def _tokenizer_kind(path: Path) -> str:
    content = read_json(path).get("model")
    kind = content.get("type") if isinstance(content, dict) else None
    if kind in ("WordPiece", "BPE", "Unigram"):
        return kind
    raise UserError(f"{path} is a {kind or 'nameless'} tokenizer: only WordPiece, byte-level BPE and Unigram are supported")
