"""Checkpoints through Orbax: written in the background, complete or absent, restored onto any mesh.

A checkpoint has the items `params`, the only one that evaluation and export read, `rest` (step, optimizer state, carry, skipped
updates) and, if the run keeps a moving average of the parameters, `average`.

A fault of the storage that may pass costs no step where one process trains: the run stops, and saves the step that it has
reached. Orbax (0.12.8) measures its timeouts by the wall clock, which jumps when a machine was suspended; so it gets a timeout
that no jump reaches, and the time of a save is limited here, by a clock that only ever runs forward.

Orbax's `CheckpointManager` (orbax-checkpoint 0.12.8) was considered in place of `AsyncCheckpointer`. Its `BestN` policy wants the
metrics at `save`, but here a step is evaluated after it is saved; see `retention`.
"""

import contextlib
import errno
import logging
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint._src.serialization import tensorstore_utils
from typing_extensions import override

from bertfam.errors import STORAGE_FAULT, TransientError, UserError, warn
from bertfam.multihost.processes import Processes, ProcessExited
from bertfam.storage.buckets import is_remote
from bertfam.storage.faults import Refusal, refusal
from bertfam.storage.paths import absolute, check_encodable, make_folder, to_path
from bertfam.training.checkpoints import broadcast, manifest, selection
from bertfam.training.checkpoints.cleanup import clear_unfinished, delete_unkept
from bertfam.training.checkpoints.group_writes import FailedElsewhere, finish_on_all, run_within
from bertfam.training.checkpoints.retention import Keep
from bertfam.training.checkpoints.shapes import check_array_metadata, check_shapes, damage_reported, read_parts
from bertfam.training.state import TrainState

_SAVE_SECONDS = 1800.0
_ORBAX_SECONDS = 10 * 365 * 86400  # longer than any jump of the wall clock
_PAUSES = (0.0, 1.0, 10.0)  # seconds before the last step is saved again
# TensorStore's retries in buckets: the first at once, all within half a minute.
_TENSORSTORE_RETRIES = {"initial_delay": "50ms", "max_delay": "8s", "max_retries": 10}


def items(state: TrainState) -> dict[str, Any]:
    """Return the items of a state to save; `aux` is read-only and not saved."""
    rest = {name: getattr(state, name) for name in ("step", "opt_state", "carry", "skipped")}
    return {"params": state.params, "rest": rest} | ({"average": state.average} if state.average else {})


def with_items(state: TrainState, saved: Any) -> TrainState:
    """Return the state with its values replaced by those of `items`."""
    average = saved["average"] if state.average else {}
    return state._replace(params=saved["params"], average=average, **saved["rest"])


class _Digested(ocp.CompositeCheckpointHandler):
    """Handler that writes the manifest once the files of all processes are complete, before the folder is renamed."""

    @override
    def finalize(self, directory: epath.Path) -> None:
        super().finalize(directory)
        manifest.write(to_path(directory))


@ocp.args.register_with_handler(_Digested, for_save=True, for_restore=True)
class _Items(ocp.args.Composite):
    """Arguments of `_Digested`: trees by item."""


