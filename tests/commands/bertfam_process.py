"""`bertfam` in a process of its own, with faults on request and reports for the tests.

"THEN" among the words separates commands, which run one after the other until one fails. With --serve=N the process forks others,
see fork_server.py, which may run a Python program instead. Variables of the environment:

  DIE=STEP:SIGNAL:SAVED  send SIGNAL to the process after STEP updates, once the checkpoint of step SAVED (0: none) is complete;
                         several are separated by commas
  STUCK=STEP             wait forever after STEP updates
  FAULT=STEP             raise an unexpected error after STEP updates
  DIE_INDEX=I            DIE, STUCK and FAULT are for process I of several alone
  PACE=SECONDS           wait so long after each update, with PACE_INDEX=I in process I of several alone
  NAN=STEP               make the loss of the update after STEP updates NaN; several are separated by commas
  FLIP=DEVICE:WHAT       flip a bit on that device: of a parameter as a checkpoint is restored ("parameter"), or of every batch
                         ("rows"); several are separated by commas
  HALT=DOCUMENTS         wait for a line on stdin before each further record of a token cache that has so many documents
  MARKS=FILE             write the phases of the process to FILE; see phases.py
  ABSENT=NAME            pretend that the package NAME is not installed
  MODULES=FILE           list the modules that are loaded at the end
"""

import atexit
import gc
import json
import os
import runpy
import signal
import sys
import time
from pathlib import Path


def at_step(step, action, patch=setattr):
    """Call action(number of updates) after the update `step`, or after each update if `step` is None."""
    from bertfam.training.logs.progress import ProgressLog

    add = ProgressLog.add

    def add_and_act(self, *args, **options):
        add(self, *args, **options)
        if step in (None, self._step):
            action(self._step)

    patch(ProgressLog, "add", add_and_act)


def at_evaluation(action, patch=setattr):
    """Call action() when an evaluation starts."""
    from bertfam.training.trainer import Trainer

    scores = Trainer.scores

    def act_and_score(self, *args, **options):
        action()
        return scores(self, *args, **options)

    patch(Trainer, "scores", act_and_score)


def die(number, saved, model_dir):
    """Send a signal to this process once the checkpoint of step `saved` is complete."""
    from bertfam.training.checkpoints import newest

    while saved and (newest(model_dir) or 0) < saved:
        time.sleep(0.01)
    os.kill(os.getpid(), number)


def fail(step):
    """Raise an error that `bertfam` does not expect."""
    raise ZeroDivisionError(f"a fault after {step} updates")


def make_nan(steps, patch=setattr):
    """Make the losses of some steps NaN by rows with infinite weights."""
    import numpy as np

    from bertfam.training.stages import StagedBatches

    rows = StagedBatches.rows

    def rows_with_infinite_weights(self, step, start, stop):
        features, name = rows(self, step, start, stop), "masked_loss_weights"
        if step not in steps:
            return features
        return features | {name: np.where(features[name] > 0, np.float32(np.inf), 0)}

    patch(StagedBatches, "rows", rows_with_infinite_weights)


def flip(device, what):
    """Flip a bit of one device's copy of a parameter, or of its rows, as faulty memory does."""
    import jax
    import numpy as np

    from bertfam.training import trainer

    def flipped(array):
        values = [np.array(shard.data) for shard in array.addressable_shards]
        for shard, value in zip(array.addressable_shards, values, strict=True):
            value.view(np.uint8).flat[0] ^= shard.device.id == device
        placed = [jax.device_put(value, shard.device) for value, shard in zip(values, array.addressable_shards, strict=True)]
        return jax.make_array_from_single_device_arrays(array.shape, array.sharding, placed)

    def restored(self, *args, original=trainer.Trainer.restored):
        state = original(self, *args)
        first, *others = jax.tree.leaves(state.params)
        return state._replace(params=jax.tree.unflatten(jax.tree.structure(state.params), [flipped(first), *others]))

    def batch(self, *args, original=trainer.StageProgram.batch):
        features = original(self, *args)
        return features | {"encoder_input_tokens": flipped(features["encoder_input_tokens"])}

    if what == "rows":
        trainer.StageProgram.batch = batch
    else:
        trainer.Trainer.restored = restored


