"""Copies of a model without its training state: the parameters and, if there is one, their moving average."""

from pathlib import Path

from bertfam.data import vocabularies
from bertfam.data.vocabularies.huggingface_files import read_config
from bertfam.errors import MissingFlag
from bertfam.storage.files import new_folder
from bertfam.storage.paths import copy_files, to_path
from bertfam.storage.untrusted import read_bytes
from bertfam.training.checkpoints import manifest, selection
from bertfam.training.checkpoints.shapes import check_shapes
from bertfam.training.integrity import model_dir_files
from bertfam.training.model_dir import check_own_vocabulary, read_run
from bertfam.training.run import Run


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
    config = read_bytes(to_path(model_dir) / "config.gin")
    vocabulary = vocabularies.load(to_path(model_dir) / "vocab")
    longest = read_config(to_path(model_dir) / "vocab").get("model_max_length")
    items = ("params", "average")
    step = selection.find(model_dir, step, items)
    check_own_vocabulary(to_path(model_dir), vocabulary, step)
    saved, copy = selection.folder(model_dir) / str(step), Path("checkpoints/0")
    if run:
        for item in items:
            if (saved / item).is_dir():
                check_shapes(to_path(model_dir), saved, item, run.sized(vocabulary.size).boxed_params)
    with new_folder(target) as folder:
        (folder / "config.gin").write_bytes(config)
        vocabulary.save(folder / "vocab", model_max_length=longest if isinstance(longest, int) else None)
        model_dir_files.write(folder, vocabulary.fingerprint)
        copy_files(saved, manifest.names(saved, items), folder / copy)
        manifest.write(folder / copy)
    return step


def _read_run(model_dir: str | Path) -> Run | None:
    """Return the run of a MODEL_DIR; None if its configuration needs modules that are not imported."""
    try:
        return read_run(model_dir)
    except MissingFlag:
        return None
