"""Tokens that begin and end the texts of a model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertfam.corruption.token_ids import TokenIds
from bertfam.decoding.prompts import prompt_format
from bertfam.decoding.stepper import Ends
from bertfam.errors import warn_once
from bertfam.models.language_model import LanguageModelConfig
from bertfam.storage.untrusted import read_json, shown


def end_tokens(config: LanguageModelConfig, tokens: TokenIds) -> Ends:
    """Return the tokens that a model of this family is trained with on a vocabulary."""
    end = tokens.sep if tokens.eos is None else tokens.eos
    # In training, a causal LM sees the end of the previous text before a new one.
    starts = {"bos": tokens.cls if tokens.cls is not None else end, "eos": end, "pad": tokens.pad, None: end}
    return Ends(() if end is None else (end,), tokens.pad, starts[config.start])


def end_tokens_of_folder(config: LanguageModelConfig, tokens: TokenIds, folder: Path) -> Ends:
    """Return the tokens that transformers' `generate` reads from a folder's generation_config.json, or else config.json.

    Fields that are missing come from `end_tokens`, and so do those that are not ids of the vocabulary, with a warning.
    """
    path = next(path for name in _FILES if (path := folder / name).exists() or path.is_symlink())
    stated: Mapping[str, Any] = read_json(path)

    def ids(name: str) -> tuple[int, ...]:
        value = stated.get(name)
        listed = value if isinstance(value, list) else [] if value is None else [value]
        known = tuple(id for id in listed if type(id) is int and 0 <= id < tokens.size)
        if len(known) < len(listed):
            warn_once(f"{path}: {name} is {shown(value)}, and the tokenizer has the ids 0 to {tokens.size - 1}; its own is used")
        return known

    def one(name: str | None) -> int | None:
        return None if name is None else next(iter(ids(name)), None)

    own, form = end_tokens(config, tokens), prompt_format(config)
    start, first = one(form.start_name), one(form.first_name)
    return Ends(
        ids("eos_token_id") or own.ids, own.fill, own.start if start is None else start, first, one("forced_eos_token_id")
    )


_FILES = ("generation_config.json", "config.json")
