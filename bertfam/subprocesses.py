"""Helper processes that run a module of bertfam and exchange pickles over pipes.

They are plain subprocesses. `multiprocessing` and `concurrent.futures.ProcessPoolExecutor` (Python 3.11) are not used: with the
"spawn" method they run the caller's script again, and with "fork" they copy a process whose threads (JAX's, TensorFlow's) do not
survive the fork.
"""

import os
import pickle
import sys
from typing import IO, Any


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module of bertfam."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment(**extra: str) -> dict[str, str]:
    """Return the environment of a helper process, with the import path of this one, UTF-8 streams and `extra` variables."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8", **extra}


def send(stream: IO[bytes], value: Any) -> None:
    """Write a pickle, preceded by its length."""
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes:
    """Read the next pickle that `send` has written; raise EOFError if the other end has closed."""
    head = stream.read(8)
    data = stream.read(int.from_bytes(head, "little"))
    if len(head) < 8 or len(data) < int.from_bytes(head, "little"):
        raise EOFError
    return data
