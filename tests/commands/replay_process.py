"""Commands on several devices in one process, in which they share programs; test_replay.py runs it.

It reads a JSON list of [WORDS, FAULTS], and prints a JSON list of [exit status, stdout, stderr, written files] of these commands.
FAULTS are bits that are flipped from then on, each [DEVICE, WHAT] as in bertfam_process.py.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace


def run(words, faults):
    """Run a command, and return its exit status, its output and the files that it has written into its folder."""
    from bertfam_process import flip
    from command_line import in_process, listing

    for device, what in faults:
        flip(device, what)
    model_dir = next(word.partition("=")[2] for word in words if word.startswith("--model_dir="))
    before = listing(model_dir)
    done = in_process(*words)
    written = [str(path) for path, state in listing(model_dir).items() if (path, state) not in before.items()]
    return [done.returncode, done.stdout, done.stderr, written]


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[1]))
    import xla

    xla.share_cache()
    import shared_programs

    shared_programs.share(SimpleNamespace(setattr=setattr))
    print(json.dumps([run(*command) for command in json.load(sys.stdin)]))