def halt(documents):
    """Wait for a line on stdin before each record of the progress of a build whose last record has so many documents."""
    from bertfam.data.token_cache.build_folder import BuildFolder

    record = BuildFolder.record

    def wait_and_record(self, *args):
        if self.documents >= documents:
            sys.stdin.readline()
        record(self, *args)

    BuildFolder.record = wait_and_record


def mark(path, command):
    """Write the phases of a command to a file."""
    from phases import mark_phases

    marks = mark_phases(path, command)
    if command != "cache":
        at_step(None, marks.count)
        marks.mark("main", "preparing")
    atexit.register(marks.mark, "cache" if command == "cache" else "main", None)


class Absent:
    """Finder of modules before all others, for which a package does not exist."""

    def __init__(self, package):
        self.package = package

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == self.package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def listed(name):
    """Return the values of a variable of the environment, which are separated by commas."""
    return list(filter(None, os.environ.get(name, "").split(",")))


def set_faults(flags):
    """Prepare the faults that the environment asks for."""
    if steps := listed("NAN"):
        make_nan({int(step) for step in steps})
    for fault in listed("FLIP"):
        device, _, what = fault.partition(":")
        flip(int(device), what)
    if "HALT" in os.environ:
        halt(int(os.environ["HALT"]))
    index = flags.get("--process_index")
    if "PACE" in os.environ and os.environ.get("PACE_INDEX") in (None, index):
        at_step(None, lambda step: time.sleep(float(os.environ["PACE"])))
    if os.environ.get("DIE_INDEX") not in (None, index):
        return
    for death in listed("DIE"):
        step, name, saved = death.split(":")
        number = signal.Signals[name]
        at_step(int(step), lambda step, saved=int(saved), number=number: die(number, saved, flags["--model_dir"]))
    if "STUCK" in os.environ:
        at_step(int(os.environ["STUCK"]), lambda step: time.sleep(3600))
    if "FAULT" in os.environ:
        at_step(int(os.environ["FAULT"]), fail)


def run_commands(words):
    """Run the commands of a command line until one fails, and return the exit status of the last."""
    from bertfam.cli import main

    while "THEN" in words:
        end = words.index("THEN")
        if status := main(words[:end]):
            return status
        words = words[end + 1 :]
    return main(words)


if __name__ == "__main__":
    gc.set_threshold(100_000, 50, 1000)  # as in conftest.py, and before the imports
    sys.path.append(str(Path(__file__).parents[1]))
    from bertfam.commands.quick_exit import QuickExit

    quick_exit = QuickExit()
    if len(sys.argv) == 2 and sys.argv[1].startswith("--serve="):
        import fork_server

        fork_server.serve(int(sys.argv[1].partition("=")[2]))
    if sys.argv[1].endswith(".py"):
        import xla

        xla.write_whole_programs()
        del sys.argv[0]
        sys.path.insert(0, os.path.dirname(sys.argv[0]))
        runpy.run_path(sys.argv[0], run_name="__main__")
        quick_exit.status = 0
        raise SystemExit
    if "ABSENT" in os.environ:
        sys.meta_path.insert(0, Absent(os.environ["ABSENT"]))

    import xla

    xla.share_cache()
    if "MARKS" in os.environ:
        mark(os.environ["MARKS"], sys.argv[1])
    set_faults(dict(word.partition("=")[::2] for word in sys.argv))
    exit_status = run_commands(sys.argv[1:])
    if "MODULES" in os.environ:
        Path(os.environ["MODULES"]).write_text(json.dumps(sorted(sys.modules)))
    quick_exit.status = exit_status
    raise SystemExit(exit_status)
