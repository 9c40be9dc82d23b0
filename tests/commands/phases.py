"""Marks of the phases of a `bertfam` process in a file, for a test that kills it in one of them.

A mark is a line of JSON: the process, the time (time.monotonic), the track, the phase that starts on it (null: none), and the
number of updates made, or of blocks tokenised. Concurrent activities have a track each:

  main   importing, preparing, initialising or restoring, compiling, training, evaluating, saving
  save   writing, manifest, renaming, tidying, removing: a checkpoint, in the background
  cache  tokenising, finishing: a token cache, in a process of its own
  file   replacing NAME: a file or folder that was written beside it replaces NAME;
         logging SPLIT ...: lines of metrics are written
"""

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

# Variables of bertfam_process.py that are not passed on to the process that builds the token cache.
_NOT_INHERITED = ("DIE", "STUCK", "FAULT", "PACE", "NAN", "MODULES")


@dataclass(frozen=True)
class Mark:
    """Start of a phase on a track."""

    process: int
    time: float
    track: str
    phase: str | None
    step: int


def read(content: str) -> list[Mark]:
    """Parse the content of a file of marks, without an unfinished last line."""
    return [Mark(*json.loads(line)) for line in content.splitlines(keepends=True) if line.endswith("\n")]


_PREVIOUS = "the previous phase"


class Marks:
    """Writer of marks; those written before a kill are in the file."""

    def __init__(self, path: str, stretched: Mapping[str, float]) -> None:
        """Open the file.

        Args:
          path: the file, which may exist.
          stretched: seconds to wait before the work of a phase, and again after it.
        """
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._stretched = stretched
        self._now: dict[str, str | None] = {}
        self.step = 0

    def mark(self, track: str, phase: str | None) -> None:
        """Write that a phase starts on a track."""
        self._now[track] = phase
        line = json.dumps([os.getpid(), time.monotonic(), track, phase, self.step]) + "\n"
        os.write(self._file, line.encode())

    def count(self, step: int) -> None:
        """Write that `step` updates were made."""
        self.step = step
        self.mark("main", "training")

    def wait(self, phase: str) -> None:
        """Wait as long as the phase is stretched."""
        time.sleep(self._stretched.get(phase.partition(" ")[0], 0.0))

    def wrap(self, owner, name, track, phase, after=_PREVIOUS):
        """Mark `phase` while owner.name runs, and then `after`, by default the phase before."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def marked(*args, **options):
            before = self._now.get(track)
            self.mark(track, phase)
            self.wait(phase)
            try:
                result = function(*args, **options)
                self.wait(phase)
                return result
            finally:
                self.mark(track, before if after is _PREVIOUS else after)

        setattr(owner, name, marked)


def mark_phases(path: str, command: str) -> Marks:
    """Mark the phases of this process from now on, and return the writer of marks.

    STRETCH=PHASE:SECONDS makes a phase longer; several are separated by commas.
    """
    words = filter(None, os.environ.get("STRETCH", "").split(","))
    marks = Marks(path, {name: float(seconds) for name, _, seconds in (word.partition(":") for word in words)})
    if command == "cache":
        _mark_build(marks)
    else:
        marks.mark("main", "importing")
        _mark_run(marks)
    _mark_files(marks)
    return marks


def _mark_build(marks: Marks) -> None:
    from bertfam.data.token_cache.build_folder import BuildFolder
    from bertfam.data.token_cache.writer import SplitWriter

    marks.wrap(BuildFolder, "start", "cache", "tokenising", after="tokenising")
    marks.wrap(BuildFolder, "finish", "cache", "finishing", after="finishing")
    marks.wrap(BuildFolder, "clear", "cache", "finishing")
    append = SplitWriter.append

    def append_slowly(self, block):
        append(self, block)
        marks.step += 1
        marks.mark("cache", "tokenising")
        marks.wait("tokenising")

    SplitWriter.append = append_slowly


def _mark_run(marks: Marks) -> None:
    from bertfam.data.token_cache import build_process
    from bertfam.training.checkpoints import cleanup, store
    from bertfam.training.logs.metrics import MetricsWriter
    from bertfam.training.logs.phase_timer import PREPARING, STARTING, PhaseTimer
    from bertfam.training.trainer import Trainer

    # The process that builds the token cache marks its phases too.
    program = str(Path(__file__).with_name("bertfam_process.py"))

    def run(command, env, **options):
        words = command[command.index("bertfam") + 1 :]
        env = {name: value for name, value in env.items() if name not in _NOT_INHERITED}
        return subprocess.run([sys.executable, program, *words], env=env, **options)

    build_process.subprocess = SimpleNamespace(run=run, DEVNULL=subprocess.DEVNULL)

    marks.wrap(Trainer, "new_state", "main", "initialising")
    marks.wrap(Trainer, "restored", "main", "restoring")
    begin = PhaseTimer.begin

    def mark_and_begin(self, phase, **options):
        if phase not in (STARTING, PREPARING):
            marks.mark("main", phase)
        begin(self, phase, **options)

    PhaseTimer.begin = mark_and_begin

    start = store.Checkpoints._start

    def start_alone(self, *args):
        self.wait()  # for the save before, which has marked its end by then
        marks.mark("save", "writing")
        try:
            start(self, *args)
        except BaseException:
            marks.mark("save", None)
            raise

    store.Checkpoints._start = start_alone
    marks.wrap(store._Digested, "finalize", "save", "manifest", after="renaming")
    marks.wrap(cleanup, "_remove", "save", "removing")
    marks.wrap(store, "delete_unkept", "save", "tidying")
    finish = store.Checkpoints._finish

    def finish_and_mark(self, *args):
        marks.wait("writing")
        try:
            finish(self, *args)
        finally:
            marks.mark("save", None)

    store.Checkpoints._finish = finish_and_mark

    write_all = MetricsWriter.write_all

    def write_and_mark(self, step, splits):
        marks.mark("file", f"logging {' '.join(splits)}")
        marks.wait("logging")
        write_all(self, step, splits)
        marks.wait("logging")
        marks.mark("file", None)

    MetricsWriter.write_all = write_and_mark


def _mark_files(marks: Marks) -> None:
    replace = os.replace

    def marked(source, target, **options):
        phase = f"replacing {Path(target).name}"
        marks.mark("file", phase)
        marks.wait(phase)
        replace(source, target, **options)
        marks.wait(phase)
        marks.mark("file", None)

    os.replace = marked
