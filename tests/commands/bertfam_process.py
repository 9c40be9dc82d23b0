"""`bertfam` in a process of its own that tells which modules it ended up with, and that may be killed at a step.

DIE=STEP:SIGNAL:SAVED sends SIGNAL to the process after STEP updates, once the checkpoint of step SAVED is complete (0: at once);
with DIE_INDEX=I only to process I of several.
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

    flags = dict(word.partition("=")[::2] for word in sys.argv)
    if "DIE" in os.environ and os.environ.get("DIE_INDEX") in (None, flags.get("--process_index")):
        step, name, saved = os.environ["DIE"].split(":")
        die_at(int(step), signal.Signals[name], int(saved), flags["--model_dir"])
    status = main()
    if "MODULES" in os.environ:
        Path(os.environ["MODULES"]).write_text(json.dumps(sorted(sys.modules)))
    raise SystemExit(status)
