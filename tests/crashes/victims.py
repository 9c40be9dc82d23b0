"""A `bertfam pretrain` that is struck at some moment, and what is known of it afterwards."""

import itertools
import os
import re
import signal
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from command_line import started
from phases import Mark, read

# What a kill may hit.
START, CACHE, STEP, SAVE, EVALUATION, BOUNDARY = "start-up", "cache build", "step", "save", "evaluation", "stage boundary"
HITS = (START, CACHE, STEP, SAVE, EVALUATION, BOUNDARY)
_LONGEST = 300.0  # seconds
_GLANCE = 0.003  # seconds


@dataclass(frozen=True)
class Aim:
    """When to strike.

    Attributes:
      phase: once this phase is marked, or one that begins so; None: once the process has started.
      least: and at least so many updates were made.
      delay: and so many seconds have gone by.
      number: what it is sent. SIGKILL goes to all processes of the run, anything else to the first.
      target: what it is meant to hit.
    """

    phase: str | None = None
    least: int = 0
    delay: float = 0.0
    number: signal.Signals = signal.SIGKILL
    target: str | None = None


@dataclass(frozen=True)
class Ended:
    """How one process ended.

    Attributes:
      code: its exit status, 137 for SIGKILL.
      hits: what was under way at the end, as the process has marked it itself.
      doing: the same in its own words, by track.
      step: the updates made.
      resumed: the step that it said it went on from.
    """

    code: int
    hits: frozenset[str]
    doing: str
    step: int
    resumed: int | None
    out: str
    err: str


def run(words: Sequence[str], folder: Path, name: str, environment: Mapping[str, str], aim: Aim | None = None) -> Ended:
    """Runs a command to its end, or strikes it; FOLDER/NAME.{out,err,marks} are what it has written."""
    out, err, marks = (folder / f"{name}.{kind}" for kind in ("out", "err", "marks"))
    marks.touch()
    with open(out, "w") as stdout, open(err, "w") as stderr:
        options = {"stdout": stdout, "stderr": stderr, "start_new_session": True}
        process = started(words, {**environment, "MARKS": marks}, **options)
    try:
        if aim is not None:
            _strike(process, marks, aim)
        process.wait(_LONGEST)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    found = read(marks.read_text())
    resumed = re.search(r"^resumed from step ([\d,]+)$", out.read_text(), re.MULTILINE)
    return Ended(
        code,
        hits(found),
        ", ".join(f"{track} {phase}" for track, phase in standing(found).items()),
        max((mark.step for mark in found if mark.process == found[0].process), default=0),
        int(resumed[1].replace(",", "")) if resumed else None,
        out.read_text(),
        err.read_text(),
    )


def _strike(process, path: Path, aim: Aim) -> None:
    until = time.monotonic() + _LONGEST
    with open(path) as file:
        content = ""
        while process.poll() is None and time.monotonic() < until:
            content += file.read()
            end = content.rfind("\n") + 1
            new, content = read(content[:end]), content[end:]
            if aim.phase is None or any((mark.phase or "").startswith(aim.phase) and mark.step >= aim.least for mark in new):
                break
            time.sleep(_GLANCE)
    time.sleep(aim.delay)
    if process.poll() is None:
        (os.killpg if aim.number == signal.SIGKILL else os.kill)(process.pid, aim.number)


def standing(marks: Sequence[Mark]) -> dict[str, str]:
    """What is under way after the last mark, by track."""
    last = {mark.track: mark.phase for mark in marks}
    return {track: phase for track, phase in last.items() if phase is not None}


def hits(marks: Sequence[Mark]) -> frozenset[str]:
    """What is hit when nothing comes after the last mark."""
    now = standing(marks)
    if "cache" in now:
        return frozenset([CACHE])
    trained = any(mark.phase == "training" for mark in marks)
    main = {
        "training": STEP,
        "waiting for data": STEP,
        "evaluating": EVALUATION,
        "saving": SAVE,
        "compiling": BOUNDARY if trained else START,
    }
    return frozenset([main.get(now.get("main", ""), START)]) | ({SAVE} if "save" in now else set())


def durations(marks: Sequence[Mark]) -> dict[str, float]:
    """Seconds that each phase takes, the median; "starting" until the first update, and "all", without the token cache."""
    found: dict[str, list[float]] = {}
    for track in {mark.track for mark in marks}:
        for mark, after in itertools.pairwise(mark for mark in marks if mark.track == track):
            if mark.phase is not None:
                found.setdefault(mark.phase, []).append(after.time - mark.time)
    first = next(mark.time for mark in marks if mark.phase == "training")
    return {phase: statistics.median(times) for phase, times in found.items()} | {
        "starting": first - marks[0].time - _building(marks),
        "all": marks[-1].time - marks[0].time - _building(marks),
    }


def _building(marks: Sequence[Mark]) -> float:
    """Seconds that the process of a token cache has taken."""
    times = [mark.time for mark in marks if mark.process != marks[0].process]
    return max(times) - min(times) if times else 0.0