class Checkpoints:
    """Checkpoints of one MODEL_DIR. All processes make the same calls; only the first deletes."""

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
          model_dir: folder of the run.
          keep: retention policy; None keeps all.
          processes: processes that save together; nothing else may be gathered over their links.
          read_only: whether to open existing checkpoints without creating or deleting anything.

        Raises:
          UserError: if there are no checkpoints to read, or no folder for them can be made.
        """
        # Orbax logs every save in several lines, and its errors with tracebacks besides raising them.
        for name in ("absl", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._model_dir, self._keep = absolute(model_dir), keep or Keep()
        check_encodable(self._model_dir)
        self._processes = processes or Processes()
        self.directory = (selection.existing if read_only else selection.folder)(model_dir)  # MODEL_DIR/checkpoints
        if not read_only:
            make_folder(self.directory)
        sys.unraisablehook = _ignore_closed_loops
        self._orbax = _open_orbax(self.directory, alone=self._processes.alone)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="saving")
        self._saving: tuple[int, Future[None]] | None = None
        self._saved: int | None = None
        self._again = False  # True until a save is complete after one that has failed, whose threads may still write
        self._unfinished = False  # True if a save has failed, here or elsewhere, and Orbax may still wait for another process

    def save(self, state: TrainState) -> None:
        """Start to save a state; wait for the previous save, and return once the values are copied.

        Raises:
          UserError: if the previous save, or the start of this one, has failed, for example because the disk is full.
          TransientError: if it has failed by a fault that may pass, except that of the previous save of a single process.
          SystemExit: if it has failed on another process, or on this one while process 0 reports it.
        """
        step = int(state.step)
        if step != self._saved:
            try:
                self.wait()
            except TransientError as error:
                self._start_over(error)
            self._start(step, items(state))

    def save_last(self, state: TrainState) -> None:
        """Save a state, and return when it is complete; try again after a fault that may pass. It raises what `save` raises."""
        for pause in _PAUSES:
            try:
                self.save(state)
                self.wait()
                return
            except TransientError as error:
                self._start_over(error)
            time.sleep(pause)
        self.save(state)
        self.wait()

    def _start_over(self, error: TransientError) -> None:
        """Warn about a failed save and open Orbax again; raise the error if other processes took part in the save."""
        if not self._processes.alone:
            raise error
        warn([f"{str(error).partition(';')[0]}; trying again"])
        self._again = True
        self._orbax, self._unfinished = _open_orbax(self.directory, alone=True), False  # a thread of the old one may still wait

    def save_params(self, step: int, params: Any) -> None:
        """Save the parameters of an imported model, without a training state."""
        self._start(step, {"params": params})

    def _start(self, step: int, trees: dict[str, Any]) -> None:
        self.wait()
        args = _Items(**{name: ocp.args.StandardSave(tree) for name, tree in trees.items()})
        fault: Exception | None = None
        try:
            self._check_folder()
            self._orbax.save(self._folder(step), args=args)
        except Exception as error:
            fault = error
        self._saved = step
        self._saving = (step, self._pool.submit(self._finish, fault))
        refused = refusal(fault)
        if fault and not (refused and refused.passes and self._processes.alone):
            self.wait()

    def _check_folder(self) -> None:
        """Raise UserError if the folder is gone: Orbax would make it anew, without the rest of the run."""
        if not is_remote(self.directory) and not self.directory.is_dir():
            raise UserError(
                f"{self.directory} was moved or removed while this run writes to it: move it back, and the same command resumes "
                "from its newest checkpoint"
            )

    def _finish(self, fault: Exception | None) -> None:
        def finish() -> None:
            if fault:
                raise fault
            run_within(_SAVE_SECONDS, self._orbax.wait_until_finished)
            self.delete_unkept()

        finish_on_all(self._processes, finish)

    def delete_unkept(self) -> None:
        """Delete the checkpoints that the policy does not keep by the current scores; no save may be in progress."""
        if not self._processes.first:
            return
        try:
            delete_unkept(self._model_dir, self._keep)
        except Exception as error:
            refused = refusal(error)
            if refused is None or not refused.passes:
                raise
            warn([f"{refused.reason}: older checkpoints could not be deleted from {self.directory}; the next save tries again"])

    def wait(self) -> None:
        """Wait until the save in progress is complete; raise the same errors as `save`."""
        if self._saving is None:
            return
        (step, saving), self._saving = self._saving, None
        try:
            saving.result()
            self._again = False
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
            with contextlib.suppress(Exception):  # the error of the save counts
                clear_unfinished(self.directory)  # the remains may fill the disk
        elsewhere = isinstance(error, FailedElsewhere)
        refused = error.refusal if isinstance(error, FailedElsewhere) else refusal(error)
        if _is_in_the_way(error, self._again):
            refused = Refusal("remains of an earlier attempt", passes=True)
        if refused is None and not elsewhere:
            raise error
        if not self._processes.first:
            raise SystemExit(1 if refused is None else STORAGE_FAULT if refused.passes else 2) from error
        if refused is None:
            sys.exit(f"bertfam: error: {error}")
        failed = f"the checkpoint of step {step:,} could not be written to {self.directory}"
        if refused.passes:
            raise TransientError(refused.reason, f"{failed}; the same command resumes from the newest checkpoint") from error
        last = selection.newest(self._model_dir)
        raise UserError(
            f"{failed} ({refused.reason}); once that is fixed, the same "
            + ("command starts from the beginning" if last is None else f"command resumes from step {last:,}")
        ) from error

    def restore(self, step: int, like: TrainState) -> TrainState:
        """Restore a training state.

        Args:
          step: step of the checkpoint.
          like: state of `jax.ShapeDtypeStruct`s with the shardings to restore to; its `aux` is kept.
        """
        saved = self._restore(step, items(like))
        self._saved = step
        return with_items(like, saved)

    def restore_optimizer(self, step: int, like: TrainState) -> Any:
        """Restore the optimizer's state alone; `like` is as in `restore`."""
        return self._restore(step, {"rest": items(like)["rest"]})["rest"]["opt_state"]

    def restore_params(self, step: int, like: Any, *, average: bool = False) -> Any:
        """Restore the parameters alone, or their moving average.

        Args:
          step: step of the checkpoint.
          like: tree of `jax.ShapeDtypeStruct`s with the shardings to restore to.
          average: whether to restore the moving average instead of the parameters.

        Raises:
          UserError: if the checkpoint has no moving average.
        """
        item = "average" if average else "params"
        if not (self.directory / str(step) / item).is_dir():
            raise UserError(f"step {step:,} of {self._model_dir} has no moving average, which Run.average_decay keeps")
        return self._restore(step, {item: like})[item]

    def _restore(self, step: int, like: dict[str, Any]) -> Any:
        for name in like.keys() & {"params", "average"}:
            check_shapes(self._model_dir, to_path(self._folder(step)), name, like[name])
        with damage_reported(to_path(self._folder(step))):
            for name in like:
                check_array_metadata(to_path(self._folder(step)) / name)
            if broadcast.is_worthwhile(like.values(), self._processes.hosts):
                return {name: broadcast.restore(self._folder(step) / name, tree) for name, tree in like.items()}
            args = _Items(**{name: ocp.args.StandardRestore(tree) for name, tree in like.items()})
            return self._orbax.restore(self._folder(step), args=args)

    def _folder(self, step: int) -> epath.Path:
        return epath.Path(str(self.directory / str(step)))

    def parts(self, step: int) -> frozenset[str]:
        """Return the networks and heads in a step's parameters; an imported model may lack heads of the objective."""
        return read_parts(to_path(self._folder(step)), "params")

    def close(self) -> None:
        """Wait until everything is written; raise the same errors as `save`."""
        try:
            self.wait()
        finally:
            self._pool.shutdown()
            if not self._unfinished:
                self._orbax.close()


