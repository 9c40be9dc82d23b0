"""Wall-clock time per phase of a command."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

STARTING, PREPARING, COMPILING, TRAINING = "starting", "preparing the text", "compiling", "training"
WAITING, INSPECTING, EVALUATING, SAVING = "waiting for data", "inspecting", "evaluating", "saving"
SAMPLING, PROFILING = "sampling", "profiling"


class Phase(NamedTuple):
    """Phase in progress.

    Attributes:
      name: its name.
      since: `time.monotonic()` at its start.
      long: True if it may take an hour, as compiling and saving may.
    """

    name: str
    since: float
    long: bool


class PhaseTimer:
    """Timer with exactly one phase at any time; the seconds of all phases add up to the time since its creation."""

    def __init__(self) -> None:
        """Start the phase `STARTING`."""
        self.now = Phase(STARTING, time.monotonic(), True)  # replaced as one object, because other threads read it
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def begin(self, name: str, *, long: bool = False) -> None:
        """End the current phase and start phase `name`, which may have run before."""
        before, self.now = self.now, Phase(name, time.monotonic(), long)
        self._seconds[before.name] += self.now.since - before.since

    @contextmanager
    def during(self, name: str, *, long: bool = False) -> Iterator[None]:
        """Run a block in phase `name`, then return to the previous phase."""
        before = self.now
        self.begin(name, long=long)
        try:
            yield
        finally:
            self.begin(before.name, long=before.long)

    def move(self, seconds: float, name: str) -> None:
        """Move seconds from the current phase to phase `name`."""
        self._seconds[self.now.name] -= seconds
        self._seconds[name] += seconds

    def seconds(self) -> dict[str, float]:
        """Return the seconds so far by phase."""
        now = time.monotonic()
        return self._seconds | {self.now.name: self._seconds.get(self.now.name, 0.0) + now - self.now.since}


def shares(seconds: dict[str, float]) -> str:
    """Format each phase's share of the time, largest first: training 81.2%, ...; shares below 0.05 % are left out."""
    total = sum(seconds.values())
    parts = sorted(((value / total, name) for name, value in seconds.items()), reverse=True) if total else []
    return ", ".join(f"{name} {share:.1%}" for share, name in parts if share >= 5e-4)
