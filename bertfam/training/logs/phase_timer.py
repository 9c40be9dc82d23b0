"""What a command is doing, and how much wall time each of its doings has taken."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

STARTING, PREPARING, COMPILING, TRAINING = "starting", "preparing the text", "compiling", "training"
WAITING, INSPECTING, EVALUATING, SAVING = "waiting for data", "looking inside", "evaluating", "saving"
SAMPLING, PROFILING = "sampling", "profiling"


class Phase(NamedTuple):
    """One thing that is being done.

    Attributes:
      name: what.
      since: `time.monotonic()` of its beginning.
      long: whether it may take an hour, as compiling and saving may.
    """

    name: str
    since: float
    long: bool


class PhaseTimer:
    """Exactly one thing is being done at any time; their seconds add up to all the time since this was made."""

    def __init__(self) -> None:
        """Starting."""
        self.now = Phase(STARTING, time.monotonic(), True)  # one object, for other threads read it
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def begin(self, name: str, *, long: bool = False) -> None:
        """What was being done is over; `name` begins, again perhaps."""
        before, self.now = self.now, Phase(name, time.monotonic(), long)
        self._seconds[before.name] += self.now.since - before.since

    @contextmanager
    def during(self, name: str, *, long: bool = False) -> Iterator[None]:
        """Does `name` as long as the block runs, then again what was being done before."""
        before = self.now
        self.begin(name, long=long)
        try:
            yield
        finally:
            self.begin(before.name, long=before.long)

    def move(self, seconds: float, name: str) -> None:
        """So much of what is being done was `name`."""
        self._seconds[self.now.name] -= seconds
        self._seconds[name] += seconds

    def seconds(self) -> dict[str, float]:
        """Seconds so far, by what was done."""
        now = time.monotonic()
        return self._seconds | {self.now.name: self._seconds.get(self.now.name, 0.0) + now - self.now.since}


def shares(seconds: dict[str, float]) -> str:
    """training 81.2 %, compiling 9.5 %, ...: the most first, what takes less than 0.05 % left out."""
    total = sum(seconds.values())
    parts = sorted(((value / total, name) for name, value in seconds.items()), reverse=True) if total else []
    return ", ".join(f"{name} {share:.1%}" for share, name in parts if share >= 5e-4)
