"""Work that is done once for all processes of a test session, of which pytest-xdist starts several."""

import fcntl
import os
from pathlib import Path


def once(tmp_path_factory, name, make):
    """Return a folder that the first process fills by `make(folder)`, while the others wait."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    Path(shared.parent).mkdir(exist_ok=True)
    with open(f"{shared}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = shared / "done"
        if not done.exists():
            shared.mkdir()
            make(shared)
            done.touch()
    return shared