def _open_orbax(directory: Path, *, alone: bool) -> ocp.AsyncCheckpointer:
    """Open Orbax for a folder of checkpoints; `alone` says that no other process saves with this one."""
    options = {}
    if is_remote(directory):
        # Orbax expects a marker file in finished checkpoints, which those copied there from a disk lack.
        options["atomicity_options"] = ocp.options.AtomicityOptions(allow_legacy_atomic_rename=True)
        # Orbax has no option for it.
        for context in (tensorstore_utils._BASE_TS_CONTEXT, tensorstore_utils._DEFAULT_OCDBT_TS_CONTEXT):
            context["gcs_request_retries"] = _TENSORSTORE_RETRIES
    # If folders cannot be created, threads that wait for them keep a process from its end for five minutes.
    async_options = ocp.AsyncOptions(timeout_secs=_ORBAX_SECONDS, create_directories_asynchronously=not alone)
    return ocp.AsyncCheckpointer(_Digested(), async_options=async_options, **options)


def _ignore_closed_loops(error: Any) -> None:
    """Suppress the traceback that TensorStore causes for every other file when one cannot be written or read."""
    if not (error.exc_type is RuntimeError and str(error.exc_value) == "Event loop is closed"):
        sys.__unraisablehook__(error)


def on_devices(shapes: Any, shardings: Any) -> Any:
    """Attach shardings to a tree of shapes."""
    return jax.tree.map(lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes, shardings)


def _is_in_the_way(error: Exception, again: bool) -> bool:
    """Return whether a save failed because a thread of an earlier attempt wrote on after its remains were deleted.

    Args:
      error: the error of the save.
      again: True if there was an earlier attempt in this process, after which files may also be missing.
    """
    if isinstance(error, OSError):
        return error.errno in (errno.EEXIST, errno.ENOTEMPTY) or (again and error.errno == errno.ENOENT)
    text = str(error)  # of Orbax, and of TensorStore
    return isinstance(error, ValueError) and ("already exists" in text or (again and text.startswith("NOT_FOUND")))
