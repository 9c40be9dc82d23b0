"""Shapes of a checkpoint's arrays, compared with those of a configuration before anything is restored."""

from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath
from flax import linen as nn

from bertfam.errors import UserError


def check_shapes(model_dir: Path, folder: Path, item: str, like: Any) -> None:
    """Raise UserError if an array of a checkpoint has another shape than config.gin gives it.

    Args:
      model_dir: folder of the run or the imported model.
      folder: folder of the checkpoint in it.
      item: name of the item, "params" or "average".
      like: tree of arrays or `jax.ShapeDtypeStruct`s, perhaps boxed; arrays that the checkpoint lacks are left out.
    """
    saved = _shapes(ocp.StandardCheckpointHandler().metadata(epath.Path(str(folder / item))).tree)
    for name, shape in _shapes(nn.meta.unbox(like)).items():
        if saved.get(name, shape) != shape:
            raise UserError(
                f"{model_dir / 'config.gin'} is not that of {folder}: {item}/{name} has the shape {saved[name]} there, and "
                f"{shape} by the configuration; restore the config.gin that the model was trained with"
            )


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): tuple(leaf.shape) for path, leaf in leaves}
