"""Files of sentence-transformers beside those of a Hugging Face model: how texts become embeddings.

The names and values are those of versions 2 to 5, which version 6 reads too.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from bertfam.errors import UserError
from bertfam.layers.pooling import PoolingMode
from bertfam.storage.untrusted import check_subfolder, file_in, parse_json, read_bytes, read_json, shown, typed

MODULES = "modules.json"
_POOLING, _NORMALIZE = "1_Pooling", "2_Normalize"
_SETTINGS, _TRANSFORMER, _TOKENIZER = "config_sentence_transformers.json", "sentence_bert_config.json", "tokenizer_config.json"
# By the keys of versions before 6, which have one for each mode.
_MODES: Mapping[str, str] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_NO_LENGTH = 10**6  # tokenizers without a limit state a greater number


# By model_type; of others the mean.
_DEFAULT_POOLING: dict[str, PoolingMode] = {"dpr": "cls"}


@dataclass(frozen=True)
class EmbeddingSettings:
    """Settings by which an encoder embeds texts.

    Attributes:
      pooling: pooling of the hidden states.
      normalize: True if embeddings have length 1.
      length: tokens, with the control tokens, beyond which texts are cut; None: the model's.
      lowercase: True if texts are lower-cased before they are tokenised.
      prompts: texts to put before a text, by the names of their purposes, such as "query".
      default_prompt: the name of the one that is used where none is named; None: none is.
      problem: why texts cannot be embedded by these settings; "" if they can.
    """

    pooling: PoolingMode = "mean"
    normalize: bool = False
    length: int | None = None
    lowercase: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict, hash=False)
    default_prompt: str | None = None
    problem: str = ""

    @property
    def description(self) -> str:
        """Description in a few words."""
        return f"{self.pooling} pooling{', scaled to length 1' if self.normalize else ''}"


def find_settings(folder: Path) -> EmbeddingSettings:
    """Read the settings of a Hugging Face folder as `read_settings` does; a mistake there is the `problem` of the settings."""
    try:
        return read_settings(folder)
    except UserError as error:
        return EmbeddingSettings(problem=str(error))


def read_settings(folder: Path) -> EmbeddingSettings:
    """Read the settings of a Hugging Face folder; the defaults stand for files that it lacks.

    Raises:
      UserError: if the files are damaged, or name a module or a pooling that is not supported.
    """
    modules = _modules(folder)
    settings, transformer, tokenizer = (_optional(folder / name) for name in (_SETTINGS, _TRANSFORMER, _TOKENIZER))
    length = typed(transformer, "max_seq_length", int, folder / _TRANSFORMER)
    longest = tokenizer.get("model_max_length")
    if length is None and isinstance(longest, int) and 0 < longest < _NO_LENGTH:
        length = longest
    prompts = typed(settings, "prompts", dict, folder / _SETTINGS) or {}
    default = typed(settings, "default_prompt_name", str, folder / _SETTINGS)
    if not all(isinstance(text, str) for text in prompts.values()) or (default is not None and default not in prompts):
        raise UserError(f"{folder / _SETTINGS}: prompts must be texts by name, with {shown(default)} among them")
    default_pooling = _DEFAULT_POOLING.get(str(_optional(folder / "config.json").get("model_type")), "mean")
    pooling, includes_prompt = _read_pooling(modules.get("Pooling", folder / _POOLING) / "config.json", default_pooling)
    if not includes_prompt and any(prompts.values()):
        raise UserError(f"{folder} leaves prompts out of the pooling (include_prompt), which is not supported")
    lowercase = bool(typed(transformer, "do_lower_case", bool, folder / _TRANSFORMER))
    return EmbeddingSettings(pooling, "Normalize" in modules, length, lowercase, prompts, default)


def write_settings(folder: Path, settings: EmbeddingSettings, width: int) -> None:
    """Write the settings beside the files of a Hugging Face model.

    Args:
      folder: the folder of the model.
      settings: with a length.
      width: width of the embeddings.
    """
    names = [("Transformer", ""), ("Pooling", _POOLING)] + [("Normalize", _NORMALIZE)] * settings.normalize
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, path) in enumerate(names)
    ]
    pooling = {"word_embedding_dimension": width} | {key: mode == settings.pooling for key, mode in _MODES.items()}
    _write(folder / MODULES, modules)
    _write(folder / _POOLING / "config.json", pooling | {"include_prompt": True})
    if settings.normalize:
        _write(folder / _NORMALIZE / "config.json", {})
    _write(folder / _TRANSFORMER, {"max_seq_length": settings.length, "do_lower_case": settings.lowercase})
    prompts = {"prompts": dict(settings.prompts), "default_prompt_name": settings.default_prompt}
    _write(folder / _SETTINGS, {"__version__": {}, **prompts, "similarity_fn_name": "cosine"})


def _modules(folder: Path) -> dict[str, Path]:
    """Return the folders of the modules by the names of their classes; {} without a list of modules."""
    path = folder / MODULES
    if not path.exists():
        return {}
    try:
        kinds = {module["type"].rpartition(".")[2]: module["path"] for module in parse_json(read_bytes(path))}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is no list of modules, each with a type and a path") from error
    if not all(isinstance(place, str) for place in kinds.values()):
        wrong = next(place for place in kinds.values() if not isinstance(place, str))
        raise UserError(f"{path}: the path {shown(wrong)} of a module must be a text, such as {_POOLING}")
    if other := sorted(kinds.keys() - {"Transformer", "Pooling", "Normalize"}):
        raise UserError(f"{path}: the module {shown(other[0])} is not supported, only Transformer, Pooling and Normalize")
    folders = {kind: file_in(folder, place) if place else folder for kind, place in kinds.items()}
    if "Pooling" in folders and (folders["Pooling"] == folder or not (folders["Pooling"] / "config.json").exists()):
        raise UserError(f"{path} names the Pooling module {shown(kinds['Pooling'])}, which has no config.json: restore it")
    return folders


def _read_pooling(path: Path, default: PoolingMode) -> tuple[PoolingMode, bool]:
    """Return the pooling, that of `default` where there is no file, and whether it includes the tokens of a prompt."""
    check_subfolder(path.parent)
    content = _optional(path)
    modes = content.get("pooling_mode") or [mode for key, mode in _MODES.items() if content.get(key) is True] or [default]
    known = get_args(PoolingMode)
    match modes if isinstance(modes, list) else [modes]:
        case [mode] if mode in known:
            return mode, content.get("include_prompt") is not False
    raise UserError(f"{path}: the pooling {shown(modes)} is not supported, only {', '.join(known)}")


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
