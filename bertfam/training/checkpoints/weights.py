"""Model folders without a training state: the parameters and, if there is one, their moving average."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from bertfam.data import vocabularies
from bertfam.data.vocabularies.huggingface_files import read_config
from bertfam.errors import MissingFlag
from bertfam.storage.files import new_folder
from bertfam.storage.paths import copy_files, to_path
from bertfam.storage.untrusted import read_bytes
from bertfam.training.checkpoints import Checkpoints, manifest, selection
from bertfam.training.checkpoints.shapes import check_shapes
from bertfam.training.integrity import model_dir_files
from bertfam.training.model_dir import check_own_vocabulary, own_vocabularies, read_run
from bertfam.training.run import Run


class ModelFiles:
    """Configuration and vocabularies of a MODEL_DIR, for a new model folder with other weights."""

    def __init__(self, model_dir: str | Path) -> None:
        """Read them; raise UserError if one is missing or damaged."""
        vocabulary = to_path(model_dir) / "vocab"
        self._config = read_bytes(to_path(model_dir) / "config.gin")
        self.vocabulary = vocabularies.load(vocabulary)
        longest = read_config(vocabulary).get("model_max_length")
        self._longest = longest if isinstance(longest, int) else None
        self._own = {path.name: vocabularies.load(path) for path in own_vocabularies(to_path(model_dir))}

    def write(self, folder: Path, config: str | None = None) -> None:
        """Write them into a new folder, with the record of its files; `config` is the text of another configuration."""
        (folder / "config.gin").write_bytes(self._config if config is None else config.encode())
        self.vocabulary.save(folder / "vocab", model_max_length=self._longest)
        for name, vocabulary in self._own.items():
            vocabulary.save(folder / name)
        model_dir_files.write(folder, self.vocabulary.fingerprint)


def write_params(folder: Path, params: Any) -> None:
    """Write parameters into a new model folder, as its checkpoint at step 0."""
    checkpoints = Checkpoints(folder)
    checkpoints.save_params(0, jax.tree.map(jnp.asarray, params))
    checkpoints.close()


def copy_weights(model_dir: str | Path, target: str | Path, step: int | None = None) -> int:
    """Make a MODEL_DIR from the parameters of one step, with the configuration and the vocabulary, like `bertfam import`.

    The moving average is copied too, if there is one. The new folder has step 0; evaluate, fill and export read it, and a run may
    start from it. Files of the folder that no run writes, such as links to files outside it, are left behind.

    Args:
      model_dir: folder of the run.
      target: folder to make.
      step: step of the checkpoint; None: the newest undamaged one.

    Returns:
      The step that was copied.

    Raises:
      UserError: if there is no such step, it is damaged, configuration or vocabulary is missing or not that of the checkpoint, or
        the folder cannot be written.
    """
    run = _read_run(model_dir)
    files = ModelFiles(model_dir)
    items = ("params", "average")
    step = selection.find(model_dir, step, items)
    check_own_vocabulary(to_path(model_dir), files.vocabulary, step)
    saved, copy = selection.folder(model_dir) / str(step), Path("checkpoints/0")
    if run:
        for item in items:
            if (saved / item).is_dir():
                check_shapes(to_path(model_dir), saved, item, run.fitted(files.vocabulary).stored_params)
    with new_folder(target) as folder:
        files.write(folder)
        copy_files(saved, manifest.names(saved, items), folder / copy)
        manifest.write(folder / copy)
    return step


def _read_run(model_dir: str | Path) -> Run | None:
    """Return the run of a MODEL_DIR; None if its configuration needs modules that are not imported."""
    try:
        return read_run(model_dir)
    except MissingFlag:
        return None
