"""Cases of a benchmark in processes of their own, since a device reports only its peak memory."""

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

COMPILE_ONLY = "--compile_only"
# A process that only compiles takes device memory as it needs it. Its share stays the same, since "auto" settings depend on it.
_COMPILING = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
_CACHES = ("JAX_COMPILATION_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
_MOST_CHARACTERS = 300


@dataclass(frozen=True)
class Job:
    """A case and the process that measures it.

    Attributes:
      name: name of the case in messages.
      words: module and flags, as arguments of `python -m`; with `COMPILE_ONLY` behind them, the process only compiles.
      environment: environment variables of the process beyond those of this one.
    """

    name: str
    words: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


def run_alone(job: Job, limit_seconds: float | None = None) -> dict[str, Any] | None:
    """Run a job; return the JSON object in the last line of its output, or None, with one line on stderr, if it fails."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", *job.words],
            capture_output=True,
            text=True,
            env=os.environ | job.environment,
            timeout=limit_seconds,
        )
    except subprocess.TimeoutExpired:
        _report(job, f"stopped after {limit_seconds:g} s")
        return None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        _report(job, lines[-1] if lines else f"exit status {done.returncode}")
        return None
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _report(job: Job, reason: str) -> None:
    print(f"{job.name}: {reason}", file=sys.stderr, flush=True)


def run_all(
    jobs: Sequence[Job], ahead: int, limit_seconds: float | None = None
) -> Iterator[tuple[Job, dict[str, Any], dict[str, Any] | None]]:
    """Run jobs one at a time, after compiling several at a time into caches that the timed processes read.

    Compiling and timing alternate every 2 x `ahead` jobs, so that a call that is cut short has some results.

    Args:
      jobs: the jobs.
      ahead: number of processes that compile side by side; 0: each job compiles itself.
      limit_seconds: longest duration of a process; None: any.

    Yields:
      Each job that did not fail, its result, and the result of compiling it ahead, or None.
    """
    with _shared_caches() as caches:
        size = 2 * ahead or max(len(jobs), 1)
        for start in range(0, len(jobs), size):
            group = [Job(job.name, job.words, {**caches, **job.environment}) for job in jobs[start : start + size]]
            compiled = _compile(group, ahead, limit_seconds) if ahead else [None] * len(group)
            for job, before in zip(group, compiled, strict=True):
                result = run_alone(job, limit_seconds)
                if result is not None:
                    yield job, result, before


def _compile(jobs: Sequence[Job], ahead: int, limit_seconds: float | None) -> list[dict[str, Any] | None]:
    compiling = [
        Job(f"{job.name}, compiling ahead", [*job.words, COMPILE_ONLY], {**job.environment, **_COMPILING}) for job in jobs
    ]
    with ThreadPoolExecutor(ahead) as pool:
        return [*pool.map(lambda job: run_alone(job, limit_seconds), compiling)]


@contextmanager
def _shared_caches() -> Iterator[dict[str, str]]:
    """Yield the environment of processes that share compiled programs: in the folders that are set, or in temporary ones."""
    with tempfile.TemporaryDirectory(prefix="compiled_", ignore_cleanup_errors=True) as folder:
        folders = {name: os.environ.get(name) or os.path.join(folder, name.lower()) for name in _CACHES}
        yield folders | {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}


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
