"""`bertfam` in a process of its own that tells which modules it ended up with, and that may be killed at a step.

DIE=STEP:SIGNAL:SAVED sends SIGNAL to the process after STEP updates, once the checkpoint of step SAVED is complete (0: at once);
several with commas between. DIED=FOLDER keeps which signals have come, and lets none come again. STUCK=STEP waits there for
ever, FAULT=STEP raises what nobody expects. With DIE_INDEX=I all three are for process I of several alone.
EVALUATION=SIGNAL sends SIGNAL to the process as an evaluation begins.
PACE=SECONDS makes every step so slow; with PACE_INDEX=I those of process I of several.
NAN=STEP, several with commas between, makes the loss of the update after STEP updates infinite by infinite, which is no number.
FLIP=DEVICE:WHAT flips a bit of what that device holds: "parameter" of one as a checkpoint is restored, "rows" of every batch;
several with commas between.
MARKS=FILE has it write there what it is doing; see phases.py.
ABSENT=NAME stands for a machine where the package NAME is not installed.
MODULES=FILE lists the modules that are loaded at the end.
"""

import atexit
import json
import os
import signal
import sys
import time
from pathlib import Path


def at_step(step, what):
    """Calls `what(updates made)` after an update, or after each where `step` is None."""
    from bertfam.training.logs.progress import ProgressLog

    add = ProgressLog.add

    def add_and_do(self, *args, **options):
        add(self, *args, **options)
        if step in (None, self._step):
            what(self._step)

    ProgressLog.add = add_and_do


def die(number, saved, model_dir):
    from bertfam.training.checkpoints import newest

    if "DIED" in os.environ:
        came = Path(os.environ["DIED"], signal.Signals(number).name)
        if came.exists():
            return
        came.touch()
    while saved and (newest(model_dir) or 0) < saved:
        time.sleep(0.01)
    os.kill(os.getpid(), number)


def spoil(steps):
    """Gives the rows of some steps weights that are infinite."""
    import numpy as np

    from bertfam.training.stages import StagedBatches

    rows = StagedBatches.rows

    def spoilt(self, step, start, stop):
        found, name = rows(self, step, start, stop), "masked_loss_weights"
        return found | {name: np.where(found[name] > 0, np.float32(np.inf), 0)} if step in steps else found

    StagedBatches.rows = spoilt


def flip(device, what):
    """As a device would whose memory is at fault, or what reads it."""
    import jax
    import numpy as np

    from bertfam.training import trainer

    def flipped(array):
        held = [np.array(shard.data) for shard in array.addressable_shards]
        for shard, value in zip(array.addressable_shards, held, strict=True):
            value.view(np.uint8).flat[0] ^= shard.device.id == device
        placed = [jax.device_put(value, shard.device) for value, shard in zip(held, array.addressable_shards, strict=True)]
        return jax.make_array_from_single_device_arrays(array.shape, array.sharding, placed)

    def restored(self, *args, of=trainer.Trainer.restored):
        state = of(self, *args)
        first, *others = jax.tree.leaves(state.params)
        return state._replace(params=jax.tree.unflatten(jax.tree.structure(state.params), [flipped(first), *others]))

    def batch(self, *args, of=trainer.StageProgram.batch):
        found = of(self, *args)
        return found | {"encoder_input_tokens": flipped(found["encoder_input_tokens"])}

    if what == "rows":
        trainer.StageProgram.batch = batch
    else:
        trainer.Trainer.restored = restored


def mark(path, command):
    from phases import mark_phases

    marks = mark_phases(path, command)
    if command != "cache":
        at_step(None, marks.made)
        marks.mark("main", "preparing")
    atexit.register(marks.mark, "cache" if command == "cache" else "main", None)


class Absent:
    """A finder of modules before all others, for which a package does not exist."""

    def __init__(self, package):
        self.package = package

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == self.package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def at_evaluation(what):
    from bertfam.training.trainer import Trainer

    scores = Trainer.scores

    def do_and_score(self, *args, **options):
        what()
        return scores(self, *args, **options)

    Trainer.scores = do_and_score


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[1]))
    if "ABSENT" in os.environ:
        sys.meta_path.insert(0, Absent(os.environ["ABSENT"]))

    import xla

    from bertfam.cli import main

    xla.share_cache()
    if "MARKS" in os.environ:
        mark(os.environ["MARKS"], sys.argv[1])
    if "NAN" in os.environ:
        spoil({int(step) for step in os.environ["NAN"].split(",")})
    for flipped in filter(None, os.environ.get("FLIP", "").split(",")):
        device, _, what = flipped.partition(":")
        flip(int(device), what)
    if "EVALUATION" in os.environ:
        at_evaluation(lambda: os.kill(os.getpid(), signal.Signals[os.environ["EVALUATION"]]))
    flags = dict(word.partition("=")[::2] for word in sys.argv)
    if "PACE" in os.environ and os.environ.get("PACE_INDEX") in (None, flags.get("--process_index")):
        at_step(None, lambda step: time.sleep(float(os.environ["PACE"])))
    if os.environ.get("DIE_INDEX") in (None, flags.get("--process_index")):
        for death in filter(None, os.environ.get("DIE", "").split(",")):
            step, name, saved = death.split(":")
            number = signal.Signals[name]
            at_step(int(step), lambda step, saved=int(saved), number=number: die(number, saved, flags["--model_dir"]))
        if "STUCK" in os.environ:
            at_step(int(os.environ["STUCK"]), lambda step: time.sleep(3600))
        if "FAULT" in os.environ:
            at_step(int(os.environ["FAULT"]), lambda step: step.fault)
    status = main()
    if "MODULES" in os.environ:
        Path(os.environ["MODULES"]).write_text(json.dumps(sorted(sys.modules)))
    raise SystemExit(status)
