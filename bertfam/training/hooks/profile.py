"""Hook that records profiles, and the flag that names their updates."""

from pathlib import Path
from typing import ClassVar

import jax
from typing_extensions import override

from bertfam.errors import UserError
from bertfam.plurals import plural
from bertfam.storage.spool import Spool
from bertfam.training.hooks.base import Hook
from bertfam.training.logs.phase_timer import PROFILING
from bertfam.training.state import TrainState


def profiled_steps(words: str | None, total: int) -> tuple[int, int] | None:
    """Return the first and last update that --profile_steps names in a run of `total` updates.

    Raises:
      UserError: if they are not updates of the run.
    """
    if words is None:
        return None
    first, _, last = words.partition("-")
    if not (first.isdecimal() and last.isdecimal() and 2 <= int(first) <= int(last)):
        raise UserError(
            f"--profile_steps={words}: write FIRST-LAST, such as 100-104; FIRST is at least 2, since update 1 compiles"
        )
    if int(last) > total:
        raise UserError(f"--profile_steps={words}: the run has only {plural(total, 'update')}; choose some of those")
    return int(first), int(last)


class ProfileHook(Hook):
    """Hook that records a profile of some updates, for TensorBoard's profile plugin or Perfetto."""

    phase: ClassVar[str] = PROFILING

    def __init__(self, first: int, last: int, directory: Path) -> None:
        """Record the updates that lead to steps `first` to `last`, and write the profile under `directory`."""
        self._first, self._last, self._directory = first, last, directory
        self._spool: Spool | None = None

    @override
    def due(self, step: int) -> bool:
        return step in (self._first - 1, self._last)

    @override
    def after(self, step: int, state: TrainState) -> TrainState:
        if step < self._last:
            self._spool = Spool(self._directory)
            jax.profiler.start_trace(str(self._spool.folder))
        else:
            self.close()
        return state

    def close(self) -> None:
        """Write the recorded profile."""
        if self._spool:
            jax.profiler.stop_trace()
            self._spool.flush()
            self._spool.close()
            self._spool = None
            print(f"profile of the updates {self._first:,} to {self._last:,}: {self._directory}/plugins/profile", flush=True)
