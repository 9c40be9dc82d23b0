"""Kinds of folders of models: a MODEL_DIR has config.gin, a Hugging Face folder config.json.

It imports little, so that a command can refuse a folder before it imports JAX.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from bertfam.data import vocabularies
from bertfam.errors import UserError
from bertfam.storage.buckets import is_remote
from bertfam.storage.paths import missing_folder, to_path

RECORD = "files.json"  # of the files that a run has written, see `bertfam.training.integrity.model_dir_files`
_TOWERS = ("query", "passage")  # networks of a dual encoder
_RUN = ("cache", "checkpoints", "compilations", "plugins", "vocab", "wandb")  # folders that a run makes in its MODEL_DIR


def is_huggingface(path: str | Path) -> bool:
    """Return whether a folder is a Hugging Face folder, and no MODEL_DIR."""
    folder = to_path(path)
    return not (folder / "config.gin").is_file() and (folder / "config.json").is_file()


def huggingface_towers(path: str | Path) -> dict[str, Path]:
    """Return the Hugging Face folders of queries and passages in a folder, such as `bertfam export` writes; {} without both."""
    folders = {name: to_path(path) / name for name in _TOWERS}
    return folders if not is_huggingface(path) and all(map(is_huggingface, folders.values())) else {}


def check_is_model(folder: str | Path) -> None:
    """Raise UserError if a folder is neither a MODEL_DIR nor a Hugging Face folder."""
    if not _has_config(folder) and not is_huggingface(folder):
        fix = (
            model_folder_around(folder, ("config.gin", "config.json"))
            or model_folders_in(folder)
            or other_kind(folder)
            or missing_folder(folder)
        )
        raise UserError(
            f"{folder} is neither a model folder (config.gin) nor a Hugging Face folder (config.json){f'; {fix}' if fix else ''}"
        )


def check_is_run(folder: str | Path) -> None:
    """Raise UserError if a folder is no MODEL_DIR."""
    if not _has_config(folder):
        fix = (
            model_folder_around(folder)
            or model_folders_in(folder)
            or other_kind(folder)
            or missing_folder(folder)
            or "`bertfam pretrain` or `bertfam import` makes one"
        )
        if is_huggingface(folder):
            fix = f"it is a Hugging Face folder: make a model folder from it by `bertfam import --input={folder} --output=DIR`"
        raise UserError(f"{folder} is no model folder (no config.gin); {fix}")


def _has_config(folder: str | Path) -> bool:
    """Return whether a folder has a config.gin; raise UserError if a run has written one that is missing."""
    path = to_path(folder) / "config.gin"
    if path.is_file():
        return True
    if path.exists():
        raise UserError(f"{path} is not a regular file: put the file itself there")
    if (record := to_path(folder) / RECORD).is_file():
        raise UserError(f'{path}, which this run has written, is missing; restore it ({record} has its text, as "config")')
    return False


def other_kind(folder: str | Path) -> str | None:
    """Say of a path that is no folder of a model what it is; None if that is not known."""
    path = to_path(folder)
    if (path / "cache.json").is_file():
        return "it is a token cache, for --cache_dir"
    if vocabularies.is_vocabulary(path):
        return "it is a vocabulary, for --vocab"
    return "it is a file, and a model is a folder" if path.is_file() else None


def model_folder_around(folder: str | Path, configs: Sequence[str] = ("config.gin",)) -> str | None:
    """Return the advice to name the model folder, with one of `configs`, that a path lies in; None if it lies in none."""
    inside = (parent for parent in to_path(folder).parents[:2] if any((parent / name).is_file() for name in configs))
    return next((f"it is in the model folder {parent}: name that" for parent in inside), None)


def model_folders_in(folder: str | Path) -> str | None:
    """Return the advice to name a model folder that lies in a folder on this machine; None if there is none."""
    if is_remote(folder):
        return None
    inside = sorted(path.parent for path in Path(folder).glob("*/config.gin"))
    inside += sorted(path.parent for path in Path(folder).glob("snapshots/*/config.json"))  # of the Hugging Face hub's cache
    return f"name the model folder in it: {' or '.join(map(str, inside[:3]))}" if inside else None


def check_output(flag: str, output: str | Path, model_dir: str | Path) -> None:
    """Raise UserError if a new folder would be MODEL_DIR or lie in a folder of the run there; beside these it may."""
    # Path.resolve raises an exception of its own for a link to itself.
    target, run = (path if is_remote(path) else Path(os.path.realpath(path)) for path in map(to_path, (output, model_dir)))
    for own in (run, *(run / name for name in _RUN)):
        if target == own or (own != run and own in target.parents):
            where = "" if target == own else f"lies in {own}, which "
            raise UserError(
                f"{flag}={output} {where}belongs to the run: name another folder, such as {str(model_dir).rstrip('/')}-copy"
            )
