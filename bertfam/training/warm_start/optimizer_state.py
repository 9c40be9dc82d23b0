"""Warm start from the optimizer's state of another run, also across vocabularies.

The moments of tensors and tokens that both runs have are copied, and so is the optimizer's own count of updates, from which it
computes the bias correction. The moments of new tokens start at 0. The step and the schedule are those of the new run, whose
warm-up keeps the first updates small.
"""

from collections.abc import Collection
from typing import Any

import jax
import numpy as np
from flax import linen as nn

from bertfam.data.vocabularies import Vocabulary
from bertfam.data.vocabularies.matching import Origins
from bertfam.errors import UserError
from bertfam.models.conversion import Conversion
from bertfam.storage.paths import to_path
from bertfam.training.checkpoints import Checkpoints, has_training_state, newest, selection
from bertfam.training.model_dir import read_run
from bertfam.training.optimizers.tensors import is_boxed
from bertfam.training.run import Run, check_same_optimizer
from bertfam.training.trainer import Trainer
from bertfam.training.warm_start.rows import copied

Names = tuple[str, ...]
_FIX = "leave --init_optimizer out"


def step_with_state(folder: str) -> int:
    """Return the newest step of a MODEL_DIR that has an optimizer state; raise UserError if there is none."""
    if not (to_path(folder) / "config.gin").is_file():
        raise UserError(f"{folder} is not the folder of a run (no config.gin) and has no optimizer state; {_FIX}")
    last = newest(folder)
    if last is not None and not has_training_state(folder, last):
        raise UserError(f"{folder} holds a model without an optimizer state; {_FIX}")
    return selection.find(folder, None, ("params", "rest"))


def read(
    folder: str, step: int, run: Run, vocabulary: Vocabulary, parts: Collection[str], conversion: Conversion
) -> dict[Names, np.ndarray]:
    """Read the optimizer state of another run, by path, with moments converted as the parameters are.

    Args:
      folder: MODEL_DIR of the other run.
      step: step of its checkpoint.
      run: sized run to start.
      vocabulary: vocabulary of the other run.
      parts: parts of the parameters whose moments are copied.
      conversion: conversion of the parameters.

    Raises:
      UserError: if the state is that of another optimizer, or lacks some of these parameters.
    """
    if run.objective.frozen.parts:
        raise UserError("--init_optimizer does not go with frozen parameters, which have no moments; leave it out")
    old = read_run(folder).fitted(vocabulary)
    check_same_optimizer(old.optimizer, run.optimizer, folder)
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), nn.meta.unbox(old.boxed_state))
    checkpoints = Checkpoints(folder, read_only=True)
    state = {_names(path): np.asarray(leaf) for path, leaf in _leaves(checkpoints.restore_optimizer(step, like))}
    checkpoints.close()
    fresh, moments = run.boxed_state, {}
    for path, box in _leaves(fresh.opt_state):
        if not _is_copied(path, parts, fresh.params):
            continue
        names, shape = _names(path), nn.meta.unbox(box).shape
        if (source := conversion.source(names)) not in state:
            raise UserError(f"the optimizer state in {folder} lacks {'/'.join(source)}, which this run has; {_FIX}")
        moments[names] = conversion.tensor(_axes(box, shape), shape, state[source])
    return moments


def transfer(trainer: Trainer, fresh: Any, old: dict[Names, np.ndarray], origins: Origins, parts: Collection[str]) -> Any:
    """Copy an optimizer state that `read` returned into a new one, for some parts; rows of tokens without origins stay 0."""

    def replace(path: Any, box: Any, leaf: jax.Array) -> jax.Array:
        return copied(_axes(box, leaf.shape), leaf, old[_names(path)], origins) if _is_copied(path, parts, boxed.params) else leaf

    boxed = trainer.run.boxed_state
    return jax.tree_util.tree_map_with_path(replace, boxed.opt_state, fresh, is_leaf=is_boxed)


def _leaves(tree: Any) -> list[tuple[Any, Any]]:
    return jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_boxed)


def _axes(box: Any, shape: tuple[int, ...]) -> tuple[str | None, ...]:
    """Return the logical names of the axes of a leaf."""
    return box.names if is_boxed(box) else (None,) * len(shape)


def _is_copied(path: Any, parts: Collection[str], params: Collection[str]) -> bool:
    """Return whether a leaf belongs to one of the parts, or to no parameters at all, such as the count of updates."""
    part = next((name for name in _names(path) if name in params), None)
    return part is None or part in parts


def _names(path: Any) -> Names:
    return tuple(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)
