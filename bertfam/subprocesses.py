"""Python processes that help this one.

They are plain processes, not those of multiprocessing: these would run the caller's script again, or fork a process whose
threads (JAX's, TensorFlow's) do not survive it.
"""

import os
import pickle
import sys
from typing import IO, Any


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def command(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module of ours."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment(**more: str) -> dict[str, str]:
    """The environment of such a process: it finds the modules that this one finds, and speaks UTF-8."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8", **more}


def send(stream: IO[bytes], value: Any) -> None:
    """Writes a pickle behind its length."""
    data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes:
    """The next pickle that `send` has written; raises EOFError where the other end is gone."""
    head = stream.read(8)
    data = stream.read(int.from_bytes(head, "little"))
    if len(head) < 8 or len(data) < int.from_bytes(head, "little"):
        raise EOFError
    return data
