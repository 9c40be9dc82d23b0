"""Has a `bertfam` process write into a file what it is doing, as each phase begins and ends, so that whoever kills it knows.

A mark is a line of JSON: the process, the time (time.monotonic), the track, the phase that begins on it (null: none), and how
many updates were made, or blocks tokenised. Several things go on at once, each on a track of its own:

  main   importing, preparing, beginning or restoring, compiling, training, evaluating, saving
  save   writing, manifest, renaming, tidying, removing: a checkpoint, in the background
  cache  tokenising, finishing: a token cache, in a process of its own
  file   replacing NAME: a file or folder that was written beside it takes the place NAME;
         telling SPLIT ...: lines of metrics are written
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

_OF_STEPS = ("DIE", "STUCK", "FAULT", "PACE", "NAN", "MODULES")  # see bertfam_process.py


@dataclass(frozen=True)
class Mark:
    process: int
    time: float
    track: str
    phase: str | None
    step: int


def read(content: str) -> list[Mark]:
    """The marks of a file's content, but for a line that is not finished."""
    return [Mark(*json.loads(line)) for line in content.splitlines(keepends=True) if line.endswith("\n")]


_BEFORE = "what was before"


class Marks:
    """Writes marks; what was written before a kill is in the file."""

    def __init__(self, path: str, stretched: Mapping[str, float]) -> None:
        """`stretched`: the seconds that a phase waits before it does its work, and again after."""
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._stretched = stretched
        self._now: dict[str, str | None] = {}
        self.step = 0

    def mark(self, track: str, phase: str | None) -> None:
        self._now[track] = phase
        line = json.dumps([os.getpid(), time.monotonic(), track, phase, self.step]) + "\n"
        os.write(self._file, line.encode())

    def made(self, step: int) -> None:
        """So many updates were made."""
        self.step = step
        self.mark("main", "training")

    def wait(self, phase: str) -> None:
        time.sleep(self._stretched.get(phase.partition(" ")[0], 0.0))

    def around(self, place, name, track, phase, after=_BEFORE):
        """Marks `phase` for as long as place.name runs, and when it has run `after`, by default what was before."""
        function = getattr(place, name)

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
                self.mark(track, before if after is _BEFORE else after)

        setattr(place, name, marked)


def mark_phases(path: str, command: str) -> Marks:
    """Marks the phases of this process from now on.

    STRETCH=PHASE:SECONDS, several with commas between, makes phases longer.
    """
    words = filter(None, os.environ.get("STRETCH", "").split(","))
    marks = Marks(path, {name: float(seconds) for name, _, seconds in (word.partition(":") for word in words)})
    if command == "cache":
        _of_a_build(marks)
    else:
        marks.mark("main", "importing")
        _of_a_run(marks)
    _of_files(marks)
    return marks


def _of_a_build(marks: Marks) -> None:
    from bertfam.data.token_cache.build_folder import BuildFolder
    from bertfam.data.token_cache.writer import SplitWriter

    marks.around(BuildFolder, "start", "cache", "tokenising", after="tokenising")
    marks.around(BuildFolder, "finish", "cache", "finishing", after="finishing")
    marks.around(BuildFolder, "clear", "cache", "finishing")
    append = SplitWriter.append

    def append_slowly(self, block):
        append(self, block)
        marks.step += 1
        marks.mark("cache", "tokenising")
        marks.wait("tokenising")

    SplitWriter.append = append_slowly


def _of_a_run(marks: Marks) -> None:
    from bertfam.data.token_cache import build_process
    from bertfam.training.checkpoints import cleanup, store
    from bertfam.training.logs.metrics import MetricsWriter
    from bertfam.training.logs.phase_timer import PREPARING, STARTING, PhaseTimer
    from bertfam.training.trainer import Trainer

    # The process that builds the token cache marks its phases too.
    own = str(Path(__file__).with_name("bertfam_process.py"))

    def run(command, env, **options):
        assert command[:3] == [sys.executable, "-m", "bertfam"]
        env = {name: value for name, value in env.items() if name not in _OF_STEPS}
        return subprocess.run([sys.executable, own, *command[3:]], env=env, **options)

    build_process.subprocess = SimpleNamespace(run=run, DEVNULL=subprocess.DEVNULL)

    marks.around(Trainer, "new_state", "main", "beginning")
    marks.around(Trainer, "restored", "main", "restoring")
    begin = PhaseTimer.begin

    def mark_and_begin(self, doing, **options):
        if doing not in (STARTING, PREPARING):
            marks.mark("main", doing)
        begin(self, doing, **options)

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
    marks.around(store._Digested, "finalize", "save", "manifest", after="renaming")
    marks.around(cleanup, "_remove", "save", "removing")
    marks.around(store, "delete_unkept", "save", "tidying")
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
        marks.mark("file", f"telling {' '.join(splits)}")
        marks.wait("telling")
        write_all(self, step, splits)
        marks.wait("telling")
        marks.mark("file", None)

    MetricsWriter.write_all = write_and_mark


def _of_files(marks: Marks) -> None:
    replace = os.replace

    def marked(source, target, **options):
        phase = f"replacing {Path(target).name}"
        marks.mark("file", phase)
        marks.wait(phase)
        replace(source, target, **options)
        marks.wait(phase)
        marks.mark("file", None)

    os.replace = marked
