"""Entry point of a job in a process of its own: `python -m benchmarks.job MODULE:FUNCTION '{"argument": ...}' CORES`.

The last line of stdout is the return value of the function, as JSON.
"""

import importlib
import json
import os
import sys


def main() -> None:
    """Restrict the process to the given cores, before anything starts a thread, and call the function."""
    target, arguments, cores = sys.argv[1:]
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, map(int, cores.split(",")))
    module, function = target.split(":")
    result = getattr(importlib.import_module(module), function)(**json.loads(arguments))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
