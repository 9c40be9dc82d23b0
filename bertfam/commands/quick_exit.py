"""End of a process without the destruction of its objects."""

import atexit
import os
import sys


class QuickExit:
    """Callback of `atexit` that ends the process at once, after all callbacks that are registered later.

    Python destroys every module and object at its end, which takes half a second of CPU time after the imports of a training run.

    Attributes:
      status: exit status; None, as after an exception, leaves the end to Python.
    """

    def __init__(self) -> None:
        """Register the callback."""
        self.status: int | None = None
        atexit.register(self._exit)

    def _exit(self) -> None:
        if self.status is None:
            return
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (AttributeError, OSError, ValueError):
            return  # Python reports a stream that cannot be written.
        os._exit(self.status)
