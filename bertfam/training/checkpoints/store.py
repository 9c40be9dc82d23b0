"""Checkpoints through Orbax: written in the background, complete or absent, restored onto any mesh.

A checkpoint has items: `params`, which evaluation and export read alone, and `rest` (step, optimizer state, carry,
skipped updates); one of a run that averages its parameters has `average` too.

Orbax's `CheckpointManager` (orbax-checkpoint 0.12.8) was considered in place of `AsyncCheckpointer`. Its `BestN` policy wants the
metrics at `save`, but here a step is evaluated after it is saved; see `retention`.
"""

import logging
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from bertfam.errors import UserError
from bertfam.multihost.processes import Processes, ProcessExited
from bertfam.storage.buckets import is_remote
from bertfam.storage.files import refusal
from bertfam.storage.paths import make_folder, to_path
from bertfam.training.checkpoints import broadcast, manifest, selection
from bertfam.training.checkpoints.cleanup import clear_unfinished, delete_unkept
from bertfam.training.checkpoints.group_writes import FailedElsewhere, finish_together
from bertfam.training.checkpoints.retention import Keep
from bertfam.training.state import TrainState

_LONGEST_SAVE = 1800  # seconds


def items(state: TrainState) -> dict[str, Any]:
    """Return the items of a state to save; `aux` is read only and is not saved."""
    rest = {name: getattr(state, name) for name in ("step", "opt_state", "carry", "skipped")}
    return {"params": state.params, "rest": rest} | ({"average": state.average} if state.average else {})


def with_items(state: TrainState, found: Any) -> TrainState:
    """Return the state with its values replaced by those of `items`."""
    average = found["average"] if state.average else {}
    return state._replace(params=found["params"], average=average, **found["rest"])


class _Digested(ocp.CompositeCheckpointHandler):
    """Handler that writes the digests when all files of all processes are there, before the folder gets its name."""

    def finalize(self, directory: epath.Path) -> None:
        super().finalize(directory)
        manifest.write(to_path(directory))


@ocp.args.register_with_handler(_Digested, for_save=True, for_restore=True)
class _Items(ocp.args.Composite):
    """Arguments of `_Digested`: trees by item."""


