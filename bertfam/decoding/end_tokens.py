"""Which tokens begin and end the texts of a model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertfam.corruption.token_ids import TokenIds
from bertfam.decoding.stepper import Ends
from bertfam.models.language_model import LanguageModelConfig
from bertfam.storage.files import read_json


def end_tokens(config: LanguageModelConfig, tokens: TokenIds) -> Ends:
    """As a model of this family is trained on a vocabulary."""
    end = tokens.sep if tokens.eos is None else tokens.eos
    # The end of the text before is what a decoder alone has read where one begins.
    starts = {"bos": tokens.cls if tokens.cls is not None else end, "eos": end, "pad": tokens.pad, None: end}
    return Ends(() if end is None else (end,), tokens.pad, starts[config.start])


def end_tokens_of_folder(config: LanguageModelConfig, tokens: TokenIds, folder: Path) -> Ends:
    """As transformers' `generate` takes them from a folder: generation_config.json, or config.json where there is none.

    What the folder does not say, or says of an id that is no token, is as `end_tokens` has it.
    """
    stated: Mapping[str, Any] = read_json(next(path for name in _FILES if (path := folder / name).is_file()))

    def ids(name: str) -> tuple[int, ...]:
        found = stated.get(name)
        listed = found if isinstance(found, list) else [found]
        return tuple(id for id in listed if type(id) is int and 0 <= id < tokens.size)

    def one(name: str) -> int | None:
        return next(iter(ids(name)), None)

    own = end_tokens(config, tokens)
    start = one("decoder_start_token_id" if config.has_encoder else "bos_token_id")
    first = one("forced_bos_token_id") if config.has_encoder else None
    return Ends(
        ids("eos_token_id") or own.ids, own.fill, own.start if start is None else start, first, one("forced_eos_token_id")
    )


_FILES = ("generation_config.json", "config.json")
