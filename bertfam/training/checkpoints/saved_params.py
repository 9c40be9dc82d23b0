"""Parameters of a checkpoint, read tensor by tensor."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from flax import traverse_util

from bertfam.storage.paths import to_path
from bertfam.training.checkpoints import selection
from bertfam.training.checkpoints.shapes import check_array_metadata, damage_reported, read_tree

_BLOCK_BYTES = 2**26  # of tensors that are read together: opening a checkpoint takes about 10 ms


class SavedParams:
    """Parameters of one undamaged step of a MODEL_DIR; nothing is read but their shapes."""

    def __init__(self, model_dir: str | Path, step: int) -> None:
        """Read the shapes; raise UserError if the metadata of the checkpoint is damaged."""
        self._step_folder = to_path(selection.folder(model_dir) / str(step))
        with damage_reported(self._step_folder):
            check_array_metadata(self._step_folder / "params")
        tree = read_tree(self._step_folder, "params")
        flat = traverse_util.flatten_dict(tree, sep="/")
        self.shapes: Mapping[str, jax.ShapeDtypeStruct] = {
            path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for path, leaf in sorted(flat.items())
        }

    def read(self, paths: Collection[str]) -> dict[str, np.ndarray]:
        """Read some tensors, by path: "encoder/layers/attention/query/kernel"."""
        like = {path: shape if path in paths else ... for path, shape in self.shapes.items()}
        args = {path: ocp.RestoreArgs(**({"restore_type": np.ndarray} if path in paths else {})) for path in like}
        tree, args = (traverse_util.unflatten_dict(flat, sep="/") for flat in (like, args))
        with damage_reported(self._step_folder), ocp.PyTreeCheckpointer() as orbax:
            restore = ocp.args.PyTreeRestore(tree, restore_args=args)
            restored = orbax.restore(epath.Path(str(self._step_folder / "params")), args=restore)
        flat = traverse_util.flatten_dict(restored, sep="/")
        return {path: flat[path] for path in paths}

    def tree(self) -> dict[str, Any]:
        """Read all tensors, as the objective arranges them."""
        return traverse_util.unflatten_dict(self.read(self.shapes), sep="/")


def read_together(checkpoints: Sequence[SavedParams], paths: Collection[str]) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Yield each path with its tensor in every checkpoint, holding `_BLOCK_BYTES` of each at a time, or one larger tensor."""
    for block in _blocks({path: checkpoints[0].shapes[path] for path in paths}):
        tensors = [checkpoint.read(block) for checkpoint in checkpoints]
        for path in block:
            yield path, [read.pop(path) for read in tensors]


def _blocks(shapes: Mapping[str, jax.ShapeDtypeStruct]) -> Iterator[list[str]]:
    """Divide paths into blocks of at most `_BLOCK_BYTES`, or of one larger tensor."""
    block, size = list[str](), 0
    for path, shape in shapes.items():
        own = shape.size * shape.dtype.itemsize
        if block and size + own > _BLOCK_BYTES:
            yield block
            block, size = [], 0
        block.append(path)
        size += own
    if block:
        yield block
