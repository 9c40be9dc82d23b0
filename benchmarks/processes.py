"""Cases of a benchmark in processes of their own, since a device reports only its peak memory."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

_IN_TURN = "BERTFAM_BENCHMARK_IN_TURN"
# A process takes device memory as it needs it, since others compile beside it.
_ENVIRONMENT = {_IN_TURN: "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
_READY = "ready to be timed"
_MOST_CHARACTERS = 300


@dataclass(frozen=True)
class Job:
    """A case and the process that measures it.

    Attributes:
      name: name of the case in messages.
      words: module and flags, as arguments of `python -m`; the module calls `wait_for_turn` once, between compiling and timing.
      environment: environment variables of the process beyond those of this one.
    """

    name: str
    words: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


def wait_for_turn() -> None:
    """Report that this process has compiled its case, and return when the others of `run_all` leave it the device."""
    if _IN_TURN in os.environ:
        print(_READY, flush=True)
        sys.stdin.readline()


class _Running:
    """A process that measures a job."""

    def __init__(self, job: Job, limit_seconds: float | None) -> None:
        self.job = job
        self._limit = limit_seconds
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", *job.words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **_ENVIRONMENT, **job.environment},
        )

    @contextmanager
    def _stopped_at_the_limit(self) -> Iterator[threading.Event]:
        stopped = threading.Event()

        def stop() -> None:
            stopped.set()
            self._process.kill()

        timer = threading.Timer(self._limit or threading.TIMEOUT_MAX, stop)
        timer.daemon = True
        timer.start()
        try:
            yield stopped
        finally:
            timer.cancel()

    def compile(self) -> str | None:
        """Wait until the process is ready to time its case; return the reason if it has ended instead."""
        assert self._process.stdout is not None
        with self._stopped_at_the_limit() as stopped:
            if any(line.strip() == _READY for line in self._process.stdout):
                return None
            self._process.wait()
        return self._failure(stopped.is_set())

    def time(self) -> dict[str, Any] | str:
        """Have the process time its case; return the JSON object in its last line, or the reason if it fails."""
        with self._stopped_at_the_limit() as stopped:
            out, _ = self._process.communicate("\n")
        if self._process.returncode:
            return self._failure(stopped.is_set())
        result: dict[str, Any] = json.loads(out.splitlines()[-1])
        return result

    def _failure(self, stopped: bool) -> str:
        if stopped:
            return f"stopped after {self._limit:g} s"
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return lines[-1] if lines else f"exit status {self._process.returncode}"


def run_all(jobs: Sequence[Job], together: int, limit_seconds: float | None = None) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Measure jobs in groups: the processes of a group compile side by side, then each is timed while the others wait.

    A job that fails beside others, as where the memory of the device was too small for all, is tried once more alone.

    Args:
      jobs: the jobs.
      together: number of processes of a group.
      limit_seconds: longest duration of compiling, and of timing; None: any.

    Yields:
      Each job that did not fail, and its result. Those that failed are one line each on stderr.
    """
    groups = [jobs[start : start + together] for start in range(0, len(jobs), together)]
    for group in groups:
        running = [_Running(job, limit_seconds) for job in group]
        with ThreadPoolExecutor(len(running)) as pool:
            failures = [*pool.map(_Running.compile, running)]
        for process, failure in zip(running, failures, strict=True):
            result = failure or process.time()
            if isinstance(result, dict):
                yield process.job, result
            else:
                print(f"{process.job.name}: {result}", file=sys.stderr, flush=True)
                if len(group) > 1:
                    groups.append([process.job])


def print_result(measure: Callable[[], dict[str, Any]]) -> int:
    """Print the result of a case as a line of JSON, or its failure, in one line behind the traceback; return the exit status."""
    try:
        print(json.dumps(measure()))
    except Exception as error:
        traceback.print_exc()
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
        print(f"{type(error).__name__}: {lines[0]}"[:_MOST_CHARACTERS], file=sys.stderr)
        return 1
    return 0
