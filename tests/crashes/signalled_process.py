"""A `bertfam pretrain` process that gets a signal at some moment, and its outcome."""

import itertools
import os
import re
import signal
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from command_line import in_process, started
from phases import Mark, read
from time_limits import ProcessLimit

# Parts of a run that a kill may hit.
START, CACHE, STEP, SAVE, EVALUATION, BOUNDARY = "start-up", "cache build", "step", "save", "evaluation", "stage boundary"
HITS = (START, CACHE, STEP, SAVE, EVALUATION, BOUNDARY)
_CPU_SECONDS = 300.0
_POLL_SECONDS = 0.003


@dataclass(frozen=True)
class SignalPlan:
    """Signal, and the moment to send it.

    Attributes:
      phase: phase that must be marked, or the first words of its name; None stands for the start of the process.
      least: number of updates that must have been made.
      delay: seconds to wait after that.
      number: the signal. SIGKILL goes to all processes of the run, others to the first.
      targets: the parts of the run that it is meant to hit together.
    """

    phase: str | None = None
    least: int = 0
    delay: float = 0.0
    number: signal.Signals = signal.SIGKILL
    targets: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Outcome:
    """Outcome of one process.

    Attributes:
      code: exit code, 137 for SIGKILL.
      hits: parts of the run that were under way at the end, according to the marks of the process.
      phases: phases that were marked at the end, by track.
      step: number of updates made, according to the marks.
      resumed: step that it resumed from, according to its output.
    """

    code: int
    hits: frozenset[str]
    phases: str
    step: int
    resumed: int | None
    out: str
    err: str


def run(words: Sequence[str], folder: Path, name: str, environment: Mapping[str, str], plan: SignalPlan | None = None) -> Outcome:
    """Run a command to its end, or send it a signal; it writes FOLDER/NAME.{out,err,marks}."""
    out, err, marks = (folder / f"{name}.{kind}" for kind in ("out", "err", "marks"))
    marks.touch()
    with open(out, "w") as stdout, open(err, "w") as stderr:
        options = {"stdout": stdout, "stderr": stderr, "start_new_session": True}
        process = started(words, {**environment, "MARKS": marks}, **options)
    limit = ProcessLimit(process, _CPU_SECONDS)
    try:
        if plan is not None:
            _send_signal(process, marks, plan, limit)
        limit.wait()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    all_marks = read(marks.read_text())
    return Outcome(
        code,
        hits(all_marks),
        ", ".join(f"{track} {phase}" for track, phase in running_phases(all_marks).items()),
        max((mark.step for mark in all_marks if mark.process == all_marks[0].process), default=0),
        _resumed(out.read_text()),
        out.read_text(),
        err.read_text(),
    )


def run_here(words: Sequence[str]) -> Outcome:
    """Run a command to its end in this process, which saves imports; it marks no phases."""
    done = in_process(*words)
    return Outcome(done.returncode, frozenset(), "", 0, _resumed(done.stdout), done.stdout, done.stderr)


def _resumed(out: str) -> int | None:
    line = re.search(r"^resumed from step ([\d,]+)$", out, re.MULTILINE)
    return int(line[1].replace(",", "")) if line else None


def _send_signal(process, path: Path, plan: SignalPlan, limit: ProcessLimit) -> None:
    with open(path) as file:
        content = ""
        while process.poll() is None:
            limit.check()
            content += file.read()
            end = content.rfind("\n") + 1
            new, content = read(content[:end]), content[end:]
            if plan.phase is None or any((mark.phase or "").startswith(plan.phase) and mark.step >= plan.least for mark in new):
                break
            time.sleep(_POLL_SECONDS)
    time.sleep(plan.delay)
    if process.poll() is None:
        (os.killpg if plan.number == signal.SIGKILL else os.kill)(process.pid, plan.number)


def running_phases(marks: Sequence[Mark]) -> dict[str, str]:
    """Return the phases that are under way after the last mark, by track."""
    last = {mark.track: mark.phase for mark in marks}
    return {track: phase for track, phase in last.items() if phase is not None}


def hits(marks: Sequence[Mark]) -> frozenset[str]:
    """Return the parts of a run that are hit if nothing comes after the last mark."""
    now = running_phases(marks)
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
    """Return the median seconds of each phase, and of "starting" and "all" without the token cache."""
    seconds: dict[str, list[float]] = {}
    for track in {mark.track for mark in marks}:
        for mark, after in itertools.pairwise(mark for mark in marks if mark.track == track):
            if mark.phase is not None:
                seconds.setdefault(mark.phase, []).append(after.time - mark.time)
    first = next(mark.time for mark in marks if mark.phase == "training")
    return {phase: statistics.median(times) for phase, times in seconds.items()} | {
        "starting": first - marks[0].time - _cache_seconds(marks),
        "all": marks[-1].time - marks[0].time - _cache_seconds(marks),
    }


def _cache_seconds(marks: Sequence[Mark]) -> float:
    """Return the seconds that the process of a token cache has taken."""
    times = [mark.time for mark in marks if mark.process != marks[0].process]
    return max(times) - min(times) if times else 0.0
