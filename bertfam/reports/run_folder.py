"""Folders of runs as a report reads them: single ones, sweeps of seeds and learning rates, and studies.

finetune --seeds, --learning_rate:  DIR/seed_N, DIR/rate_RATE, DIR/rate_RATE/seed_N
ablate:                             DIR/runs/ARM/seed_N/model
"""

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path

from bertfam.errors import UserError
from bertfam.interop.folders import check_is_run
from bertfam.pages.line_chart import COLORS
from bertfam.reports.events import EventFile, read_events
from bertfam.storage.buckets import is_remote
from bertfam.storage.paths import to_path
from bertfam.training.logs import metrics_file, starts

MOST_RUNS = 64
_RUN_FILES = ("config.gin", metrics_file.NAME)
_MOST_ENTRIES = 1000  # of a folder that are looked at
_SWEPT = re.compile(r"(seed|rate)_(.+)")


@dataclass(frozen=True)
class ShownStart:
    """Start of a run as a page shows it.

    Attributes:
      step: number of updates made before.
      words: when and from where.
    """

    step: int
    words: str


@dataclass(frozen=True)
class RunFolder:
    """MODEL_DIR of a report.

    Attributes:
      path: the folder.
      label: its name on the page.
      group: folder of the seeds of one arm or learning rate; "" for a run of its own.
      study: folder of the study that it belongs to; None if it belongs to none.
      color: number of its colour.
    """

    path: Path
    label: str
    group: str = ""
    study: Path | None = None
    color: int = 0

    @cached_property
    def recorded(self) -> list[starts.Start]:
        """The starts that the run has recorded; [] for a run of an earlier version."""
        return starts.read(self.path)

    @cached_property
    def events(self) -> list[EventFile]:
        """The TensorBoard files, one of each start."""
        return read_events(self.path)

    @cached_property
    def starts(self) -> list[ShownStart]:
        """All starts, the first one first, by the run's own record or by its TensorBoard files."""
        if self.recorded:
            return [ShownStart(own.step, f"started {own.time} from update {own.step:,}") for own in self.recorded]
        times = [(own.step, datetime.fromtimestamp(own.time).astimezone().isoformat(timespec="seconds")) for own in self.events]
        return [ShownStart(step, f"started {time} from update {step:,}") for step, time in times]


def open_runs(folders: Sequence[str]) -> list[RunFolder]:
    """Return the runs of folders, those of a sweep or a study in the place of its folder.

    Raises:
      UserError: a folder holds no run, or there are more than `MOST_RUNS`.
    """
    # A folder that is given by several paths is shown once, by the first.
    paths: dict[str, Path] = {}
    for path in map(to_path, folders):
        paths.setdefault(_identity(path), path)
    found: list[RunFolder] = []
    for path in paths.values():
        own = _runs_in(path)
        if not own:
            check_is_run(path)
        found += own
    if len(found) > MOST_RUNS:
        raise UserError(f"the folders hold {len(found):,} runs, and a page shows at most {MOST_RUNS}: name fewer of them")
    return _colored(_named(found))


def _runs_in(folder: Path) -> list[RunFolder]:
    if _is_run(folder):
        return [RunFolder(folder, "")]
    if is_remote(folder):
        return []
    if arms := _folders(folder / "runs"):
        runs = [(arm, run) for arm in arms for run in _folders(arm) if run.name.startswith("seed_")]
        models = [(arm, run / "model") for arm, run in runs if _is_run(run / "model")]
        return [RunFolder(path, f"{arm.name} {path.parent.name}", str(arm), folder) for arm, path in models]
    found = []
    for swept in _folders(folder):
        if not _SWEPT.fullmatch(swept.name):
            continue
        if _is_run(swept):
            found.append(RunFolder(swept, f"{folder.name} {swept.name}", str(folder) if swept.name.startswith("seed") else ""))
        else:
            label = f"{folder.name} {swept.name}"
            found += [RunFolder(seed, f"{label} {seed.name}", str(swept)) for seed in _folders(swept) if _is_run(seed)]
    return found


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _RUN_FILES)


def _folders(folder: Path) -> list[Path]:
    """Return the folders in a folder, without links, which may lead anywhere, in the order of their names and numbers."""
    if not folder.is_dir() or folder.is_symlink():
        return []
    entries = sorted(folder.iterdir(), key=lambda path: _parts(path.name))
    return [path for path in entries[:_MOST_ENTRIES] if path.is_dir() and not path.is_symlink()]


def _parts(name: str) -> list[str | int]:
    """Return a name as text and numbers by turns, the text first."""
    return [int(part) if place % 2 else part for place, part in enumerate(re.split("([0-9]+)", name))]


def _named(runs: Sequence[RunFolder]) -> list[RunFolder]:
    """Name the runs of their own, and those whose label others have too, by as many last parts of their paths as differ."""
    names: dict[Path, str] = {}
    counts = Counter(run.label for run in runs)
    own = [run.path for run in runs if not run.label or counts[run.label] > 1]
    for path in own:
        parts = _absolute_parts(path)
        others = [_absolute_parts(other) for other in own if other != path]
        count = next((n for n in range(1, len(parts)) if not any(o[-n:] == parts[-n:] for o in others)), len(parts))
        names[path] = "/".join(parts[-count:])
    return [replace(run, label=names.get(run.path, run.label)) for run in runs]


def _identity(path: Path) -> str:
    return str(path) if is_remote(path) else os.path.realpath(path)


def _absolute_parts(path: Path) -> tuple[str, ...]:
    return tuple(part for part in (str(path) if is_remote(path) else str(path.absolute())).split("/") if part)


def _colored(runs: Sequence[RunFolder]) -> list[RunFolder]:
    """Give the runs of a group one colour, if there are several groups."""
    groups = [run.group or run.label for run in runs]
    keys = groups if len(set(groups)) > 1 else [run.label for run in runs]
    order = list(dict.fromkeys(keys))
    return [replace(run, color=order.index(key) % COLORS) for run, key in zip(runs, keys, strict=True)]
