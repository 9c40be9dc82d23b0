"""`bertfam` in a process of its own that tells which modules it ended up with, and that may be killed at a step.

DIE=STEP:SIGNAL:SAVED sends SIGNAL to the process after STEP updates, once the checkpoint of step SAVED is complete (0: at once).
MODULES=FILE lists the modules that are loaded at the end.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path


def die_at(step, number, saved, model_dir):
    from bertfam.training.checkpoints import newest
    from bertfam.training.progress import ProgressLog

    add = ProgressLog.add

    def add_and_die(self, *args):
        add(self, *args)
        if self._step == step:
            while saved and (newest(model_dir) or 0) < saved:
                time.sleep(0.01)
            os.kill(os.getpid(), number)

    ProgressLog.add = add_and_die


if __name__ == "__main__":
    from bertfam.cli import main

    if "DIE" in os.environ:
        step, name, saved = os.environ["DIE"].split(":")
        (model_dir,) = (flag.partition("=")[2] for flag in sys.argv if flag.startswith("--model_dir="))
        die_at(int(step), signal.Signals[name], int(saved), model_dir)
    status = main()
    if "MODULES" in os.environ:
        Path(os.environ["MODULES"]).write_text(json.dumps(sorted(sys.modules)))
    raise SystemExit(status)
