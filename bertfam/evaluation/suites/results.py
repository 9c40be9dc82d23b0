"""Results of the runs of a suite, which a command that is started again keeps."""

import dataclasses
import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertfam.errors import UserError, warn_once
from bertfam.storage.faults import cannot_write
from bertfam.storage.files import write_text
from bertfam.storage.untrusted import check_subfolder, read_json, read_text, typed


@dataclass(frozen=True)
class Result:
    """Scores of one run.

    Attributes:
      scores: Each score by its name.
      outcomes: Score of each held-out text alone.
      settings: Settings of the run, by name.
    """

    scores: Mapping[str, float]
    outcomes: tuple[float, ...]
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class TaskFolder:
    """Folder of a model's results on a task: source.json, seed_N.json, and files of unfinished runs.

    Results that were made of something else (another step, other texts or settings) are not read, and `begin` removes them.

    Attributes:
      path: The folder.
      source: Everything that determines the results but the seed, as JSON.
    """

    path: Path
    source: Mapping[str, Any]

    def __post_init__(self) -> None:
        for folder in (self.path.parent.parent, self.path.parent, self.path):
            check_subfolder(folder)

    def read(self, seed: int) -> Result | None:
        """Return the result with a seed; None, with a warning, if it is damaged, and None if there is none."""
        file = self.path / f"seed_{seed}.json"
        if not self._is_own() or not file.is_file():
            return None
        try:
            return _result(file)
        except UserError as error:
            warn_once(f"{error}: it is measured again")
            return None

    def begin(self) -> None:
        """Make the folder, without results of another source; raise UserError if it cannot be made."""
        if not self._is_own():
            shutil.rmtree(self.path, ignore_errors=True)
            try:
                self.path.mkdir(parents=True)
            except OSError as error:
                raise cannot_write(self.path, error, "move away what is there") from error
            write_text(self._record, self._text)

    def write(self, seed: int, result: Result) -> None:
        """Write the result with a seed."""
        write_text(self.path / f"seed_{seed}.json", json.dumps(dataclasses.asdict(result)) + "\n")

    def tidy(self) -> None:
        """Remove what the runs share once all are finished."""
        shutil.rmtree(self.path / "cache", ignore_errors=True)

    @property
    def _record(self) -> Path:
        return self.path / "source.json"

    @property
    def _text(self) -> str:
        return json.dumps(self.source, sort_keys=True, default=str)

    def _is_own(self) -> bool:
        try:
            return self._record.is_file() and read_text(self._record) == self._text
        except UserError:
            return False


def _result(file: Path) -> Result:
    """Read a result; raise UserError if it is damaged."""
    values = read_json(file)
    scores, outcomes = typed(values, "scores", dict, file), typed(values, "outcomes", list, file)
    settings = typed(values, "settings", dict, file)
    if not scores or outcomes is None or settings is None or not all(map(_is_number, outcomes)):
        raise UserError(f"{file} holds no scores, outcomes and settings as a run writes them")
    if not all(_is_number(score) or score != score for score in scores.values()):  # a correlation with equal predictions is nan
        raise UserError(f"{file} holds a score that is no number")
    return Result(scores, tuple(outcomes), settings)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < math.inf
