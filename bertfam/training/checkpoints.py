"""Checkpoints through Orbax: written in the background, complete or absent, restored onto any mesh.

A checkpoint has items: `params`, which evaluation and export read alone, and `rest` (step, optimizer state, carry,
skipped updates); one of a run that averages its parameters has `average` too. `aux` is read only and not part of it.
"""

import logging
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from bertfam.errors import UserError
from bertfam.training.state import TrainState


class Checkpoints:
    """The checkpoints of one MODEL_DIR."""

    def __init__(self, model_dir: str | Path, *, keep: int | None = None, read_only: bool = False) -> None:
        """Opens MODEL_DIR/checkpoints.

        Args:
          model_dir: the run's directory.
          keep: how many of the newest to keep; None keeps all.
          read_only: never creates or deletes anything.
        """
        # Orbax tells every save in several lines of its own.
        logging.getLogger("absl").setLevel(logging.ERROR)
        self._directory = Path(model_dir).absolute() / "checkpoints"
        if read_only and not self._directory.is_dir():
            raise UserError(
                f"{model_dir} has no checkpoints; train a model there with `bertfam pretrain --model_dir={model_dir}`"
            )
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, read_only=read_only, create=not read_only)
        handlers = {name: ocp.StandardCheckpointHandler() for name in ("params", "rest", "average")}
        self._manager = ocp.CheckpointManager(self._directory, options=options, item_handlers=handlers)

    @property
    def latest(self) -> int | None:
        """The newest complete step."""
        return self._manager.latest_step()

    def find(self, step: int | None) -> int:
        """The given step, or the newest; raises UserError where there is none."""
        steps = sorted(self._manager.all_steps())
        if not steps:
            raise UserError(f"{self._directory} holds no complete checkpoint")
        if step is not None and step not in steps:
            raise UserError(f"{self._directory} has no step {step}; it has {', '.join(map(str, steps))}")
        return steps[-1] if step is None else step

    def save(self, state: TrainState) -> None:
        """Starts to save; returns once the values are copied, and waits for the save before, if that still runs."""
        step = int(state.step)
        if step == self.latest:
            return
        args = {name: ocp.args.StandardSave(item) for name, item in _items(state).items()}
        self._manager.save(step, args=ocp.args.Composite(**args))

    def restore(self, step: int, like: TrainState) -> TrainState:
        """Reads a whole state.

        Args:
          step: which.
          like: a state of `jax.ShapeDtypeStruct`s with the shardings wanted; its `aux` is kept.
        """
        args = {name: ocp.args.StandardRestore(item) for name, item in _items(like).items()}
        found = self._manager.restore(step, args=ocp.args.Composite(**args))
        return like._replace(params=found.params, average=found.average if like.average else {}, **found.rest)

    def restore_params(self, step: int, like: Any) -> Any:
        """Reads the parameters alone, as `like`, a tree of `jax.ShapeDtypeStruct`s with shardings."""
        return self._manager.restore(step, args=ocp.args.Composite(params=ocp.args.StandardRestore(like))).params

    def parts(self, step: int) -> frozenset[str]:
        """The networks and heads that a step's parameters hold; an imported model may lack heads of the objective."""
        return frozenset(self._manager.item_metadata(step).params.tree)

    def save_params(self, step: int, params: Any) -> None:
        """Saves parameters without a training state: an imported model."""
        self._manager.save(step, args=ocp.args.Composite(params=ocp.args.StandardSave(params)))

    def close(self) -> None:
        """Waits until everything is written."""
        self._manager.wait_until_finished()
        self._manager.close()


def _items(state: TrainState) -> dict[str, Any]:
    """What is saved of a state, by item."""
    rest = {name: getattr(state, name) for name in ("step", "opt_state", "carry", "skipped")}
    return {"params": state.params, "rest": rest} | ({"average": state.average} if state.average else {})


def newest(model_dir: str | Path) -> int | None:
    """The newest complete step in MODEL_DIR; None where there is none. Writes nothing."""
    directory = Path(model_dir).absolute() / "checkpoints"
    return max(ocp.utils.checkpoint_steps(directory), default=None) if directory.is_dir() else None


def has_training_state(model_dir: str | Path, step: int) -> bool:
    """Whether a run can go on from a step; an imported model has its parameters alone."""
    return (Path(model_dir) / "checkpoints" / str(step) / "rest").is_dir()


def on_devices(shapes: Any, shardings: Any) -> Any:
    """Puts shardings onto a tree of shapes."""
    return jax.tree.map(lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes, shardings)
