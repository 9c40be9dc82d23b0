"""Shapes of a checkpoint's arrays, compared with those of a configuration before anything is restored."""

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
import tensorstore as ts
from etils import epath
from flax import linen as nn

from bertfam.errors import UserError, out_of_memory
from bertfam.storage.buckets import is_remote
from bertfam.storage.faults import refusal

_LONGEST_REASON = 200  # characters
_ZARR = b"/.zarray"  # ending of the name of an array's description


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


def read_parts(folder: Path, item: str) -> frozenset[str]:
    """Read the first level of an item's tree from Orbax's metadata; raise UserError if that is damaged."""
    with damage_reported(folder):
        return frozenset(first for first, *_ in _tree_keys(folder / item))


def _tree_keys(directory: Path) -> list[list[str]]:
    """Read the keys of each leaf of an item's tree from Orbax's metadata; raise ValueError for what is no such tree."""
    entries = list(json.loads((directory / "_METADATA").read_bytes())["tree_metadata"].values())
    keys = [[own["key"] for own in entry["key_metadata"]] for entry in entries]
    types = [entry["value_metadata"]["value_type"] for entry in entries]
    if not all(word and isinstance(word, str) for word in (*itertools.chain.from_iterable(keys), *types)):
        raise ValueError("_METADATA is no tree of named arrays")
    return keys


def _saved_shapes(folder: Path, item: str) -> dict[str, tuple[int, ...]]:
    """Read the shapes of an item's arrays by their names, whose parts are separated by dots."""
    directory = folder / item
    if is_remote(directory) or not (directory / "manifest.ocdbt").is_file():
        return _shapes(read_tree(folder, item))
    # Orbax opens every array for its shape, which takes ten times as long as to read the descriptions of all.
    _tree_keys(directory)
    store = ts.KvStore.open({"driver": "ocdbt", "base": {"driver": "file", "path": f"{directory}/"}}).result()
    names = [name for name in store.list().result() if name.endswith(_ZARR)]
    descriptions = [store.read(name) for name in names]
    return {
        name.removesuffix(_ZARR).decode(): tuple(json.loads(description.result().value)["shape"])
        for name, description in zip(names, descriptions, strict=True)
    }


def check_shapes(model_dir: Path, folder: Path, item: str, like: Any) -> None:
    """Raise UserError if an array of a checkpoint has another shape than config.gin gives it.

    Args:
      model_dir: folder of the run or the imported model.
      folder: folder of the checkpoint in it.
      item: name of the item, "params" or "average".
      like: tree of arrays or `jax.ShapeDtypeStruct`s, perhaps boxed; arrays that the checkpoint lacks are left out.
    """
    with damage_reported(folder):
        saved = _saved_shapes(folder, item)
    for name, shape in _shapes(nn.meta.unbox(like)).items():
        if saved.get(name, shape) != shape:
            array = f"{item}/{name.replace('.', '/')}"
            raise UserError(
                f"{model_dir / 'config.gin'} is not that of {folder}: {array} has the shape {saved[name]} there, and "
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
    return {jax.tree_util.keystr(path, simple=True, separator="."): tuple(leaf.shape) for path, leaf in leaves}
