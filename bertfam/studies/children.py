"""Processes that train the runs of a study, several at once, each on its share of the cores and GPUs of this machine."""

import glob
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from bertfam.errors import UserError
from bertfam.interrupts import raised_on
from bertfam.studies.runs import RunFolder

STOPPED = os.EX_TEMPFAIL  # 75: not finished; the same command resumes
_POLL_SECONDS = 0.2
_GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Share:
    """Part of this machine for one run at a time.

    Attributes:
      cores: cores.
      variables: environment variables that name its GPUs; {} if it has all.
    """

    cores: frozenset[int]
    variables: Mapping[str, str]


def shares(count: int, environment: Mapping[str, str]) -> list[Share]:
    """Divide the cores and GPUs of this machine evenly among so many runs at once.

    Raises:
      UserError: there are more of them than cores, or than GPUs.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    here = [str(number) for number in range(len(glob.glob("/dev/nvidia[0-9]*")))]
    gpus = [name for name in environment[_GPUS].split(",") if name.strip()] if _GPUS in environment else here
    for what, number in (("cores", len(cores)), ("GPUs", len(gpus) or count)):
        if count > number:
            raise UserError(f"--parallel={count} is more than the {number:,} {what} of this machine; each run needs one")
    size = len(gpus) // count
    own = [{_GPUS: ",".join(gpus[place * size : (place + 1) * size])} if gpus and count > 1 else {} for place in range(count)]
    return [Share(frozenset(cores[place::count]), variables) for place, variables in enumerate(own)]


def run_children(
    folders: Sequence[RunFolder],
    command: Callable[[int], Sequence[str]],
    count: int,
    environment: Mapping[str, str],
    done: Callable[[RunFolder, int, float], None],
) -> int:
    """Run each in a process of its own; return 0, or `STOPPED` if a signal stopped one of them.

    A run that fails does not stop the others. When this process is stopped, all of them save their state first.

    Args:
      folders: the runs.
      command: returns the command line of a run, by its place among them.
      count: number of runs at once.
      environment: environment of the processes.
      done: called with a run, its exit status and its seconds, once it has ended.
    """
    free, waiting, status = shares(count, environment), list(enumerate(folders)), 0
    running: dict[int, tuple[subprocess.Popen[bytes], Share, float]] = {}
    with ExitStack() as stack:
        stack.enter_context(raised_on(signal.SIGTERM, _exit))
        stack.callback(_stop, running)
        while running or (waiting and not status):
            while waiting and free and not status:
                (place, _), share = waiting.pop(0), free.pop(0)
                running[place] = (_start(command(place), share, environment), share, time.monotonic())
            time.sleep(_POLL_SECONDS)
            for place, (process, share, began) in list(running.items()):
                if (code := process.poll()) is not None:
                    del running[place]
                    free.append(share)
                    done(folders[place], code, time.monotonic() - began)
                    status = status or (STOPPED if code == STOPPED else 0)
    return status


def _start(words: Sequence[str], share: Share, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Start a process in a session of its own, so that Ctrl-C reaches it only once, from here."""
    process = subprocess.Popen(
        words, env={**environment, **share.variables}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
    )
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(process.pid, share.cores)
    return process


def _stop(running: Mapping[int, tuple["subprocess.Popen[bytes]", Share, float]]) -> None:
    """Let the processes that still run save their state, and wait for their end."""
    for process, _, _ in running.values():
        process.terminate()
    for process, _, _ in running.values():
        process.wait()


def _exit() -> None:
    raise SystemExit(STOPPED)
