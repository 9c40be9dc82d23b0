"""Warm start from the optimizer's state of another run, also across vocabularies.

Moments of tensors and of tokens that both runs have go on as they were, and so does the optimizer's own count of its updates, by
which it corrects their bias. Tokens that are new begin with moments of 0, as all did once; the step and the schedule are the new
run's, whose warm-up keeps their first updates small.
"""

from collections.abc import Collection
from typing import Any

import jax
import numpy as np
from flax import linen as nn

from bertfam.data.vocabularies.matching import Origins
from bertfam.errors import UserError
from bertfam.storage.paths import to_path
from bertfam.training.checkpoints import Checkpoints, has_training_state, newest, selection
from bertfam.training.model_dir import read_run
from bertfam.training.optimizers.tensors import is_boxed
from bertfam.training.run import Run, check_same_optimizer
from bertfam.training.state import TrainState, new_state
from bertfam.training.trainer import Trainer
from bertfam.training.warm_start.rows import taken

Names = tuple[str, ...]
_FIX = "leave --init_optimizer out"


def step_with_state(folder: str) -> int:
    """Return the newest step of a MODEL_DIR with its optimizer's state; raises UserError where there is none."""
    if not (to_path(folder) / "config.gin").is_file():
        raise UserError(f"{folder} is no folder of a run (no config.gin), and only runs have an optimizer's state; {_FIX}")
    last = newest(folder)
    if last is not None and not has_training_state(folder, last):
        raise UserError(f"{folder} holds a model without its optimizer's state; {_FIX}")
    return selection.find(folder, None, ("params", "rest"))


def read(folder: str, step: int, run: Run, size: int, parts: Collection[str]) -> dict[Names, np.ndarray]:
    """Read the optimizer's state of a run's step, by path.

    Args:
      folder: the run's.
      step: which.
      run: the sized run that takes it over.
      size: of the old vocabulary.
      parts: of the parameters whose moments are asked for.

    Raises:
      UserError: it is another optimizer's, or of other parameters.
    """
    old = read_run(folder).sized(size)
    check_same_optimizer(old.optimizer, run.optimizer, folder)
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    like = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), nn.meta.unbox(_abstract_state(old))
    )
    checkpoints = Checkpoints(folder, read_only=True)
    found = {_names(path): np.asarray(leaf) for path, leaf in _leaves(checkpoints.restore_optimizer(step, like))}
    checkpoints.close()
    fresh = _abstract_state(run)
    for path, _ in _leaves(fresh.opt_state):
        if _is_taken(path, parts, fresh.params) and _names(path) not in found:
            raise UserError(f"the optimizer's state in {folder} has no {'/'.join(_names(path))}, which this run's has; {_FIX}")
    return found


def taken_over(trainer: Trainer, fresh: Any, found: dict[Names, np.ndarray], origins: Origins, parts: Collection[str]) -> Any:
    """Copy what `read` returned for some parts into a new optimizer's state; rows of tokens without origins stay 0."""

    def take(path: Any, box: Any, leaf: jax.Array) -> jax.Array:
        names = box.names if is_boxed(box) else (None,) * leaf.ndim
        return taken(names, leaf, found[_names(path)], origins) if _is_taken(path, parts, boxed.params) else leaf

    boxed = _abstract_state(trainer.run)
    return jax.tree_util.tree_map_with_path(take, boxed.opt_state, fresh, is_leaf=is_boxed)


def _abstract_state(run: Run) -> TrainState:
    """Return the shapes of a run's state with their logical axis names."""
    optimizer, averaged = run.optimizer.build(run.total_steps, run.boxed_params()), run.average_decay is not None
    return jax.eval_shape(
        lambda key: new_state(run.objective, optimizer, key, run.shape(0), averaged=averaged), jax.random.key(0)
    )


def _leaves(tree: Any) -> list[tuple[Any, Any]]:
    return jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_boxed)


def _is_taken(path: Any, parts: Collection[str], params: Collection[str]) -> bool:
    """Return whether a leaf belongs to parameters of these parts of all, or, as the count of updates, about none."""
    part = next((name for name in _names(path) if name in params), None)
    return part is None or part in parts


def _names(path: Any) -> Names:
    return tuple(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)
