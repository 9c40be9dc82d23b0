"""One piece of work in a process of its own: `python -m benchmarks.job MODULE:FUNCTION '{"argument": ...}' CORES`.

What the function returns goes to stdout as the last line, in JSON.
"""

import importlib
import json
import os
import sys


def main() -> None:
    """Keeps to the cores that are given, before anything starts a thread, and calls the function."""
    target, arguments, cores = sys.argv[1:]
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, map(int, cores.split(",")))
    module, function = target.split(":")
    result = getattr(importlib.import_module(module), function)(**json.loads(arguments))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
