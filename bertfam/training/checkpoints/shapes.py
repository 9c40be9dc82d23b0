"""Shapes of a checkpoint's arrays, compared with those of a configuration before anything is restored."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath
from flax import linen as nn

from bertfam.errors import UserError, out_of_memory
from bertfam.storage.faults import refusal

_LONGEST_REASON = 200  # characters


@contextmanager
def damage_reported(folder: Path) -> Iterator[None]:
    """Raise UserError for what Orbax raises over the damaged metadata of a checkpoint, which may be any exception."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        refused = refusal(error)
        if (refused and refused.passes) or out_of_memory(error):
            raise
        why = describe_error(error)
        raise UserError(f"{folder} is damaged, although its digests agree ({why}); use another step, or a copy of it") from error


def describe_error(error: BaseException) -> str:
    """Describe an exception of Orbax by its type and the begin of its message, without TensorStore's specification."""
    message = " ".join(str(error).partition(" [tensorstore_spec")[0].split())
    return f"{type(error).__name__}: {message[:_LONGEST_REASON]}"


def read_tree(folder: Path, item: str) -> Any:
    """Read the tree of an item's arrays from Orbax's metadata; raise UserError if that is damaged."""
    with damage_reported(folder):
        return ocp.StandardCheckpointHandler().metadata(epath.Path(str(folder / item))).tree


def check_shapes(model_dir: Path, folder: Path, item: str, like: Any) -> None:
    """Raise UserError if an array of a checkpoint has another shape than config.gin gives it.

    Args:
      model_dir: folder of the run or the imported model.
      folder: folder of the checkpoint in it.
      item: name of the item, "params" or "average".
      like: tree of arrays or `jax.ShapeDtypeStruct`s, perhaps boxed; arrays that the checkpoint lacks are left out.
    """
    with damage_reported(folder):
        saved = _shapes(read_tree(folder, item))
    for name, shape in _shapes(nn.meta.unbox(like)).items():
        if saved.get(name, shape) != shape:
            raise UserError(
                f"{model_dir / 'config.gin'} is not that of {folder}: {item}/{name} has the shape {saved[name]} there, and "
                f"{shape} by the configuration; restore the config.gin that the model was trained with"
            )


def check_array_metadata(folder: Path) -> None:
    """Raise ValueError for metadata of an item's arrays that is not Orbax's.

    Orbax finds such metadata while it reads arrays, and what is being read then prints tracebacks.
    """
    files = folder / "array_metadatas"
    for file in sorted(files.iterdir()) if files.is_dir() else ():
        entries = json.loads(file.read_bytes()).get("array_metadatas")
        if not (isinstance(entries, list) and all(map(_is_array_metadata, entries))):
            raise ValueError(f"{file.name} in {files.name} is no list of arrays and their shapes")


def _is_array_metadata(entry: Any) -> bool:
    own = entry.get("array_metadata") if isinstance(entry, dict) else None
    if not (isinstance(own, dict) and isinstance(own.get("param_name"), str)):
        return False
    shapes = [own.get(name) for name in ("write_shape", "chunk_shape")]
    return all(isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape) for shape in shapes)


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): tuple(leaf.shape) for path, leaf in leaves}
