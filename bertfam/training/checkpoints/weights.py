"""Copy of a model without its training state: parameters and their moving average, if there is one."""

from pathlib import Path

from bertfam.errors import UserError
from bertfam.storage.files import new_folder
from bertfam.storage.paths import copy_folder, to_path
from bertfam.training.checkpoints import manifest, selection


def copy_weights(model_dir: str | Path, target: str | Path, step: int | None = None) -> int:
    """Make a MODEL_DIR of a step's parameters, with the configuration and the vocabulary, as `bertfam import` makes one.

    Their moving average comes along. It stands at step 0: evaluate, fill and export read it, and a run starts from it.

    Args:
      model_dir: of the run.
      target: the folder to make.
      step: which; None: the newest whole one.

    Returns:
      the step that was copied.

    Raises:
      UserError: there is no such step, it is damaged, there is no configuration or vocabulary, or the folder cannot be made.
    """
    items = ("params", "average")
    found = selection.find(model_dir, step, items)
    if absent := next((name for name in ("config.gin", "vocab") if not (to_path(model_dir) / name).exists()), None):
        raise UserError(f"{model_dir} has no {absent}, which a copy needs: put it back")
    with new_folder(target) as folder:
        (folder / "config.gin").write_bytes((to_path(model_dir) / "config.gin").read_bytes())
        copy_folder(to_path(model_dir) / "vocab", folder / "vocab")
        copy = folder / "checkpoints" / "0"
        for item in items:
            if (saved := selection.folder(model_dir) / str(found) / item).is_dir():
                copy_folder(saved, copy / item)
        manifest.write(copy)
    return found
