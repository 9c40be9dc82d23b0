"""Copies of a model without its training state: the parameters and, if there is one, their moving average."""

from pathlib import Path

from bertfam.data import vocabularies
from bertfam.interop.folders import check_is_run
from bertfam.storage.files import new_folder
from bertfam.storage.paths import copy_folder, to_path
from bertfam.training.checkpoints import manifest, selection
from bertfam.training.integrity import model_dir_files


def copy_weights(model_dir: str | Path, target: str | Path, step: int | None = None) -> int:
    """Make a MODEL_DIR from the parameters of one step, with the configuration and the vocabulary, like `bertfam import`.

    The moving average is copied too, if there is one. The new folder has step 0; evaluate, fill and export read it, and a run may
    start from it.

    Args:
      model_dir: folder of the run.
      target: folder to make.
      step: step of the checkpoint; None: the newest undamaged one.

    Returns:
      The step that was copied.

    Raises:
      UserError: if there is no such step, it is damaged, configuration or vocabulary is missing, or the folder cannot be written.
    """
    model_dir_files.check(to_path(model_dir))
    check_is_run(model_dir)
    vocabulary = vocabularies.load(to_path(model_dir) / "vocab")
    items = ("params", "average")
    step = selection.find(model_dir, step, items)
    with new_folder(target) as folder:
        (folder / "config.gin").write_bytes((to_path(model_dir) / "config.gin").read_bytes())
        copy_folder(to_path(model_dir) / "vocab", folder / "vocab")
        model_dir_files.write(folder, vocabulary.fingerprint)
        copy = folder / "checkpoints" / "0"
        for item in items:
            if (saved := selection.folder(model_dir) / str(step) / item).is_dir():
                copy_folder(saved, copy / item)
        manifest.write(copy)
    return step
