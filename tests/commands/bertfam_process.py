"""`bertfam` in a process of its own that tells which modules it ended up with, and that may be killed at a step.

DIE=STEP:SIGNAL:SAVED sends SIGNAL to the process after STEP updates, once the checkpoint of step SAVED is complete (0: at once);
several with commas between. STUCK=STEP waits there for ever. With DIE_INDEX=I both are for process I of several alone.
PACE=SECONDS makes every step so slow.
MODULES=FILE lists the modules that are loaded at the end.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path


def at_step(step, what):
    from bertfam.training.progress import ProgressLog

    add = ProgressLog.add

    def add_and_do(self, *args):
        add(self, *args)
        if step in (None, self._step):
            what()

    ProgressLog.add = add_and_do


def die(number, saved, model_dir):
    from bertfam.training.checkpoints import newest

    while saved and (newest(model_dir) or 0) < saved:
        time.sleep(0.01)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    from bertfam.cli import main

    if "PACE" in os.environ:
        at_step(None, lambda: time.sleep(float(os.environ["PACE"])))
    flags = dict(word.partition("=")[::2] for word in sys.argv)
    if os.environ.get("DIE_INDEX") in (None, flags.get("--process_index")):
        for death in filter(None, os.environ.get("DIE", "").split(",")):
            step, name, saved = death.split(":")
            number = signal.Signals[name]
            at_step(int(step), lambda saved=int(saved), number=number: die(number, saved, flags["--model_dir"]))
        if "STUCK" in os.environ:
            at_step(int(os.environ["STUCK"]), lambda: time.sleep(3600))
    status = main()
    if "MODULES" in os.environ:
        Path(os.environ["MODULES"]).write_text(json.dumps(sorted(sys.modules)))
    raise SystemExit(status)