class Checkpoints:
    """The checkpoints of one MODEL_DIR. Several processes make the same calls; the first deletes for all."""

    def __init__(
        self,
        model_dir: str | Path,
        *,
        keep: Keep | None = None,
        processes: Processes | None = None,
        read_only: bool = False,
    ) -> None:
        """Open MODEL_DIR/checkpoints.

        Args:
          model_dir: the run's directory.
          keep: the retention policy; None keeps all.
          processes: those that save together; nothing else may be gathered over their links.
          read_only: never creates or deletes anything.

        Raises:
          UserError: there are none to read, or there is no folder for them.
        """
        # Orbax tells every save in several lines of its own, and its errors as stack dumps besides raising them.
        for name in ("absl", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._model_dir, self._keep = to_path(model_dir).absolute(), keep or Keep()
        self._processes = processes or Processes()
        self.directory = (selection.existing if read_only else selection.folder)(model_dir)  # MODEL_DIR/checkpoints
        if not read_only:
            make_folder(self.directory)
            sys.unraisablehook = _without_closed_loops
        # In a bucket Orbax wants a file of its own in what is finished, which one copied there from a disk has not.
        options = {}
        if is_remote(self.directory):
            options["atomicity_options"] = ocp.options.AtomicityOptions(allow_legacy_atomic_rename=True)
        waiting = ocp.AsyncOptions(timeout_secs=_LONGEST_SAVE)
        self._orbax = ocp.AsyncCheckpointer(_Digested(), async_options=waiting, **options)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="saving")
        self._saving: tuple[int, Future[None]] | None = None
        self._saved: int | None = None
        self._unfinished = False  # a save has failed, on another process too perhaps, for which Orbax may still wait

    def save(self, state: TrainState) -> None:
        """Start to save; return once the values are copied, after waiting for the previous save.

        Raises:
          UserError: the save before, or the beginning of this one, has failed: the disk is full, say.
          SystemExit: so it has on some process, and process 0 tells it.
        """
        step = int(state.step)
        if step != self._saved:
            self._start(step, items(state))

    def save_params(self, step: int, params: Any) -> None:
        """Save parameters without a training state: an imported model."""
        self._start(step, {"params": params})

    def _start(self, step: int, trees: dict[str, Any]) -> None:
        self.wait()
        args = _Items(**{name: ocp.args.StandardSave(tree) for name, tree in trees.items()})
        fault: Exception | None = None
        try:
            self._orbax.save(self._of(step), args=args)
        except Exception as error:
            fault = error
        self._saved = step
        self._saving = (step, self._pool.submit(self._finish, fault))
        if fault:
            self.wait()

    def _finish(self, fault: Exception | None) -> None:
        def finish() -> None:
            if fault:
                raise fault
            self._orbax.wait_until_finished()
            self.delete_unkept()

        finish_together(self._processes, finish)

    def delete_unkept(self) -> None:
        """Delete the checkpoints that are not kept, by the current scores; no save may be in progress."""
        if self._processes.first:
            delete_unkept(self._model_dir, self._keep)

    def wait(self) -> None:
        """Wait until the save in progress is complete; raises as `save` does."""
        if self._saving is None:
            return
        (step, saving), self._saving = self._saving, None
        try:
            saving.result()
        except ProcessExited:
            self._unfinished = True
            raise
        except Exception as error:
            self._failed(step, error)

    def failed(self) -> bool:
        """Return whether the background save has failed; `wait` raises the error."""
        return self._saving is not None and self._saving[1].done() and self._saving[1].exception() is not None

    def _failed(self, step: int, error: Exception) -> None:
        self._saved = None
        self._unfinished = True
        if self._processes.first:
            clear_unfinished(self.directory)  # which may fill the disk
        elsewhere = isinstance(error, FailedElsewhere)
        why = error.why if isinstance(error, FailedElsewhere) else refusal(error)
        if why is None and not elsewhere:
            raise error
        if not self._processes.first:
            raise SystemExit(1 if why is None else 2) from error
        if why is None:
            sys.exit(f"bertfam: error: {error}")
        last = selection.newest(self._model_dir)
        raise UserError(
            f"the checkpoint of step {step:,} could not be written into {self.directory} ({why}); when that is mended, the same "
            + ("command begins anew" if last is None else f"command goes on from step {last:,}")
        ) from error

    def restore(self, step: int, like: TrainState) -> TrainState:
        """Read a whole state.

        Args:
          step: which.
          like: a state of `jax.ShapeDtypeStruct`s with the shardings wanted; its `aux` is kept.
        """
        found = self._restore(step, items(like))
        self._saved = step
        return with_items(like, found)

    def restore_optimizer(self, step: int, like: TrainState) -> Any:
        """Read the optimizer's state alone; `like` as in `restore`."""
        return self._restore(step, {"rest": items(like)["rest"]})["rest"]["opt_state"]

    def restore_params(self, step: int, like: Any, *, average: bool = False) -> Any:
        """Read the parameters alone, or their moving average, as `like`, a tree of `jax.ShapeDtypeStruct`s with shardings.

        Raises:
          UserError: there is no moving average.
        """
        item = "average" if average else "params"
        if not (self.directory / str(step) / item).is_dir():
            raise UserError(f"step {step:,} of {self._model_dir} has no moving average, which Run.average_decay keeps")
        return self._restore(step, {item: like})[item]

    def _restore(self, step: int, like: dict[str, Any]) -> Any:
        if broadcast.is_worthwhile(like.values(), self._processes.hosts):
            return {name: broadcast.restore(self._of(step) / name, tree) for name, tree in like.items()}
        args = _Items(**{name: ocp.args.StandardRestore(tree) for name, tree in like.items()})
        return self._orbax.restore(self._of(step), args=args)

    def _of(self, step: int) -> epath.Path:
        return epath.Path(str(self.directory / str(step)))

    def parts(self, step: int) -> frozenset[str]:
        """Return the networks and heads in a step's parameters; an imported model may lack heads of the objective."""
        return frozenset(ocp.StandardCheckpointHandler().metadata(self._of(step) / "params").tree)

    def close(self) -> None:
        """Wait until everything is written; raises as `wait` does."""
        try:
            self.wait()
        finally:
            self._pool.shutdown()
            if not self._unfinished:
                self._orbax.close()


def _without_closed_loops(fault: Any) -> None:
    """Suppress the traceback that TensorStore causes for every other file when one cannot be written."""
    if not (fault.exc_type is RuntimeError and str(fault.exc_value) == "Event loop is closed"):
        sys.__unraisablehook__(fault)


def on_devices(shapes: Any, shardings: Any) -> Any:
    """Attach shardings to a tree of shapes."""
    return jax.tree.map(lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes, shardings)
